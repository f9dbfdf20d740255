"""Group testing: leave out units a group at a time, and bisect for the one that is needed where that does not do.

What is kept is enough at every moment and only shrinks. How large the next group is,
:mod:`bisect_trt.search.density` says. An answer that says nothing (``UNRESOLVED``) is no reason to
take a group apart: a question about a slightly larger or smaller one is asked instead, as
``git bisect skip`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import nsmallest

from msgspec import Struct

from bisect_trt.search.density import Density
from bisect_trt.search.oracle import Ask, Completion, Subset, Tally, Verdict

SKIPS = 3
"""Number of other groups to try in place of an unresolved one."""

_LOOKS = (6, 16)
"""When so many units were found, neighbours counted once, one of them is left out once more, all
others kept. A steady check says again that it is needed. One that fails only sometimes looks as if
unit after unit were needed, until it is checked."""

_RUN = 16
_FORGIVEN = 2
_BURST = 10
"""Odds are even, so answers that mostly are "needed" are suspicious: so many of them in a row, one
of the others counting against so many. Then so many units are left out once more; and twice as many
answers later again."""


class Kept:
    """The units that are still kept: a set that is enough at every moment, and only shrinks.

    Attributes:
        units: The smallest set seen to be enough.
        needed: The units that are needed, or most probably are.
        goal: What the oracle says of a set that is enough.
        asked: Questions asked so far. None is asked twice.
        astray: Whether a unit that was found could be left out after all, where what is looked for
            is a failure. Then the failure comes and goes, or more units do not always fail as well,
            and what was passed says little.
    """

    def __init__(
        self,
        units: Collection[int],
        ask: Ask,
        *,
        goal: Verdict = Verdict.PASS,
        complete: Completion = frozenset,
    ) -> None:
        """``units`` are all there are: kept altogether they are known to be enough, none kept is known not to."""
        self._order = units
        self.units: Subset = frozenset(units)
        self.needed: Subset = frozenset()
        self.astray = False
        # Needed units that were not left out a second time yet.
        self._found: list[int] = []
        self._looked = 0
        self._run = 0
        self._alarm = _RUN
        self._presumed: list[int] = []
        # Kept for the sake of an answer, and known not to be needed.
        self._spare: Subset = frozenset()
        self.goal = goal
        self._complete = complete
        self._tally = Tally(ask)
        self._known = {frozenset(): goal.opposite, complete(self.units): goal}

    @property
    def asked(self) -> int:
        """The number of different questions."""
        return self._tally.questions

    @property
    def lost(self) -> bool:
        """Whether most candidates break in other ways, from which bisection learns nothing."""
        return self._tally.mostly_unresolved

    def verdict(self, units: Subset) -> Verdict:
        """Ask whether keeping these is enough, unless that is known."""
        completed = units if units <= self.needed else self._complete(units)
        if completed not in self._known:
            self._known[completed] = self._tally(completed)
        return self._known[completed]

    def shrink(self, units: Subset) -> Verdict:
        """Ask whether keeping these is enough, and go on from there if it is."""
        verdict = self.verdict(units)
        if verdict is self.goal:
            self.units = units
            self._spare &= units
        return verdict

    def shrinks_to(self, units: Subset) -> bool:
        """Return whether a set is enough."""
        return self.shrink(units) is self.goal

    def leave_out(
        self, units: Collection[int], *, again: int = 0, remainder: Subset | None = None
    ) -> Verdict:
        """Ask whether some units more can be left out, and go on from there if they can.

        Args:
            units: What to leave out.
            again: The number of other candidates to ask about where one is unresolved: each has a
                unit back that is known not to be needed, the nearest first. With the next question
                it is left out again.
            remainder: What is kept then, where the caller has that set.
        """
        remainder = self.units.difference(self._spare, units) if remainder is None else remainder
        spare = Subset()
        verdict = self.shrink(remainder)
        if again and verdict is Verdict.UNRESOLVED:
            # The verdict of nearly the same set stands in for the unresolved one (as `git bisect
            # skip`).
            ends = (min(units), max(units))
            gone = (unit for unit in self._order if unit not in self.units)
            for unit in nsmallest(
                again, gone, key=lambda unit: min((abs(unit - end), unit) for end in ends)
            ):
                spare = frozenset({unit})
                verdict = self.shrink(remainder | spare)
                if verdict is not Verdict.UNRESOLVED:
                    break
        if verdict is self.goal:
            self._spare = spare
        return verdict

    def lower(
        self,
        units: Sequence[int],
        density: Density,
        *,
        dirty: bool | int,
        max_needed: int | None = None,
    ) -> None:
        """Leave out what can be left out of some units, one after the other.

        Each question leaves out some units more. If that is still enough they stay out; if not, the
        first of them that cannot be left out is bisected for, which leaves out those before it.
        Where more units never hurt, each unit that is kept in the end is needed.

        Args:
            units: Units that are still kept.
            density: How common units that cannot be left out are.
            dirty: Whether it is known that not all can be left out together; or of how many of the
                first that is known.
            max_needed: With more units than these needed it stops, if that is limited.
        """
        walk = _Walk(self, units, density, len(units) if dirty is True else dirty or None)
        while (
            not walk.done
            and not self._stops
            and (max_needed is None or len(self.needed) <= max_needed)
        ):
            walk.step()
        # What the walk could not decide is asked again with what it has learnt.
        if walk.later and not self._stops:
            self.lower(walk.later, density, dirty=False, max_needed=max_needed)

    @property
    def _stops(self) -> bool:
        return self.lost or self.astray

    def found(self, unit: int, *, doubtful: bool) -> None:
        """A unit cannot be left out; if that is ``doubtful``, it is asked about once more in the end."""
        self.needed |= {unit}
        self._presumed += [unit] * doubtful
        self._run += doubtful
        if self.goal is Verdict.FAIL and not self._tally.unresolved:
            self._look_again()
            self._found += [] if doubtful else [unit]

    def _look_again(self) -> None:
        """Leave out units that were found once more, if it is time for that."""
        runs = sum(unit + 1 not in self.needed for unit in self.needed)
        looks = int(self._looked < len(_LOOKS) and runs >= _LOOKS[self._looked])
        self._looked += looks
        # A long run of needed units is what a wrong answer early on looks like.
        if self._run >= self._alarm:
            looks = _BURST
            self._alarm = 2 * self._alarm
        for unit in self._found[:looks]:
            without = self.units - {unit}
            if unit not in self._complete(without) and self.shrinks_to(without):
                self.astray = True
                break
        self._found = self._found[looks:]

    def heard(self, verdict: Verdict) -> None:
        """Take in how often groups cannot be left out, which should be every other time."""
        self._run = max(self._run - _FORGIVEN, 0) if verdict is self.goal else self._run + 1

    def settle(self) -> None:
        """Ask about each unit that was taken as needed, with all others that are left kept."""
        # Ends of runs first: what is not needed most often stands there, and the rest of the
        # questions are those of the proof only if it is gone by then.
        for unit in sorted(self._presumed, key=lambda unit: {unit - 1, unit + 1} <= self.needed):
            if unit in self.units:
                self.leave_out(frozenset({unit}))
        self._presumed = []
        if self._spare:
            self.leave_out(frozenset())


class _Walk(Struct):
    """The position of a pass over units.

    If there is an end, one unit from ``place`` to ``end`` cannot be left out.

    Attributes:
        doubtful: Whether it is not known that one really cannot be left out.
        later: Units passed by without an answer about them.
    """

    state: Kept
    units: Sequence[int]
    density: Density
    end: int | None
    place: int = 0
    doubtful: bool = False
    later: list[int] = []

    @property
    def done(self) -> bool:
        return self.place >= len(self.units)

    def step(self) -> None:
        """Pass a unit, or ask a question."""
        unit = self.units[self.place]
        if self.end is not None and self.end - self.place == 1:
            self._hit(unit)
        elif unit not in self.state.units:
            # It was left out together with the second half of an earlier group.
            self._pass(1)
        elif self.end is None and self.density.sure():
            self.density.taken()
            self.state.found(unit, doubtful=True)
            self.place += 1
        else:
            self._ask()

    def _pass(self, count: int) -> None:
        self.density.cleared(count)
        self.place += count

    def _hit(self, unit: int) -> None:
        # No single unit was shown to be needed, which teaches nothing about the density.
        if self.doubtful:
            self.density.elsewhere()
            self.density.taken()
            self.density.elsewhere()
        else:
            self.density.hit()
        self.state.found(unit, doubtful=self.doubtful)
        self.place = self.place + 1
        self.end = None
        self.doubtful = False

    def _ask(self) -> None:
        state = self.state
        place = self.place
        width = (len(self.units) if self.end is None else self.end) - place
        # Hwang's generalised binary splitting: a group for even odds, then bisection within it.
        best = self.density.group(width, dirty=self.end is not None)
        sizes = list(skipping(best, range(1, width + (self.end is None))))
        for number, size in enumerate((*sizes, best)):
            again = SKIPS + 2 - number if number == len(sizes) <= SKIPS else 0
            verdict = state.leave_out(frozenset(self.units[place : place + size]), again=again)
            if verdict is not Verdict.UNRESOLVED:
                break
        state.heard(verdict)
        if verdict is state.goal:
            self._pass(size)
            return
        # So few units are left that no other size can be tried; the second part alone decides.
        if verdict is Verdict.UNRESOLVED and self.end is not None and width <= SKIPS:
            verdict = state.leave_out(frozenset(self.units[place + size : self.end]))
            if verdict not in (state.goal, Verdict.UNRESOLVED):
                self.later += self.units[place : place + size]
                self._pass(size)
                return
        self.end = place + size
        self.doubtful |= verdict is Verdict.UNRESOLVED


def skipping(size: int, sizes: range) -> Iterator[int]:
    """A size, and the few that are nearest to it, to try where it is unresolved."""
    tried = 0
    for distance in range(len(sizes)):
        # At distance 0 both are one size.
        for neighbour in dict.fromkeys((size - distance, size + distance)):
            if neighbour in sizes:
                yield neighbour
                tried += 1
                if tried > SKIPS:
                    return
