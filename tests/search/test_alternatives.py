"""Every smallest set that is enough: all of them, 1-minimal, in few questions."""

from __future__ import annotations

import random
from math import ceil, log2

import pytest

from bisect_trt.search.keep import find_alternatives
from bisect_trt.search.oracle import Subset, Verdict


class Asked:
    """An oracle over known answers: a set passes if it holds one of them."""

    def __init__(self, *answers: Subset, breaks: Subset = frozenset()) -> None:
        self.answers = answers
        self.breaks = breaks
        self.questions: list[Subset] = []

    def __call__(self, units: Subset) -> Verdict:
        self.questions.append(units)
        if units & self.breaks:
            return Verdict.UNRESOLVED
        return Verdict.PASS if any(answer <= units for answer in self.answers) else Verdict.FAIL


def minimal(answers: list[Subset]) -> set[Subset]:
    return {each for each in answers if not any(other < each for other in answers)}


@pytest.mark.parametrize("seed", range(60))
def test_all_smallest_sets_are_found_and_no_other(seed: int) -> None:
    rng = random.Random(seed)
    units = list(range(rng.randint(1, 14)))
    answers = [
        frozenset(rng.sample(units, rng.randint(1, min(3, len(units)))))
        for _ in range(rng.randint(1, 3))
    ]
    weights = {unit: rng.choice((1.0, 10.0)) for unit in units}
    ask = Asked(*answers)
    result = find_alternatives(units, ask, weights=weights)
    assert set(result.found) == minimal(answers)
    assert result.complete
    assert len(ask.questions) == len(set(ask.questions))


def test_nothing_is_found_where_nothing_passes() -> None:
    assert find_alternatives(range(20), Asked()).found == ()
    assert find_alternatives([], Asked()).found == ()


@pytest.mark.parametrize("count", [2, 7, 30, 64])
def test_one_among_many_takes_the_questions_of_a_bisection_and_two(count: int) -> None:
    for unit in range(count):
        ask = Asked(frozenset({unit}))
        assert find_alternatives(range(count), ask).found == (frozenset({unit}),)
        assert len(ask.questions) <= ceil(log2(count)) + 2


def test_the_list_ends_at_the_limit_and_says_so() -> None:
    answers = [frozenset({unit}) for unit in range(6)]
    result = find_alternatives(range(6), Asked(*answers), max_sets=3)
    assert len(result.found) == 3
    assert not result.complete
    assert find_alternatives(range(6), Asked(*answers), max_sets=6).complete


def test_a_set_that_breaks_in_another_way_hides_no_single_one() -> None:
    ask = Asked(frozenset({3}), breaks=frozenset({0}))
    assert find_alternatives(range(8), ask).found == (frozenset({3}),)


@pytest.mark.parametrize("seed", range(20))
def test_the_single_one_in_a_half_that_breaks_is_found_by_halving(seed: int) -> None:
    """Two switches that work only together break each half that has one of them, the one that passes among it."""
    rng = random.Random(seed)
    one, other, passing = rng.sample(range(64), 3)

    class Paired(Asked):
        def __call__(self, units: Subset) -> Verdict:
            verdict = super().__call__(units)
            return Verdict.UNRESOLVED if (one in units) is not (other in units) else verdict

    ask = Paired(frozenset({passing}))
    result = find_alternatives(range(64), ask, likely=False)
    assert result.found == (frozenset({passing}),)
    assert len(ask.questions) <= 40  # 15 on average
