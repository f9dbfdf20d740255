"""Four hundred searches with checks that fail now and then, of all kinds: none is wrong and called proven.

A kind is how the failure rate depends on the candidate: constant, falling with the number of nodes,
failing from some size on, or of whatever is checked. ``BISECT_TRT_FLAKY_SEED`` draws other
searches. Run by ``make fuzz``.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bisect_trt.search.confirm import USER_CODE, confirm, read_back
from bisect_trt.search.oracle import (
    Again,
    Minimum,
    Question,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.strategy import minimise

SEED = int(os.environ.get("BISECT_TRT_FLAKY_SEED", "0"))
SEARCHES = 400
Rate = Callable[[int, int], float]
"""The failure rate of a candidate of so many nodes, of so many in all."""


def constant(rate: float) -> Rate:
    """The same for each candidate."""
    return lambda _, __: rate


def falling(low: float, power: float) -> Rate:
    """1.0 for the model, and ``low`` for one node."""
    return lambda nodes, total: low + (1 - low) * (nodes / total) ** power


def logarithmic(low: float) -> Rate:
    """As :func:`falling`, by the logarithm of the size."""
    return lambda nodes, total: low + (1 - low) * math.log(nodes) / math.log(total)


KINDS: dict[str, Rate] = {
    **{f"constant {rate}": constant(rate) for rate in (0.2, 0.5, 0.8, 0.95, 1.0)},
    **{f"linear to {low}": falling(low, 1) for low in (0.1, 0.3, 0.6)},
    **{f"root to {low}": falling(low, 0.5) for low in (0.1, 0.3, 0.6)},
    **{f"logarithmic to {low}": logarithmic(low) for low in (0.1, 0.3, 0.6)},
}


@dataclass
class Coin:
    """A check that fails on a candidate with all culprits, at the rate of its kind; answers are remembered as in a run."""

    culprits: Subset
    total: int
    rate: Rate
    luck: random.Random

    def __post_init__(self) -> None:
        self._memory: dict[Question, Verdict] = {}

    def toss(self, units: Subset) -> Verdict:
        """Run once."""
        fails = self.culprits <= units and self.luck.random() < self.rate(len(units), self.total)
        return Verdict.FAIL if fails else Verdict.PASS

    def __call__(self, question: Question) -> Verdict:
        """Run as often as the question says, until its answer."""
        if question not in self._memory:
            again = question if isinstance(question, Again) else Again(question)
            assert isinstance(again.question, Units)
            tosses = (self.toss(again.question.units) for _ in range(again.runs or 1))
            self._memory[question] = next(
                (each for each in tosses if each is again.until), again.until.opposite
            )
        return self._memory[question]


def search(coin: Coin) -> Minimum | None:
    """Search as ``reduce --check`` does; ``None`` if the failure does not reproduce."""
    every = frozenset(range(coin.total))
    if coin.toss(every) is Verdict.PASS:
        return None
    heard = Transcript(coin)
    minimum = confirm(
        minimise(range(coin.total), about_units(heard)),
        heard,
        frozenset,
        None,
        every.difference,
        USER_CODE,
    )
    return read_back(minimum, coin)


@pytest.mark.slow
def test_no_flaky_search_is_wrong_and_called_proven() -> None:
    luck = random.Random(SEED)
    wrong = []
    proven = dict.fromkeys(KINDS, 0)
    for number in range(SEARCHES):
        kind = luck.choice(list(KINDS))
        total = luck.choice((12, 40, 150, 371))
        culprits = frozenset(luck.sample(range(total), luck.choice((1, 1, 2, 3))))
        minimum = search(Coin(culprits, total, KINDS[kind], random.Random(f"{SEED} {number}")))
        if minimum is None:
            continue
        proven[kind] += minimum.proven
        if minimum.proven and minimum.units != culprits:
            wrong.append(
                f"{kind}, {total} nodes, seed {SEED} {number}: {sorted(minimum.units)}, not {sorted(culprits)}"
            )
    assert not wrong, "\n".join(wrong)
    assert proven["constant 1.0"] > 0
