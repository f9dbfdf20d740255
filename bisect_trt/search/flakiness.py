"""How sure a search can be of a check that fails only sometimes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

MOST_PASSES = 1000
"""A failure that needs more repeats than this to be missed for certain cannot be searched for."""


@dataclass(frozen=True)
class Flakiness:
    """How often the original fails, and how often a candidate must pass to count as passing.

    Attributes:
        runs: How often the original was run.
        failures: How often it failed.
        confidence: How sure the whole search shall be.
        verdicts: How many passing verdicts that sureness is spread over.
    """

    runs: int = 1
    failures: int = 1
    confidence: float = 0.99
    verdicts: int = 1

    @property
    def rate(self) -> float:
        """The measured failure rate."""
        return self.failures / self.runs

    @property
    def least_rate(self) -> float:
        """The failure rate that so many failures in as many runs still leave possible, with the confidence asked for.

        ``(1 - confidence) ** (1 / runs)``: what the rule of three (Hanley and Lippman-Hand, "If nothing goes wrong, is
        everything all right?", JAMA 1983) is the approximation of. 0 where some runs passed: there the rate is measured.
        """
        return (1 - self.confidence) ** (1 / self.runs) if self.is_steady else 0.0

    @property
    def is_steady(self) -> bool:
        """Whether it failed in every run. That does not show that it always does."""
        return self.failures >= self.runs

    @property
    def passes_needed(self) -> int:
        """How many passes in a row rule a failing candidate out.

        The share of the error that each passing verdict may have is ``(1 - confidence) / verdicts`` (Bonferroni). Where
        every run failed, the search takes each run at its word; what its proof rests on is confirmed in the end. Where none
        did there is no rate to go by: what is probed next is looked at as often as was asked for.
        """
        if self.is_steady:
            return 1
        if not self.failures:
            return self.runs
        allowed = (1 - self.confidence) / max(self.verdicts, 1)
        return next(
            number for number, missed in enumerate(self._missed()) if missed <= allowed or number == MOST_PASSES
        )

    def confirmations(self, decisive: int, seen: int = 1) -> tuple[int, int]:
        """How often to run the answer, and each candidate whose passing its proof rests on, once more.

        Wrong passes on the way only cost questions; a proof is wrong only if one of the passes that it rests on is. So
        those are confirmed, together to the confidence asked for. How many passes in a row that takes depends on how
        often the failure was seen without fail, so the answer is run again as well where that makes it less in all.

        Args:
            decisive: How many passes the proof rests on, 1 or more.
            seen: How many passes of each were seen already. One by which something was picked among others is none.

        Returns:
            How many more runs of the answer must all fail, and how many more of each of those must all pass.
        """
        allowed = (1 - self.confidence) / decisive
        best: tuple[int, int] | None = None
        for failures in range(MOST_PASSES):
            if best is not None and failures >= best[0] + decisive * best[1]:
                break
            known = Flakiness(self.runs + failures, self.failures + failures, self.confidence)
            passes = next(n for n, missed in enumerate(known._missed()) if missed <= allowed or n == MOST_PASSES)
            found = (failures, max(passes - seen, 0))
            if best is None or found[0] + decisive * found[1] < best[0] + decisive * best[1]:
                best = found
        assert best is not None
        return best

    def reached(self, verdicts: int) -> float:
        """The confidence that a search with so many passing verdicts has reached.

        Less than was asked for where it needed more of them than it was expected to.
        """
        if self.is_steady:
            return self.confidence
        return max(1 - verdicts * next(islice(self._missed(), self.passes_needed, None)), 0.0)

    def _missed(self) -> Iterator[float]:
        """The probability that a candidate that fails like the original passes 0, 1, 2, ... times in a row.

        The posterior mean of ``(1 - rate) ** m`` under Jeffreys' prior, Beta(1/2, 1/2), which counts in that the rate
        itself is only measured.
        """
        passes, total = self.runs - self.failures + 0.5, self.runs + 1.0
        chance = 1.0
        for number in count():
            yield chance
            chance *= (passes + number) / (total + number)


def expected_verdicts(units: int) -> int:
    """About how many passing verdicts a search over so many units needs, for :class:`Flakiness`."""
    return 4 * math.ceil(math.log2(units + 1)) + 4
