"""When a failure appeared and when it went: bisection over what comes in an order, such as the releases of a runtime.

The algorithm follows ``git bisect``, including skipped places (``git bisect skip``), for both ends of a
stretch of failures: it is not known beforehand which of the two ends of the order fails, or whether either does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bisect_trt.search.oracle import Verdict

AskOne = Callable[[int], Verdict]
"""Decides whether a place of the order fails."""


@dataclass(frozen=True)
class Edge:
    """One end of a stretch of failures.

    Attributes:
        failing: The outermost place that is known to fail.
        passing: The next place that passes; ``None`` if the known failures go on to the end of the order.
        between: Places between the two that say nothing, so that the edge may be at any of them.
    """

    failing: int
    passing: int | None
    between: tuple[int, ...] = ()


@dataclass(frozen=True)
class History:
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
        found: list[tuple[int, int]] = []
        passed = True
        for place, verdict in sorted(self.seen.items()):
            if verdict is Verdict.FAIL:
                found[len(found) - (not passed) :] = [(place if passed else found[-1][0], place)]
            passed = verdict is Verdict.PASS or (passed and verdict is not Verdict.FAIL)
        return found


def find_edges(count: int, ask: AskOne, known: int | None = None, *, every: bool = False) -> History:
    """Find the newest stretch of failures and both its edges.

    Both ends of the order are asked; where neither fails and no failure is known, places are asked from the middle outward,
    each halving the largest gap, until one does. From there each edge takes about log2 N questions. What was not asked is
    taken to be like its neighbours, so a second stretch, or a gap in the first, may be missed.

    Args:
        count: How many places there are, the oldest first.
        ask: The oracle.
        known: A place that most likely fails.
        every: Whether to ask all of them, so that nothing is taken for granted.
    """
    seen: dict[int, Verdict] = {}

    def look(place: int) -> Verdict:
        if place not in seen:
            seen[place] = ask(place)
        return seen[place]

    first = [] if known is None else [known]
    places = range(count - 1, -1, -1) if every else first or [count - 1, 0]
    for place in places:
        look(place)
    if Verdict.FAIL not in seen.values():
        for place in [count - 1, 0, *_halving(count)]:
            if look(place) is Verdict.FAIL:
                break
        else:
            return History(seen)
    if not every:
        for place in (count - 1, 0):
            look(place)
    start = max(place for place, verdict in seen.items() if verdict is Verdict.FAIL)
    # The newest failure may move up while its upper edge is looked for.
    newest = _edge(range(start, count), look, seen)
    oldest = _edge(range(newest.failing, -1, -1), look, seen)
    return History(seen, oldest, newest)


def _halving(count: int) -> Iterator[int]:
    """Every place, the middle first, then the middles of both halves, and so on."""
    gaps = [(0, count)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < high:
            yield middle
            gaps += [(low, middle), (middle + 1, high)]


def _edge(path: range, look: AskOne, seen: Mapping[int, Verdict]) -> Edge:
    """The edge along a path from a place that fails to an end of the order."""

    def told(verdict: Verdict) -> list[int]:
        return [step for step, place in enumerate(path) if seen.get(place) is verdict]

    end = len(path) - 1
    if not told(Verdict.PASS) and end > 0 and look(path[end]) is Verdict.UNRESOLVED:
        # What is as old as this may say nothing at all, and what passes may lie between.
        low, high = max(told(Verdict.FAIL)), end
        while high - low > 1 and not told(Verdict.PASS):
            middle = (low + high) // 2
            if look(path[middle]) is Verdict.FAIL:
                low = middle
            else:
                high = middle
        for step in range(low + 1, end):
            if told(Verdict.PASS):
                break
            look(path[step])
    if not told(Verdict.PASS):
        return Edge(path[max(told(Verdict.FAIL))], None)
    while True:
        passing = min(told(Verdict.PASS))
        failing = max(step for step in told(Verdict.FAIL) if step < passing)
        between = range(failing + 1, passing)
        unasked = [step for step in between if path[step] not in seen]
        if not unasked:
            return Edge(path[failing], path[passing], tuple(sorted(path[step] for step in between)))
        look(path[min(unasked, key=lambda step: abs(2 * step - failing - passing))])
