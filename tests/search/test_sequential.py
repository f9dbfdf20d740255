"""The test of a mean says what the whole set says, as surely as it is asked to, and from a part of it."""

from __future__ import annotations

import random

import pytest

from bisect_trt.search.oracle import Verdict
from bisect_trt.search.statistics import MeanTest
from bisect_trt.search.strategy import minimise


def decide(values: list[float], low: float, high: float, threshold: float, error: float) -> tuple[bool, int]:
    """The answer, and how many values it took."""
    test = MeanTest(len(values), low, high, threshold, error)
    for value in values:
        if test.add(value) is not None:
            break
    assert test.decided is not None
    return test.decided, test.seen


@pytest.mark.parametrize("seed", range(20))
def test_without_error_it_is_the_whole_set(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.choice((-1.0, 0.0, 0.0, 1.0)) for _ in range(rng.randint(1, 60))]
    threshold = sum(values) + rng.choice((-1.0, -0.5, 0.0, 0.5, 1.0))
    answer, _ = decide(values, -1.0, 1.0, threshold, 0.0)
    assert answer == (sum(values) >= threshold)


@pytest.mark.parametrize("wrong", [0.007, 0.013])
def test_it_errs_no_more_often_than_allowed(wrong: float) -> None:
    """At 10%, of 150 random orders of a set near the threshold: 15 at most on the average, 28 with a chance of one in 1500."""
    rng, size = random.Random(7), 300
    values = [-1.0] * round(wrong * size) + [0.0] * (size - round(wrong * size))
    threshold = -0.01 * size
    truth = sum(values) >= threshold
    errors = 0
    for _ in range(150):
        rng.shuffle(values)
        errors += decide(values, -1.0, 1.0, threshold, 0.1)[0] != truth
    assert errors <= 28


def test_clear_cases_take_a_part_of_the_set() -> None:
    rng, size = random.Random(3), 5000
    for wrong in (0.0, 0.1):
        values = [-1.0] * round(wrong * size) + [0.0] * (size - round(wrong * size))
        rng.shuffle(values)
        answer, seen = decide(values, -1.0, 1.0, -0.01 * size, 1e-4)
        assert answer == (wrong == 0.0)
        assert seen < size / 3


def test_without_an_upper_limit_only_worse_can_be_said_early() -> None:
    infinite = float("inf")
    assert decide([-1.0] * 400, -infinite, 1.0, -40.0, 1e-3)[1] < 400
    assert decide([0.0] * 400, -infinite, 1.0, -40.0, 1e-3) == (True, 400)


def test_what_is_certain_is_said_at_once() -> None:
    """After five of ten, the rest cannot make up for what is lost, or lose what is won."""
    assert decide([0.0] * 10, 0.0, 1.0, 6.0, 0.0) == (False, 5)
    assert decide([1.0] * 10, 0.0, 1.0, 6.0, 0.0) == (True, 6)


def test_searches_by_it_find_what_the_whole_set_says() -> None:
    """Of 30 searches at 99% that one errs has a chance of a fourth at most, and much less where sets are clear cut."""
    size, units = 1500, 24
    used = asked = 0
    for seed in range(30):
        rng = random.Random(seed)
        guilty = set(rng.sample(range(units), rng.randint(1, 3)))
        turned = {unit: {rng.randrange(size) for _ in range(round(size * rng.uniform(0.03, 0.2)))} for unit in guilty}

        def ask(chosen: frozenset[int], turned: dict[int, set[int]] = turned) -> Verdict:
            nonlocal used, asked
            off = set().union(*(turned.get(unit, set()) for unit in chosen))
            gains = [-1.0 if place in off else 0.0 for place in range(size)]
            passed, seen = decide(gains, -1.0, 1.0, -0.02 * size, 0.01 / 100)
            assert passed == (len(off) <= 0.02 * size)
            used, asked = used + seen, asked + 1
            return Verdict.PASS if passed else Verdict.FAIL

        minimum = minimise(range(units), ask)
        assert minimum.proven
        assert minimum.units <= guilty
    assert used < asked * size / 3
