"""Parallel probes: the same answer and the same decisions as with one worker, and nothing left running."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fakes import (
    Algorithm,
    Case,
    FakeCheck,
    FakeRun,
    Killed,
    Listening,
    NoActivations,
    build,
    cases,
    decisions,
    journal,
    scratch,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples, gone, script

from bisect_trt.probe.ledger import BudgetSpent, Ledger
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import Prober, Runner
from bisect_trt.probe.speculation import likely_questions
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.search.oracle import Ask, Minimum, Subset, Units, Verdict, over_units
from bisect_trt.search.strategy import minimise
from bisect_trt.worker.process import Cancel

pytestmark = pytest.mark.any_version


def halving(count: int) -> Algorithm:
    return lambda ask: minimise(range(count), ask)


@settings(max_examples=examples(30), deadline=None)
@given(cases(), st.lists(st.integers(2, 8), min_size=2, max_size=2, unique=True), st.integers(0, 1 << 30))
def test_any_number_of_workers_decides_the_same(case: Case, numbers: list[int], seed: int) -> None:
    """The last question is about what the search has left, which several workers begin before it ends."""
    with scratch() as folder:
        one = Path(folder, "one")
        with FakeRun(one, FakeCheck(case.predicate)) as alone:
            minimum = alone.reduce(case.count, case.algorithm, rest=True)
        written = [{**entry, "seconds": 0, "own_seconds": 0} for entry in journal(one, "verdict")]
        for workers in numbers:
            many = Path(folder, str(workers))
            with FakeRun(many, FakeCheck(case.predicate, seed), workers) as run:
                assert run.reduce(case.count, case.algorithm, rest=True) == minimum
            assert decisions(run.told.records) == decisions(alone.told.records)
            assert [{**entry, "seconds": 0, "own_seconds": 0} for entry in journal(many, "verdict")] == written
            assert run.ledger.counts() == alone.ledger.counts()
            assert run.check.most <= workers
            assert run.check.running == 0
            # Nothing that was answered is asked again.
            assert max(run.check.ended.values()) == 1


@settings(max_examples=examples(30), deadline=None)
@given(cases(), st.integers(1, 8), st.integers(1, 12), st.integers(0, 1 << 30))
def test_a_budget_ends_at_the_same_probe(case: Case, workers: int, probes: int, seed: int) -> None:
    with scratch() as folder:
        with FakeRun(Path(folder, "whole"), FakeCheck(case.predicate)) as whole:
            whole.reduce(case.count, case.algorithm)
        with FakeRun(Path(folder, "part"), FakeCheck(case.predicate, seed), workers, max_probes=probes) as part:
            if len(whole.told.records) > probes:
                with pytest.raises(BudgetSpent):
                    part.reduce(case.count, case.algorithm)
            else:
                part.reduce(case.count, case.algorithm)
    assert decisions(part.told.records) == decisions(whole.told.records[:probes])


@given(st.integers(1, 4), st.integers(64, 300), st.data())
def test_so_many_answers_are_learnt_at_a_time(depth: int, count: int, data: st.DataObject) -> None:
    """2^d - 1 workers foresee the next d questions, whatever the answers."""
    culprit = data.draw(st.integers(0, count - 1))
    foreseen = likely_questions(over_units(halving(count)), {}, 2**depth - 1, 0.5)
    asked: list[Subset] = []

    def ask(units: Subset) -> Verdict:
        asked.append(units)
        return Verdict.FAIL if culprit in units else Verdict.PASS

    halving(count)(ask)
    assert set(map(Units, asked[:depth])) <= set(foreseen)


class BrokenCheck(FakeCheck):
    """Cannot run but in the driver's own thread, as if the disk had become full in between."""

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("the disk is full")
        return super().run(files, cancel)


def test_an_error_in_a_parallel_probe_ends_the_search(tmp_path: Path) -> None:
    check = BrokenCheck(lambda _: Verdict.FAIL)
    with FakeRun(tmp_path, check, 4) as session, pytest.raises(OSError, match="the disk is full"):
        session.reduce(20, halving(20))


def wait_until_gone(pids: list[int], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not all(map(gone, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_moot_probes_end_with_all_they_started(tmp_path: Path) -> None:
    """Three probes each start a long sleep; the answer to the first makes the others moot."""
    pids = tmp_path / "pids"
    certain = f"until test $(wc -l < '{pids}') -ge 3; do sleep 0.01; done; exit 1"
    body = f"sleep 600 & echo $$ $! >> '{pids}'\nif grep -qF '[0, 1]' \"$1\"; then {certain}; fi\nsleep 600"
    check = CommandCheck((script(tmp_path / "check", body), "{model}"))
    ledger = Ledger(tmp_path)
    prober = Prober(Runner(check, Workspace(tmp_path), NoActivations()), ledger, workers=3)

    def algorithm(ask: Ask) -> Minimum:
        whole = frozenset({0, 1})
        if ask(whole) is not Verdict.FAIL:
            ask(frozenset({0}))
            ask(frozenset({1}))
        return Minimum(whole, proven=True)

    began = time.monotonic()
    assert prober.search(over_units(algorithm), build).units == {0, 1}
    ledger.close()
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 6
    assert wait_until_gone(started)
    assert time.monotonic() - began < 200
    assert prober.wasted == 2
    # What was begun and never answered is known, and nothing else.
    assert len(journal(tmp_path, "started")) == 3
    assert len(journal(tmp_path, "outcome")) == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_an_interrupted_search_leaves_no_process(tmp_path: Path, workers: int) -> None:
    """The listener raises while others run, as Ctrl-C does."""
    pids = tmp_path / "pids"
    body = f"sleep 600 & echo $$ $! >> '{pids}'\ngrep -qF '[0, 1]' \"$1\" || sleep 600; exit 1"
    check = CommandCheck((script(tmp_path / "check", body), "{model}"))
    ledger = Ledger(tmp_path, [Listening(killed_after=1)])
    prober = Prober(Runner(check, Workspace(tmp_path), NoActivations()), ledger, workers)

    def algorithm(ask: Ask) -> Minimum:
        for units in ({0, 1}, {0}, {1}):
            ask(frozenset(units))
        return Minimum(frozenset(), proven=True)

    with pytest.raises(Killed):
        prober.search(over_units(algorithm), build)
    ledger.close()
    started = [int(pid) for pid in pids.read_text().split()]
    assert 2 <= len(started) <= 2 * workers
    assert wait_until_gone(started)
