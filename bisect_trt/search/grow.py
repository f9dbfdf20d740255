"""Grow a set of units until it holds on samples that the search has not seen, and shrink what was added, both by halves.

The set that a search ends with is minimal for the samples that it was asked about; others fail on less or on other units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bisect_trt.search.oracle import Ask, Enough, Limited, Subset, Verdict

_FIRST, _TIMES = 4, 4
"""How many units are added first, and how many times as many if that is not enough."""
_COARSE = 8
"""Of the units added, a chunk of fewer than one in so many is neither looked for nor lowered again."""


@dataclass(frozen=True)
class Grown:
    """A set after the loop.

    Attributes:
        units: The set that was last held against new samples.
        held: Whether it held on these.
    """

    units: Subset
    held: bool


def grow_until_held(
    start: Subset,
    order: Callable[[], Sequence[int]],
    draw: Callable[[Subset], bool],
    ask: Ask,
    *,
    rounds: int,
    most: int,
) -> Grown:
    """Hold a set against new samples; where it does not hold, add units until all failing samples seen so far pass.

    Args:
        start: The set to begin with; it stays part of the answer.
        order: All units, those to add first at the front. Called once for each growth, as failing samples change it.
        draw: Holds a set against new samples. Those that fail are among what ``ask`` is about from then on.
        ask: Whether a set passes on all failing samples seen; with more units added it mostly still does.
        rounds: How often new samples are drawn.
        most: How many questions ``ask`` may answer in all.
    """
    units, left = start, most
    for number in range(rounds):
        if draw(units):
            return Grown(units, held=True)
        if number == rounds - 1:
            break
        counted = _Counted(ask, left)
        larger = _grow(units, start, order(), counted)
        left = counted.left
        if larger is None:
            break
        units = larger
    return Grown(units, held=False)


class _Counted:
    """An ``Ask`` that ends after a number of questions."""

    def __init__(self, ask: Ask, left: int) -> None:
        self._ask = ask
        self.left = left

    def __call__(self, units: Subset) -> Verdict:
        if self.left <= 0:
            raise Enough
        self.left -= 1
        return self._ask(units)


def _grow(units: Subset, start: Subset, order: Sequence[int], ask: Ask) -> Subset | None:
    """A larger set that passes; ``None`` if there is none, or none was found with the questions left."""
    rest = [unit for unit in order if unit not in units]
    limited = Limited(ask, units.union(rest), None)
    whole = limited.best
    try:
        size = shortest_prefix(rest, lambda prefix: limited(units.union(prefix)) is Verdict.PASS)
        if size is None:
            return None
        kept = units.union(rest[:size])
        added = [unit for unit in order if unit in kept - start]
        return shrink(kept, added, limited)
    except Enough:
        return limited.best if limited.best != whole else None


def shortest_prefix(ordered: Sequence[int], enough: Callable[[Sequence[int]], bool]) -> int | None:
    """About how many of the first units are enough, in logarithmically many questions; ``None`` if all are not.

    The answer is enough itself, and at most an eighth more than what is needed where more units never hurt.
    """
    low, high = 0, min(_FIRST, len(ordered))
    while not (high and enough(ordered[:high])):
        if high == len(ordered):
            return None
        low, high = high, min(high * _TIMES, len(ordered))
    while high - low > max(high // _COARSE, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(ordered[:middle]) else (middle, high)
    return high


def shrink(kept: Subset, added: Sequence[int], ask: Ask) -> Subset:
    """Leave out chunks of what was added, halves first and the last first, as long as the rest passes."""
    size, least = len(added) // 2, max(len(added) // _COARSE, 1)
    left = list(added)
    while size >= least:
        place = len(left)
        while place > 0:
            chunk = left[max(place - size, 0) : place]
            if len(chunk) < len(left) and ask(kept.difference(chunk)) is Verdict.PASS:
                kept = kept.difference(chunk)
                del left[max(place - size, 0) : place]
            place -= size
        size //= 2
    return kept
