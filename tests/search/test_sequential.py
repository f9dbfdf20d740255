"""The test of a mean says what the whole set says, as surely as it is asked to, and from a part of it."""

from __future__ import annotations

import random

import pytest

from bisect_trt.search.statistics import MeanTest


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
