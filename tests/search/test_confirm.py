"""Proofs where the check may be flaky: what they rest on is asked again, and no more than that."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from fakes import culprits_among, needs
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.flaky import steady_runs
from bisect_trt.search.confirm import confirm, confirm_enough, read_back
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import (
    Again,
    Minimum,
    Note,
    Original,
    Question,
    Remark,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.statistics import Flakiness, confirmations
from bisect_trt.search.strategy import minimise

pytestmark = pytest.mark.any_version


class Oracle:
    """Answers the first time from one predicate and again from another, and keeps the questions that ask again."""

    def __init__(
        self, first: Callable[[Subset], Verdict], again: Callable[[Question], Verdict] | None = None
    ) -> None:
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


def search(count: int, oracle: Oracle, flakiness: Flakiness | None) -> Minimum:
    heard = Transcript(oracle)
    minimum = minimise(range(count), about_units(heard))
    minimum = confirm(minimum, heard, frozenset, flakiness, frozenset(range(count)).difference)
    return read_back(minimum, heard)


some_culprits = culprits_among(2, 100, 8)


@given(some_culprits)
def test_a_steady_check_is_asked_little_again(case: tuple[int, Subset]) -> None:
    """And nothing where one unit fails alone: that it failed is the proof."""
    count, culprits = case
    oracle = Oracle(needs(culprits))
    minimum = search(count, oracle, None)
    assert (minimum.units, minimum.proven, minimum.remark) == (culprits, True, None)
    assert minimum.rest_passes is (len(culprits) > 1)
    assert oracle.again.pop().runs is None  # the answer, read back
    assert len(oracle.again) <= (len(culprits) + 1 if len(culprits) > 1 else 0)


@pytest.mark.parametrize(("required", "most"), [(2, 380), (5, 770)])
def test_a_steady_check_runs_seldom_in_all(required: int, most: int) -> None:
    assert steady_runs(required) <= most


@pytest.mark.parametrize(
    ("second", "rest_passes", "again"),
    [(None, True, 5), (frozenset({20, 21}), False, 6), (frozenset({7, 20}), False, 7)],
    ids=["none", "in the rest", "shares a unit"],
)
def test_all_units_but_one_show_whether_the_rest_fails(
    second: Subset | None, again: int, *, rest_passes: bool
) -> None:
    found = frozenset({3, 7})
    everything = frozenset(range(30))

    def check(units: Subset) -> Verdict:
        return (
            Verdict.FAIL
            if found <= units or (second is not None and second <= units)
            else Verdict.PASS
        )

    oracle = Oracle(check)
    heard = Transcript(oracle)
    for unit in sorted(found, reverse=True):
        heard(Units(frozenset({unit})))
    minimum = confirm(Minimum(found, proven=True), heard, frozenset, None, everything.difference)
    assert (minimum.units, minimum.proven, minimum.rest_passes) == (found, True, rest_passes)
    assert sum(question.runs or 1 for question in oracle.again) >= again


@given(some_culprits, st.integers(1, 60), st.floats(0.9, 0.999))
def test_a_measured_check_is_confirmed_to_the_confidence_that_is_asked_for(
    case: tuple[int, Subset], runs: int, confidence: float
) -> None:
    count, culprits = case
    oracle = Oracle(needs(culprits))
    minimum = search(count, oracle, Flakiness(runs, runs, confidence))
    assert (minimum.units, minimum.proven, minimum.remark) == (culprits, True, None)
    assert {again.question for again in oracle.again} <= {
        Units(culprits),
        *(Units(culprits - {unit}) for unit in culprits),
    }


@pytest.mark.parametrize("steady", [True, False])
def test_what_passed_although_it_holds_the_answer_is_asked_again(*, steady: bool) -> None:
    """It fails with 3 and 7, but not with 20 beside them; or it came and went."""
    larger = frozenset({3, 7, 20})

    def again(question: Question) -> Verdict:
        about = getattr(question, "units", larger)
        return needs(frozenset({3, 7}))(about) if about != larger or not steady else Verdict.PASS

    oracle = Oracle(
        lambda units: Verdict.PASS if units == larger else needs(frozenset({3, 7}))(units), again
    )
    heard = Transcript(oracle)
    assert heard(Units(larger)) is Verdict.PASS
    assert confirm(Minimum(frozenset({3, 7}), proven=True), heard, frozenset, None).proven is steady
    assert (
        sum(question.runs or 0 for question in oracle.again if question.question == Units(larger))
        == 3
    )


@given(some_culprits, st.sampled_from([None, Flakiness(1, 1), Flakiness(5, 5)]), st.data())
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
    # What passed often enough while it was searched is not asked again: that it was chance each
    # time is unlikely.
    if len(seeming) == 1 or not any(true in units for units in asked if units != seeming):
        assert (minimum.units, minimum.proven) == (seeming, True)
    else:
        assert minimum.units == {true}
        assert minimum.remark == Remark(Note.ANSWERED_BOTH)
        # A unit that failed alone needs no pass.
        assert minimum.proven


def test_two_steady_failures_with_common_units_are_not_said_to_be_flaky() -> None:
    """The model without a unit of the one fails by the other, which is no chance."""
    for seed in range(60):
        draw = random.Random(seed)
        count = draw.randrange(8, 60)
        one = frozenset(draw.sample(range(count), draw.randrange(2, 6)))
        other = one - {min(one)} | {draw.randrange(count)}

        def fails(units: Subset, sets: Sequence[Subset] = (one, other)) -> Verdict:
            return Verdict.FAIL if any(each <= units for each in sets) else Verdict.PASS

        minimum = search(count, Oracle(fails), None)
        assert minimum.proven or minimum.remark == Remark(Note.NOT_NEEDED), seed


@pytest.mark.parametrize("flakiness", [Flakiness(1, 1), Flakiness(1, 1, 0.999)])
def test_a_failure_that_does_not_hold_leaves_no_proof(flakiness: Flakiness) -> None:
    minimum = search(9, Oracle(needs(frozenset({2, 5})), lambda _: Verdict.PASS), flakiness)
    assert (minimum.units, minimum.proven) == (frozenset({2, 5}), False)
    assert minimum.remark == Remark(Note.ANSWER_PASSED)


@given(
    st.integers(1, 60), st.lists(st.integers(0, 6), min_size=1, max_size=9), st.floats(0.5, 0.9999)
)
def test_the_confirmations_are_enough_together_at_any_rate(
    runs: int, seen: list[int], confidence: float
) -> None:
    failures, passes = confirmations(runs, seen, 1 - confidence)
    for rate in (number / 200 for number in range(201)):
        each = ((1 - rate) ** (before + more) for before, more in zip(seen, passes, strict=True))
        assert rate ** (runs + failures) * sum(each) <= len(seen) * (1 - confidence) * (1 + 1e-9)


def keep(oracle: Oracle, flakiness: Flakiness) -> Minimum:
    return confirm_enough(find_keep(range(12), about_units(oracle)), oracle, flakiness)


def test_what_is_enough_is_asked_again() -> None:
    def enough(units: Subset) -> Verdict:
        return Verdict.PASS if {3, 7} <= units else Verdict.FAIL

    def nothing_passes(question: Question) -> Verdict:
        return (
            Verdict.PASS
            if question == Units(frozenset())
            else enough(getattr(question, "units", frozenset()))
        )

    steady = Oracle(enough)
    assert keep(steady, Flakiness(1, 1)).proven
    failures, (passes,) = confirmations(1, [1], 0.01)
    assert steady.again == [
        Again(Units(frozenset({3, 7})), runs=passes),
        Again(Units(frozenset()), runs=failures, until=Verdict.PASS),
    ]
    cases: tuple[tuple[Callable[[Question], Verdict], Note], ...] = (
        (lambda _: Verdict.FAIL, Note.KEPT_FAILED),
        (nothing_passes, Note.NOTHING_PASSED),
    )
    for again, note in cases:
        minimum = keep(Oracle(enough, again), Flakiness(1, 1))
        assert not minimum.proven
        assert minimum.remark == Remark(note)
    flaky = Oracle(enough)
    assert keep(flaky, Flakiness(20, 12)).proven
    assert not flaky.again


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_unit_that_only_small_models_need_is_left_out_of_a_large_one(count: int) -> None:
    """A failure that shows more rarely in smaller models passes there by chance without a unit."""
    every = frozenset(range(200))
    answer = frozenset(range(count))
    asked: list[Subset] = []

    def check(units: Subset) -> Verdict:
        asked.append(units)
        return needs(answer)(units)

    heard = Transcript(Oracle(check))
    for size in (count, *range(20, 200, 10)):
        assert heard(Units(frozenset(range(size)))) is Verdict.FAIL
    for unit, extra in product(answer, range(194, 200)):
        assert heard(Units(answer - {unit} | {extra})) is Verdict.PASS
    minimum = confirm(Minimum(answer, proven=True), heard, frozenset, None, every.difference)
    assert minimum.proven
    assert all(every - {unit} in asked for unit in answer)
