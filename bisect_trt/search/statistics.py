"""Statistics of failures: how often a flaky check must be asked, whether a mean is high enough, rates and their differences.

Every probability here is exact or a bound; nothing assumes many observations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice

from msgspec import Struct

MOST_PASSES = 1000
"""A failure that needs more repeats than this to be missed for certain cannot be searched for."""


class Flakiness(Struct, frozen=True):
    """The failure rate of the original, and the number of passes that a candidate needs.

    Attributes:
        runs: How often the original was run.
        failures: How often it failed.
        confidence: The confidence required of the whole search.
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

        ``(1 - confidence) ** (1 / runs)``: what the rule of three (Hanley and Lippman-Hand, "If
        nothing goes wrong, is everything all right?", JAMA 1983) is the approximation of. 0 where
        some runs passed: there the rate is measured.
        """
        return (1 - self.confidence) ** (1 / self.runs) if self.is_steady else 0.0

    @property
    def is_steady(self) -> bool:
        """Whether it failed in every run. That does not show that it always does."""
        return self.failures >= self.runs

    @property
    def passes_needed(self) -> int:
        """Return the number of passes in a row that rule out a failing candidate.

        The share of the error that each passing verdict may have is ``(1 - confidence) / verdicts``
        (Bonferroni). Where every run failed, the search takes each run at its word; what its proof
        rests on is confirmed in the end. Where none did there is no rate to go by: what is probed
        next is looked at as often as was asked for.
        """
        if self.is_steady:
            return 1
        if not self.failures:
            return self.runs
        # Each verdict of the search may be wrong, so they share what is allowed (Bonferroni).
        allowed = (1 - self.confidence) / max(self.verdicts, 1)
        return next(
            number
            for number, missed in enumerate(self._missed())
            if missed <= allowed or number == MOST_PASSES
        )

    def reached(self, verdicts: int) -> float:
        """The confidence that a search with so many passing verdicts has reached.

        Less than was asked for where it needed more of them than it was expected to.
        """
        if self.is_steady:
            return self.confidence
        return max(1 - verdicts * next(islice(self._missed(), self.passes_needed, None)), 0.0)

    def _missed(self) -> Iterator[float]:
        """The probability that a candidate that fails like the original passes 0, 1, 2, ... times in a row.

        The posterior mean of ``(1 - rate) ** m`` under Jeffreys' prior, Beta(1/2, 1/2), which
        counts in that the rate itself is only measured.
        """
        passes = self.runs - self.failures + 0.5
        total = self.runs + 1.0
        chance = 1.0
        for number in count():
            yield chance
            chance *= (passes + number) / (total + number)


def luck(failures: int, passes: Sequence[int]) -> float:
    """Return the largest probability, over all failure rates, that candidates fail so often and one of them only passes."""
    # Each term of the sum peaks at failures / (failures + passes).
    rates = {failures / (failures + number) if number else 1.0 for number in passes}
    return max(
        (rate**failures * math.fsum((1 - rate) ** number for number in passes) for rate in rates),
        default=0.0,
    )


def luck_by_size(failing: Iterable[int], passing: Iterable[int]) -> float:
    """Return the largest probability of these verdicts over all failure rates that do not fall as candidates grow.

    It is the likelihood of the isotonic regression, by pooling adjacent violators (Ayer et al., "An
    Empirical Distribution Function for Sampling with Incomplete Information", 1955).

    Args:
        failing: The size of each candidate that failed.
        passing: The size of each candidate that passed.
    """
    failures = Counter(failing)
    passes = Counter(passing)
    # Failures and passes, at rates that rise.
    pools: list[tuple[int, int]] = []
    for size in sorted(failures | passes):
        failed, passed = failures[size], passes[size]
        # Pooling adjacent violators: a rate that falls as candidates grow joins the pool before it.
        while pools and pools[-1][0] * passed >= failed * pools[-1][1]:
            earlier = pools.pop()
            failed += earlier[0]
            passed += earlier[1]
        pools.append((failed, passed))
    return math.prod(
        (failed / (failed + passed)) ** failed * (passed / (failed + passed)) ** passed
        for failed, passed in pools
    )


def confirmations(failures: int, passes: Sequence[int], allowed: float) -> tuple[int, list[int]]:
    """Return the fewest further runs of failing and passing candidates that exclude chance.

    A pass counts more the more often the failure was seen without a pass, so what failed is run
    again too where that is cheaper: one such run counts for all candidates. The cost is the number
    of runs and of different candidates together.

    Args:
        failures: The number of runs that failed where a failure was seen.
        passes: The number of passes of each candidate that may be a failing one too.
        allowed: The largest probability of chance.
    """
    best = (0, [0] * len(passes))
    lowest_cost = math.inf
    for extra_failures in range(MOST_PASSES):
        if extra_failures >= lowest_cost:
            break
        needed = list(passes)
        while (
            luck(failures + extra_failures, needed) > allowed
            and sum(needed) - sum(passes) < MOST_PASSES
        ):
            # The candidate with the fewest passes contributes most to the likelihood of chance.
            needed[needed.index(min(needed))] += 1
        extra_runs = (
            extra_failures,
            [now - before for now, before in zip(needed, passes, strict=True)],
        )
        runs = [extra_failures, *extra_runs[1]]
        if (cost := sum(runs) + sum(map(bool, runs))) < lowest_cost:
            best = extra_runs
            lowest_cost = cost
    return best


def expected_verdicts(units: int) -> int:
    """About how many passing verdicts a search over so many units needs, for :class:`Flakiness`."""
    return 4 * math.ceil(math.log2(units + 1)) + 4


INTERVAL_METHOD = "Clopper-Pearson"
_HALVINGS = 60
"""Steps that narrow an interval down to the last bit of a double."""


@cache
def rate_interval(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Between which rates so many events leave the true one, by Clopper and Pearson.

    It covers the true rate with at least the confidence asked for, whatever that rate is. Source:
    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika 1934.

    Args:
        events: How often it happened.
        trials: How often it could have; at least 1.
        confidence: How sure to be, between 0 and 1.
    """
    share = (1 - confidence) / 2
    low = 0.0 if events == 0 else _solve(_at_least(events, trials), share)
    high = 1.0 if events == trials else 1 - _solve(_at_least(trials - events, trials), share)
    return low, high


def _at_least(events: int, trials: int) -> Callable[[float], float]:
    """The probability of so many events or more, by the probability of each."""
    # Logarithms of the binomial terms, because factorials overflow a double from 171 on.
    ways = [
        (
            number,
            math.lgamma(trials + 1) - math.lgamma(number + 1) - math.lgamma(trials - number + 1),
        )
        for number in range(events, trials + 1)
    ]

    def probability(rate: float) -> float:
        yes, no = math.log(rate), math.log1p(-rate)
        return math.fsum(
            math.exp(way + number * yes + (trials - number) * no) for number, way in ways
        )

    return probability


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Return the argument at which a function that rises from 0 to 1 has a value."""
    low = 0.0
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2


ERROR = 0.001
"""The probability of a wrong answer of a :class:`SignTest`; 13 cases that agree are enough."""


def evidence(cases: int, holds: int, share: float = 0.5) -> float:
    """Return the evidence that something holds in more than a share of the cases, which may be looked at after each case.

    It is the likelihood of what was seen, averaged over all larger shares, by its likelihood at
    this one. While the hypothesis "at most this share" is true this is a supermartingale of at most
    1 in the mean, so the probability that it ever reaches 1/error is at most ``error`` (Ville's
    inequality). Source: H. Robbins, Annals of Mathematical Statistics 41, 1970, p. 1397.

    Args:
        cases: The number of cases so far.
        holds: The number of cases in which it held.
        share: The share to exceed, between 0 and 1.
    """
    # The sum of C(n+1, k) (share / (1 - share))**(k - holds) / ((n+1) C(n, holds)).
    total = 0.0
    term = 1 / (cases + 1 - holds)
    for k in range(holds, -1, -1):
        total += term
        if total > _PLENTY or term < total * _NOTHING:
            break
        term *= k / (cases + 2 - k) * (1 - share) / share
    return total


_PLENTY = 1e9
_NOTHING = 1e-15
"""Evidence past which its size does not matter, and the part of a sum that does not."""


class SignTest(Struct):
    """Counts cases until it is known that more than a ``share`` of them, between 0 and 1, are of one kind."""

    share: float = 0.5
    cases: int = 0
    holds: int = 0

    def add(self, *, holds: bool) -> None:
        """Count a case."""
        self.cases += 1
        self.holds += holds

    @property
    def leads(self) -> bool:
        """Whether it has held in more than this share of the cases."""
        return self.holds > self.share * self.cases

    @property
    def known(self) -> bool:
        """Whether it is known that it holds in more than this share."""
        return evidence(self.cases, self.holds, self.share) >= 1 / ERROR
