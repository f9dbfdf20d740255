"""Delta debugging: leave out windows of units, then prove that no single unit can be left out.

It serves failures of which bisection learns little. Windows follow a fixed schedule of sizes, or are drawn by chance where the
failure comes and goes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import islice

from bisect_trt.search.oracle import Ask, Completion, Minimum, Subset, Verdict

_SMALL = 8
"""So few units are left out one by one as cheaply as in windows."""
_TRIED = 4
"""Number of units that are left out alone to see whether windows are worth their questions."""


def worth_counting(units: Subset, ask: Ask, complete: Completion = frozenset, *, lost: bool) -> bool:
    """Whether windows may leave out what one unit after the other would be dear for.

    Args:
        units: A set that is known to fail.
        ask: The oracle. Unless bisection was lost, it is asked about units that are left out alone until one can be; where
            none can, that is the proof, and nothing was asked in vain.
        complete: Adds to a set what its members cannot be cut from.
        lost: Whether bisection stopped early, because most candidates break in other ways.
    """
    if len(units) <= _SMALL:
        return False
    smaller = (complete(units - {unit}) for unit in sorted(units, reverse=True))
    tried = islice((without for without in smaller if 0 < len(without) < len(units)), _TRIED)
    return lost or any(ask(without) is Verdict.FAIL for without in tried)


_FIRST_CHANCE = 0.1
_GROWTH = 1 / (1 - math.exp(-1))


def reduce_by_counters(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Subset:
    """Leave out windows of units, smaller from round to round.

    Counter-based delta debugging, CDD (Zhang et al., "Deep Dive into Probabilistic Delta Debugging: Insights and
    Simplifications", 2024): probabilistic delta debugging amounts to a fixed schedule of window sizes. Each unit starts
    with a chance p of being needed; a round tries windows of about -1/ln(1-p) units, and each round raises p by
    1/(1-1/e). Unlike ddmin it never goes back to large windows, which costs it nothing where few units are needed.

    Args:
        units: A set that is known to fail.
        ask: The oracle.
        complete: Adds to a set what its members cannot be cut from.

    Returns:
        A set that was seen to fail (or is ``units``). Not necessarily 1-minimal: follow with ``make_minimal``.
    """
    chosen = sorted(units)
    chance = _FIRST_CHANCE
    while len(chosen) > 1:
        size = min(max(round(-1 / math.log1p(-chance)), 1), len(chosen) - 1)
        place = len(chosen)
        while place > 0 and len(chosen) > size:
            start = max(place - size, 0)
            without = complete(frozenset(chosen[:start] + chosen[place:]))
            if 0 < len(without) < len(chosen) and ask(without) is Verdict.FAIL:
                chosen = sorted(without)
            place = start
        if size == 1:
            break
        chance = min(chance * _GROWTH, 0.9)
    return frozenset(chosen)


_PATIENCE = 0.98
"""A window that could not be left out makes the next ones so much smaller; one that could makes them twice as large."""


def reduce_by_chance(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Subset:
    """Leave out windows anywhere, of half of the units at first: for a failure that comes and goes.

    There whatever failed did fail, though what passed may fail the next time, so nothing is taken from a pass, and no question
    rests on another. For one unit among N, seen in a share r of the runs, about 2 log2(N) / r questions lead to it; the least
    there can be is log2(N) over the capacity of a Z-channel, log2(1 + r (1 - r)^((1 - r) / r)), which at r = 0.2 is 12% less.

    Args:
        units: A set that was seen to fail.
        ask: The oracle.
        complete: Adds to a set what its members cannot be cut from.

    Returns:
        A set that was seen to fail (or is ``units``). Not necessarily 1-minimal: follow with ``make_minimal``.
    """
    chosen, share = sorted(units), 0.5
    tried: set[Subset] = set()
    anywhere = random.Random(len(chosen))  # the same for the same answers
    while share * len(chosen) >= 0.5 and len(chosen) > 1:
        size, start = max(round(share * len(chosen)), 1), anywhere.randrange(len(chosen))
        window = (chosen + chosen)[start : start + size]
        without = complete(frozenset(chosen).difference(window))
        new = 0 < len(without) < len(chosen) and without not in tried
        tried.add(without)
        if new and ask(without) is Verdict.FAIL:
            chosen, share = sorted(without), min(2 * share, 0.5)
        else:
            share *= _PATIENCE
    return frozenset(chosen)


def make_minimal(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Minimum:
    """Leave out units one at a time while the rest fails, then prove that no unit can be left out.

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


def neighbours(units: Subset, complete: Completion = frozenset) -> list[Subset]:
    """The sets with one unit less, and what cannot be without it; the first lacks the first unit. None is empty."""
    found = (complete(units - {unit}) for unit in sorted(units))
    return [without for without in dict.fromkeys(found) if without and without != units]


def _note(refused: int) -> str | None:
    if not refused:
        return None
    return f"without {refused} of its units the model breaks in another way, so the failure is not seen without them"
