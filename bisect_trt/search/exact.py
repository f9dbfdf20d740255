"""Exact statistics of few counts: the interval of a rate, whether two groups differ, and how many comparisons cost.

Nothing here is an approximation for many counts, because there are few: integers are summed, and divided in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

INTERVAL_METHOD = "Clopper-Pearson"
TEST_METHOD = "Fisher's exact test, two-sided, Holm-Bonferroni"
_HALVINGS = 60
"""Of an interval that is narrowed down to the last bit of a double."""


def rate_interval(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Between which rates so many events leave the true one, by Clopper and Pearson.

    It covers the true rate with at least the confidence asked for, whatever that rate is. Source: Clopper and Pearson, "The use
    of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 1934.

    Args:
        events: How often it happened.
        trials: How often it could have; at least 1.
        confidence: How sure to be, between 0 and 1.
    """
    share = (1 - confidence) / 2
    low = 0.0 if events == 0 else _solve(lambda rate: _at_least(events, trials, rate), share)
    high = 1.0 if events == trials else 1 - _solve(lambda rate: _at_least(trials - events, trials, rate), share)
    return low, high


def _at_least(events: int, trials: int, rate: float) -> float:
    """The probability of so many events or more, each of this probability."""
    if not 0 < rate < 1:
        return float(rate >= 1)
    logs = (
        math.lgamma(trials + 1)
        - math.lgamma(number + 1)
        - math.lgamma(trials - number + 1)
        + number * math.log(rate)
        + (trials - number) * math.log1p(-rate)
        for number in range(events, trials + 1)
    )
    return math.fsum(map(math.exp, logs))


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Where a function that rises from 0 to 1 has a value."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2


def fisher(bad: int, bads: int, good: int, goods: int) -> float:
    """How likely two groups are to differ so much, or more, in how many have something, if it has nothing to do with the group.

    Two-sided: what is as unlikely as what was seen, or less likely, counts. Source: Fisher, "On the interpretation of chi-squared
    from contingency tables, and the calculation of P", Journal of the Royal Statistical Society 1922.

    Args:
        bad: How many of the first group have it.
        bads: How many are in the first group.
        good: How many of the second group have it.
        goods: How many are in the second group.
    """
    having = bad + good
    least = max(0, having - goods)
    way = math.comb(bads, least) * math.comb(goods, having - least)
    ways = [way]
    for number in range(least, min(having, bads)):  # each from the one before: binomials of thousands are dear
        way = way * (bads - number) * (having - number) // ((number + 1) * (goods - having + number + 1))
        ways.append(way)
    seen = ways[bad - least]
    return float(Fraction(sum(each for each in ways if each <= seen), math.comb(bads + goods, having)))


def holm(chances: Sequence[float]) -> list[float]:
    """P-values corrected for how many there are, in the order given. Source: Holm, Scandinavian Journal of Statistics 1979."""
    corrected, least = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        least = max(least, min(1.0, chances[place] * (len(chances) - rank)))
        corrected[place] = least
    return corrected
