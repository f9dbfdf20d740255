"""Checks that fail only sometimes: enough passes, no more, and the right answer."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeCheck, FakeRun, build, scratch
from hypothesis import given
from hypothesis import strategies as st
from support import rest_slow

from benchmarks.flaky import simulate, simulate_in_memory
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.statistics import MOST_PASSES, Flakiness
from bisect_trt.search.strategy import minimise

pytestmark = pytest.mark.any_version


def flakiness() -> st.SearchStrategy[Flakiness]:
    runs = st.integers(2, 60)
    return runs.flatmap(
        lambda runs: st.builds(
            Flakiness, st.just(runs), st.integers(1, runs), st.floats(0.5, 0.9999), st.integers(1, 100)
        )
    )


def missed(flaky: Flakiness, passes: int) -> float:
    """The chance that a failing candidate passes so often in a row.

    B(x + m, y) / B(x, y), where Beta(x, y) = Beta(1/2 + passes, 1/2 + failures) is the posterior of the chance of a pass.
    """
    x, y = flaky.runs - flaky.failures + 0.5, flaky.failures + 0.5
    log = math.lgamma(x + passes) - math.lgamma(x) + math.lgamma(x + y) - math.lgamma(x + y + passes)
    return math.exp(log)


@given(flakiness())
def test_as_many_passes_as_the_posterior_asks_for_and_no_more(flaky: Flakiness) -> None:
    needed = flaky.passes_needed
    if flaky.failures == flaky.runs:
        assert needed == 1
        return
    allowed = (1 - flaky.confidence) / flaky.verdicts
    assert needed == MOST_PASSES or missed(flaky, needed) <= allowed * (1 + 1e-9)
    assert missed(flaky, needed - 1) > allowed * (1 - 1e-9)


@given(flakiness(), st.integers(0, 300))
def test_the_confidence_that_is_stated_was_reached(flaky: Flakiness, verdicts: int) -> None:
    reached = flaky.reached(verdicts)
    assert 0 <= reached <= 1
    if flaky.failures < flaky.runs and flaky.passes_needed < MOST_PASSES:
        assert math.isclose(reached, max(1 - verdicts * missed(flaky, flaky.passes_needed), 0), abs_tol=1e-9)
        if verdicts <= flaky.verdicts:
            assert reached >= flaky.confidence - 1e-9


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("verdicts", [1, 5])
def test_the_error_is_what_is_promised(confidence: float, verdicts: int) -> None:
    """Monte Carlo: a rate as unknown as the prior has it, 20 runs of the original, then all the verdicts of a search.

    The rate that a user has is one draw; over all rates the share of searches that take a failing candidate for a
    passing one is at most 1 - confidence.
    """
    drawn = random.Random(7)
    wrong = total = 0
    while total < 4000:
        rate = drawn.betavariate(0.5, 0.5)
        failures = sum(drawn.random() < rate for _ in range(20))
        if not 0 < failures < 20:  # not reproduced, or taken for steady
            continue
        needed = Flakiness(20, failures, confidence, verdicts).passes_needed
        # Each verdict is wrong where a failing candidate passes every time.
        wrong += any((1 - rate) ** needed > drawn.random() for _ in range(verdicts))
        total += 1
    bound = 1 - confidence
    assert wrong / total <= bound + 4 * math.sqrt(bound * (1 - bound) / total)
    # Nor is it far surer than asked for, which would cost runs.
    if verdicts == 1:
        assert wrong / total >= bound / 10


class FlakyCheck(FakeCheck):
    """Sees the failure of a failing candidate only sometimes."""

    def __init__(self, culprit: int, rate: float, seed: int) -> None:
        self.runs = 0
        drawn = random.Random(seed)

        def predicate(units: Subset) -> Verdict:
            self.runs += 1
            return Verdict.FAIL if culprit in units and drawn.random() < rate else Verdict.PASS

        super().__init__(predicate)


@pytest.mark.parametrize("required", rest_slow([1, 2]))
def test_a_wrong_answer_is_hardly_ever_called_proven(required: int) -> None:
    """Rates from seldom to nearly always; `python -m benchmarks.flaky` makes as many searches as one likes."""
    ended = []
    for rate in (0.2, 0.5, 0.8, 0.9, 0.95, 0.99):
        for seed in range(6):
            for repeat in (1, 5, 20):
                with scratch() as folder:
                    ended.append(simulate(Path(folder), 1000 * seed + repeat, 60, rate, repeat, 1, required))
    wrong = sum(search is not None and search.proven and not search.right for search in ended)
    assert wrong <= 0.01 * len(ended)
    assert sum(search is not None and search.proven and search.right for search in ended) > 0.2 * len(ended)


@pytest.mark.parametrize(("rate", "required"), [(0.5, 1), (0.75, 1), (0.9, 2), (1.0, 5)])
def test_a_search_simulated_in_memory_is_the_same(rate: float, required: int) -> None:
    for seed in range(4):
        with scratch() as folder:
            recorded = simulate(Path(folder), seed, 60, rate, None, 1, required)
        assert recorded == simulate_in_memory(seed, 60, rate, required)


@pytest.mark.parametrize("until", [Verdict.FAIL, Verdict.PASS])
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 8))
def test_runs_end_with_the_answer_that_ends_them(until: Verdict, fails: list[bool], most: int) -> None:
    said = iter([*fails, *[until is Verdict.FAIL] * most])
    check = FakeCheck(lambda _: Verdict.FAIL if next(said) else Verdict.PASS)
    with scratch() as folder, FakeRun(Path(folder), check) as run:
        record = run.prober.probe(replace(build([0]), again=True, runs=most, until=until))
    taken = [*fails, *[until is Verdict.FAIL] * most][:most]
    ending = (until is Verdict.FAIL) in taken
    assert (record.verdict is until) == ending
    assert record.runs == (taken.index(until is Verdict.FAIL) + 1 if ending else most)


def test_the_failure_rate_is_measured_and_remembered(tmp_path: Path) -> None:
    check = FlakyCheck(3, 0.7, seed=1)
    with FakeRun(tmp_path, check) as run:
        run.reduce(8, lambda ask: minimise(range(8), ask), 20)
        first = run.prober.runner.flakiness
    assert first.runs == 20
    assert 0 < first.failures < 20
    assert f"({first.failures} of 20 runs fail)" in run.told.records[0].reason
    again = FlakyCheck(3, 0.0, seed=2)
    with FakeRun(tmp_path, again) as run:
        run.reduce(8, lambda ask: minimise(range(8), ask), 20)
        assert run.prober.runner.flakiness == first
    assert again.runs == 0
