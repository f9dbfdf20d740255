"""Group testing: lower units a group at a time, and bisect for the culprit where that does not pass.

A question whose answer is as likely yes as no teaches the most, so the next group is as long as will contain a culprit
with even odds. With culprits at density p that is about 0.69/p units, the group of Hwang's generalised binary splitting
("A method for detecting all defective members in a population by group testing", JASA 1972). He takes the number of
culprits as known; here p is learnt on the way, by Bayes' rule over a few values that it may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bisect_trt.search.oracle import Ask, Subset, Tally, Verdict

_NEIGHBOUR_HITS, _NEIGHBOUR_MISSES = 0.5, 2.0
"""Where units are in topological order, culprits come side by side (the Pow and the ReduceMean of one norm) often enough
to look out for it: as if one unit in five after a culprit had been seen to be one."""

HOT = {0.1: 0.75, 0.3: 0.1, 0.6: 0.05, 0.95: 0.1}
"""Among strong suspects. Either few are culprits, which is worth being good at, or nearly all, which is soon noticed."""

MEMBERS = {0.1: 1.0, 0.25: 1.0, 0.5: 1.0, 0.95: 1.0}
"""Among the members of a group that cannot be lowered as a whole."""


def cold(count: int) -> dict[float, float]:
    """Among ``count`` units of which nothing is known: any density alike up to one in twenty, higher ones less likely."""
    weights = {}
    density = 0.95
    while density > 1 / (2 * count + 2):
        weights[density] = min(1.0, 0.05 / density)
        density /= 2
    return weights


class Density:
    """What is known of how common culprits are among units that are met in order."""

    def __init__(self, weights: Mapping[float, float], *, neighbours: bool = True) -> None:
        """Start from what is likely.

        Args:
            weights: How likely each density is, in any unit; densities are above 0 and below 1.
            neighbours: Whether units side by side belong together, so that the unit right after a culprit has a chance
                of its own, which is learnt apart.
        """
        self._weights = dict(weights)
        self._learn(dict.fromkeys(weights, 1.0))
        self._neighbours = neighbours
        self._near_hits, self._near_misses = _NEIGHBOUR_HITS, _NEIGHBOUR_MISSES
        self._after_culprit = False

    def cleared(self, count: int) -> None:
        """The next ``count`` units are no culprits."""
        if self._after_culprit:
            self._near_misses += 1
            self._after_culprit = False
            count -= 1
        self._learn({p: (1 - p) ** count for p in self._weights})

    def hit(self) -> None:
        """The next unit is a culprit."""
        if self._after_culprit:
            self._near_hits += 1
        else:
            self._learn({p: p for p in self._weights})
        self._after_culprit = self._neighbours

    def elsewhere(self) -> None:
        """The next unit is not beside the last."""
        self._after_culprit = False

    def group(self, width: int, *, dirty: bool) -> int:
        """How many of the next units to lower at once, for the evenest odds.

        Args:
            width: How many there are to choose from: 1 or more, if ``dirty`` 2 or more.
            dirty: Whether a culprit is known to be among them; then all of them together are no question.
        """
        even = self._chance_of_any(width) / 2 if dirty else 0.5
        fewest, most = 1, width - dirty
        while fewest < most:
            middle = (fewest + most) // 2
            if self._chance_of_any(middle) < even:
                fewest = middle + 1
            else:
                most = middle
        over, under = (abs(self._chance_of_any(size) - even) for size in (fewest, fewest - 1))
        return fewest - 1 if fewest > 1 and under < over else fewest

    def _chance_of_any(self, count: int) -> float:
        """The chance that one of the next ``count`` units is a culprit."""
        none = 1.0
        if self._after_culprit and count:
            none = self._near_misses / (self._near_hits + self._near_misses)
            count -= 1
        return 1 - none * sum(weight * (1 - p) ** count for p, weight in self._weights.items())

    def _learn(self, likelihoods: Mapping[float, float]) -> None:
        """Bayes' rule. The weights add up to 1 from then on."""
        likely = {p: weight * likelihoods[p] for p, weight in self._weights.items()}
        total = sum(likely.values())
        self._weights = {p: weight / total for p, weight in likely.items()}


class Kept:
    """The units that are still in fp32: a set that passes at every moment, and only shrinks.

    Attributes:
        units: The smallest set seen to pass.
        asked: Questions asked so far. None is asked twice.
    """

    def __init__(self, units: Iterable[int], ask: Ask) -> None:
        """``units`` are all there are: kept altogether they are known to pass, none kept is known not to."""
        self.units: Subset = frozenset(units)
        self._tally = Tally(ask)
        self._known = {frozenset[int](): Verdict.FAIL, self.units: Verdict.PASS}
        self._members = Density(MEMBERS)

    @property
    def asked(self) -> int:
        """How many different questions."""
        return self._tally.asked

    @property
    def lost(self) -> bool:
        """Whether most candidates break in other ways, from which bisection learns nothing."""
        return self._tally.mostly_unresolved

    def verdict(self, units: Subset) -> Verdict:
        """Ask whether keeping these is enough, unless that is known."""
        if units not in self._known:
            self._known[units] = self._tally(units)
        return self._known[units]

    def shrinks_to(self, units: Subset) -> bool:
        """Ask whether keeping these is enough, and go on from there if it is."""
        passes = self.verdict(units) is Verdict.PASS
        if passes:
            self.units = units
        return passes

    def lower(self, groups: Sequence[Subset], density: Density, *, dirty: bool) -> None:
        """Lower what can be lowered of some groups, one after the other, and then what can of the members of the rest.

        Each question lowers some groups more. If that passes they stay lowered; if not, the first of them that cannot
        be lowered is bisected for, which lowers those before it. Where passing is monotone (a set with more units in fp32
        passes too) each unit that is kept in the end is needed.

        Args:
            groups: Disjoint sets of units that are still kept.
            density: How common groups that cannot be lowered are.
            dirty: Whether it is known that not all can be lowered together.
        """
        density.elsewhere()
        place, end = 0, len(groups) if dirty else None  # of the groups up to the end one cannot be lowered
        while place < len(groups) and not self.lost:
            if end is not None and end - place == 1:
                density.hit()
                members = [frozenset({unit}) for unit in sorted(groups[place])]
                if len(members) > 1:
                    self.lower(members, self._members, dirty=True)
                place, end = end, None
                continue
            width = (len(groups) if end is None else end) - place
            size = density.group(width, dirty=end is not None)
            chosen = frozenset[int]().union(*groups[place : place + size])
            if self.shrinks_to(self.units - chosen):
                density.cleared(size)
                place += size
            else:
                end = place + size


def partition(order: Sequence[int], groups: Iterable[Subset]) -> list[Subset]:
    """Units by group: each group's units of ``order``, and every other unit alone, by the place of their first.

    Args:
        order: Units.
        groups: Those that belong together; of several that hold a unit the first counts.
    """
    number = {unit: place for place, group in reversed(list(enumerate(groups))) for unit in group}
    parts: dict[tuple[bool, int], list[int]] = {}
    for unit in order:
        parts.setdefault((unit in number, number.get(unit, unit)), []).append(unit)
    return [frozenset(part) for part in parts.values()]
