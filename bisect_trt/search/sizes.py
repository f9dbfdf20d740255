"""Strategy over sizes: the whole grid, or one dimension at a time by landmarks and bisection.

Failures over sizes need not be monotone, so nothing is claimed about a size that was not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise, product
from math import prod
from typing import Any

from bisect_trt.search.oracle import Verdict

Point = tuple[int, ...]
"""A size for each swept dimension."""
AskSize = Callable[[Point], Verdict]

_MOST_STEPS = 64
"""The largest number of steps from the smallest failing point to smaller ones."""


def intervals(seen: Mapping[int, Verdict]) -> list[dict[str, Any]]:
    """Returns the tested sizes of one dimension in rows of one verdict, as plain values."""
    rows = [(verdict, list(row)) for verdict, row in groupby(sorted(seen), key=seen.__getitem__)]
    return [{"from": row[0], "to": row[-1], "verdict": verdict.value, "tried": row} for verdict, row in rows]


def landmarks(sizes: Sequence[int]) -> list[int]:
    """Returns the sizes at which kernels and tactics change: both ends, 1 to 3, powers of two, their neighbours, tens."""
    low, high = min(sizes), max(sizes)
    powers = [1 << bit for bit in range(high.bit_length() + 1)]
    beside = [power + step for power in powers for step in (-1, 1)]
    wanted = [low, high, 1, 2, 3, low + 1, high - 1, *powers, *beside, 10, 100, 1000]
    there = set(sizes)
    return [size for size in dict.fromkeys(wanted) if size in there]


def sweep_points(axes: Sequence[Sequence[int]], ask: AskSize, most: int) -> dict[Point, Verdict]:
    """Returns the verdicts of all points, or of at most ``most`` of them, in the order of the questions.

    Where the grid is larger, each dimension is swept with the others at the smallest failing point, or at their middle.

    Args:
        axes: The sizes of each dimension, in ascending order.
        ask: The verdict at a point.
        most: The largest number of points.
    """
    if prod(map(len, axes)) <= most:
        return {point: ask(point) for point in product(*axes)}
    ends = dict.fromkeys(tuple(axis[end] for axis in axes) for end in (0, -1))
    seen = {point: ask(point) for point in ends}
    for place, axis in enumerate(axes):
        base = smallest_failing(seen) or tuple(each[len(each) // 2] for each in axes)
        line = {
            point[place]: verdict for point, verdict in seen.items() if _replaced(base, place, point[place]) == point
        }
        share = (most - len(seen)) // (len(axes) - place) + len(line)
        first = axis if len(axis) <= share else landmarks(axis)[: max(share // 2, 2)]
        untried = (size for size in _by_worth(axis, first, line) if size not in line)
        for size in islice(untried, share - len(line)):
            line[size] = seen[_replaced(base, place, size)] = ask(_replaced(base, place, size))
    return seen


def _replaced(point: Point, place: int, size: int) -> Point:
    return (*point[:place], size, *point[place + 1 :])


def _by_worth(sizes: Sequence[int], first: Iterable[int], seen: Mapping[int, Verdict]) -> Iterator[int]:
    """The first sizes, then the middle of the widest gap, gaps between two verdicts before others; reads ``seen``."""
    yield from first
    while True:
        tried = [place for place, size in enumerate(sizes) if size in seen]
        gaps = [
            (seen[sizes[one]] is not seen[sizes[other]], other - one, one)
            for one, other in pairwise(tried)
            if other - one > 1
        ]
        if not gaps:
            return
        _, width, one = max(gaps)
        yield sizes[one + width // 2]


def smallest_failing(seen: Mapping[Point, Verdict]) -> Point | None:
    """Returns the failing point with the smallest product of sizes; ``None`` where none fails."""
    failing = (point for point, verdict in seen.items() if verdict is Verdict.FAIL)
    return min(failing, key=lambda point: (prod(point), point), default=None)


def go_down(seen: dict[Point, Verdict], ask: AskSize, below: Callable[[Point], Iterable[Point]]) -> None:
    """Adds to ``seen`` the way from the smallest failing point to one with no failing point of ``below`` it."""
    for _ in range(_MOST_STEPS):
        point = smallest_failing(seen)
        new = [] if point is None else [other for other in below(point) if other not in seen]
        seen.update((other, ask(other)) for other in new)
        if Verdict.FAIL not in (seen[other] for other in new):
            return
