"""Which sizes fail: landmarks, bisection between them, and the simple rule of one dimension that all tried sizes obey.

Failures over sizes need not be monotone, so no answer is about a size that was not tried: a rule only describes those that were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from bisect_trt.search.oracle import Verdict

Point = tuple[int, ...]
"""A size for each dimension that is swept."""
AskSize = Callable[[Point], Verdict]

WINDOW = 18
"""So many sizes in a row show every period up to half of it twice."""
_CHECKS = 8
"""A rule is tested at so many sizes, spread over those not tried."""
_MOST_PERIOD = 64


@dataclass(frozen=True)
class Rule:
    """What the sizes that fail have in common.

    Attributes:
        kind: ``never``, ``always``, ``from`` (``low`` on), ``up_to`` (``high``), ``between`` (``low`` and ``high``), ``only``
            (``low``), ``outside`` (of ``low`` to ``high``, which pass), ``residue`` or ``but_residue`` (``remainder`` modulo
            ``period``, between ``low`` and ``high``).
        low: The smallest size that was seen to fail; of ``outside`` to pass.
        high: The largest.
        period: Of a residue.
        remainder: The same.
    """

    kind: str
    low: int | None = None
    high: int | None = None
    period: int | None = None
    remainder: int | None = None

    def fails(self, size: int) -> bool:
        """What it says of a size."""
        if self.kind in ("never", "always"):
            return self.kind == "always"
        if self.kind == "from":
            return size >= (self.low or 0)
        if self.kind == "up_to":
            return size <= (self.high or 0)
        inside = (self.low or 0) <= size <= (self.high or 0)
        if self.period is None:
            return inside is not (self.kind == "outside")
        return inside and (size % self.period == self.remainder) is (self.kind == "residue")

    def describe(self) -> str:
        """In words, after "fails"."""
        if self.period is None:
            return {
                "never": "at no size",
                "always": "at every size",
                "from": f"from {self.low} on",
                "up_to": f"up to {self.high}",
                "between": f"from {self.low} to {self.high}",
                "only": f"at {self.low} only",
                "outside": f"at all sizes but {self.low}" + (f" to {self.high}" if self.high != self.low else ""),
            }[self.kind]
        sizes = {(2, 1): "odd sizes", (2, 0): "even sizes"}.get(
            (self.period, self.remainder or 0),
            f"multiples of {self.period}"
            if not self.remainder
            else f"sizes that leave {self.remainder} when divided by {self.period}",
        )
        span = f"from {self.low} to {self.high}"
        return f"at {sizes}, {span}" if self.kind == "residue" else f"at all but {sizes}, {span}"


def fit(seen: Mapping[int, Verdict]) -> Rule | None:
    """The simplest rule that every size which was tried obeys; ``None`` if none of these does."""
    fails = sorted(size for size, verdict in seen.items() if verdict is Verdict.FAIL)
    passes = sorted(size for size, verdict in seen.items() if verdict is Verdict.PASS)
    if not fails:
        return Rule("never") if passes else None
    low, high = fails[0], fails[-1]
    inside = [size for size in passes if low < size < high]
    kinds = {
        "always": not passes,
        "from": bool(passes) and low > passes[-1],
        "up_to": bool(passes) and high < passes[0],
        "only": len(fails) == 1,
        "between": not inside,
    }
    simple = next((kind for kind, fits in kinds.items() if fits), None)
    if simple is not None:
        return Rule(simple, low, high)
    if inside == passes and not any(passes[0] < size < passes[-1] for size in fails):
        return Rule("outside", passes[0], passes[-1])
    return _residue(fails, inside)


def _residue(fails: Sequence[int], inside: Sequence[int]) -> Rule | None:
    """A rule of remainders between the first size that fails and the last; ``inside`` pass and lie there too."""
    low, high = fails[0], fails[-1]
    for period in range(2, min(_MOST_PERIOD, high - low) + 1):
        for kind, ours, others in (("residue", fails, inside), ("but_residue", inside, fails)):
            remainders = {size % period for size in ours}
            if len(ours) > 2 and len(remainders) == 1 and not any(size % period in remainders for size in others):
                return Rule(kind, low, high, period, remainders.pop())
    return None


@dataclass(frozen=True)
class Interval:
    """Sizes in a row: all of those that were tried have one verdict.

    Attributes:
        sizes: Its ends, both tried.
        verdict: Of those that were tried.
        tried: These.
        inferred: The ends of each row of sizes between them that was not.
    """

    sizes: tuple[int, int]
    verdict: Verdict
    tried: tuple[int, ...]
    inferred: tuple[tuple[int, int], ...]


def intervals(sizes: Sequence[int], seen: Mapping[int, Verdict]) -> list[Interval]:
    """The sizes that were tried, in rows of one verdict, with what lies untried inside of each."""
    found: list[list[int]] = []
    for size in sorted(seen):
        if found and seen[found[-1][-1]] is seen[size]:
            found[-1].append(size)
        else:
            found.append([size])
    places = {size: place for place, size in enumerate(sizes)}
    return [
        Interval(
            (tried[0], tried[-1]),
            seen[tried[0]],
            tuple(tried),
            tuple(
                (sizes[places[one] + 1], sizes[places[other] - 1])
                for one, other in pairwise(tried)
                if places[other] - places[one] > 1
            ),
        )
        for tried in found
    ]


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
    small as they may be, or the middle one if none fails; what is left is spread over all points.

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
    """Try a coarse grid, then each dimension through the smallest point that fails, and spread what is left over all points."""
    coarse = _coarse([sorted(landmarks(axis, more)) for axis, more in zip(axes, marks, strict=True)], most // 3)
    for point in product(*coarse):
        at(point)
    failing = [point for point, verdict in seen.items() if verdict is Verdict.FAIL]
    base = min(failing, key=lambda point: (prod(point), point), default=tuple(axis[len(axis) // 2] for axis in coarse))
    if failing:
        base = _lowest(axes, base, at)
    each = max(most - len(seen), 0) // (2 * len(axes))
    for place, axis in enumerate(axes):

        def along(size: int, place: int = place) -> Verdict:
            return at((*base[:place], size, *base[place + 1 :]))

        sweep_line(axis, along, marks[place], each)
    # The steps meet no multiple of an axis' length for long.
    grid = Grid(axes)
    for turn in range(len(grid)):
        at(grid[turn * 7919 % len(grid)])


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


class Grid:
    """All points of some dimensions, by their number; the last size counts fastest."""

    def __init__(self, axes: Sequence[Sequence[int]]) -> None:
        """``axes`` has the sizes of each dimension."""
        self._axes = axes

    def __len__(self) -> int:
        return prod(map(len, self._axes))

    def __getitem__(self, number: int) -> Point:
        sizes = []
        for axis in reversed(self._axes):
            number, place = divmod(number, len(axis))
            sizes.append(axis[place])
        return tuple(reversed(sizes))

    def number(self, point: Point) -> int:
        """The number of a point."""
        number = 0
        for axis, size in zip(self._axes, point, strict=True):
            number = number * len(axis) + axis.index(size)
        return number


def _coarse(axes: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Fewer sizes of each, ends included, so that all points of them together are not too many; two at least."""
    counts = [len(axis) for axis in axes]
    while prod(counts) > most and max(counts) > 2:
        counts[counts.index(max(counts))] -= 1
    return [
        [axis[round(step * (len(axis) - 1) / max(count - 1, 1))] for step in range(count)]
        for axis, count in zip(axes, counts, strict=True)
    ]
