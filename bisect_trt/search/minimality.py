"""The pass that makes a failing set 1-minimal, and is the proof that it is; and where few are left, one that does better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

from bisect_trt.search.oracle import Ask, Completion, Minimum, Subset, Verdict

_FEW = range(3, 7)
"""Of so many units each pair is left out too, in 3 to 15 questions. Of two, that leaves nothing."""


def make_minimal(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Minimum:
    """Leave out one unit after the other for as long as the rest fails, then prove that none is left to leave out.

    A set is 1-minimal when it fails and no set with one unit less does (Zeller and Hildebrandt, "Simplifying and
    isolating failure-inducing input", TSE 2002). Nothing is assumed of sets that were not asked about, so the proof
    holds for failures that are not monotone too. A set of one unit needs no question.

    Args:
        units: A set that is known to fail.
        ask: The oracle.
        complete: Adds to a set what cannot be left out while the rest is in it; such units are never tried alone.

    Returns:
        The minimal set, proven; with a note where leaving out a unit breaks the model in another way.
    """
    chosen = sorted(units)
    refused: dict[int, Subset] = {}
    needed = 0  # in a row, since the set last shrank
    place = len(chosen) - 1
    while len(chosen) > 1 and needed < len(chosen):
        unit = chosen[place]
        without = complete(frozenset(chosen) - {unit})
        verdict = ask(without) if len(without) < len(chosen) else Verdict.PASS
        if verdict is Verdict.FAIL:
            chosen = sorted(without)
            refused.clear()
            needed = 0
            place = min(place, len(chosen))
        else:
            needed += 1
            if verdict is Verdict.UNRESOLVED:
                refused[unit] = without
        place = (place - 1) % len(chosen)
    return Minimum(frozenset(chosen), proven=True, why=_note(len(refused)), refused=tuple(refused.values()))


def make_smallest(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Minimum:
    """As :func:`make_minimal`, and where few are left, try to leave out two at a time as well.

    1-minimal is not smallest: where two units do harm only together, or undo each other, neither can be left out alone.
    """
    while True:
        minimum = make_minimal(units, ask, complete)
        if len(minimum.units) not in _FEW:
            return minimum
        tried = neighbours(minimum.units, complete)
        pairs = {complete(minimum.units - set(pair)) for pair in combinations(sorted(minimum.units), 2)}
        smaller = sorted((pair for pair in pairs - {minimum.units, *tried} if pair), key=sorted)
        failing = next((pair for pair in smaller if ask(pair) is Verdict.FAIL), None)
        if failing is None:
            return replace(minimum, pairs=True)
        units = failing


def neighbours(units: Subset, complete: Completion = frozenset) -> list[Subset]:
    """The sets with one unit less, and what cannot be without it; the first lacks the first unit. None is empty."""
    found = (complete(units - {unit}) for unit in sorted(units))
    return [without for without in dict.fromkeys(found) if without and without != units]


def _note(refused: int) -> str | None:
    if not refused:
        return None
    return f"without {refused} of its units the model breaks in another way, so the failure is not seen without them"
