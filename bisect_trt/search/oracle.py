"""What a search asks, and how it counts what it heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bisect_trt.search.verdict import Verdict

Subset = frozenset[int]
"""Some of the units, by number."""

Ask = Callable[[Subset], Verdict]
"""Says whether the candidate made of these units shows the failure."""


Completion = Callable[[Subset], Subset]
"""Adds to a set of units what they cannot do without. ``frozenset`` adds nothing."""


@dataclass(frozen=True)
class Minimum:
    """What a search ends with.

    Attributes:
        units: A set of units that shows the failure.
        proven: Whether each single unit was left out and the rest did not show it.
        why: What stands in the way of the proof, if it is missing, or what is to be said of it.
        steps: What the search did, one sentence a step.
        pairs: Whether each two units were left out together too, and the rest did not show it.
        refused: The sets with one unit less that broke in another way.
    """

    units: Subset
    proven: bool
    why: str | None = None
    steps: tuple[str, ...] = ()
    pairs: bool = False
    refused: tuple[Subset, ...] = ()


class Tally:
    """An ``Ask`` that remembers how often it heard each verdict, so that a search can change its mind."""

    def __init__(self, ask: Ask) -> None:
        """``ask`` is the one to pass questions to."""
        self._ask = ask
        self.asked = 0
        self.unresolved = 0

    def __call__(self, units: Subset) -> Verdict:
        """Ask, and count."""
        verdict = self._ask(units)
        self.asked += 1
        self.unresolved += verdict is Verdict.UNRESOLVED
        return verdict

    @property
    def mostly_unresolved(self) -> bool:
        """Whether most candidates break in other ways, so that what is asked should stay close to what fails."""
        return self.unresolved >= 6 and 2 * self.unresolved > self.asked
