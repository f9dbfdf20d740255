"""Proofs where the check may be flaky: what they rest on is asked again, and no more than that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.confirm import FLAKY, confirm, confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Again, Minimum, Original, Question, Subset, Transcript, Units, Verdict, about_units
from bisect_trt.search.statistics import Flakiness
from bisect_trt.search.strategy import minimise

pytestmark = pytest.mark.any_version


class Oracle:
    """Answers the first time from one predicate and again from another, and keeps the questions that ask again."""

    def __init__(self, first: Callable[[Subset], Verdict], again: Callable[[Question], Verdict] | None = None) -> None:
        self.again: list[Again] = []
        self._first = first
        self._again = again or self._first_time

    def __call__(self, question: Question) -> Verdict:
        if isinstance(question, Again):
            self.again.append(question)
            return self._again(question.question)
        return self._first_time(question)

    def _first_time(self, question: Question) -> Verdict:
        return self._first(question.units) if isinstance(question, Units) else Verdict.FAIL


def needs(culprits: Subset) -> Callable[[Subset], Verdict]:
    return lambda units: Verdict.FAIL if culprits <= units else Verdict.PASS


def search(count: int, oracle: Oracle, flakiness: Flakiness | None) -> Minimum:
    heard = Transcript(oracle)
    return confirm(minimise(range(count), about_units(heard)), heard, frozenset, flakiness)


@st.composite
def culprits_among(draw: st.DrawFn) -> tuple[int, Subset]:
    count = draw(st.integers(2, 100))
    return count, draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=8))


@given(culprits_among())
def test_a_steady_check_is_asked_a_question_more_than_it_has_culprits(case: tuple[int, Subset]) -> None:
    """And none where one unit fails alone: that it failed is the proof."""
    count, culprits = case
    oracle = Oracle(needs(culprits))
    minimum = search(count, oracle, None)
    assert (minimum.units, minimum.proven, minimum.why) == (culprits, True, None)
    parts = [Units(culprits - {unit}) for unit in sorted(culprits)]
    assert [again.question for again in oracle.again] == ([*parts, Original()] if len(culprits) > 1 else [])
    # Only where the search itself saw little of what is without a unit is that run twice.
    assert all(question.runs in (1, 2) for question in oracle.again)


@given(culprits_among(), st.integers(1, 60), st.floats(0.9, 0.999))
def test_a_measured_check_confirms_each_pass_that_the_proof_rests_on(
    case: tuple[int, Subset], runs: int, confidence: float
) -> None:
    count, culprits = case
    oracle = Oracle(needs(culprits))
    flakiness = Flakiness(runs, runs, confidence)
    minimum = search(count, oracle, flakiness)
    assert (minimum.units, minimum.proven, minimum.why) == (culprits, True, None)
    if len(culprits) == 1:
        assert not oracle.again
        return
    failures, passes = flakiness.confirmations(len(culprits))
    parts = {question.question: question.runs for question in oracle.again if question.until is Verdict.FAIL}
    assert parts == ({Units(culprits - {unit}): passes for unit in culprits} if passes else {})
    answers = [question for question in oracle.again if question.until is Verdict.PASS]
    assert answers == ([Again(Units(culprits), runs=failures, until=Verdict.PASS)] if failures else [])


@given(culprits_among(), st.sampled_from([None, Flakiness(1, 1), Flakiness(5, 5)]), st.data())
def test_a_pass_that_does_not_hold_makes_the_answer_smaller_and_unproven(
    case: tuple[int, Subset], flakiness: Flakiness | None, data: st.DataObject
) -> None:
    """It looked as if several units were needed; asked again, one is enough to fail."""
    count, seeming = case
    true = data.draw(st.sampled_from(sorted(seeming)))
    asked: list[Subset] = []

    def first(units: Subset) -> Verdict:
        # What was asked again has shown the truth; until then every unit seemed to be needed.
        return needs(frozenset({true}) if asked else seeming)(units)

    def again(question: Question) -> Verdict:
        assert isinstance(question, Units | Original)
        if isinstance(question, Original):
            return Verdict.FAIL
        asked.append(question.units)
        return needs(frozenset({true}))(question.units)

    minimum = search(count, Oracle(first, again), flakiness)
    if len(seeming) == 1:
        assert (minimum.units, minimum.proven) == (seeming, True)
    else:
        assert minimum.units == {true}
        assert minimum.why is not None
        assert minimum.why.startswith(FLAKY.partition("{")[0])
        # A unit that failed alone needs no pass.
        assert minimum.proven


@pytest.mark.parametrize("flakiness", [None, Flakiness(1, 1)])
def test_a_failure_that_does_not_hold_leaves_no_proof(flakiness: Flakiness | None) -> None:
    minimum = search(9, Oracle(needs(frozenset({2, 5})), lambda _: Verdict.PASS), flakiness)
    assert (minimum.units, minimum.proven) == (frozenset({2, 5}), False)
    assert minimum.why is not None
    assert "the check is flaky" in minimum.why
    assert ("the original failed" if flakiness is None else "the answer failed") in minimum.why
    assert "--repeat 20" in minimum.why


@given(st.integers(1, 60), st.integers(1, 40), st.floats(0.5, 0.9999))
def test_the_confirmations_are_enough_together(runs: int, decisive: int, confidence: float) -> None:
    failures, passes = Flakiness(runs, runs, confidence).confirmations(decisive)
    chance = 1.0
    for number in range(passes + 1):
        chance *= (0.5 + number) / (runs + failures + 1 + number)
    assert decisive * chance <= (1 - confidence) * (1 + 1e-9)


def keep(oracle: Oracle, flakiness: Flakiness) -> Minimum:
    return confirm_enough(find_keep(range(12), about_units(oracle)), oracle, flakiness)


def test_what_is_enough_is_asked_again() -> None:
    def enough(units: Subset) -> Verdict:
        return Verdict.PASS if {3, 7} <= units else Verdict.FAIL

    def nothing_passes(question: Question) -> Verdict:
        return Verdict.PASS if question == Units(frozenset()) else enough(getattr(question, "units", frozenset()))

    steady = Oracle(enough)
    assert keep(steady, Flakiness(1, 1)).proven
    failures, passes = Flakiness(1, 1).confirmations(1)
    assert steady.again == [
        Again(Units(frozenset({3, 7})), runs=passes),
        Again(Units(frozenset()), runs=failures, until=Verdict.PASS),
    ]
    for again, sentence in ((lambda _: Verdict.FAIL, "the answer passed"), (nothing_passes, "nothing kept")):
        minimum = keep(Oracle(enough, again), Flakiness(1, 1))
        assert not minimum.proven
        assert minimum.why is not None
        assert sentence in minimum.why
    flaky = Oracle(enough)
    assert keep(flaky, Flakiness(20, 12)).proven
    assert not flaky.again
