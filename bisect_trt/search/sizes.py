"""Which sizes fail: landmarks, bisection between them, and the simple rule of one dimension that all tried sizes obey.

Failures over sizes need not be monotone, so nothing is claimed about a size that was not tried: a rule describes those that were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from math import prod
from typing import Any

from bisect_trt.search.oracle import Verdict

Point = tuple[int, ...]
"""A size for each dimension that is swept."""
AskSize = Callable[[Point], Verdict]

WINDOW = 18
"""So many sizes in a row show every period up to half of it twice."""
_MOST_PERIOD = 64
_MOST_STEPS = 64
"""So many points below the smallest that fails are tried one after the other."""


@dataclass(frozen=True)
class Rule:
    """What the sizes that fail have in common.

    Attributes:
        kind: ``never``, ``always``, ``from`` (``low`` on), ``up_to`` (``high``), ``between`` (``low`` and ``high``), ``only``
            (``low``), ``residue`` or ``but_residue`` (``remainder`` modulo ``period``, between ``low`` and ``high``).
        low: The smallest size that was seen to fail.
        high: The largest.
        period: Of a residue.
        remainder: The same.
    """

    kind: str
    low: int = 0
    high: int = 0
    period: int = 1
    remainder: int = 0

    def fails(self, size: int) -> bool:
        """Returns what the rule says of a size."""
        above, below = size >= self.low, size <= self.high
        match self.kind:
            case "never" | "always":
                return self.kind == "always"
            case "from":
                return above
            case "up_to":
                return below
        return above and below and (size % self.period == self.remainder) is (self.kind != "but_residue")

    def describe(self) -> str:
        """In words, after "fails"."""
        if self.period == 1:
            return {
                "never": "at no size",
                "always": "at every size",
                "from": f"from {self.low} on",
                "up_to": f"up to {self.high}",
                "only": f"at {self.low} only",
            }.get(self.kind, f"from {self.low} to {self.high}")
        sizes = f"sizes that leave {self.remainder} when divided by {self.period}"
        if self.period == 2:
            sizes = "odd sizes" if self.remainder else "even sizes"
        elif not self.remainder:
            sizes = f"multiples of {self.period}"
        return f"at {'all but ' if self.kind == 'but_residue' else ''}{sizes}, from {self.low} to {self.high}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; what a rule of its kind has not is null."""
        ends = {"low": self.low, "high": self.high} if self.kind != "never" else {"low": None, "high": None}
        period = (self.period, self.remainder) if self.period > 1 else (None, None)
        return {"kind": self.kind, **ends, "period": period[0], "remainder": period[1], "said": self.describe()}


def fit(seen: Mapping[int, Verdict]) -> Rule | None:
    """Returns the simplest rule that every size which was tried obeys; ``None`` if there is none."""
    judged = {size: verdict is Verdict.FAIL for size, verdict in seen.items() if verdict is not Verdict.UNRESOLVED}
    fails = sorted(size for size, bad in judged.items() if bad)
    if not fails:
        return Rule("never") if judged else None
    low, high = fails[0], fails[-1]
    inside = sorted(size for size, bad in judged.items() if not bad and low < size < high)
    rules = [
        Rule(kind, low, high) for kind in ("always", "from", "up_to", *(["only"] if low == high else []), "between")
    ]
    rules += [
        Rule(kind, low, high, period, sizes[0] % period)
        for period in range(2, min(_MOST_PERIOD, high - low) + 1)
        for kind, sizes in (("residue", fails), ("but_residue", inside))
        if len(sizes) > 2
    ]
    return next((rule for rule in rules if all(rule.fails(size) is bad for size, bad in judged.items())), None)


def intervals(sizes: Sequence[int], seen: Mapping[int, Verdict]) -> list[dict[str, Any]]:
    """Returns the sizes that were tried, in rows of one verdict.

    Each is plain values: ``from``, ``to``, ``verdict``, ``tried`` and, of what lies between those, the rows ``inferred``.
    """
    places = {size: place for place, size in enumerate(sizes)}
    rows = [(verdict, list(row)) for verdict, row in groupby(sorted(seen), key=seen.__getitem__)]
    return [
        {
            "from": row[0],
            "to": row[-1],
            "verdict": verdict.value,
            "tried": row,
            "inferred": [
                [sizes[places[one] + 1], sizes[places[other] - 1]]
                for one, other in pairwise(row)
                if places[other] - places[one] > 1
            ],
        }
        for verdict, row in rows
    ]


def landmarks(sizes: Sequence[int], more: Iterable[int] = ()) -> list[int]:
    """Returns those of some sizes at which kernels and tactics change, in the order in which they are tried.

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
        self._sizes, self._ask, self._left = sizes, ask, most
        self._places = {size: place for place, size in enumerate(sizes)}

    def try_all(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            if size in self.seen:
                continue
            if self._left <= 0:
                raise _Spent
            self._left -= 1
            self.seen[size] = self._ask(size)

    def bisect(self, sizes: Sequence[int] | None = None) -> None:
        """Until those of some sizes that lie next to each other and differ have nothing between them."""
        among = self._sizes if sizes is None else sizes
        while True:
            tried = [place for place, size in enumerate(among) if size in self.seen]
            middles = [
                among[(one + other) // 2]
                for one, other in pairwise(tried)
                if other - one > 1 and self.seen[among[one]] is not self.seen[among[other]]
            ]
            if not middles:
                return
            self.try_all(middles)

    def around(self, place: int) -> None:
        """Sizes in a row around a place: they show a period."""
        start = max(place - WINDOW // 2, 0)
        self.try_all(self._sizes[start : start + WINDOW])
        self.bisect()
        rule = fit(self.seen)
        if rule is not None and rule.kind == "residue":
            row = [size for size in self._sizes if size % rule.period == rule.remainder]
            self.try_all([row[0], row[-1]])
            self.bisect(row)

    def oddity(self) -> int | None:
        """The middle place of the shortest row of one verdict between two others; ``None`` if none is short."""
        rows = [
            (each["verdict"] != Verdict.FAIL.value, self._places[each["to"]] - self._places[each["from"]], each["from"])
            for each in intervals(self._sizes, self.seen)[1:-1]
        ]
        short = min((row for row in rows if row[1] < WINDOW), default=None)
        return None if short is None else self._places[short[2]] + short[1] // 2

    def spread(self) -> None:
        """The middle of the widest gap, again and again, and what lies around one that differs from its lower end."""
        while True:
            gaps = pairwise(sorted(map(self._places.__getitem__, self.seen)))
            one, other = max(gaps, key=lambda gap: (gap[1] - gap[0], gap[0]), default=(0, 0))
            middle = (one + other) // 2
            if other - one < 2:
                return
            self.try_all([self._sizes[middle]])
            if self.seen[self._sizes[middle]] is not self.seen[self._sizes[one]]:
                self.bisect()
                self.around(middle)


def sweep_line(sizes: Sequence[int], ask: Callable[[int], Verdict], marks: Iterable[int], most: int) -> None:
    """Try the sizes of one dimension that say most, at most ``most``; each is asked about once, in order of its worth."""
    line = _Line(sizes, ask, most)
    with suppress(_Spent):
        if len(sizes) <= most:
            line.try_all(sizes)
            return
        line.try_all(landmarks(sizes, marks))
        line.bisect()
        odd = line.oddity()
        if odd is not None:
            line.around(odd)
        line.spread()


def sweep_points(
    axes: Sequence[Sequence[int]], ask: AskSize, marks: Sequence[Iterable[int]], most: int
) -> dict[Point, Verdict]:
    """Try all points, or those that say most.

    Those of several dimensions are a coarse grid of their landmarks first; then each dimension is tried by itself, through the
    smallest point that fails, or the middle one if none does.

    Args:
        axes: The sizes of each dimension, in order.
        ask: The verdict at a point.
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

    with suppress(_Spent):
        if prod(map(len, axes)) <= most:
            for point in product(*axes):
                at(point)
            return seen
        coarse = _coarse([sorted(landmarks(axis, more)) for axis, more in zip(axes, marks, strict=True)], most // 3)
        for point in product(*coarse) if len(axes) > 1 else ():
            at(point)
        for place, axis in enumerate(axes):
            base = smallest_failing(seen) or tuple(each[len(each) // 2] for each in coarse)

            def along(size: int, place: int = place, base: Point = base) -> Verdict:
                return at((*base[:place], size, *base[place + 1 :]))

            sweep_line(axis, along, marks[place], (most - len(seen)) // (len(axes) - place))
    return seen


def _coarse(axes: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Fewer sizes of each, ends included, so that all points of them together are not too many; two at least."""
    counts = [len(axis) for axis in axes]
    while prod(counts) > most and max(counts) > 2:
        counts[counts.index(max(counts))] -= 1
    return [
        [axis[round(step * (len(axis) - 1) / max(count - 1, 1))] for step in range(count)]
        for axis, count in zip(axes, counts, strict=True)
    ]


def smallest_failing(seen: Mapping[Point, Verdict]) -> Point | None:
    """Returns the point with the smallest product of sizes that fails; ``None`` where none does."""
    failing = (point for point, verdict in seen.items() if verdict is Verdict.FAIL)
    return min(failing, key=lambda point: (prod(point), point), default=None)


def go_down(
    axes: Sequence[Sequence[int]],
    ask: AskSize,
    seen: dict[Point, Verdict],
    below: Callable[[Point], Iterable[Point]],
) -> None:
    """From the smallest point that fails to smaller ones: by halves along each dimension, then one by one until all pass.

    Args:
        axes: The sizes of each dimension, in order.
        ask: The verdict at a point.
        seen: The verdicts so far; those of points that are asked about are added.
        below: Returns the next smaller points of a point.
    """

    def fails(point: Point) -> bool:
        seen[point] = ask(point)
        return seen[point] is Verdict.FAIL

    point = smallest_failing(seen)
    for place, axis in enumerate(axes if point is not None else ()):
        assert point is not None, "one fails"
        line = [(*point[:place], size, *point[place + 1 :]) for size in axis[: axis.index(point[place]) + 1]]
        low = max((step for step, other in enumerate(line) if seen.get(other) is Verdict.PASS), default=-1)
        while len(line) - low > 2:
            middle = (low + len(line) - 1) // 2
            if fails(line[middle]):
                del line[middle + 1 :]
            else:
                low = middle
        point = smallest_failing(seen)
    for _ in range(_MOST_STEPS):
        point = smallest_failing(seen)
        if point is None or not any(fails(other) for other in below(point) if other not in seen):
            return
