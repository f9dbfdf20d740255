"""Which algorithm, when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisect_trt.options.choices import Mode
from bisect_trt.search.counters import reduce_by_counters
from bisect_trt.search.culprits import Pattern, alone, earliest_failing_end, find_culprits, latest_failing_start
from bisect_trt.search.minimality import make_smallest
from bisect_trt.search.oracle import Ask, Completion, Minimum, Tally
from bisect_trt.search.prefixes import shortest_failing_prefix, shortest_failing_prefix_by_steps


def minimise(
    units: Sequence[int],
    ask: Ask,
    mode: Mode = Mode.AUTO,
    *,
    weights: Completion = frozenset,
    inseparable: Completion = frozenset,
    pattern: Pattern = alone,
    suspect: int | None = None,
) -> Minimum:
    """A 1-minimal failing set of units.

    Args:
        units: In topological order; with their weights they are known to fail.
        ask: The oracle.
        mode: How to search. Every mode ends with the same proof.
        weights: Adds the units that come along with others until the end of the search.
        inseparable: Adds the units that others can never be cut from.
        pattern: What a unit belongs together with, tried as a whole before its parts.
        suspect: The unit that is probably the last of the shortest failing prefix, if one is known.
    """
    tally = Tally(ask)
    steps: list[str] = []
    failing = weights(frozenset(units))
    if mode in (Mode.AUTO, Mode.BISECT):
        failing = find_culprits(units, tally, weights, pattern, suspect)
        steps.append(f"bisection of prefixes: {len(failing)} units left after {tally.asked} questions")
    if mode is Mode.DDMIN or (mode is Mode.AUTO and len(failing) > _SMALL):
        reason = "most candidates broke in other ways, so " if tally.mostly_unresolved else ""
        before = tally.asked
        failing = reduce_by_counters(failing, tally, inseparable)
        steps.append(f"{reason}delta debugging: {len(failing)} units left after {tally.asked - before} more questions")
    before = tally.asked
    minimum = make_smallest(failing, tally, inseparable)
    which = "none of the {}, and no two of them," if minimum.pairs else "none of the {}"
    steps.append(f"proof that {which.format(len(minimum.units))} can be left out: {tally.asked - before} questions")
    return replace(minimum, steps=tuple(steps))


_ONE_END = "only the {} of the graph could move, and with one unit {} it was seen not to fail"
_SMALL = 16
"""So few units are left out one by one as cheaply as in windows."""


def shrink_end(units: Sequence[int], ask: Ask, mode: Mode = Mode.AUTO) -> Minimum:
    """The earliest end at which the failure shows, the start kept.

    Args:
        units: In topological order; together they are known to fail.
        ask: The oracle.
        mode: ``linear`` tries each end in turn, the others bisect.
    """
    search = shortest_failing_prefix_by_steps if mode is Mode.LINEAR else shortest_failing_prefix
    return Minimum(earliest_failing_end(units, ask, search), proven=True, why=_ONE_END.format("end", "earlier"))


def shrink_start(units: Sequence[int], ask: Ask, mode: Mode = Mode.AUTO) -> Minimum:
    """The latest start from which the failure shows, the end kept."""
    search = shortest_failing_prefix_by_steps if mode is Mode.LINEAR else shortest_failing_prefix
    return Minimum(latest_failing_start(units, ask, search), proven=True, why=_ONE_END.format("start", "later"))
