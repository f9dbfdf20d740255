"""What must stay in fp32: the result passes, is 1-minimal, and cost no more questions than stated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Note, Remark, Subset, Verdict

pytestmark = pytest.mark.any_version
Predicate = Callable[[Subset], Verdict]


class Oracle:
    """Answers from a predicate; each question once, and never one whose answer the caller knows."""

    def __init__(self, count: int, predicate: Predicate) -> None:
        self._known = (frozenset(range(count)), frozenset[int]())
        self._predicate = predicate
        self.asked: list[Subset] = []
        self.passed: list[Subset] = []

    def __call__(self, kept: Subset) -> Verdict:
        assert kept not in self._known
        assert kept not in self.asked
        self.asked.append(kept)
        verdict = self._predicate(kept)
        if verdict is Verdict.PASS:
            self.passed.append(kept)
        return verdict


def needs(culprits: Sequence[int] | Subset) -> Predicate:
    wanted = frozenset(culprits)
    return lambda kept: Verdict.PASS if wanted <= kept else Verdict.FAIL


@st.composite
def hints(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Suspects, right or wrong, few or all, some of them no units; and groups of any units."""
    return {
        "groups": draw(st.lists(st.frozensets(st.integers(0, count + 3), max_size=9), max_size=4)),
        "suspects": draw(
            st.lists(st.integers(0, count + 3), max_size=draw(st.sampled_from([0, 5, count])))
        ),
    }


@given(st.data())
def test_monotone_checks_end_at_exactly_the_culprits(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 200))
    culprits = data.draw(
        st.frozensets(st.integers(0, count - 1), min_size=1, max_size=min(12, count))
    )
    oracle = Oracle(count, needs(culprits))
    minimum = find_keep(range(count), oracle, **data.draw(hints(count)))
    assert minimum.units == culprits
    assert minimum.proven
    assert minimum.remark is None
    # Nothing is kept that was not seen to be needed, so the proof finds nothing left to lower.
    assert len(culprits) in [s.figures[0] for s in minimum.steps if s.note == Note.LOWERED]
    # What passes only shrinks, so a search that is cut short has the best so far, which the oracle
    # was told of.
    assert all(
        later <= earlier for earlier, later in zip(oracle.passed, oracle.passed[1:], strict=False)
    )
    assert len(culprits) == count or minimum.units == oracle.passed[-1]


@st.composite
def any_predicate(draw: st.DrawFn) -> tuple[int, Predicate]:
    """Not monotone: passes if one of several sets is kept and another is not; some sets break in other ways."""
    count = draw(st.integers(1, 50))
    units = st.integers(0, count - 1)
    enough = draw(st.lists(st.frozensets(units, min_size=1, max_size=20), min_size=1, max_size=3))
    too_many = draw(st.lists(st.frozensets(units, min_size=1, max_size=4), max_size=3))
    breaks = draw(st.lists(st.tuples(units, units), max_size=4))

    def predicate(kept: Subset) -> Verdict:
        if any((one in kept) != (other in kept) for one, other in breaks):
            return Verdict.UNRESOLVED
        passes = any(each <= kept for each in enough) and not any(each <= kept for each in too_many)
        return Verdict.PASS if passes else Verdict.FAIL

    return count, predicate


@given(any_predicate(), st.data())
def test_any_check_ends_one_minimal(case: tuple[int, Predicate], data: st.DataObject) -> None:
    count, predicate = case
    whole = frozenset(range(count))
    oracle = Oracle(count, predicate)
    minimum = find_keep(range(count), oracle, **data.draw(hints(count)))
    assert minimum.proven
    assert minimum.units == whole or minimum.units in oracle.passed
    lowered = [minimum.units - {unit} for unit in minimum.units if len(minimum.units) > 1]
    assert set(lowered) <= set(oracle.asked)
    assert not set(lowered) & set(oracle.passed)
    broken = sum(predicate(kept) is Verdict.UNRESOLVED for kept in lowered)
    assert minimum.remark == (Remark(Note.LOWERED_BROKEN, (broken,)) if broken else None)


def test_right_suspects_are_a_passing_set_at_once_and_cost_little_more_than_their_proof() -> None:
    """13 norms of which two nodes each overflow, in a network of 850: known after one question."""
    culprits = [30 * norm + place for place in (3, 4) for norm in range(13)]
    oracle = Oracle(850, needs(culprits))
    minimum = find_keep(range(850), oracle, suspects=culprits)
    assert minimum.units == oracle.passed[0] == oracle.asked[0] == frozenset(culprits)
    assert len(oracle.asked) <= 1 + 26 + 2
    assert minimum.steps[0] == Remark(Note.SUSPECTED, (26, 850, "enough"))


def test_groups_of_suspects_are_left_out_before_single_ones() -> None:
    """26 suspects in 13 norms, of which one is needed: it is told after a question for each norm."""
    norms = [frozenset({30 * norm, 30 * norm + 1}) for norm in range(13)]
    suspects = sorted(frozenset().union(*norms))
    oracle = Oracle(850, needs(norms[4]))
    minimum = find_keep(range(850), oracle, suspects=suspects, groups=norms)
    assert minimum.units == norms[4]
    assert oracle.passed[-1] == norms[4]
    assert len(oracle.asked) <= 1 + 13 + 2
    assert all(
        len(before - after) != 1
        for before, after in zip(oracle.passed, oracle.passed[1:], strict=False)
    )
