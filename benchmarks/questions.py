"""Counts the questions that searches ask, on planted culprits, beside the information bound.

    python -m benchmarks questions rankings algorithms

No model is run: a candidate shows what is looked for if it has every culprit. The bound is log2 of
the number of ways in which the culprits may lie, a bit a question; where one answer in five says
nothing, a question tells 0.8 bits at most. On top of it comes the proof that no single one can be
left out, a question each where they are several.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.algorithms import by_hwang, by_probabilities, by_quickxplain, by_repeated_bisection
from benchmarks.figures import Figure
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import make_minimal, minimise, reduce_by_counters

SEARCHES = 100
UNTOLD = 0.2
Plant = Callable[[random.Random], Subset]
SCATTERED = ((668, 1), (668, 2), (668, 5), (668, 10), (1000, 20), (1000, 50))


@dataclass(frozen=True)
class Problem:
    """Culprits to find, again and again.

    Attributes:
        name: What is planted.
        units: Among how many.
        plant: Plants them.
        bits: The information in where they are.
        proof: How many questions the proof takes.
        aim: How many questions at most for each of bound and proof; ``None`` if that is not an aim.
        untold: The share of the answers that say nothing.
        blind: The information in how many there are, and whether they come in pairs or triples, for
            who is not told.
    """

    name: str
    units: int
    plant: Plant
    bits: float
    proof: int
    aim: float | None = None
    untold: float = 0.0
    blind: float = 0.0

    @property
    def bound(self) -> float:
        """The least questions, proof included."""
        return self.bits / (1 - self.untold) + self.proof

    @property
    def blind_bound(self) -> float:
        """The same for who is not told how many there are, nor of what kind."""
        return (self.bits + self.blind) / (1 - self.untold) + self.proof


def so_many(count: int, units: int) -> float:
    """The bits in a count of which nothing is known: odds of 1/k for k, up to so many units."""
    return math.log2(count * sum(1 / k for k in range(1, units + 1)))


class Check:
    """The check; counts the different questions.

    Attributes:
        culprits: What it looks for.
        asked: What it was asked, and what it said.
    """

    def __init__(self, problem: Problem, culprits: Subset, goal: Verdict, seed: int) -> None:
        self.asked: dict[Subset, Verdict] = {}
        self._problem = problem
        self.culprits = culprits
        self._goal = goal
        self._other = Verdict.PASS if goal is Verdict.FAIL else Verdict.FAIL
        self._seed = seed

    def __call__(self, units: Subset) -> Verdict:
        """The goal where all culprits are there; which questions have no answer is by chance, and always the same."""
        if units not in self.asked:
            untold = self._problem.untold and random.Random(f"{self._seed}{sorted(units)}").random()
            shows = self._goal if self.culprits <= units else self._other
            self.asked[units] = Verdict.UNRESOLVED if untold > 1 - self._problem.untold else shows
        return self.asked[units]

    def shows(self, units: Subset) -> bool:
        """Whether all are there."""
        return self(units) is self._goal


Search = Callable[[Problem, Check], Subset]


def by_minimise(problem: Problem, check: Check) -> Subset:
    """The search of ``reduce``."""
    return minimise(range(problem.units), check).units


def by_find_keep(problem: Problem, check: Check) -> Subset:
    """The search of ``precision``."""
    return find_keep(range(problem.units), check).units


def by_ranking(problem: Problem, check: Check, rank: Ranker) -> Subset:
    """The search of ``precision`` with suspects."""
    units = random.Random(sum(check.culprits)).sample(range(problem.units), problem.units)
    return find_keep(range(problem.units), check, suspects=rank(check.culprits, units)).units


def cost(problem: Problem, search: Search, goal: Verdict, searches: int = SEARCHES) -> float:
    """The mean number of questions over seeds."""
    costs = []
    for seed in range(searches):
        culprits = problem.plant(random.Random(seed))
        check = Check(problem, culprits, goal, seed)
        found = search(problem, check)
        if not (culprits <= found if problem.untold else culprits == found):
            raise AssertionError(f"{problem.name}, seed {seed}: not the culprits")
        costs.append(len(check.asked))
    return statistics.mean(costs)


def scattered(units: int, count: int, aim: float | None = None, untold: float = 0.0) -> Problem:
    """Culprits anywhere."""
    bits = math.log2(math.comb(units, count))
    proof = count if count > 1 else 0
    name = f"{count} of {units}{', 20% UNRESOLVED' if untold else ''}"
    blind = so_many(count, units)
    return Problem(
        name,
        units,
        lambda rng: frozenset(rng.sample(range(units), count)),
        bits,
        proof,
        aim,
        untold,
        blind,
    )


def fused(units: int, count: int, width: int, aim: float | None = None) -> Problem:
    """Culprits in runs of neighbours, the runs anywhere."""
    free = units - count * (width - 1)

    def plant(rng: random.Random) -> Subset:
        starts = (
            start + run * (width - 1)
            for run, start in enumerate(sorted(rng.sample(range(free), count)))
        )
        return frozenset(start + place for start in starts for place in range(width))

    kind = {2: "pairs", 3: "triples"}[width]
    bits = math.log2(math.comb(free, count))
    blind = so_many(count, units) + math.log2(3)
    return Problem(
        f"{count} {kind} in {units}", units, plant, bits, count * width, aim, blind=blind
    )


def problems() -> Iterator[Problem]:
    """What is planted."""
    aims = {5: 1.2, 10: 1.2, 20: 1.15, 50: 1.15}
    for untold in (0.0, UNTOLD):
        for units, count in SCATTERED:
            yield scattered(units, count, aims.get(count), untold)
    for width in (2, 3):
        for count in (1, 5, 10):
            yield fused(668, count, width, aims.get(count))


def figures() -> Iterator[Figure]:
    """Questions beside the information bound and the proof."""
    for problem in problems():
        for name, search, goal in (
            ("reduce", by_minimise, Verdict.FAIL),
            ("keep", by_find_keep, Verdict.PASS),
        ):
            mean = cost(problem, search, goal)
            bits = problem.bits / (1 - problem.untold)
            note = f"{mean:.1f} questions; bound {bits:.1f} + {problem.proof}"
            if problem.aim:
                note += f", not told how many or of what kind {problem.blind_bound:.1f}: {mean / problem.blind_bound:.2f} of that"
            yield Figure(
                f"{name}: {problem.name}, of the bound",
                mean / problem.bound,
                problem.aim,
                note=note,
            )


Ranker = Callable[[Subset, list[int]], list[int]]
"""Puts shuffled units in an order, given the culprits."""


def half_right(culprits: Subset, units: list[int]) -> list[int]:
    """Every other culprit first, the others anywhere."""
    known = sorted(culprits)[::2]
    return sorted(units, key=lambda unit: unit not in known)


RANKINGS: dict[str, Ranker] = {
    "right": lambda culprits, units: sorted(units, key=lambda unit: unit not in culprits),
    "half right": half_right,
    "by chance": lambda _, units: units,
    "upside down": lambda culprits, units: sorted(units, key=lambda unit: unit in culprits),
    "40, none right": lambda culprits, units: [unit for unit in units if unit not in culprits][:40],
}


def rankings() -> Iterator[Figure]:
    """Questions with a ranking of the units beside those without one."""
    for units, count in SCATTERED:
        problem = scattered(units, count)
        plain = cost(problem, by_find_keep, Verdict.PASS)
        for name, rank in RANKINGS.items():
            mean = cost(problem, partial(by_ranking, rank=rank), Verdict.PASS)
            note = f"{mean:.1f} questions, {plain:.1f} without"
            yield Figure(
                f"{problem.name}, ranking {name}, of those without", mean / plain, 1.1, note=note
            )


def disjoint() -> Iterator[Figure]:
    """Questions to find each of several failures that have nothing in common, beside so many searches for one."""
    units = 668
    for count in (2, 3, 5, 10):
        costs = []
        for seed in range(SEARCHES):
            left = frozenset(random.Random(seed).sample(range(units), count))
            asked: dict[Subset, bool] = {}
            rest = list(range(units))
            while left and asked.setdefault(frozenset(rest), bool(left.intersection(rest))):

                def ask(
                    some: Subset, left: Subset = left, asked: dict[Subset, bool] = asked
                ) -> Verdict:
                    return (
                        Verdict.FAIL
                        if asked.setdefault(some, not left.isdisjoint(some))
                        else Verdict.PASS
                    )

                passed = [some for some, failed in asked.items() if not failed]
                passing = max(
                    (next(p for p, u in enumerate(rest) if u not in some) for some in passed),
                    default=0,
                )
                found = minimise(rest, ask, passing=passing).units
                left -= found
                rest = [unit for unit in rest if unit not in found]
            costs.append(len(asked) + 1)  # the last: that the rest does not fail
        plain = count * (math.ceil(math.log2(units)) + 1) + count + 1
        mean = statistics.mean(costs)
        note = f"{mean:.1f} questions; {count} searches and as many looks at the rest, and one: {plain}"
        yield Figure(
            f"{count} failures in {units}, of so many searches", mean / plain, 1, note=note
        )


def algorithms() -> Iterator[Figure]:
    """Questions of other algorithms, each with the pass that proves 1-minimality, of bound and proof."""

    def proven(found: Subset, check: Check) -> Subset:
        return make_minimal(found, check).units

    others: dict[str, Search] = {
        "bisection, repeated": lambda problem, check: proven(
            by_repeated_bisection(range(problem.units), check.shows), check
        ),
        "QuickXplain": lambda problem, check: proven(
            by_quickxplain(range(problem.units), check.shows), check
        ),
        "ProbDD": lambda problem, check: proven(
            by_probabilities(range(problem.units), check.shows), check
        ),
        "CDD": lambda problem, check: proven(
            reduce_by_counters(range(problem.units), check), check
        ),
        "binary splitting, told how many": lambda problem, check: proven(
            by_hwang(range(problem.units), check.shows, problem.proof or 1), check
        ),
        "ours, of reduce": by_minimise,
    }
    for units, count in SCATTERED:
        problem = scattered(units, count)
        for name, search in others.items():
            mean = cost(problem, search, Verdict.FAIL, searches=20)
            yield Figure(
                f"{problem.name}: {name}, of the bound",
                mean / problem.bound,
                note=f"{mean:.1f} questions",
            )
