"""Which sizes fail: landmarks, bisection between them, and the simple rule of one dimension that all tried sizes obey.

Failures over sizes need not be monotone, so nothing is claimed about a size that was not tried: a rule describes those that were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice, pairwise, product
from math import prod
from typing import Any

from bisect_trt.search.oracle import Verdict

Point = tuple[int, ...]
"""A size for each dimension that is swept."""
AskSize = Callable[[Point], Verdict]

_MOST_PERIOD = 64
_MOST_STEPS = 64
"""So many points below the smallest that fails are tried one after the other."""


def fit(seen: Mapping[int, Verdict]) -> dict[str, Any] | None:
    """Returns the simplest rule that every size which was tried obeys, as plain values; ``None`` if there is none.

    Its ``kind`` is ``never``, ``always``, ``from`` (``low`` on), ``up_to`` (``high``), ``only`` (``low``), ``between`` (``low``
    and ``high``), ``residue`` or ``but_residue`` (``remainder`` modulo ``period``, between ``low`` and ``high``); ``low`` and
    ``high`` are the smallest and the largest size that was seen to fail. ``said`` is the rule in words, after "fails".
    """
    judged = {size: verdict is Verdict.FAIL for size, verdict in seen.items() if verdict is not Verdict.UNRESOLVED}
    fails = sorted(size for size, bad in judged.items() if bad)
    if not fails:
        return _rule("never", None, None, "at no size") if judged else None
    low, high = fails[0], fails[-1]
    inside = {size: bad for size, bad in judged.items() if low <= size <= high}
    if all(inside.values()):
        one_sided = {  # by whether sizes below and sizes above were tried
            (False, False): ("always", "at every size"),
            (True, False): ("from", f"from {low} on"),
            (False, True): ("up_to", f"up to {high}"),
        }
        within = ("only", f"at {low} only") if low == high else ("between", f"from {low} to {high}")
        kind, said = one_sided.get((min(judged) < low, max(judged) > high), within)
        return _rule(kind, low, high, said)
    for period in range(2, min(_MOST_PERIOD, high - low) + 1):
        for kind, wanted in (("residue", True), ("but_residue", False)):
            remainders = {size % period for size, bad in inside.items() if bad is wanted}
            others = {size % period for size, bad in inside.items() if bad is not wanted}
            if len(remainders) == 1 and not remainders & others and sum(b is wanted for b in inside.values()) > 2:
                (rest,) = remainders
                sizes = f"sizes that leave {rest} when divided by {period}" if rest else f"multiples of {period}"
                sizes = ("odd sizes" if rest else "even sizes") if period == 2 else sizes
                said = f"at {'' if wanted else 'all but '}{sizes}, from {low} to {high}"
                return _rule(kind, low, high, said, period, rest)
    return None


def _rule(
    kind: str, low: int | None, high: int | None, said: str, period: int | None = None, remainder: int | None = None
) -> dict[str, Any]:
    return {"kind": kind, "low": low, "high": high, "period": period, "remainder": remainder, "said": said}


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


def sweep_line(sizes: Sequence[int], ask: Callable[[int], Verdict], marks: Iterable[int], most: int) -> None:
    """Try the sizes of one dimension that say most, at most ``most``; each is asked about once, in order of its worth."""
    seen: dict[int, Verdict] = {}
    order = sizes if len(sizes) <= most else _by_worth(sizes, landmarks(sizes, marks)[: max(most // 2, 2)], seen)
    for size in islice(order, most):
        seen[size] = ask(size)


def _by_worth(sizes: Sequence[int], first: Iterable[int], seen: Mapping[int, Verdict]) -> Iterator[int]:
    """The first sizes, then the middle of the widest gap, those between two verdicts before others; ``seen`` is looked at."""
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


def go_down(seen: dict[Point, Verdict], ask: AskSize, below: Callable[[Point], Iterable[Point]]) -> None:
    """From the smallest point that fails to smaller ones, until the next smaller of all dimensions pass.

    Args:
        seen: The verdicts so far; those of points that are asked about are added.
        ask: The verdict at a point.
        below: Returns the next smaller points of a point.
    """
    for _ in range(_MOST_STEPS):
        point = smallest_failing(seen)
        new = [] if point is None else [other for other in below(point) if other not in seen]
        seen.update((other, ask(other)) for other in new)
        if Verdict.FAIL not in (seen[other] for other in new):
            return
