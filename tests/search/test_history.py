"""Edges of a stretch of failures: exact wherever it is one stretch, in few questions, and never where nothing can be told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.oracle import Verdict
from bisect_trt.search.ordered import History, find_edges

LETTERS = {"P": Verdict.PASS, "F": Verdict.FAIL, "U": Verdict.UNRESOLVED}


def find(history: Sequence[str], known: int | None = None, *, every: bool = False) -> History:
    asked: list[int] = []

    def ask(place: int) -> Verdict:
        assert place not in asked
        asked.append(place)
        return LETTERS[history[place]]

    found = find_edges(len(history), ask, known, every=every)
    assert sorted(found.seen) == sorted(asked)
    assert not every or len(asked) == len(history)
    return found


def edges(history: Sequence[str]) -> tuple[int, int]:
    """The first and the last failure of the newest stretch."""
    last = max(place for place, letter in enumerate(history) if letter == "F")
    first = last
    while (
        "F" in (before := history[:first])
        and "P" not in history[max(i for i, x in enumerate(before) if x == "F") : last]
    ):
        first = max(place for place, letter in enumerate(before) if letter == "F")
    return first, last


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 40), st.booleans())
def test_one_stretch(before: int, failing: int, after: int, every: bool) -> None:
    history = "P" * before + "F" * failing + "P" * after
    found = find(history, every=every)
    assert found.oldest is not None
    assert found.newest is not None
    assert (found.oldest.failing, found.oldest.passing) == (before, before - 1 if before else None)
    assert (found.newest.failing, found.newest.passing) == (
        before + failing - 1,
        before + failing if after else None,
    )
    assert found.oldest.between == found.newest.between == ()
    assert found.stretches == [
        (min(s for s in found.seen if history[s] == "F"), before + failing - 1)
    ]


@given(st.integers(0, 200), st.integers(1, 200), st.integers(0, 200), st.data())
def test_few_questions(before: int, failing: int, after: int, data: st.DataObject) -> None:
    history = "P" * before + "F" * failing + "P" * after
    known = data.draw(st.integers(before, before + failing - 1))
    found = find(history, known)
    assert len(found.seen) <= 3 + 2 * math.ceil(math.log2(len(history) + 1))
    if not (before and after):
        assert len(find(history).seen) <= 2 + math.ceil(math.log2(len(history) + 1))


@given(st.text("PFU", min_size=1, max_size=30), st.booleans())
def test_whatever_the_history_the_edges_were_seen(history: str, every: bool) -> None:
    found = find(history, every=every)
    if "F" not in history:
        assert found.oldest is None
        assert found.newest is None
        assert len(found.seen) == len(history)
        return
    assert found.oldest is not None
    assert found.newest is not None
    for edge, step in ((found.oldest, -1), (found.newest, 1)):
        assert history[edge.failing] == "F"
        if edge.passing is not None:
            assert history[edge.passing] == "P"
            assert list(edge.between) == sorted(range(edge.failing + step, edge.passing, step))
            assert {history[place] for place in edge.between} <= {"U"}
    assert found.oldest.failing <= found.newest.failing
    inside = {
        verdict
        for place, verdict in found.seen.items()
        if found.oldest.failing <= place <= found.newest.failing
    }
    assert Verdict.PASS not in inside
    newest = [place for place, verdict in found.seen.items() if verdict is Verdict.FAIL]
    assert found.newest.failing == max(newest)
    if every:
        assert (found.oldest.failing, found.newest.failing) == edges(history)
        assert len(found.stretches) == len(
            "".join(c for c in history if c != "U").replace("P", " ").split()
        )


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 12))
def test_what_says_nothing_at_one_end_hides_no_pass(
    untold: int, passing: int, failing: int
) -> None:
    """As where old releases cannot read the model, or new ones cannot be installed."""
    for history in (
        "U" * untold + "P" * passing + "F" * failing,
        "F" * failing + "P" * passing + "U" * untold,
    ):
        found = find(history)
        assert found.oldest is not None
        assert found.newest is not None
        here, there = (
            (found.oldest, found.newest) if history[-1] == "F" else (found.newest, found.oldest)
        )
        assert (here.passing is None) == (passing == 0)
        assert passing == 0 or abs(here.failing - (here.passing or 0)) == 1
        assert there.passing is None
