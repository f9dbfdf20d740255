"""The probability that the next units are needed, by Bayes' rule; it decides the number of units in a question.

A question with an answer of even odds teaches the most. With needed units at density p that is one
about 0.69/p units, the group of Hwang's generalised binary splitting ("A method for detecting all
defective members in a population by group testing", JASA 1972). He takes their number as known;
here it is learnt during the search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_RUNS = ((0.1, 0.6), (0.5, 0.5), (0.3, 1.0))
"""Needed units in topological order often come side by side (the Pow and the ReduceMean of one
norm, what a runtime fuses) often enough to look out for it. For a unit after one needed unit, after
two in a row, after more: as if so many had been seen to be needed, and so many not."""

_SURE = 0.5
"""Probability from which a unit counts as needed without a separate question: the proof asks the
same."""

_SURER = 0.7
_TRUST = 4
"""Probability where the unit before was not asked about either; it teaches nothing about runs, so
it happens so often at most for each unit that was asked about there and is needed; and never where
runs are longer than distinguished here."""

_EXACT = (0.6, 0.2, 0.02)
"""Prior probabilities that exactly one, two and three units are needed; the rest is divided among
densities."""

_MORE = (0.9, 0.03, 0.01)
"""Probabilities of exactly one, two and three more, where one was found and is known not to be
all."""

_DONE = 1 / 3
"""So likely that none is left is asked by itself: a yes ends the search there, so uneven odds cost
less than a question more. In a Huffman code what has odds over 2/5 always has a code of one bit,
and what has less than 1/3 never (Johnsen, "On the redundancy of binary Huffman codes", IEEE
Transactions on Information Theory, 1980)."""

HOT = {0.1: 0.75, 0.3: 0.1, 0.6: 0.05, 0.95: 0.1}
"""Among strong suspects. Either few are culprits, which is worth being good at, or nearly all,
which is soon noticed."""

_COOLED = 0.9
"""Probability that suspects that were not enough alone are no likelier than other units."""

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
    """The belief about the density of needed units among units in order."""

    def __init__(
        self, weights: Mapping[float, float], *, neighbours: bool = True, units: int | None = None
    ) -> None:
        """Start from what is likely.

        Args:
            weights: How likely each density is, in any unit; densities are above 0 and below 1.
            neighbours: Whether units side by side belong together, so that the unit right after a
                needed one has a chance of its own, which is learnt apart.
            units: How many will be met in all, where very few of them may be needed.
        """
        self._left = units or 0
        small_counts = sum(_EXACT) if units else 0.0
        total = sum(weights.values())
        self._weights = {p: (1 - small_counts) * weight / total for p, weight in weights.items()}
        # The weight of each number of needed units that are left.
        self._exactly = [0.0, *_EXACT] if units else []
        self._neighbours = neighbours
        self._runs = [list(run) for run in _RUNS]
        # Whether the last unit counted as needed without a question.
        self._taken = False
        # Per length of a run: units that counted as needed after one that was not asked about
        # either.
        self._unasked = [0] * len(_RUNS)
        # Needed units in a row, up to here.
        self._run = 0
        # The number of units before the first suspect.
        self._suspects: float = math.inf

    def suspects_after(self, count: int) -> None:
        """After the next ``count`` units come suspects, which alone were not enough; there may be needed ones among them."""
        self._suspects = count

    def cleared(self, count: int) -> None:
        """The next ``count`` units are not needed."""
        # Suspects and the rest have densities of their own.
        if 0 < self._suspects < count:
            before = int(self._suspects)
            self.cleared(before)
            count -= before
        self._met(count)
        if self._run:
            self._runs[self._run - 1][1] += 1
            self._run = 0
            self._taken = False
            self._left -= 1
            count -= 1
        if count:
            self._learn(
                {p: (1 - p) ** count for p in self._weights},
                [self._none(remaining, count) for remaining in range(len(self._exactly))],
            )
            self._left -= count

    def hit(self) -> None:
        """The next unit is needed."""
        self._met(1)
        self._taken = False
        if self._run:
            self._runs[self._run - 1][0] += 1
            self._learn(
                dict.fromkeys(self._weights, 1.0),
                [float(units_left > 0) for units_left in range(len(self._exactly))],
            )
        else:
            units_left = max(self._left, 1)
            self._learn(
                {p: p for p in self._weights},
                [remaining / units_left for remaining in range(len(self._exactly))],
            )
        self._exactly = [*self._exactly[1:], 0.0][: len(self._exactly)]
        self._left -= 1
        self._run = min(self._run + 1, len(_RUNS)) if self._neighbours else 0

    def some_left(self) -> None:
        """One was found where one was looked for, and there is more: most often one more, anywhere."""
        small_counts = sum(_MORE)
        before = sum(self._exactly)
        self._weights = {
            p: (1 - small_counts) * weight / (1 - before) for p, weight in self._weights.items()
        }
        self._exactly = [0.0, *_MORE]

    def elsewhere(self) -> None:
        """The next unit is not beside the last."""
        self._run = 0

    def sure(self) -> bool:
        """Whether the next unit is so likely needed that it need not be asked about here."""
        if not self._run or not self._taken:
            return bool(self._run) and self._chance_of_any(1) > _SURE
        place = self._run - 1
        # A unit that was taken unasked is asked about in the proof, which costs more when it is
        # wrong.
        allowed = _TRUST * (self._runs[place][0] - _RUNS[place][0])
        return (
            self._run < len(_RUNS)
            and self._unasked[place] < allowed
            and self._chance_of_any(1) > _SURER
        )

    def taken(self) -> None:
        """The next unit is taken as needed, and was not asked about."""
        self._met(1)
        self._left -= 1
        if self._taken:
            self._unasked[self._run - 1] += 1
        self._taken = bool(self._run)
        self._run = min(self._run + 1, len(_RUNS))

    def _met(self, count: int) -> None:
        if count > self._suspects:
            # The suspects are reached: the prior mixes in their higher densities.
            heat = sum(HOT.values())
            self._weights = {p: _COOLED * weight for p, weight in self._weights.items()}
            self._exactly = [_COOLED * weight for weight in self._exactly]
            for p, weight in HOT.items():
                self._weights[p] = self._weights.get(p, 0.0) + (1 - _COOLED) * weight / heat
            self._neighbours = False
            self._run = 0
            self._suspects = math.inf
        self._suspects -= count

    def group(self, width: int, *, dirty: bool) -> int:
        """Return the number of next units to ask about at once, for even odds; all of them if most probably none is needed.

        Args:
            width: How many there are to choose from: 1 or more, if ``dirty`` 2 or more.
            dirty: Whether a needed one is known to be among them; then all of them together are no
                question.
        """
        chance = self._chance_of_any(width)
        if not dirty and 1 - chance >= _DONE:
            return width
        # A group that splits the probability in halves teaches one bit, the most a verdict can.
        even = chance / 2 if dirty else 0.5
        smallest = 1
        largest = width - dirty
        while smallest < largest:
            middle = (smallest + largest) // 2
            if self._chance_of_any(middle) < even:
                smallest = middle + 1
            else:
                largest = middle
        over, under = (abs(self._chance_of_any(size) - even) for size in (smallest, smallest - 1))
        return smallest - 1 if smallest > 1 and under < over else smallest

    def _chance_of_any(self, count: int) -> float:
        """The chance that one of the next ``count`` units is needed."""
        neighbour_spared = 1.0
        if self._run and count:
            hits, misses = self._runs[self._run - 1]
            neighbour_spared = misses / (hits + misses)
            count -= 1
        none = neighbour_spared * sum(
            weight * (1 - p) ** count for p, weight in self._weights.items()
        )
        for remaining, weight in enumerate(self._exactly):
            if weight:
                none += (
                    weight * (neighbour_spared if remaining else 1.0) * self._none(remaining, count)
                )
        if count > self._suspects:
            hot = sum(
                weight * (1 - p) ** (count - self._suspects) for p, weight in HOT.items()
            ) / sum(HOT.values())
            none *= _COOLED + (1 - _COOLED) * hot
        return 1 - none

    def _none(self, remaining: int, count: int) -> float:
        """The chance that none of ``count`` units is among so many that are left."""
        chance = 1.0
        for place in range(remaining):
            chance *= max(self._left - count - place, 0) / max(self._left - place, 1)
        return chance

    def _learn(self, likelihoods: Mapping[float, float], exactly: list[float]) -> None:
        """Bayes' rule. The weights add up to 1 from then on."""
        likely = {p: weight * likelihoods[p] for p, weight in self._weights.items()}
        exact_counts = [
            weight * chance for weight, chance in zip(self._exactly, exactly, strict=True)
        ]
        # Normalising here keeps sums of weights at 1 and avoids underflow over thousands of units.
        total = sum(likely.values()) + sum(exact_counts)
        self._weights = {p: weight / total for p, weight in likely.items()}
        self._exactly = [weight / total for weight in exact_counts]
