"""How many questions the searches ask: the figures of docs/search.md hold, with fewer seeds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from fakes import Case, FakeCheck, FakeRun, build, cases, decisions, scratch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from benchmarks.flaky import simulate_in_memory
from benchmarks.questions import (
    RANKINGS,
    Search,
    by_find_keep,
    by_minimise,
    by_ranking,
    cost,
    fused,
    scattered,
)
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Note, Remark, Subset, Verdict, over_units

pytestmark = pytest.mark.any_version
SEARCHES = 12
SIDES = [(by_minimise, Verdict.FAIL), (by_find_keep, Verdict.PASS)]


@pytest.mark.parametrize(("search", "goal"), SIDES)
@pytest.mark.parametrize(
    ("units", "count", "most"),
    [
        (668, 1, 1.2),
        (668, 2, 1.13),
        (668, 5, 1.2),
        (668, 10, 1.2),
        (1000, 20, 1.15),
        (1000, 50, 1.15),
    ],
)
def test_culprits_anywhere(
    search: Search, goal: Verdict, units: int, count: int, most: float
) -> None:
    problem = scattered(units, count)
    assert cost(problem, search, goal, SEARCHES) <= most * problem.bound


@pytest.mark.parametrize(("search", "goal"), SIDES)
@pytest.mark.parametrize(("units", "count", "most"), [(668, 10, 1.2), (1000, 20, 1.15)])
def test_one_answer_in_five_says_nothing(
    search: Search, goal: Verdict, units: int, count: int, most: float
) -> None:
    problem = scattered(units, count, untold=0.2)
    assert cost(problem, search, goal, SEARCHES) <= most * problem.bound


@pytest.mark.parametrize(("search", "goal"), SIDES)
@pytest.mark.parametrize("width", [2, 3])
def test_neighbours_that_are_needed_together_cost_less_than_scattered_ones(
    search: Search, goal: Verdict, width: int
) -> None:
    together = fused(668, 10, width)
    apart = scattered(668, 10 * width)
    assert cost(together, search, goal, SEARCHES) <= 1.3 * together.bound
    assert cost(together, search, goal, SEARCHES) < 0.8 * cost(apart, search, goal, SEARCHES)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_wrong_ranking_costs_a_question_or_two_and_a_right_one_saves_many(count: int) -> None:
    problem = scattered(668, count)
    plain = cost(problem, by_find_keep, Verdict.PASS, SEARCHES)
    costs = {
        name: cost(problem, partial(by_ranking, rank=rank), Verdict.PASS, SEARCHES)
        for name, rank in RANKINGS.items()
    }
    assert max(costs.values()) <= 1.05 * plain + 1.5
    assert costs["right"] <= plain
    assert count == 1 or costs["right"] < 0.6 * plain


@given(st.integers(2, 80), st.integers(0, 30), st.data())
def test_a_search_that_is_ended_has_the_best_so_far(
    count: int, most: int, data: st.DataObject
) -> None:
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
    assert minimum.proven or minimum.remark == Remark(Note.STOPPED, (most,))
    assert not minimum.proven or minimum.units == culprits


@settings(max_examples=examples(24), deadline=None)
@given(cases(25), st.booleans(), st.integers(2, 8), st.integers(0, 1 << 30), st.data())
def test_what_is_enough_is_the_same_for_any_number_of_workers(
    case: Case, ranked: bool, workers: int, seed: int, data: st.DataObject
) -> None:
    suspects = data.draw(st.permutations(range(case.count))) if ranked else ()
    opposite = {Verdict.FAIL: Verdict.PASS, Verdict.PASS: Verdict.FAIL}
    found = []
    for number, delays in ((1, None), (workers, seed)):
        check = FakeCheck(
            lambda units: opposite.get(case.predicate(units), Verdict.UNRESOLVED), delays
        )
        with scratch() as folder, FakeRun(Path(folder), check, number) as run:
            search = over_units(partial(find_keep, range(case.count), suspects=suspects))
            found.append((run.prober.search(search, build), decisions(run.told.records)))
    assert found[0] == found[1]


@pytest.mark.parametrize(("rate", "most"), [(0.2, 163), (1.0, 13)])
def test_a_check_that_seldom_fails_costs_less_than_bisection_repeated(
    rate: float, most: int
) -> None:
    """The mean of repeated bisection, without ``--repeat``, and that of a steady check; at 0.5 repeated bisection costs less."""
    ended = [
        run
        for seed in range(round(30 / rate))
        if (run := simulate_in_memory(seed, 371, rate)) is not None
    ]
    assert sum(run.probes for run in ended) <= most * len(ended)
