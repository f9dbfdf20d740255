"""How many rounds a search takes with W workers, where each round probes what it most likely asks next.

    python tests/search/test_rounds.py 10000 1000

prints the table of docs/search.md for so many units and workers. No process is started: a round
takes in the answers of all its questions.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from functools import partial

import pytest

from bisect_trt.probe.speculation import likely_questions, next_question
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Question, Units, Verdict, over_units
from bisect_trt.search.strategy import minimise

SIDES: list[tuple[Callable[..., Minimum], Verdict]] = [
    (minimise, Verdict.FAIL),
    (find_keep, Verdict.PASS),
]


def simulate(
    algorithm: Callable[..., Minimum], goal: Verdict, units: int, culprits: int, workers: int
) -> tuple[Minimum, int, int]:
    """Return the answer, the number of rounds, and the number of questions on the way to it."""
    planted = frozenset(random.Random(culprits).sample(range(units), culprits))
    search = over_units(partial(algorithm, range(units)))
    verdicts: dict[Question, Verdict] = {}
    rounds = 0
    while True:
        path: list[Question] = []
        question = next_question(search, verdicts, path)
        if isinstance(question, tuple):
            assert question[0].units == planted
            return question[0], rounds, len(path)
        for each in likely_questions(search, verdicts, workers, 0.5):
            assert isinstance(each, Units)
            verdicts[each] = goal if planted <= each.units else goal.opposite
        rounds += 1


def bound(units: int, culprits: int, workers: int) -> float:
    """The fewest rounds to find the culprits, if the sets of a round are nested: the answers have W + 1 outcomes."""
    return math.log2(math.comb(units, culprits)) / math.log2(workers + 1)


@pytest.mark.parametrize(("algorithm", "goal"), SIDES)
@pytest.mark.parametrize(
    "culprits", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 5))]
)
def test_rounds_fall_with_the_logarithm_of_the_workers(
    algorithm: Callable[..., Minimum], goal: Verdict, culprits: int
) -> None:
    alone = simulate(algorithm, goal, 500, culprits, 1)
    for workers in (8, 64):
        answer, rounds, questions = simulate(algorithm, goal, 500, culprits, workers)
        assert (answer, questions) == (alone[0], alone[2])
        assert rounds <= 1.35 * bound(500, culprits, workers) + 2


if __name__ == "__main__":
    for count in (1, 2, 5):
        for side, wanted in SIDES:
            figures = simulate(side, wanted, int(sys.argv[1]), count, int(sys.argv[2]))[1:]
            print(count, wanted.value, *figures, flush=True)
