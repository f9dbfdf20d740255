"""Counts the questions that searches ask, on planted culprits, beside the information bound.

No model is run: a candidate shows what is looked for if it has every culprit.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator

from benchmarks.figures import Figure
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import minimise

SEARCHES = 100
AIMS = {(668, 1): None, (668, 2): None, (668, 5): 1.2, (668, 10): 1.2, (1000, 20): 1.15, (1000, 50): 1.15}
"""By units and culprits: how many questions at most for each bit."""


class Counter:
    """The check; counts the different questions."""

    def __init__(self, culprits: Subset, goal: Verdict) -> None:
        self._culprits = culprits
        self._goal = goal
        self.asked: dict[Subset, Verdict] = {}

    def __call__(self, units: Subset) -> Verdict:
        """The goal where all culprits are there."""
        other = Verdict.PASS if self._goal is Verdict.FAIL else Verdict.FAIL
        return self.asked.setdefault(units, self._goal if self._culprits <= units else other)


def figures() -> Iterator[Figure]:
    """Questions beside the information bound, culprits anywhere."""
    for (units, count), aim in AIMS.items():
        bits = math.log2(math.comb(units, count))
        for name, goal in (("reduce", Verdict.FAIL), ("keep", Verdict.PASS)):
            costs = []
            for seed in range(SEARCHES):
                culprits = frozenset(random.Random(seed).sample(range(units), count))
                counter = Counter(culprits, goal)
                search = minimise if goal is Verdict.FAIL else find_keep
                if search(range(units), counter).units != culprits:
                    raise AssertionError(f"seed {seed}: not the culprits")
                costs.append(len(counter.asked))
            proof = count if count > 1 else 0
            pairs = math.comb(count, 2) if goal is Verdict.FAIL and 3 <= count <= 6 else 0
            mean = statistics.mean(costs) - pairs
            note = f"{mean:.1f} questions; bound {bits:.1f} + {proof} for the proof"
            yield Figure(f"{name}, {count} of {units}, questions / bound", mean / (bits + proof), aim, note=note)
