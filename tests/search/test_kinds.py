"""Kinds of culprits that make a search harder: answers that say nothing, neighbours, a ranking that is wrong.

Whatever the kind, the answer is exact where it can be told, 1-minimal, and the same for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest
from fakes import Algorithm, FakeCheck, FakeRun, build, decisions, scratch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.flaky import simulate_in_memory
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Subset, Verdict, over_units
from bisect_trt.search.strategy import minimise

pytestmark = pytest.mark.any_version


@dataclass(frozen=True)
class Kind:
    """What is planted, and how it is looked for.

    Attributes:
        count: Among how many units.
        culprits: What is needed.
        goal: What a check says where all of it is there.
        untold: Whether one answer in five says nothing.
        ranking: The units for ``find_keep``, most suspicious first.
    """

    count: int
    culprits: Subset
    goal: Verdict
    untold: bool
    ranking: tuple[int, ...]

    def predicate(self, units: Subset) -> Verdict:
        """The check."""
        ends = len(units) in (0, self.count)
        if self.untold and not ends and crc32(str(sorted(units)).encode()) % 5 == 0:
            return Verdict.UNRESOLVED
        other = Verdict.PASS if self.goal is Verdict.FAIL else Verdict.FAIL
        return self.goal if self.culprits <= units else other

    @property
    def algorithm(self) -> Algorithm:
        """The search."""
        if self.goal is Verdict.FAIL:
            return partial(minimise, range(self.count))
        return lambda ask: find_keep(range(self.count), ask, suspects=self.ranking)


@st.composite
def kinds(draw: st.DrawFn, most: int) -> Kind:
    """Single ones, pairs or triples, anywhere; with a ranking that may be right, wrong, or upside down."""
    width, runs = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    count = draw(st.integers(width * runs + 1, most))
    starts = draw(st.lists(st.integers(0, count - width), min_size=runs, max_size=runs))
    culprits = frozenset(start + place for start in starts for place in range(width))
    ranking = draw(st.permutations(range(count)))
    order = draw(st.sampled_from(["none", "right", "by chance", "upside down"]))
    if order in ("right", "upside down"):
        ranking = sorted(ranking, key=lambda unit: (unit in culprits) == (order == "upside down"))
    goal = draw(st.sampled_from([Verdict.FAIL, Verdict.PASS]))
    return Kind(count, culprits, goal, draw(st.booleans()), tuple(ranking if order != "none" else ()))


@settings(max_examples=12, deadline=None)
@given(kinds(40), st.integers(2, 8), st.integers(0, 1 << 30))
def test_any_number_of_workers_finds_the_same(kind: Kind, workers: int, seed: int) -> None:
    found = []
    for number, delays in ((1, None), (workers, seed)):
        with scratch() as folder, FakeRun(Path(folder), FakeCheck(kind.predicate, delays), number) as run:
            minimum = run.prober.search(over_units(kind.algorithm), build)
            found.append((minimum, decisions(run.told.records)))
    assert found[0] == found[1]


@pytest.mark.parametrize(("rate", "most"), [(0.2, 163), (1.0, 13)])
def test_a_check_that_seldom_fails_costs_less_than_bisection_repeated(rate: float, most: int) -> None:
    """The mean of repeated bisection, without ``--repeat``, and that of a steady check; at 0.5 repeated bisection costs less."""
    ended = [run for seed in range(round(30 / rate)) if (run := simulate_in_memory(seed, 371, rate)) is not None]
    assert sum(run.probes for run in ended) <= most * len(ended)
