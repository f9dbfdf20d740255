"""Delta debugging for failures that are not monotone."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bisect_trt.search.oracle import Ask, Completion, Subset, Verdict

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
