"""Searches by a metric, simulated: how often a verdict is not that of the whole set, and how many samples one takes.

    python -m benchmarks metric

In each search some of 64 units, run on the target, turn right answers wrong, on
samples of their own; the search is the one of ``reduce``, the score of a sample is 1 or 0, and a set of units fails if the
metric drops by more than half a percent. Shares of samples are drawn from 0.01% to 5%, evenly on a logarithmic scale, so that
some sets of units are as near to the bound as a sample or two. Beside sets of 10,000, for which the aims are: smaller and larger
ones, and searches in which the drop of each guilty unit is within a tenth of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.figures import Figure
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.statistics import MeanTest, expected_verdicts
from bisect_trt.search.strategy import minimise

SEARCHES = 500
"""With no wrong verdict in so many, less than one in a hundred has one, with a confidence of 95% (the rule of three)."""
UNITS, SAMPLES, DROP, CONFIDENCE = 64, 10_000, 0.005, 0.99
OTHERS = ((500, 200, False), (2_000, 100, False), (50_000, 30, False), (10_000, 15, True))
"""Samples of a set, searches, and whether drops are near the bound."""


class Simulated:
    """One search: what a set of units makes of each sample, decided sequentially, and what is true of the whole set."""

    def __init__(self, seed: int, samples: int = SAMPLES, *, near: bool = False) -> None:
        """Draw who turns which samples; ``near`` says whether each drop is near the bound."""
        rng = np.random.default_rng(seed)
        self.samples = samples
        self.error = (1 - CONFIDENCE) / max(4 * expected_verdicts(UNITS), 100)
        self._right = rng.random(samples) < 0.76
        guilty = rng.choice(UNITS, size=int(rng.integers(1, 5)), replace=False)
        lost = 0.76 - 0.24 / 10  # what the metric drops by if all samples are turned
        low, high = (0.9 * DROP / lost, 1.1 * DROP / lost) if near else (1e-4, 0.05)
        shares = {int(unit): 10 ** rng.uniform(np.log10(low), np.log10(high)) for unit in guilty}
        self._turned = {unit: rng.random(samples) < share for unit, share in shares.items()}
        if not near:
            self._turned[int(guilty[0])] |= rng.random(samples) < 0.03
        self.verdicts = self.wrong = self.used = 0

    def ask(self, units: Subset) -> Verdict:
        """The sequential verdict; it is held against the whole set's."""
        turned = np.zeros(self.samples, bool)
        for unit in units:
            turned |= self._turned.get(unit, False)
        # An answer that was wrong is seldom turned into the right one: one in ten is.
        gains = np.where(self._right, -1.0, np.arange(self.samples) % 10 == 0) * turned
        test = MeanTest(self.samples, -1.0, 1.0, -DROP * self.samples, self.error)
        for gain in gains.tolist():
            if test.add(gain) is not None:
                break
        truth = bool(gains.sum() >= -DROP * self.samples)
        self.verdicts += 1
        self.used += test.seen
        self.wrong += test.decided is not truth
        return Verdict.PASS if test.decided else Verdict.FAIL


def figures() -> Iterator[Figure]:
    """Searches by a metric: wrong verdicts, and samples beside those of the whole set."""
    wrong, share, verdicts = _measured(SAMPLES, SEARCHES)
    yield Figure(f"of {SEARCHES} searches, those with a wrong verdict, %", 100 * wrong / SEARCHES, 1)
    yield Figure("samples of a verdict, % of the set", share, 100 / 3, note=f"{verdicts} verdicts, sets of {SAMPLES:,}")
    for samples, searches, near in OTHERS:
        wrong, share, verdicts = _measured(samples, searches, near=near)
        what = f"sets of {samples:,}" + (", drops within a tenth of the bound" if near else "")
        note = f"{verdicts} verdicts, {wrong} of {searches} searches with a wrong one"
        yield Figure(f"samples of a verdict, {what}, % of the set", share, note=note)


def _measured(samples: int, searches: int, *, near: bool = False) -> tuple[int, float, int]:
    """Searches with a wrong verdict, the share of the samples that a verdict takes (percent), and verdicts."""
    verdicts = used = wrong = 0
    for seed in range(searches):
        search = Simulated(seed, samples, near=near)
        minimise(range(UNITS), search.ask)
        verdicts += search.verdicts
        used += search.used
        wrong += search.wrong > 0
    return wrong, 100 * used / verdicts / samples, verdicts
