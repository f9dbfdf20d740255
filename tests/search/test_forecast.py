"""How well the questions that a search has still to ask are foretold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from bisect_trt.options.choices import Mode
from bisect_trt.search.forecast import Forecast, forecast
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import (
    Ask,
    Minimum,
    Oracle,
    Original,
    Question,
    Search,
    Subset,
    Units,
    Verdict,
    about_units,
    over_units,
)
from bisect_trt.search.strategy import minimise, shrink_end, shrink_start

pytestmark = pytest.mark.any_version

MOST = 1000


def reduction(count: int, mode: Mode = Mode.AUTO) -> Search[object]:
    return over_units(Verdict.FAIL, lambda ask: minimise(range(count), ask, mode))


def keeping(count: int) -> Search[object]:
    """As `precision` searches: it asks about all and none before."""

    def story(ask: Ask) -> object:
        ask(frozenset(range(count)))
        ask(frozenset())
        return find_keep(range(count), ask)

    return over_units(Verdict.PASS, story)


def fails(culprits: Subset) -> Ask:
    return lambda units: Verdict.FAIL if culprits <= units else Verdict.PASS


def passes(culprits: Subset) -> Ask:
    return lambda units: Verdict.PASS if culprits <= units else Verdict.FAIL


def foretold(search: Search[object], verdict: Ask) -> list[Forecast]:
    """What was foretold before the first question and after each."""
    known: dict[Question, Verdict] = {}
    told = [forecast(search, known, MOST)]

    def oracle(question: Question) -> Verdict:
        if question not in known:
            known[question] = verdict(question.units) if isinstance(question, Units) else Verdict.FAIL
            told.append(forecast(search, known, MOST))
        return known[question]

    search.algorithm(oracle)
    return told


def errors(told: list[Forecast]) -> list[int]:
    """How many too many were foretold, each time."""
    return [seen.left - left for left, seen in zip(reversed(range(len(told))), told, strict=True)]


@settings(max_examples=examples(40))
@given(st.integers(1, 40), st.data())
def test_it_is_nothing_at_the_end_and_only_then(count: int, data: st.DataObject) -> None:
    verdicts = st.sampled_from([*Verdict, Verdict.PASS, Verdict.FAIL])
    for search in (reduction(count), reduction(count, Mode.DDMIN), keeping(count)):
        told = foretold(search, lambda _: data.draw(verdicts))
        assert told[-1].left == 0
        assert all(seen.left > 0 for seen in told[:-1])


@settings(max_examples=examples(40))
@given(st.integers(2, 300), st.data())
def test_one_culprit_is_foretold_well(count: int, data: st.DataObject) -> None:
    culprit = frozenset({data.draw(st.integers(0, count - 1))})
    assert max(map(abs, errors(foretold(reduction(count), fails(culprit))))) <= 2
    for shrink in (shrink_end, shrink_start):

        def story(ask: Ask, shrink: Callable[..., Minimum] = shrink) -> Minimum:
            return shrink(range(count), ask)

        told = foretold(over_units(Verdict.FAIL, story), fails(culprit))
        assert max(map(abs, errors(told))) <= 2
    assert max(map(abs, errors(foretold(keeping(count), passes(culprit))))) <= 6


@settings(max_examples=examples(40))
@given(st.integers(2, 40), st.data())
def test_one_at_a_time_is_foretold_too(count: int, data: st.DataObject) -> None:
    culprits = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=3))
    told = foretold(reduction(count, Mode.LINEAR), fails(culprits))
    assert max(map(abs, errors(told))) <= 2 * len(culprits) + 2


@settings(max_examples=examples(40))
@given(st.integers(4, 200), st.data())
def test_the_best_has_all_culprits(count: int, data: st.DataObject) -> None:
    culprits = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4))
    for search, oracle in ((reduction(count), fails(culprits)), (keeping(count), passes(culprits))):
        told = foretold(search, oracle)
        sizes = [len(seen.best) for seen in told if seen.best is not None]
        assert all(culprits <= seen.best for seen in told[2:] if seen.best is not None)
        assert sizes[1:] == sorted(sizes[1:], reverse=True)
        assert told[-1].best == culprits


def test_it_stops_counting() -> None:
    seen = forecast(reduction(500, Mode.LINEAR), {}, 20)
    assert (seen.left, seen.capped) == (20, True)


@pytest.mark.parametrize("mode", list(Mode))
def test_what_stands_for_the_original_is_no_set_of_units(mode: Mode) -> None:
    def story(oracle: Oracle) -> object:
        return minimise(range(64), about_units(oracle), mode) if oracle(Original()) is Verdict.FAIL else None

    told = foretold(Search(Verdict.FAIL, story), fails(frozenset({20})))
    assert told[1].best is None
    assert max(map(abs, errors(told))) <= (40 if mode is Mode.DDMIN else 3)
