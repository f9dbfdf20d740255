"""Does something hold in most cases? A test that may be looked at after each case and still keeps its error.

The evidence against "in at most half of the cases" is the likelihood of what was seen, averaged over all larger shares, by its
likelihood at one half. While that hypothesis is true the evidence is a supermartingale of at most 1 in the mean, so the
probability that it ever reaches 1/error is at most ``error`` (Ville's inequality). Source: H. Robbins, Annals of Mathematical
Statistics 41, 1970, p. 1397.
"""

from __future__ import annotations

from math import comb

ERROR = 0.001
"""The probability of a wrong answer, 13 cases that agree are enough."""


def evidence(cases: int, holds: int) -> float:
    """Return the evidence that it holds in more than half of the cases."""
    return sum(comb(cases + 1, k) for k in range(holds + 1)) / ((cases + 1) * comb(cases, holds))


class SignTest:
    """Counts cases until it is known that most of them are of one kind.

    Attributes:
        cases: The cases seen.
        holds: Those in which it holds.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self.cases = self.holds = 0

    def add(self, *, holds: bool) -> None:
        """Count a case."""
        self.cases += 1
        self.holds += holds

    @property
    def leads(self) -> bool:
        """Whether it has held in more than half of the cases."""
        return 2 * self.holds > self.cases

    @property
    def known(self) -> bool:
        """Whether it is known that it holds in most cases."""
        return evidence(self.cases, self.holds) >= 1 / ERROR
