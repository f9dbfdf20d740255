"""How many questions the searches ask: the figures of docs/search.md hold, with fewer seeds."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.questions import (
    RANKINGS,
    Problem,
    Search,
    by_find_keep,
    by_minimise,
    by_ranking,
    cost,
    fused,
    scattered,
)
from bisect_trt.search.density import Density, cold
from bisect_trt.search.groups import Kept, Singles, skipping, together
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Subset, Verdict

pytestmark = pytest.mark.any_version

SEARCHES = 12
SIDES = [(by_minimise, Verdict.FAIL), (by_find_keep, Verdict.PASS)]


@pytest.mark.parametrize(("search", "goal"), SIDES)
@pytest.mark.parametrize(
    ("units", "count", "most"),
    [(668, 1, 1.2), (668, 2, 1.13), (668, 5, 1.2), (668, 10, 1.2), (1000, 20, 1.15), (1000, 50, 1.15)],
)
def test_culprits_anywhere(search: Search, goal: Verdict, units: int, count: int, most: float) -> None:
    problem = scattered(units, count)
    assert cost(problem, search, goal, SEARCHES) <= most * problem.bound


@pytest.mark.parametrize(("search", "goal"), SIDES)
@pytest.mark.parametrize(("units", "count", "most"), [(668, 10, 1.2), (1000, 20, 1.15)])
def test_one_answer_in_five_says_nothing(search: Search, goal: Verdict, units: int, count: int, most: float) -> None:
    problem = scattered(units, count, untold=0.2)
    assert cost(problem, search, goal, SEARCHES) <= most * problem.bound


@pytest.mark.parametrize(("search", "goal"), SIDES)
@pytest.mark.parametrize("width", [2, 3])
def test_neighbours_that_are_needed_together_cost_less_than_scattered_ones(
    search: Search, goal: Verdict, width: int
) -> None:
    together, apart = fused(668, 10, width), scattered(668, 10 * width)
    assert cost(together, search, goal, SEARCHES) <= 1.3 * together.bound
    assert cost(together, search, goal, SEARCHES) < 0.8 * cost(apart, search, goal, SEARCHES)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_wrong_ranking_costs_a_question_or_two_and_a_right_one_saves_many(count: int) -> None:
    problem = scattered(668, count)
    plain = cost(problem, by_find_keep, Verdict.PASS, SEARCHES)
    costs = {
        name: cost(problem, partial(by_ranking, rank=rank), Verdict.PASS, SEARCHES) for name, rank in RANKINGS.items()
    }
    assert max(costs.values()) <= 1.05 * plain + 1.5
    assert costs["right"] <= plain
    assert count == 1 or costs["right"] < 0.6 * plain


@pytest.mark.parametrize("units", [300, 500, 668, 1000])
def test_a_ranking_upside_down_costs_one_culprit_a_tenth_at_most(units: int) -> None:
    problem = scattered(units, 1)
    plain = cost(problem, by_find_keep, Verdict.PASS)
    upside_down = partial(by_ranking, rank=RANKINGS["upside down"])
    assert cost(problem, upside_down, Verdict.PASS, SEARCHES) <= 1.1 * plain


def test_that_none_is_left_is_asked_by_itself_once_it_is_likely() -> None:
    density = Density(cold(500), units=500)
    assert density.group(500, dirty=False) < 500  # one is needed, so most likely not
    density.hit()
    assert density.group(499, dirty=False) < 499  # the very first is, so others may well be
    density.cleared(300)
    assert density.group(199, dirty=False) == 199
    assert density.group(199, dirty=True) < 199


def test_where_nothing_can_be_told_of_a_unit_another_is_put_back_until_the_next_question() -> None:
    asked: list[Subset] = []

    def ask(units: Subset) -> Verdict:
        asked.append(units)
        return Verdict.UNRESOLVED if units == {0, 1, 2, 3} else Verdict.PASS

    kept = Kept(range(10), ask)
    assert kept.leave_out(frozenset({6, 7, 8, 9})) is Verdict.PASS
    assert kept.leave_out(frozenset({4, 5}), again=3) is Verdict.PASS
    assert kept.units == {0, 1, 2, 3, 6}
    assert kept.leave_out(frozenset({3})) is Verdict.PASS
    assert asked[1:] == [{0, 1, 2, 3}, {0, 1, 2, 3, 6}, {0, 1, 2}]


@given(st.integers(2, 80), st.integers(0, 30), st.data())
def test_a_search_that_is_ended_has_the_best_so_far(count: int, most: int, data: st.DataObject) -> None:
    culprits = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=8))
    passed: list[Subset] = [frozenset(range(count))]
    asked = 0

    def ask(kept: Subset) -> Verdict:
        nonlocal asked
        asked += 1
        if culprits <= kept:
            passed.append(kept)
        return Verdict.PASS if culprits <= kept else Verdict.FAIL

    minimum = find_keep(range(count), ask, most=most)
    assert asked <= most
    assert minimum.units == min(passed, key=len)
    assert minimum.proven or minimum.why == f"the search was ended after {most} questions"
    assert not minimum.proven or minimum.units == culprits


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50))
def test_in_the_place_of_a_size_those_nearest_to_it_are_tried(size: int, fewest: int, more: int) -> None:
    sizes = range(fewest, fewest + more)
    tried = list(skipping(size, sizes))
    assert len(set(tried)) == len(tried) == min(len(sizes), 4) or not (fewest <= size < fewest + more)
    assert all(each in sizes for each in tried)
    assert not tried or size not in sizes or tried[0] == size


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(0, 8))
def test_units_alone_are_the_groups_that_sets_of_one_are(units: list[int], start: int, stop: int) -> None:
    sets = [frozenset({unit}) for unit in units]
    singles = Singles(units)
    assert list(singles) == sets
    assert list(singles[start:stop]) == sets[start:stop]
    assert together(singles[start:stop]) == together(sets[start:stop]) == frozenset(units[start:stop])


def test_what_came_side_by_side_is_expected_to_again() -> None:
    density = Density(cold(500), units=500)
    for time in range(3):
        density.cleared(20)
        density.hit()
        assert not density.sure() or time > 0
        density.hit()
        density.cleared(20)
    density.hit()
    assert density.sure()


def test_the_third_in_a_row_is_taken_too_but_now_and_then_it_is_asked_about() -> None:
    density = Density(cold(500), units=500)
    for _ in range(3):
        density.hit()
    taken = 0
    for _ in range(12):
        density.cleared(10)
        density.hit()
        assert density.sure()
        density.taken()
        if not density.sure():
            break
        density.taken()
        taken += 1
    assert 0 < taken < 12
    density.hit()
    density.cleared(10)
    density.hit()
    density.taken()
    assert density.sure()


@pytest.mark.parametrize(("search", "goal"), SIDES)
def test_a_neighbour_that_was_taken_wrongly_is_no_sign_of_a_flaky_check(search: Search, goal: Verdict) -> None:
    runs = Problem("two runs of eight in 668", 668, lambda rng: _runs(rng, 2, 8), 17.7, 16)
    assert cost(runs, search, goal, SEARCHES) <= 2 * runs.bound


def _runs(rng: Random, count: int, width: int) -> Subset:
    return frozenset(place + start for start in rng.sample(range(0, 660, 2 * width), count) for place in range(width))
