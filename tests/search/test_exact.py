"""Exact statistics, against their definitions and against published figures."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.statistics import rate_interval


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_an_interval_ends_where_what_was_seen_becomes_unlikely(counts: tuple[int, int], confidence: float) -> None:
    events, trials = counts
    low, high = rate_interval(events, trials, confidence)

    def chance(numbers: range, rate: float) -> float:
        return sum(comb(trials, number) * rate**number * (1 - rate) ** (trials - number) for number in numbers)

    assert 0 <= low <= events / trials <= high <= 1
    share = (1 - confidence) / 2
    assert low == 0 if events == 0 else chance(range(events, trials + 1), low) == pytest.approx(share, rel=1e-6)
    assert high == 1 if events == trials else chance(range(events + 1), high) == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize(
    ("events", "trials", "interval"),
    [(0, 10, (0.0, 0.3085)), (1, 10, (0.0025, 0.4450)), (5, 10, (0.1871, 0.8129)), (10, 10, (0.6915, 1.0))],
)
def test_published_intervals(events: int, trials: int, interval: tuple[float, float]) -> None:
    assert rate_interval(events, trials, 0.95) == pytest.approx(interval, abs=1e-4)
