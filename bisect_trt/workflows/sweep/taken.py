"""Which sizes the model takes at all: many take multiples of something alone, and the reference says so without the target.

A budget that is spent on sizes which nothing runs finds nothing, and what lies between two sizes that the model takes is no size
that could pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bisect_trt.search.size_conditions import Point
from bisect_trt.workflows.sweep.dimensions import Dimension

Takes = Callable[[Point], bool]
"""Whether the reference runs the model at a point."""
_MOST = 128
"""So many sizes are asked about, to find one that the model takes and the next ones."""


def strided(swept: Sequence[Dimension], takes: Takes) -> list[Dimension]:
    """The dimensions with the sizes alone that the model takes, where these have one step.

    The next two sizes that it takes say the step; where they do not say the same one, or nothing between is refused, all stay.
    """
    start = next((point for point in starts(swept) if takes(point)), None)
    if start is None:
        return list(swept)
    return [_strided(each, start, place, takes) for place, each in enumerate(swept)]


def starts(swept: Sequence[Dimension]) -> Iterator[Point]:
    """Points at which a model may be expected to run: powers of two, then from the smallest sizes on, alike and not."""
    powers = [
        tuple(next((size for size in each.sizes if size >= 1 << bit), each.sizes[-1]) for each in swept)
        for bit in range(3, 11)
    ]
    first = [
        tuple(each.sizes[place * (1 + way * number) % len(each.sizes)] for number, each in enumerate(swept))
        for way in range(2)
        for place in range(_MOST // 2)
    ]
    yield from dict.fromkeys(powers + first)


def _strided(dimension: Dimension, start: Point, place: int, takes: Takes) -> Dimension:
    sizes = dimension.sizes
    here = sizes.index(start[place])
    for way in (sizes[here:], sizes[here::-1]):
        taken = []
        for number, size in enumerate(way[:_MOST]):
            if takes((*start[:place], size, *start[place + 1 :])):
                taken.append(number)
            if len(taken) == 3:
                break
        if len(taken) < 3:
            continue
        (first, second, third), step = taken, abs(way[taken[1]] - way[taken[0]])
        if second - first == 1 or third - second != second - first or abs(way[third] - way[second]) != step:
            break
        kept = tuple(size for size in sizes if (size - start[place]) % step == 0)
        return replace(dimension, sizes=kept, step=step)
    return dimension


def below(swept: Sequence[Dimension], point: Point, takes: Takes) -> list[Point]:
    """The points with the next smaller size of one dimension that the model takes."""
    found = []
    for place, (each, size) in enumerate(zip(swept, point, strict=True)):
        smaller = each.sizes[: each.sizes.index(size)][: -_MOST - 1 : -1]
        points = ((*point[:place], less, *point[place + 1 :]) for less in smaller)
        first = next(filter(takes, points), None)
        if first is not None:
            found.append(first)
    return found
