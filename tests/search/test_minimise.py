"""Properties of the searches: the result fails, is 1-minimal, and cost no more probes than stated."""

from __future__ import annotations

import math

import pytest
from fakes import Case, Predicate, cases, culprits_among, needs
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.oracle import Mode, Subset, Verdict
from bisect_trt.search.strategy import minimise, shrink_end

pytestmark = pytest.mark.any_version


class Oracle:
    """Answers from a predicate and counts the different questions."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self.asked: dict[Subset, Verdict] = {}

    def __call__(self, units: Subset) -> Verdict:
        assert units, "the empty set is no model"
        return self.asked.setdefault(units, self._predicate(units))


@given(culprits_among(), st.sampled_from(Mode), st.data())
def test_monotone_failures_end_at_exactly_the_culprits(
    case: tuple[int, frozenset[int]], mode: Mode, data: st.DataObject
) -> None:
    """Whatever belongs together; by bisection at about the information bound."""
    count, culprits = case
    oracle = Oracle(needs(culprits))
    size = data.draw(st.integers(1, 12))
    minimum = minimise(range(count), oracle, mode)
    assert minimum.units == culprits
    assert minimum.proven
    # Each culprit: a bisection, a question whether that was all, and one for the proof.
    if mode is Mode.AUTO:
        assert len(oracle.asked) <= len(culprits) * (math.ceil(math.log2(max(count, 2))) + 3)
    patterns = Oracle(needs(culprits))
    grouped = minimise(
        range(count), patterns, mode, pattern=lambda u: frozenset(range(u // size * size, u + size))
    )
    assert (grouped.units, grouped.proven) == (culprits, True)


@given(st.integers(2, 1000), st.data())
def test_one_culprit_costs_one_bisection_and_one_question(count: int, data: st.DataObject) -> None:
    oracle = Oracle(needs([data.draw(st.integers(0, count - 1))]))
    minimise(range(count), oracle)
    assert len(oracle.asked) <= math.ceil(math.log2(count)) + 1


@given(culprits_among(), st.data())
def test_a_suspect_changes_the_cost_and_not_the_answer(
    case: tuple[int, frozenset[int]], data: st.DataObject
) -> None:
    count, culprits = case
    plain = Oracle(needs(culprits))
    guided = Oracle(needs(culprits))
    suspect = data.draw(st.integers(0, count - 1))
    assert (
        minimise(range(count), guided, suspect=suspect).units == minimise(range(count), plain).units
    )
    assert len(guided.asked) <= len(plain.asked) + math.ceil(math.log2(max(count, 2))) + 2
    if (
        suspect == max(culprits) and len(culprits) == 1
    ):  # the prefix that ends with it, the one before, and it alone
        assert len(guided.asked) <= 3


@given(cases(), st.sampled_from(Mode), st.data())
def test_any_failure_ends_one_minimal(case: Case, mode: Mode, data: st.DataObject) -> None:
    """Sets that broke in another way are named, and leave it unproven.

    What is wrongly thought to pass is no wrong answer.
    """
    count = case.count
    predicate = case.predicate
    oracle = Oracle(predicate)
    again = Oracle(predicate)
    passing = data.draw(st.integers(0, count - 1))
    minimum = minimise(range(count), oracle, mode, passing=passing)
    assert predicate(minimum.units) is Verdict.FAIL
    smaller = [minimum.units - {unit} for unit in minimum.units if len(minimum.units) > 1]
    assert all(predicate(rest) is not Verdict.FAIL for rest in smaller)
    broken = [sorted(rest) for rest in smaller if predicate(rest) is Verdict.UNRESOLVED]
    assert sorted(map(sorted, minimum.refused)) == sorted(broken)
    assert minimum.proven == (minimum.remark is None) == (not broken)
    assert minimise(range(count), again, mode, passing=passing) == minimum
    assert list(again.asked) == list(oracle.asked)


@given(culprits_among(most=3), st.data())
def test_units_that_come_along_are_left_out_in_the_end(
    case: tuple[int, frozenset[int]], data: st.DataObject
) -> None:
    """Even numbers are searched; the odd one after each comes along with it, and some are needed."""
    count, culprits = case
    needed = data.draw(st.frozensets(st.sampled_from(sorted(2 * c + 1 for c in culprits))))
    wanted = frozenset(2 * culprit for culprit in culprits) | needed

    def along(units: Subset) -> Subset:
        return units | {unit + 1 for unit in units if unit % 2 == 0}

    minimum = minimise(range(0, 2 * count, 2), Oracle(needs(wanted)), weights=along)
    assert minimum.units == wanted
    assert minimum.proven


@given(culprits_among(most=3))
def test_inseparable_units_stay_together(case: tuple[int, frozenset[int]]) -> None:
    count, culprits = case

    def pairs(units: Subset) -> Subset:
        return units | {unit - 1 for unit in units if unit % 2}

    minimum = minimise(range(count), Oracle(lambda s: needs(culprits)(pairs(s))), inseparable=pairs)
    assert culprits <= pairs(minimum.units)
    assert pairs(minimum.units) == pairs(culprits)


@given(culprits_among(most=3))
def test_one_end_at_a_time_stops_at_the_last_and_the_first_culprit(
    case: tuple[int, frozenset[int]],
) -> None:
    count, culprits = case
    assert shrink_end(range(count), Oracle(needs(culprits))).units == frozenset(
        range(max(culprits) + 1)
    )
    assert shrink_end(range(count)[::-1], Oracle(needs(culprits))).units == frozenset(
        range(min(culprits), count)
    )


@given(culprits_among(), st.data())
def test_what_is_known_to_pass_is_not_searched_again(
    case: tuple[int, frozenset[int]], data: st.DataObject
) -> None:
    """As after another failure was found: no prefix that ends before its last culprit fails."""
    count, culprits = case
    oracle = Oracle(needs(culprits))
    passing = data.draw(st.integers(0, max(culprits)))
    assert minimise(range(count), oracle, passing=passing).units == culprits
    if len(culprits) == 1:
        assert len(oracle.asked) <= math.ceil(math.log2(count - passing)) + 1
