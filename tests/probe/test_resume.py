"""A run that was killed goes on where it was, whatever the moment."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from fakes import Case, FakeCheck, FakeRun, Killed, build, cases, decisions, journal, scratch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chain, examples, has, script

from bisect_trt.commands.binding import RUN_FILE
from bisect_trt.commands.runs import EarlierRun
from bisect_trt.errors import BisectError
from bisect_trt.probe.candidate import Identity
from bisect_trt.probe.ledger import JOURNAL, Ledger, read_journal
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.search.oracle import Subset, Units, Verdict

pytestmark = pytest.mark.any_version


def answered(folder: Path) -> set[str]:
    return {entry["key"] for entry in journal(folder, "outcome")}


def keys(units: Iterable[Subset]) -> set[str]:
    return {build(each).key for each in units}


@settings(max_examples=examples(30), deadline=None)
@given(cases(25), st.data(), st.integers(1, 8), st.integers(1, 8), st.integers(0, 1 << 30))
def test_killed_after_any_verdict(case: Case, data: st.DataObject, workers: int, later: int, seed: int) -> None:
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
@given(cases(25), st.tuples(share, share), st.integers(1, 8), st.integers(1, 8), st.integers(0, 1 << 30))
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
            known = {entry["key"] for entry in read_journal(run / JOURNAL) if entry["event"] == "outcome"}
            with FakeRun(run, FakeCheck(case.predicate, seed), later) as resumed:
                assert resumed.reduce(case.count, case.algorithm) == minimum
            assert decisions(resumed.told.records) == decisions(whole.told.records)
            assert known.isdisjoint(keys(resumed.check.ended))
            assert keys(resumed.check.ended) | known >= {record.key for record in whole.told.records}
            # Every line is whole again.
            assert answered(run) >= {record.key for record in whole.told.records}


@settings(max_examples=examples(20), deadline=None)
@given(cases(), st.integers(1, 8))
def test_a_finished_run_runs_no_check_again(case: Case, workers: int) -> None:
    with scratch() as folder:
        with FakeRun(Path(folder), FakeCheck(case.predicate, 0), workers) as first:
            minimum = first.reduce(case.count, case.algorithm)
        with FakeRun(Path(folder), FakeCheck(case.predicate), 1) as second:
            assert second.reduce(case.count, case.algorithm) == minimum
        assert not second.check.ended
        assert decisions(second.told.records) == decisions(first.told.records)


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
    first, second, third = Verdict.FAIL, Verdict.PASS, Verdict.UNRESOLVED
    assert seen == [[first], [first, second], [first, second, third]]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["outcome", "moot", None])), max_size=6))
def test_a_probe_that_never_ended_is_known(probes: list[tuple[str, str | None]]) -> None:
    """A check that takes the machine down is on record before it starts."""
    with scratch() as folder:
        first = Ledger(Path(folder))
        begun: set[str] = set()
        for key, end in probes:
            candidate = Identity(key, f"candidate {key}", Units(frozenset()))
            first.start(candidate)
            begun.add(key)
            if end is not None:
                first.end(candidate, Outcome(Ending.PASSED, "pass", "it passes") if end == "outcome" else None)
                begun.discard(key)
        first.close()
        second = Ledger(Path(folder))
        second.close()
        assert second.unfinished == {key: f"candidate {key}" for key in begun}


def test_a_damaged_run_is_said_to_be_damaged(cli: CommandLine, here: Path) -> None:
    """Whatever line or value of its journal or of run.json is another, ``log`` and ``resume`` say so, or go on."""
    check = ["--check", "./" + script(Path("check"), f"{has('<1>')} && exit 1; exit 0"), "{model}"]
    assert cli("reduce", chain(here / "model.onnx", 3), "-o", "out.onnx", "--no-shrink", *check).status == 0
    (run,) = Path(".bisect-trt").iterdir()
    journal, binding = run / JOURNAL, run / RUN_FILE
    lines, bound = journal.read_text().splitlines(), binding.read_text()
    kinds = {entry["event"]: number for number, entry in enumerate(map(json.loads, lines))}
    damage: list[tuple[Path, str]] = [
        (file, text) for file in (journal, binding) for text in ("", "\0\n", "[]\n", "7\n", "{}\n")
    ]
    values: tuple[Any, ...] = (None, [], {}, 7, -1, "x", [None], float("nan"), 10**400)
    for value in values:
        for number in kinds.values():
            entry = json.loads(lines[number])
            inner = [{**entry, "outcome": {**entry["outcome"], name: value}} for name in entry.get("outcome", {})]
            changed = [json.dumps(each) for each in [*({**entry, name: value} for name in entry), *inner]]
            damage += [(journal, "\n".join([*lines[:number], each, *lines[number + 1 :]]) + "\n") for each in changed]
        damage += [(binding, json.dumps({**json.loads(bound), name: value})) for name in json.loads(bound)]
    assert len(damage) > 63
    read = 0
    for file, text in damage:
        journal.write_text("\n".join(lines) + "\n")
        binding.write_text(bound)
        file.write_text(text)
        with contextlib.suppress(BisectError):
            EarlierRun.read(run).page()
        with contextlib.suppress(BisectError):
            Ledger(run).close()
            read += 1
    assert read < len(damage)
    binding.write_text(bound)
    journal.write_text("[]\n")
    for command in ("log", "resume"):
        ran = cli(command, run)
        assert ran.status == 4
        assert "damaged in line 1" in ran.error
