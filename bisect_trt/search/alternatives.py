"""Every smallest set that is enough to pass, where any of several will do.

Switches of a runtime mostly do what they do alone, and several may each be enough. So a single one is looked for first, by
group testing: a set that does not pass has none among its units. Where there are several answers they are listed as in
Reiter's tree of hitting sets ("A theory of diagnosis from first principles", Artificial Intelligence 32, 1987): an answer
that differs from those that are known lacks a unit of each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_trt.search.delta_debugging import make_minimal
from bisect_trt.search.oracle import Ask, Subset, Verdict
from bisect_trt.search.strategy import find_culprits

MOST_ALTERNATIVES = 8
_MOST_SINGLES = 16
"""Number of units that are asked about alone after their set broke in another way, which gives no information."""


@dataclass(frozen=True)
class Alternatives:
    """The result of :func:`find_alternatives`.

    Attributes:
        found: Sets that pass, in the order in which they were found. Without any one of its units none of them was seen
            to pass.
        complete: Whether there are no others, where more units never hurt.
    """

    found: tuple[Subset, ...] = ()
    complete: bool = True


def find_alternatives(
    units: Sequence[int],
    ask: Ask,
    *,
    weights: Mapping[int, float] | None = None,
    most: int = MOST_ALTERNATIVES,
    likely: bool = True,
) -> Alternatives:
    """All 1-minimal sets of units that pass, up to a limit.

    For one unit among N that is enough alone this asks about log2 N + 2 questions, one of them to see that no other is;
    fewer where its weight is large. That no units at all do not pass is taken as known.

    Args:
        units: In the order in which they are tried, where nothing else is known of them.
        ask: The oracle. No set is asked about twice.
        weights: How likely each is to be among the answers; 1 where not given.
        most: How many answers are enough.
        likely: Whether there probably is one. If not, all units at once are asked about first: one question where there
            is none.
    """
    known = _Known(ask, {unit: (weights or {}).get(unit, 1.0) for unit in units})
    everything = frozenset(units)
    found: list[Subset] = []
    queue: list[Subset] = [frozenset()]
    for without in queue:  # which grows
        minimum = next((each for each in found if each.isdisjoint(without)), None)
        if minimum is None:
            if len(found) == most:
                if known.has_one(everything - without):
                    return Alternatives(tuple(found), complete=False)
                continue
            minimum = known.smallest(everything - without, sure=bool(found) or not likely)
            if minimum is None:
                continue
            found.append(minimum)
        queue += [more for unit in sorted(minimum) if (more := without | {unit}) not in queue]
    return Alternatives(tuple(found))


class _Known:
    """An oracle with its answers, and the probability of each unit."""

    def __init__(self, ask: Ask, weights: Mapping[int, float]) -> None:
        self._ask = ask
        self._weights = weights
        self._said: dict[Subset, Verdict] = {frozenset(): Verdict.FAIL}

    def verdict(self, units: Subset) -> Verdict:
        if units not in self._said:
            self._said[units] = self._ask(units)
        return self._said[units]

    def passes(self, units: Subset) -> bool:
        return self.verdict(units) is Verdict.PASS

    def _failed(self) -> list[Subset]:
        return [units for units, verdict in self._said.items() if verdict is Verdict.FAIL]

    def has_one(self, pool: Subset) -> bool:
        """Whether an answer lies within a pool."""
        return not any(pool <= failed for failed in self._failed()) and self.passes(pool)

    def smallest(self, pool: Subset, *, sure: bool) -> Subset | None:
        """A 1-minimal set within a pool; ``sure`` to ask whether there is one before it is looked for."""
        if any(pool <= failed for failed in self._failed()):
            return None
        if sure and not self.passes(pool):
            return self._alone(pool) if self.verdict(pool) is Verdict.UNRESOLVED else None
        cleared = frozenset[int]().union(*self._failed())
        single = self._single([unit for unit in self._weights if unit in pool - cleared])
        if single is not None:
            return single
        if not self.passes(pool):
            return self._alone(pool) if self.verdict(pool) is Verdict.UNRESOLVED else None
        return self._together(pool)

    def _likeliest_first(self, units: Sequence[int]) -> list[int]:
        return sorted(units, key=lambda unit: -self._weights[unit])

    def _single(self, units: Sequence[int]) -> Subset | None:
        """Return the unit that passes alone; each question covers half of the probability. ``None`` if it is not found."""
        left = self._likeliest_first(units)
        while len(left) > 1:
            half, weight, whole = 0, 0.0, sum(self._weights[unit] for unit in left)
            while half < len(left) - 1 and (not half or weight + self._weights[left[half]] <= whole / 2):
                weight += self._weights[left[half]]
                half += 1
            left = left[:half] if self.passes(frozenset(left[:half])) else left[half:]
        return frozenset(left) if left and self.passes(frozenset(left)) else None

    def _alone(self, pool: Subset) -> Subset | None:
        """The likeliest that passes alone, each asked about."""
        cleared = frozenset[int]().union(*self._failed())
        order = self._likeliest_first([unit for unit in self._weights if unit in pool - cleared])
        return next((one for unit in order[:_MOST_SINGLES] if self.passes(one := frozenset({unit}))), None)

    def _together(self, pool: Subset) -> Subset:
        """Several that pass only together, of a pool that does."""

        def shows(units: Subset) -> Verdict:
            return self.verdict(units).opposite

        order = self._likeliest_first([unit for unit in self._weights if unit in pool])
        return make_minimal(find_culprits(order, shows), shows).units
