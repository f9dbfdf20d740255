"""Which sizes fail: where boundaries matter, by bisection between them, and by the rules that what was seen obeys.

Failures over sizes need not be monotone, so no answer here is about a size that was not tried: a rule is a guess that fits all
that was, and is said with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, product
from math import prod

from bisect_trt.search.oracle import Verdict
from bisect_trt.search.size_conditions import Point
from bisect_trt.search.size_relations import explore, foretells
from bisect_trt.search.size_rules import Rule, fit, intervals

AskSize = Callable[[Point], Verdict]

WINDOW = 18
"""So many sizes in a row show every period up to half of it twice."""
_CHECKS = 8
"""At so many sizes, spread over those not tried, a rule is put to the test."""


def landmarks(sizes: Sequence[int], more: Iterable[int] = ()) -> list[int]:
    """The sizes at which kernels and tactics change, of those there are, in the order in which they are tried.

    The ends and their neighbours, those named, 1 to 3, powers of two and their neighbours, tens.
    """
    low, high = min(sizes), max(sizes)
    powers = [1 << bit for bit in range(high.bit_length() + 1)]
    wanted = [low, high, *more, 1, 2, 3, low + 1, high - 1, *powers]
    wanted += [power + step for power in powers for step in (-1, 1)] + [10, 100, 1000]
    there = set(sizes)
    return [size for size in dict.fromkeys(wanted) if size in there]


class _Spent(Exception):  # noqa: N818 - how a line of questions ends
    """As many sizes were tried as may be."""


class _Line:
    """One dimension, the others held; sizes are in order."""

    def __init__(self, sizes: Sequence[int], ask: Callable[[int], Verdict], most: int) -> None:
        self.seen: dict[int, Verdict] = {}
        self._sizes = sizes
        self._places = {size: place for place, size in enumerate(sizes)}
        self._ask = ask
        self._left = most

    def try_all(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            if size in self.seen:
                continue
            if self._left <= 0:
                raise _Spent
            self._left -= 1
            self.seen[size] = self._ask(size)

    def bisect(self) -> None:
        """Until those next to each other differ, or nothing lies between them."""
        while middles := [
            self._sizes[(self._places[one] + self._places[other]) // 2]
            for one, other in pairwise(sorted(self.seen))
            if self.seen[one] is not self.seen[other] and self._places[other] - self._places[one] > 1
        ]:
            self.try_all(middles)

    def bisect_among(self, sizes: Sequence[int]) -> None:
        """The same among some sizes only, from the first to the last of them."""
        self.try_all([sizes[0], sizes[-1]])
        while True:
            tried = [place for place, size in enumerate(sizes) if size in self.seen]
            middles = [
                sizes[(one + other) // 2]
                for one, other in pairwise(tried)
                if self.seen[sizes[one]] is not self.seen[sizes[other]] and other - one > 1
            ]
            if not middles:
                return
            self.try_all(middles)

    def window(self) -> None:
        """Sizes in a row, around the shortest row of one verdict between others if it is short, else where most lie untried.

        None while all that were tried are alike: of those a wide net says more.
        """
        rows = intervals(self._sizes, self.seen)[1:-1]
        places = [tuple(self._places[end] for end in row.sizes) for row in rows]
        short = [
            (row.verdict is not Verdict.FAIL, high - low, low) for row, (low, high) in zip(rows, places, strict=True)
        ]
        tried = sorted(self.seen)
        gaps = [(self._places[other] - self._places[one], one) for one, other in pairwise(tried)]
        if short and min(short)[1] < WINDOW:
            self._around(self._sizes[min(short)[2] + min(short)[1] // 2])
        elif gaps and max(gaps)[0] > 1 and len(set(self.seen.values())) > 1:
            start = self._places[max(gaps)[1]]
            self.try_all(self._sizes[start : start + WINDOW])

    def _around(self, size: int) -> None:
        start = max(self._places[size] - WINDOW // 2, 0)
        self.try_all(self._sizes[start : start + WINDOW])

    def check_rule(self) -> None:
        """Put the rule that fits to the test, on sizes of both kinds, and the next one if it fails."""
        checked: set[Rule] = set()
        while (rule := fit(self.seen)) is not None and rule not in checked:
            checked.add(rule)
            if rule.kind == "residue" and rule.period is not None:
                self.bisect_among([size for size in self._sizes if size % rule.period == rule.remainder])
                if fit(self.seen) != rule:
                    continue
            untried = [size for size in self._sizes if size not in self.seen]
            for kind in (True, False):
                sizes = [size for size in untried if rule.fails(size) is kind]
                step = max(len(sizes) // (_CHECKS // 2), 1)
                self.try_all(sizes[step // 2 :: step][: _CHECKS // 2])
            self.bisect()

    def spread(self) -> None:
        """The middle of the widest gap, again and again; what lies around one that differs from both ends."""
        while True:
            tried = sorted(self.seen)
            width, one = max(((self._places[b] - self._places[a], a) for a, b in pairwise(tried)), default=(0, 0))
            if width < 2:
                return
            place = self._places[one] + width // 2
            self.try_all([self._sizes[place]])
            if self.seen[self._sizes[place]] is not self.seen[one]:
                self.bisect()
                self._around(self._sizes[place])
                self.bisect()
                self.check_rule()


def sweep_line(sizes: Sequence[int], ask: Callable[[int], Verdict], marks: Iterable[int], most: int) -> None:
    """Try the sizes of one dimension that say most, ``most`` of them; ``ask`` is told each once, in order of its worth."""
    line = _Line(sorted(sizes), ask, most)
    try:
        if len(sizes) <= most:
            line.try_all(sorted(sizes))
            return
        line.try_all(landmarks(sizes, marks))
        line.bisect()
        line.window()
        line.bisect()
        line.check_rule()
        line.spread()
    except _Spent:
        return


def sweep_points(
    axes: Sequence[Sequence[int]], ask: AskSize, marks: Sequence[Iterable[int]], most: int
) -> dict[Point, Verdict]:
    """Try the sizes of one dimension, or of several, that say most.

    Several are tried on a coarse grid of their landmarks first; then each by itself, through a point that fails with sizes as
    small as they may be, or the middle one if none fails; then what tells the rules apart that fit, and what is left is spread.

    Args:
        axes: The sizes of each dimension.
        ask: The verdict at a point; one that was asked before costs nothing.
        marks: Sizes of each that matter besides.
        most: How many points may be tried.

    Returns:
        The verdicts of those that were tried, in that order.
    """
    seen: dict[Point, Verdict] = {}

    def at(point: Point) -> Verdict:
        if point not in seen:
            if len(seen) >= most:
                raise _Spent
            seen[point] = ask(point)
        return seen[point]

    axes = [sorted(axis) for axis in axes]
    try:
        if prod(map(len, axes)) <= most:
            for point in product(*axes):
                at(point)
        elif len(axes) == 1:
            sweep_line(axes[0], lambda size: at((size,)), marks[0], most)
        else:
            _sweep_grid(axes, at, marks, most, seen)
    except _Spent:
        pass
    return seen


def _sweep_grid(
    axes: Sequence[Sequence[int]],
    at: AskSize,
    marks: Sequence[Iterable[int]],
    most: int,
    seen: Mapping[Point, Verdict],
) -> None:
    coarse = _coarse([sorted(landmarks(axis, more)) for axis, more in zip(axes, marks, strict=True)], most // 3)
    alike = sorted(set(axes[0]).intersection(*axes[1:]))
    for point in product(*coarse):
        at(point)
    for size in alike[len(alike) // 3 :: max(len(alike) // 3, 1)][:2]:
        at((size,) * len(axes))
    failing = [point for point, verdict in seen.items() if verdict is Verdict.FAIL]
    base = min(failing, key=lambda point: (prod(point), point), default=tuple(axis[len(axis) // 2] for axis in coarse))
    if failing:
        base = _lowest(axes, base, at)
    each = max(most - len(seen), 0) // (4 * len(axes))
    for place, axis in enumerate(axes):

        def along(size: int, place: int = place) -> Verdict:
            return at((*base[:place], size, *base[place + 1 :]))

        sweep_line(axis, along, marks[place], each)
    explore(axes, at, seen)
    # What is left is spread over all points, by steps that meet no multiple of an axis' length for long.
    number = prod(map(len, axes))
    for turn in range(number):
        point = nth(axes, turn * 7919 % number)
        foretold = foretells(seen, point)
        if point not in seen and foretold not in (None, at(point)):
            explore(axes, at, seen)


def _lowest(axes: Sequence[Sequence[int]], point: Point, ask: AskSize) -> Point:
    """A point that fails, each size of it by halves as small as it may be while the others stay; twice."""
    for place in (*range(len(axes)), *range(len(axes))):
        axis = axes[place]
        low, high = -1, axis.index(point[place])
        while high - low > 1:
            middle = (low + high) // 2
            fails = ask((*point[:place], axis[middle], *point[place + 1 :])) is Verdict.FAIL
            low, high = (low, middle) if fails else (middle, high)
        point = (*point[:place], axis[high], *point[place + 1 :])
    return point


def nth(axes: Sequence[Sequence[int]], number: int) -> Point:
    """The point of a number, the last size counting fastest."""
    sizes = []
    for axis in reversed(axes):
        number, place = divmod(number, len(axis))
        sizes.append(axis[place])
    return tuple(reversed(sizes))


def _coarse(axes: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Fewer sizes of each, ends included, so that all points of them together are not too many; two at least."""
    counts = [len(axis) for axis in axes]
    while prod(counts) > most and max(counts) > 2:
        counts[counts.index(max(counts))] -= 1
    return [
        [axis[round(step * (len(axis) - 1) / max(count - 1, 1))] for step in range(count)]
        for axis, count in zip(axes, counts, strict=True)
    ]
