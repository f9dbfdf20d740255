"""Which of some units are cheaper turned, where a cost can be measured of whole sets alone, and not often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bisect_trt.search.oracle import Subset


@dataclass(frozen=True)
class Cheaper:
    """The cheapest set that was measured.

    Attributes:
        units: It.
        cost: What it costs.
        asked: How many sets were measured.
        complete: Whether each unit was turned alone, with all others as they were then.
    """

    units: Subset
    cost: float
    asked: int
    complete: bool


def find_cheaper(
    units: Sequence[int], cost_of: Callable[[Subset], float | None], cost: float, margin: float, most: int
) -> Cheaper:
    """Turn all units, then halves, quarters and so on, down to single ones; what is clearly cheaper stays turned.

    Neighbours are turned together, because what lies between two of a kind costs nothing more. A hill climb over dyadic
    intervals: with costs that add up, and as many measurements as it takes (twice the units), it ends at the cheapest set.

    Args:
        units: In topological order.
        cost_of: What it costs with some of them turned; ``None`` where that is not allowed.
        cost: With none turned.
        margin: The share by which a set has to be cheaper.
        most: How many sets may be measured.
    """
    best, asked = frozenset[int](), 0
    waiting = deque([tuple(units)] if units else [])
    while waiting and asked < most:
        part = waiting.popleft()
        turned, asked = best ^ frozenset(part), asked + 1
        seen = cost_of(turned)
        if seen is not None and seen < cost * (1 - margin):
            best, cost = turned, seen
        if len(part) > 1:
            waiting += (part[: len(part) // 2], part[len(part) // 2 :])
    return Cheaper(best, cost, asked, not waiting)
