"""A run that was killed goes on where it was, whatever the moment."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
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
from support import assert_gone, chain, examples, has, rest_slow, script

from benchmarks.flaky import simulate, simulate_in_memory
from bisect_trt.errors import BisectError
from bisect_trt.probe.candidate import Identity, Probe
from bisect_trt.probe.ledger import JOURNAL, Ended, Ledger, read_journal, read_probes
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.speculation import likely_questions
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.search.oracle import Ask, Minimum, Subset, Units, Verdict, over_units
from bisect_trt.search.statistics import MOST_PASSES, Flakiness
from bisect_trt.search.strategy import minimise
from bisect_trt.session.binding import RUN_FILE, Binding
from bisect_trt.worker.process import Cancel

pytestmark = pytest.mark.any_version


def answered(folder: Path) -> set[str]:
    return {entry["key"] for entry in journal(folder, "outcome")}


def keys(units: Iterable[Subset]) -> set[str]:
    return {build(each).key for each in units}


@settings(max_examples=examples(30), deadline=None)
@given(cases(25), st.data(), st.integers(1, 8), st.integers(1, 8), st.integers(0, 1 << 30))
def test_killed_after_any_verdict(
    case: Case, data: st.DataObject, workers: int, later: int, seed: int
) -> None:
    with scratch() as folder:
        with FakeRun(Path(folder, "whole"), FakeCheck(case.predicate)) as whole:
            minimum = whole.reduce(case.count, case.algorithm)
        moment = data.draw(st.integers(1, len(whole.told.records)))
        run = Path(folder, "run")
        with FakeRun(run, FakeCheck(case.predicate, seed), workers, killed_after=moment) as killed:
            with pytest.raises(Killed):
                killed.reduce(case.count, case.algorithm)
            assert killed.check.running == 0
        known = answered(run)
        with FakeRun(run, FakeCheck(case.predicate, seed), later) as resumed:
            assert resumed.reduce(case.count, case.algorithm) == minimum
        assert decisions(resumed.told.records) == decisions(whole.told.records)
        assert known.isdisjoint(keys(resumed.check.ended))


share = st.floats(0, 1)


@settings(max_examples=examples(30), deadline=None)
@given(
    cases(25),
    st.tuples(share, share),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 1 << 30),
)
def test_the_journal_ends_at_any_byte(
    case: Case, moments: tuple[float, float], workers: int, later: int, seed: int
) -> None:
    """As after a power cut; and again after the run that went on."""
    with scratch() as folder:
        run = Path(folder)
        with FakeRun(run, FakeCheck(case.predicate, seed), workers) as whole:
            minimum = whole.reduce(case.count, case.algorithm)
        for moment in moments:
            content = (run / JOURNAL).read_bytes()
            (run / JOURNAL).write_bytes(content[: round(moment * len(content))])
            known = {entry.key for entry in read_journal(run / JOURNAL) if isinstance(entry, Ended)}
            with FakeRun(run, FakeCheck(case.predicate, seed), later) as resumed:
                assert resumed.reduce(case.count, case.algorithm) == minimum
            assert decisions(resumed.told.records) == decisions(whole.told.records)
            assert known.isdisjoint(keys(resumed.check.ended))
            assert keys(resumed.check.ended) | known >= {
                record.key for record in whole.told.records
            }
            # Every line is whole again.
            assert answered(run) >= {record.key for record in whole.told.records}


def test_a_second_look_is_remembered_beside_the_first(tmp_path: Path) -> None:
    """The re-check of an answer runs the check anew, but not again when the run goes on; nor does it change history."""
    candidate = build([0])
    seen = []
    for said in (Verdict.FAIL, Verdict.PASS, Verdict.UNRESOLVED):
        with FakeRun(tmp_path, FakeCheck(lambda _, said=said: said)) as run:  # type: ignore[misc]  # mypy infers no type of its default
            looks = [run.prober.probe(candidate)]
            if said is not Verdict.FAIL:
                looks.append(run.prober.probe(candidate, again=True))
            if said is Verdict.UNRESOLVED:
                looks.append(run.prober.probe(candidate, again=True))
            seen.append([look.verdict for look in looks])
            assert run.check.ended.total() == 1
    first = Verdict.FAIL
    second = Verdict.PASS
    third = Verdict.UNRESOLVED
    assert seen == [[first], [first, second], [first, second, third]]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["outcome", "moot", None])), max_size=6
    )
)
def test_a_probe_that_never_ended_is_known(probes: list[tuple[str, str | None]]) -> None:
    """A check that takes the machine down is on record before it starts."""
    with scratch() as folder:
        first = Ledger(Path(folder), describe_outcome)
        begun: set[str] = set()
        for key, end in probes:
            candidate = Identity(key, f"candidate {key}", frozenset())
            first.start(candidate)
            begun.add(key)
            if end is not None:
                first.end(
                    candidate,
                    Outcome(Ending.PASSED, "pass", "it passes") if end == "outcome" else None,
                )
                begun.discard(key)
        first.close()
        second = Ledger(Path(folder), describe_outcome)
        second.close()
        assert {key: entry.title for key, entry in second.unfinished.items()} == {
            key: f"candidate {key}" for key in begun
        }


def test_a_damaged_run_is_said_to_be_damaged(cli: CommandLine, here: Path) -> None:
    """Whatever line or value of its journal or of run.json is another, ``log`` and ``resume`` say so, or go on."""
    check = ["--check", "./" + script(Path("check"), f"{has('<1>')} && exit 1; exit 0"), "{model}"]
    assert (
        cli("reduce", chain(here / "model.onnx", 3), "-o", "out.onnx", "--no-shrink", *check).status
        == 0
    )
    (run,) = Path(".bisect-trt").iterdir()
    journal = run / JOURNAL
    binding = run / RUN_FILE
    lines = journal.read_text().splitlines()
    bound = binding.read_text()
    kinds = {entry["event"]: number for number, entry in enumerate(map(json.loads, lines))}
    damage: list[tuple[Path, str]] = [
        (file, text) for file in (journal, binding) for text in ("", "\0\n", "[]\n", "7\n", "{}\n")
    ]
    values: tuple[Any, ...] = (None, [], -1, "x", [None], 10**400)
    for value in values:
        for number in kinds.values():
            entry = json.loads(lines[number])
            inner = [
                {**entry, "outcome": {**entry["outcome"], name: value}}
                for name in entry.get("outcome", {})
            ]
            changed = [
                json.dumps(each) for each in [*({**entry, name: value} for name in entry), *inner]
            ]
            damage += [
                (journal, "\n".join([*lines[:number], each, *lines[number + 1 :]]) + "\n")
                for each in changed
            ]
        damage += [
            (binding, json.dumps({**json.loads(bound), name: value})) for name in json.loads(bound)
        ]
    assert len(damage) > 63
    read = 0
    for file, text in damage:
        journal.write_text("\n".join(lines) + "\n")
        binding.write_text(bound)
        file.write_text(text)
        with contextlib.suppress(BisectError):
            Binding.read(run)
            read_probes(run / JOURNAL)
        with contextlib.suppress(BisectError):
            Ledger(run, describe_outcome).close()
            read += 1
    assert read < len(damage)
    binding.write_text(bound)
    for damaged in (b"[]\n", b"\xfe{outcome\n"):
        journal.write_bytes(f"{lines[0]}\n".encode() + damaged + "\n".join(lines[2:]).encode())
        for command in ("log", "resume"):
            cli(command, run).refused("BT2006", f"{journal.name} is damaged in line 2")


# Checks that fail only sometimes: enough passes, no more, and the right answer.


def flakiness() -> st.SearchStrategy[Flakiness]:
    runs = st.integers(2, 60)
    return runs.flatmap(
        lambda runs: st.builds(
            Flakiness,
            st.just(runs),
            st.integers(1, runs),
            st.floats(0.5, 0.9999),
            st.integers(1, 100),
        )
    )


def missed(flaky: Flakiness, passes: int) -> float:
    """The chance that a failing candidate passes so often in a row.

    B(x + m, y) / B(x, y), where Beta(x, y) = Beta(1/2 + passes, 1/2 + failures) is the posterior of
    the chance of a pass.
    """
    x = flaky.runs - flaky.failures + 0.5
    y = flaky.failures + 0.5
    log = (
        math.lgamma(x + passes) - math.lgamma(x) + math.lgamma(x + y) - math.lgamma(x + y + passes)
    )
    return math.exp(log)


@given(flakiness())
def test_as_many_passes_as_the_posterior_asks_for_and_no_more(flaky: Flakiness) -> None:
    needed = flaky.passes_needed
    if flaky.failures == flaky.runs:
        assert needed == 1
        return
    allowed = (1 - flaky.confidence) / flaky.verdicts
    assert needed == MOST_PASSES or missed(flaky, needed) <= allowed * (1 + 1e-9)
    assert missed(flaky, needed - 1) > allowed * (1 - 1e-9)


@given(flakiness(), st.integers(0, 300))
def test_the_confidence_that_is_stated_was_reached(flaky: Flakiness, verdicts: int) -> None:
    reached = flaky.reached(verdicts)
    assert 0 <= reached <= 1
    if flaky.failures < flaky.runs and flaky.passes_needed < MOST_PASSES:
        assert math.isclose(
            reached, max(1 - verdicts * missed(flaky, flaky.passes_needed), 0), abs_tol=1e-9
        )
        if verdicts <= flaky.verdicts:
            assert reached >= flaky.confidence - 1e-9


class FlakyCheck(FakeCheck):
    """Sees the failure of a failing candidate only sometimes."""

    def __init__(self, culprit: int, rate: float, seed: int) -> None:
        self.runs = 0
        drawn = random.Random(seed)

        def predicate(units: Subset) -> Verdict:
            self.runs += 1
            return Verdict.FAIL if culprit in units and drawn.random() < rate else Verdict.PASS

        super().__init__(predicate)


@pytest.mark.parametrize(("required", "seeds"), rest_slow([(1, 1), (1, 4), (2, 4)]))
def test_a_wrong_answer_is_hardly_ever_called_proven(required: int, seeds: int) -> None:
    """Rates from seldom to nearly always; `python -m benchmarks.flaky` makes as many searches as one likes."""
    ended = []
    for rate in (0.2, 0.5, 0.8, 0.9, 0.95, 0.99):
        for seed in range(seeds):
            for repeat in (1, 5, 20):
                with scratch() as folder:
                    ended.append(
                        simulate(Path(folder), 1000 * seed + repeat, 60, rate, repeat, 1, required)
                    )
    wrong = sum(search is not None and search.proven and not search.right for search in ended)
    assert wrong <= 0.01 * len(ended)
    assert sum(
        search is not None and search.proven and search.right for search in ended
    ) > 0.2 * len(ended)


@pytest.mark.parametrize(("rate", "required"), [(0.5, 1), (0.75, 1), (0.9, 2), (1.0, 5)])
def test_a_search_simulated_in_memory_is_the_same(rate: float, required: int) -> None:
    for seed in range(4):
        with scratch() as folder:
            recorded = simulate(Path(folder), seed, 60, rate, None, 1, required)
        assert recorded == simulate_in_memory(seed, 60, rate, required)


@pytest.mark.parametrize("until", [Verdict.FAIL, Verdict.PASS])
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 8))
def test_runs_end_with_the_answer_that_ends_them(
    until: Verdict, fails: list[bool], most: int
) -> None:
    said = iter([*fails, *[until is Verdict.FAIL] * most])
    check = FakeCheck(lambda _: Verdict.FAIL if next(said) else Verdict.PASS)
    with scratch() as folder, FakeRun(Path(folder), check) as run:
        record = run.prober.probe(Probe(build([0]), again=True, runs=most, until=until))
    taken = [*fails, *[until is Verdict.FAIL] * most][:most]
    ending = (until is Verdict.FAIL) in taken
    assert (record.verdict is until) == ending
    assert record.runs == (taken.index(until is Verdict.FAIL) + 1 if ending else most)


def test_the_failure_rate_is_measured_and_remembered(tmp_path: Path) -> None:
    check = FlakyCheck(3, 0.7, seed=1)
    with FakeRun(tmp_path, check) as run:
        run.reduce(8, lambda ask: minimise(range(8), ask), 20)
        first = run.prober.flakiness
    assert first.runs == 20
    assert 0 < first.failures < 20
    assert f"({first.failures} of 20 runs fail)" in run.told.records[0].reason
    again = FlakyCheck(3, 0.0, seed=2)
    with FakeRun(tmp_path, again) as run:
        run.reduce(8, lambda ask: minimise(range(8), ask), 20)
        assert run.prober.flakiness == first
    assert again.runs == 0


# Parallel probes: the same answer and the same decisions as with one worker, and nothing left
# running.


def halving(count: int) -> Algorithm:
    return lambda ask: minimise(range(count), ask)


@settings(max_examples=examples(30), deadline=None)
@given(
    cases(25),
    st.lists(st.integers(2, 8), min_size=2, max_size=2, unique=True),
    st.integers(0, 1 << 30),
)
def test_any_number_of_workers_decides_the_same(case: Case, numbers: list[int], seed: int) -> None:
    """The last question is about what the search has left, which several workers begin before it ends."""
    with scratch() as folder:
        one = Path(folder, "one")
        with FakeRun(one, FakeCheck(case.predicate)) as alone:
            minimum = alone.reduce(case.count, case.algorithm, rest=True)
        written = [{**entry, "seconds": 0} for entry in journal(one, "verdict")]
        for workers in numbers:
            many = Path(folder, str(workers))
            with FakeRun(many, FakeCheck(case.predicate, seed), workers) as run:
                assert run.reduce(case.count, case.algorithm, rest=True) == minimum
            assert decisions(run.told.records) == decisions(alone.told.records)
            assert [{**entry, "seconds": 0} for entry in journal(many, "verdict")] == written
            assert run.ledger.counts() == alone.ledger.counts()
            assert run.check.most <= workers
            assert run.check.running == 0
            # Nothing that was answered is asked again.
            assert max(run.check.ended.values()) == 1


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


def test_moot_probes_end_with_all_they_started(tmp_path: Path) -> None:
    """Three probes each start a long sleep; the answer to the first makes the others moot."""
    pids = tmp_path / "pids"
    certain = f"until test $(wc -l < '{pids}') -ge 3; do sleep 0.01; done; exit 1"
    body = f"sleep 600 & echo $$ $! >> '{pids}'\nif grep -qF '[0, 1]' \"$1\"; then {certain}; fi\nsleep 600"
    check = CommandCheck((script(tmp_path / "check", body), "{model}"))
    ledger = Ledger(tmp_path, describe_outcome)
    prober = Prober(check, Workspace(tmp_path), NoActivations(), ledger, workers=3)

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
    assert_gone(started)
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
    ledger = Ledger(tmp_path, describe_outcome, [Listening(killed_after=1)])
    prober = Prober(check, Workspace(tmp_path), NoActivations(), ledger, workers)

    def algorithm(ask: Ask) -> Minimum:
        for units in ({0, 1}, {0}, {1}):
            ask(frozenset(units))
        return Minimum(frozenset(), proven=True)

    with pytest.raises(Killed):
        prober.search(over_units(algorithm), build)
    ledger.close()
    started = [int(pid) for pid in pids.read_text().split()]
    assert 2 <= len(started) <= 2 * workers
    assert_gone(started)
