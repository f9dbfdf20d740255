"""Strategies over ordered spaces: the edges of a stretch of failures (releases, say), and failing sizes.

Edges are found as by ``git bisect``, with its way around undecided places (``git bisect skip``),
for both ends of a stretch of failures: which end of the order fails is not known beforehand.
Failures over sizes need not be monotone, so nothing is claimed about a size that was not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise, product
from math import prod

from msgspec import Struct

from bisect_trt.search.oracle import Verdict

AskOne = Callable[[int], Verdict]
"""Decides whether a place of the order fails."""


class Edge(Struct, frozen=True):
    """One end of a stretch of failures.

    Attributes:
        failing: The outermost place that is known to fail.
        passing: The next place that passes; ``None`` if the known failures go on to the end of the
            order.
        between: Places between the two that say nothing, so that the edge may be at any of them.
    """

    failing: int
    passing: int | None
    between: tuple[int, ...] = ()


class History(Struct, frozen=True):
    """The verdicts along an order.

    Attributes:
        seen: By place.
        oldest: The lower edge of the newest stretch of failures; ``None`` if nothing fails.
        newest: Its upper edge.
    """

    seen: Mapping[int, Verdict]
    oldest: Edge | None = None
    newest: Edge | None = None

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The first and the last place of each stretch of failures, as far as passes were seen between them."""
        stretches: list[tuple[int, int]] = []
        passed = True
        for place, verdict in sorted(self.seen.items()):
            if verdict is Verdict.FAIL:
                stretches[len(stretches) - (not passed) :] = [
                    (place if passed else stretches[-1][0], place)
                ]
            # An unresolved place neither ends a stretch nor begins one.
            passed = verdict is Verdict.PASS or (passed and verdict is not Verdict.FAIL)
        return stretches


def find_edges(
    count: int, ask: AskOne, likely_failing: int | None = None, *, every: bool = False
) -> History:
    """Find the newest stretch of failures and both its edges.

    Both ends of the order are asked; where neither fails and no failure is known, places are asked
    from the middle outward, each halving the largest gap, until one does. From there each edge
    takes about log2 N questions. What was not asked is taken to be like its neighbours, so a second
    stretch, or a gap in the first, may be missed.

    Args:
        count: How many places there are, the oldest first.
        ask: The oracle.
        likely_failing: A place that most likely fails.
        every: Whether to ask all of them, so that nothing is taken for granted.
    """
    verdicts: dict[int, Verdict] = {}

    def look(place: int) -> Verdict:
        if place not in verdicts:
            verdicts[place] = ask(place)
        return verdicts[place]

    ends = [count - 1, 0]
    for place in (
        range(count - 1, -1, -1) if every else [] if likely_failing is None else [likely_failing]
    ):
        look(place)
    if Verdict.FAIL not in verdicts.values() and all(
        look(p) is not Verdict.FAIL for p in [*ends, *_halving(count)]
    ):
        return History(verdicts)
    for place in ends:
        look(place)
    start = max(place for place, verdict in verdicts.items() if verdict is Verdict.FAIL)
    # The newest failure may move up while its upper edge is looked for.
    newest = _edge(range(start, count), look, verdicts)
    oldest = _edge(range(newest.failing, -1, -1), look, verdicts)
    return History(verdicts, oldest, newest)


def _halving(count: int) -> Iterator[int]:
    """Every place, the middle first, then the middles of both halves, and so on."""
    gaps = [(0, count)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < high:
            yield middle
            # Breadth first, so that places are spread evenly over the order at any time.
            gaps += [(low, middle), (middle + 1, high)]


def _edge(path: range, look: AskOne, verdicts: Mapping[int, Verdict]) -> Edge:
    """The edge along a path from a place that fails to an end of the order."""

    def steps_with(verdict: Verdict) -> list[int]:
        return [step for step, place in enumerate(path) if verdicts.get(place) is verdict]

    end = len(path) - 1
    if not steps_with(Verdict.PASS) and end > 0 and look(path[end]) is Verdict.UNRESOLVED:
        # What is as old as this may say nothing at all, and what passes may lie between.
        low = max(steps_with(Verdict.FAIL))
        high = end
        while high - low > 1 and not steps_with(Verdict.PASS):
            middle = (low + high) // 2
            if look(path[middle]) is Verdict.FAIL:
                low = middle
            else:
                high = middle
        for step in range(low + 1, end):
            if steps_with(Verdict.PASS):
                break
            look(path[step])
    if not steps_with(Verdict.PASS):
        return Edge(path[max(steps_with(Verdict.FAIL))], None)
    while True:
        passing = min(steps_with(Verdict.PASS))
        failing = max(step for step in steps_with(Verdict.FAIL) if step < passing)
        between = range(failing + 1, passing)
        unasked = [step for step in between if path[step] not in verdicts]
        if not unasked:
            return Edge(path[failing], path[passing], tuple(sorted(path[step] for step in between)))
        # The undecided place nearest to the middle halves what is left, as in git bisect.
        look(path[min(unasked, key=lambda step: abs(2 * step - failing - passing))])


Point = tuple[int, ...]
"""A size for each swept dimension."""
AskSize = Callable[[Point], Verdict]

_MOST_STEPS = 64
"""The largest number of steps from the smallest failing point to smaller ones."""


def intervals(verdicts: Mapping[int, Verdict]) -> list[tuple[Verdict, list[int]]]:
    """Returns the tested sizes of one dimension in rows of one verdict."""
    return [
        (verdict, list(row)) for verdict, row in groupby(sorted(verdicts), key=verdicts.__getitem__)
    ]


def landmarks(sizes: Sequence[int]) -> list[int]:
    """Returns the sizes at which kernels and tactics change: both ends, 1 to 3, powers of two, their neighbours, tens."""
    low = min(sizes)
    high = max(sizes)
    powers = [1 << bit for bit in range(high.bit_length() + 1)]
    neighbours = [power + step for power in powers for step in (-1, 1)]
    wanted = [low, high, 1, 2, 3, low + 1, high - 1, *powers, *neighbours, 10, 100, 1000]
    available = set(sizes)
    return [size for size in dict.fromkeys(wanted) if size in available]


def sweep_points(
    axes: Sequence[Sequence[int]], ask: AskSize, max_points: int
) -> dict[Point, Verdict]:
    """Returns the verdicts of all points, or of at most ``max_points`` of them, in the order of the questions.

    Where the grid is larger, each dimension is swept with the others at the smallest failing point,
    or at their middle.

    Args:
        axes: The sizes of each dimension, in ascending order.
        ask: The oracle: the verdict at a point.
        max_points: The largest number of points to ask about.
    """
    if prod(map(len, axes)) <= max_points:
        return {point: ask(point) for point in product(*axes)}
    ends = dict.fromkeys(tuple(axis[end] for axis in axes) for end in (0, -1))
    verdicts = {point: ask(point) for point in ends}
    for place, axis in enumerate(axes):
        base = smallest_failing(verdicts) or tuple(sizes[len(sizes) // 2] for sizes in axes)
        line = {
            point[place]: verdict
            for point, verdict in verdicts.items()
            if _replaced(base, place, point[place]) == point
        }
        # The remaining questions are divided evenly among the dimensions that are left.
        share = (max_points - len(verdicts)) // (len(axes) - place) + len(line)
        first = axis if len(axis) <= share else landmarks(axis)[: max(share // 2, 2)]
        untried = (size for size in _by_worth(axis, first, line) if size not in line)
        for size in islice(untried, share - len(line)):
            line[size] = verdicts[_replaced(base, place, size)] = ask(_replaced(base, place, size))
    return verdicts


def _replaced(point: Point, place: int, size: int) -> Point:
    return (*point[:place], size, *point[place + 1 :])


def _by_worth(
    sizes: Sequence[int], first: Iterable[int], verdicts: Mapping[int, Verdict]
) -> Iterator[int]:
    """The first sizes, then the middle of the widest gap, gaps between two verdicts before others; reads ``verdicts``."""
    yield from first
    while True:
        tried = [place for place, size in enumerate(sizes) if size in verdicts]
        gaps = [
            (verdicts[sizes[one]] is not verdicts[sizes[upper]], upper - one, one)
            for one, upper in pairwise(tried)
            if upper - one > 1
        ]
        if not gaps:
            return
        # A gap between two verdicts has a boundary in it for certain.
        _, width, one = max(gaps)
        yield sizes[one + width // 2]


def smallest_failing(verdicts: Mapping[Point, Verdict]) -> Point | None:
    """Returns the failing point with the smallest product of sizes; ``None`` where none fails."""
    failing = (point for point, verdict in verdicts.items() if verdict is Verdict.FAIL)
    return min(failing, key=lambda point: (prod(point), point), default=None)


def go_down(
    verdicts: dict[Point, Verdict], ask: AskSize, below: Callable[[Point], Iterable[Point]]
) -> None:
    """Adds to ``verdicts`` the way from the smallest failing point to one with no failing point of ``below`` it.

    Args:
        verdicts: Verdicts by point; it is extended in place.
        ask: The oracle: the verdict at a point.
        below: Returns the next smaller points of a point.
    """
    for _ in range(_MOST_STEPS):
        point = smallest_failing(verdicts)
        new = (
            []
            if point is None
            else [smaller for smaller in below(point) if smaller not in verdicts]
        )
        verdicts.update((smaller, ask(smaller)) for smaller in new)
        if Verdict.FAIL not in (verdicts[smaller] for smaller in new):
            return
