"""Group testing: lower units a group at a time, and bisect for the culprit where that does not pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bisect_trt.search.keep_density import MEMBERS, Density
from bisect_trt.search.oracle import Ask, Subset, Tally
from bisect_trt.search.verdict import Verdict


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
