"""Counts the questions that the search for what must stay in fp32 asks, on planted culprits.

    python -m benchmarks.keep [--searches N]

No model is run: the check passes if every culprit is kept in fp32. Prints a markdown table of the
mean over seeds, all questions counted, those that prove 1-minimality too. The information bound is
log2 of the number of ways in which the culprits can lie, given the ranking; the proof takes a
question for each culprit more, if there are several.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import minimise

UNITS = 1000
TOP = UNITS // 20


@dataclass(frozen=True)
class Planted:
    """A search problem.

    Attributes:
        units: How many.
        culprits: The units that must stay in fp32.
        suspects: Most suspicious first.
    """

    units: int
    culprits: Subset
    suspects: list[int] = field(default_factory=list)


Plant = Callable[[random.Random], Planted]


def scattered(count: int) -> Plant:
    """Culprits anywhere among 1000 units, nothing suspected."""
    return lambda rng: Planted(UNITS, frozenset(rng.sample(range(UNITS), count)))


def all_but(outside: int, count: int) -> Plant:
    """All culprits but some in the top 5% of a ranking, the others after them."""
    return lambda rng: _ranked(rng, count - outside, outside)


def by_chance(count: int) -> Plant:
    """Each culprit with a chance of 90% in the top 5% of a ranking, else after them."""

    def plant(rng: random.Random) -> Planted:
        inside = sum(rng.random() < 0.9 for _ in range(count))
        return _ranked(rng, inside, count - inside)

    return plant


def _ranked(rng: random.Random, inside: int, outside: int) -> Planted:
    ranking = rng.sample(range(UNITS), UNITS)
    culprits = rng.sample(ranking[:TOP], inside) + rng.sample(ranking[TOP:], outside)
    return Planted(UNITS, frozenset(culprits), ranking)


def pairs(rng: random.Random) -> Planted:
    """13 groups of two neighbours among 800 units."""
    return Planted(
        800, frozenset(2 * pair + place for pair in rng.sample(range(400), 13) for place in (0, 1))
    )


def norms(*, suspected: bool) -> Plant:
    """Two neighbours in each of 13 of 25 norms of nine units, among 850 units."""

    def plant(rng: random.Random) -> Planted:
        starts = range(0, 850, 34)
        broken = sorted(rng.sample(starts, 13))
        culprits = [start + place for place in (3, 4) for start in broken]
        return Planted(850, frozenset(culprits), culprits if suspected else [])

    return plant


def bound(inside: int, outside: int) -> float:
    """Bits in where the culprits lie, so many of them in the top 5%."""
    return math.log2(math.comb(TOP, inside)) + math.log2(math.comb(UNITS - TOP, outside))


def bound_by_chance(count: int) -> float:
    """Bits in where the culprits lie, each with a chance of 90% in the top 5%."""
    chances = [
        math.comb(count, inside) * 0.9**inside * 0.1 ** (count - inside)
        for inside in range(count + 1)
    ]
    return sum(
        p * (bound(inside, count - inside) - math.log2(p)) for inside, p in enumerate(chances)
    )


CASES: dict[str, tuple[Plant, int, float | None]] = {
    **{
        f"{k} of 1000": (scattered(k), k, math.log2(math.comb(UNITS, k))) for k in (1, 2, 5, 20, 50)
    },
    "5 of 1000, all in the top 5% of a ranking": (all_but(0, 5), 5, bound(5, 0)),
    "5 of 1000, 4 in the top 5%": (all_but(1, 5), 5, bound(4, 1)),
    "5 of 1000, each with a chance of 90% in the top 5%": (by_chance(5), 5, bound_by_chance(5)),
    "20 of 1000, 18 in the top 5%": (all_but(2, 20), 20, bound(18, 2)),
    "20 of 1000, each with a chance of 90% in the top 5%": (by_chance(20), 20, bound_by_chance(20)),
    "13 pairs of neighbours among 800": (pairs, 26, math.log2(math.comb(400, 13))),
    "2 nodes in each of 13 of 25 norms, 850 units": (norms(suspected=False), 26, None),
    "the same, exactly those nodes suspected": (norms(suspected=True), 26, None),
}
"""The planting, the number of culprits, and the information bound where there is a formula."""


class Counter:
    """The check; counts the different questions."""

    def __init__(self, culprits: Subset) -> None:
        self._culprits = culprits
        self.asked: dict[Subset, Verdict] = {}

    def __call__(self, kept: Subset) -> Verdict:
        """Passes with the culprits in fp32."""
        return self.asked.setdefault(kept, Verdict.PASS if self._culprits <= kept else Verdict.FAIL)

    def inverted(self, kept: Subset) -> Verdict:
        """Return the opposite verdict, for a search that looks for a set that fails."""
        return Verdict.FAIL if self(kept) is Verdict.PASS else Verdict.PASS


def by_find_keep(planted: Planted, counter: Counter) -> Subset:
    """The search of ``bisect-trt precision``."""
    return find_keep(range(planted.units), counter, suspects=planted.suspects).units


def by_minimise(planted: Planted, counter: Counter) -> Subset:
    """The search of ``bisect-trt reduce``, which knows no suspects."""
    return minimise(range(planted.units), counter.inverted).units


def cost(
    plant: Plant, search: Callable[[Planted, Counter], Subset], searches: int
) -> tuple[float, int]:
    """Mean and most questions over seeds."""
    costs = []
    for seed in range(searches):
        planted = plant(random.Random(seed))
        counter = Counter(planted.culprits)
        if search(planted, counter) != planted.culprits:
            raise AssertionError(f"seed {seed}: not the culprits")
        costs.append(len(counter.asked))
    return statistics.mean(costs), max(costs)


def table(searches: int) -> str:
    """The results as markdown."""
    lines = [
        "| culprits | bound + proof | `precision`, mean | most | search of `reduce`, mean | most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, (plant, culprits, bits) in CASES.items():
        proof = culprits if culprits > 1 else 0  # that lowering all fails is known
        least = "" if bits is None else f"{bits:.1f} + {proof}"
        figures = [
            f"{mean:.1f} | {most}"
            for mean, most in (cost(plant, s, searches) for s in (by_find_keep, by_minimise))
        ]
        lines.append(f"| {name} | {least} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Count the questions of the search for what must stay in fp32."
    )
    parser.add_argument("--searches", type=int, default=200)
    print(table(parser.parse_args().searches))


if __name__ == "__main__":
    main()
