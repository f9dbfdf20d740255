"""Exact statistics and the sequential sign test: what it takes to decide, and how often it is wrong."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import combinations_with_replacement
from math import comb, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.statistics import (
    ERROR,
    SignTest,
    evidence,
    luck,
    luck_by_size,
    rate_interval,
)


@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.floats(0.5, 0.999),
)
def test_an_interval_ends_where_what_was_seen_becomes_unlikely(
    counts: tuple[int, int], confidence: float
) -> None:
    events, trials = counts
    low, high = rate_interval(events, trials, confidence)

    def chance(numbers: range, rate: float) -> float:
        return sum(
            comb(trials, number) * rate**number * (1 - rate) ** (trials - number)
            for number in numbers
        )

    assert 0 <= low <= events / trials <= high <= 1
    share = (1 - confidence) / 2
    assert (
        low == 0
        if events == 0
        else chance(range(events, trials + 1), low) == pytest.approx(share, rel=1e-6)
    )
    assert (
        high == 1
        if events == trials
        else chance(range(events + 1), high) == pytest.approx(share, rel=1e-6)
    )


def test_thirteen_cases_that_agree_are_enough_and_twelve_are_not() -> None:
    assert evidence(12, 12) < 1 / ERROR <= evidence(13, 13)


def test_a_fair_coin_is_almost_never_called_unfair_however_often_one_looks() -> None:
    """Exactly: of all sequences of 300 tosses, looked at after each, not one in a thousand."""
    open_cases = {0: 1.0}
    called = 0.0
    enough = 0
    for cases in range(1, 301):
        tossed: defaultdict[int, float] = defaultdict(float)
        for holds, chance in open_cases.items():
            tossed[holds] += chance / 2
            tossed[holds + 1] += chance / 2
        while enough <= cases and evidence(cases, enough) < 1 / ERROR:
            enough += 1
        called += sum(chance for holds, chance in tossed.items() if holds >= enough)
        open_cases = {holds: chance for holds, chance in tossed.items() if holds < enough}
    assert 0 < called <= ERROR


@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.floats(0.01, 0.99),
)
def test_evidence_is_the_mean_likelihood_of_larger_shares_by_that_of_the_share(
    counts: tuple[int, int], share: float
) -> None:
    holds, cases = counts
    steps = [share + (1 - share) * (place + 0.5) / 20000 for place in range(20000)]
    mean = (
        sum(
            (each / share) ** holds * ((1 - each) / (1 - share)) ** (cases - holds)
            for each in steps
        )
        / 20000
    )
    assert evidence(cases, holds, share) == pytest.approx(min(mean, 1e9), rel=1e-3) or mean > 1e9


def test_a_clear_majority_is_found() -> None:
    source = random.Random(2)
    for _ in range(200):
        test = SignTest()
        while not test.known:
            test.add(holds=source.random() < 0.9)
            assert test.cases < 300


verdicts = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=7)


@given(verdicts)
def test_luck_by_size_is_the_largest_likelihood_of_rates_that_rise(
    seen: list[tuple[int, bool]],
) -> None:
    """No rates on a grid make the verdicts likelier, and at one rate for all sizes they are less likely or as likely."""
    failing = [size for size, failed in seen if failed]
    passing = [size for size, failed in seen if not failed]
    largest = luck_by_size(failing, passing)
    grid = [step / 8 for step in range(9)]
    for rates in combinations_with_replacement(grid, 4):
        likelihood = prod(
            rates[size - 1] if failed else 1 - rates[size - 1] for size, failed in seen
        )
        assert likelihood <= largest + 1e-12
    assert luck(len(failing), [len(passing)]) <= largest + 1e-12
    assert luck_by_size([3, 3, 5], [1, 2]) == 1.0  # what is smaller passes
    assert luck_by_size([1, 1, 1], [2]) == pytest.approx(luck(3, [1]))
