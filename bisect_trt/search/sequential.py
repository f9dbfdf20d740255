"""Is the mean over a finite set at least so much? Decided from as few of its values as a certainty needs.

A betting test for sampling without replacement: I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables
by betting", Journal of the Royal Statistical Society B 86, 2024, section 5. Against each of both answers a bet is placed on
the next value before it is drawn. While that answer is true the capital is a non-negative supermartingale, so it reaches
1/error with a probability of at most error (Ville's inequality), however often one looks. The last value of all decides
in any case: the verdict on the whole set is the truth, not an estimate of one.

A search asks about one candidate after the other on the same values in the same order, and which it asks about depends on
what it heard. That costs nothing: with true answers the search is a plain function, so the candidates that it asks about are
fixed before the order is drawn, and it goes wrong only if one of those is answered wrongly (a union bound over them).
"""

from __future__ import annotations

import math

_SHARES = tuple(0.5**power for power in range(13))
"""Of the largest bet that cannot make the capital negative. One bets each of these, with a part of the capital of its own: who
bets all is soonest done where no value is off, and who bets little where many are."""
_SLACK = 1e-9
"""Of the range of the values: how much the mean may lie under the threshold by rounding."""


class MeanTest:
    """Decides whether the sum of all values of a set, seen one after the other in random order, is at least a threshold.

    Attributes:
        seen: How many values were seen.
        total: Their sum.
        decided: The answer, once it is known with the certainty asked for.
    """

    def __init__(self, size: int, low: float, high: float, threshold: float, error: float) -> None:
        """Nothing was seen yet.

        Args:
            size: How many values there are, 1 or more.
            low: What no value is less than; may be minus infinity, then "at least" is not said before the end.
            high: What no value is more than; may be infinity, then "less" is not.
            threshold: What the sum is to reach.
            error: How likely a wrong answer may be, past 0 and below 1; 0 for the answer of the whole set.
        """
        self._size = size
        self._low, self._high = low, high
        finite = [abs(end) for end in (low, high) if math.isfinite(end)]
        self._threshold = threshold - _SLACK * size * max([*finite, abs(threshold) / size])
        self._log_needed = math.inf if error <= 0 else -math.log(error)
        self._above = [-math.log(len(_SHARES))] * len(_SHARES)
        self._below = list(self._above)
        self.seen = 0
        self.total = 0.0
        self.decided: bool | None = None

    def add(self, value: float) -> bool | None:
        """See the next value.

        Returns:
            The answer, if it is known now.
        """
        left = self._size - self.seen
        needed = (self._threshold - self.total) / left  # what the rest must have for its mean
        if math.isfinite(self._log_needed):
            _bet(self._above, needed - self._low, value - needed)
            _bet(self._below, self._high - needed, needed - value)
        self.seen += 1
        self.total += value
        self.decided = self._answer()
        return self.decided

    def _answer(self) -> bool | None:
        left = self._size - self.seen
        short = self._threshold - self.total
        if not left or short <= left * self._low:
            return short <= 0 or left > 0
        if short > left * self._high:
            return False
        if _log_sum(self._above) >= self._log_needed:
            return True
        return False if _log_sum(self._below) >= self._log_needed else None

    @property
    def mean(self) -> float:
        """Of what was seen."""
        return self.total / self.seen if self.seen else math.nan


def _bet(capital: list[float], risk: float, gain: float) -> None:
    """Take in one value: each has bet a share of what it can lose at most, ``risk``, and ``gain`` is what it turned out to be."""
    if not math.isfinite(risk) or risk <= 0:
        return
    for place, share in enumerate(_SHARES):
        factor = 1 + share * gain / risk
        capital[place] += math.log(factor) if factor > 0 else -math.inf


def _log_sum(logs: list[float]) -> float:
    """The logarithm of a sum, of logarithms."""
    largest = max(logs)
    if not math.isfinite(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(each - largest) for each in logs))
