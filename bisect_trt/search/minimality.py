"""The pass that makes a failing set 1-minimal, and is the proof that it is."""

from __future__ import annotations

from collections.abc import Iterable

from bisect_trt.search.oracle import Ask, Completion, Minimum
from bisect_trt.search.verdict import Verdict


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
    refused: set[int] = set()
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
                refused.add(unit)
        place = (place - 1) % len(chosen)
    return Minimum(frozenset(chosen), proven=True, why=_note(len(refused)))


def _note(refused: int) -> str | None:
    if not refused:
        return None
    return f"without {refused} of its units the model breaks in another way, so the failure is not seen without them"
