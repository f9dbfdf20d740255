"""Where a probe is minutes, what comes next is begun while the original is built, and the answer is that of one at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from fakes import Listening, NoActivations, build, journal, units_of
from standin_runtime import TOGETHER, install
from support import assert_gone, node_names, overflowing, read_json, squares_between_convolutions

from bisect_trt.cli.arguments import invocation
from bisect_trt.probing.journal import JOURNAL, Journal, read_journal
from bisect_trt.probing.ledger import Budget, Ledger
from bisect_trt.probing.meanwhile import Moot
from bisect_trt.probing.outcome import CANCELLED, Ending, Outcome
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workers.spare import end_spare
from bisect_trt.probing.workspace import CandidateFiles, Workspace
from bisect_trt.search.oracle import Verdict
from bisect_trt.workflows import checks


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The builds of a stand-in for TensorRT, in the order in which they begin; four may be under way at a time."""
    install(tmp_path, monkeypatch.setenv)
    monkeypatch.setattr(checks, "builders", lambda: 4)
    end_spare()
    yield tmp_path / "begun.txt"
    end_spare()


def ran(cli: CommandLine, *words: str | Path) -> dict[str, Any]:
    done = cli(*words, "--json", "r.json", "--overwrite")
    assert done.status == 0, done.out + done.err
    return read_json(Path("r.json"))


def decisions(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the search took in, in its order."""
    path = Path(result["artifacts"]["run"]) / JOURNAL
    names = ("number", "key", "title", "size", "verdict", "signature", "reason")
    return [tuple(entry[name] for name in names) for entry in read_journal(path) if entry["event"] == "verdict"]


@pytest.mark.parametrize("command", ["reduce", pytest.param("diagnose", marks=pytest.mark.slow)])
def test_what_comes_next_is_built_beside_the_original(
    cli: CommandLine, begun: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The first build ends only once the other three have begun: the look, the suspect alone, and the rest."""
    model = overflowing(Path("model.onnx"))
    words = (command, model, "--trt", "--fp16", "-o", "out.onnx" if command == "reduce" else "out")
    monkeypatch.setenv(TOGETHER, "1 7 8 8")
    beside = ran(cli, *words)
    assert any(line.startswith("1 held") for line in begun.read_text().splitlines())
    monkeypatch.setenv(TOGETHER, "")
    alone = ran(cli, *words, "--workers", "1")
    assert decisions(beside) == decisions(alone)
    for key in ("culprits", "minimality", "more_failures", "fault", "held"):
        assert beside[key] == alone[key]
    assert beside["held"]
    assert {**beside["probes"], "wasted": 0} == alone["probes"]  # what was likely may not have been asked
    assert node_names(Path("out.onnx" if command == "reduce" else "out/model.onnx")) == ["big"]


def test_a_network_of_convolutions_is_built_alone(
    cli: CommandLine, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels are tried on the GPU, where builds beside each other would wait for each other."""
    monkeypatch.setenv(TOGETHER, "")
    model = squares_between_convolutions(Path("model.onnx"))
    alone = [
        ran(cli, "reduce", model, "--trt", "--fp16", "-o", "out.onnx", *words) for words in ((), ("--workers", "1"))
    ]
    builds = [line.split()[:2] for line in begun.read_text().splitlines()]
    assert builds[: len(builds) // 2] == builds[len(builds) // 2 :]
    assert decisions(alone[0]) == decisions(alone[1])
    assert alone[0]["probes"]["wasted"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_while_it_builds_goes_on(
    cli: CommandLine, begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    """No build is left, and what had begun ahead is begun again where it is asked."""
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write(
            "if getattr(sys, 'orig_argv', [])[1:3] == ['-m', 'bisect_trt']:\n"
            "    from bisect_trt.probing.workers import resources\n"
            "    resources.builders = lambda: 4\n"
        )
    overflowing(Path("model.onnx"))
    words = [sys.executable, "-m", "bisect_trt", "reduce", "model.onnx", "--trt", "--fp16", "-o", "out.onnx"]
    monkeypatch.setenv(TOGETHER, "99")  # no model has as many, so the first build does not end
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 120
    while not begun.exists() or len({line.split()[0] for line in begun.read_text().splitlines()}) < 3:
        assert time.monotonic() < until, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, end)
    _, err = process.communicate(timeout=120)
    assert process.returncode == (130 if end is signal.SIGINT else -end)
    assert "Traceback" not in err
    assert_gone([int(line.split()[0]) for line in begun.with_name("ran.txt").read_text().splitlines()])
    monkeypatch.setenv(TOGETHER, "")
    monkeypatch.setattr(invocation, "resumed", None)
    (run,) = Path(".bisect-trt").iterdir()
    assert cli("resume", run).status == 0
    assert node_names(Path("out.onnx")) == ["big"]


class Held:
    """A check whose runs end when they are let go; a candidate breaks in each run that has another one beside it, if it shall.

    Attributes:
        begun: Told of each run that has begun.
        go: What the runs of some units wait for.
        frail: The units that break beside others.
    """

    parallel = True

    def __init__(self) -> None:
        self.begun: list[frozenset[int]] = []
        self.go: dict[frozenset[int], threading.Event] = {}
        self.frail: set[frozenset[int]] = set()
        self._changed = threading.Condition()
        self._running: Counter[frozenset[int]] = Counter()

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        units = units_of(files)
        with self._changed:
            self._running[units] += 1
            beside = self._running.total() > 1
            self.begun.append(units)
            self._changed.notify_all()
        while units in self.go and not self.go[units].wait(0.005):
            if cancel is not None and cancel.is_set:
                break
        with self._changed:
            self._running[units] -= 1
        if cancel is not None and cancel.is_set:
            return Outcome(Ending.SKIPPED, CANCELLED, "its answer was not needed any more")
        if beside and units in self.frail:
            return Outcome(Ending.BROKEN, "build: out of memory", "there was no room beside another one")
        return Outcome(Ending.MISMATCHED, "mismatch", f"{sorted(units)} is off")

    def wait_for(self, number: int) -> None:
        """Until so many runs have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= number, 60)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Held, Prober]]:
    """A check, and who asks it, with room for two probes beside the one that is asked."""
    check = Held()
    ledger = Ledger(Journal(tmp_path), Listening(), Budget())
    prober = Prober(Runner(check, Workspace(tmp_path), NoActivations()), ledger, 1, 2)
    yield check, prober
    prober.close()
    ledger.close()
    assert not any("beside" in thread.name for thread in threading.enumerate())


def begin(prober: Prober, *units: int) -> None:
    candidate = build(units)
    prober.beside.probe(candidate, candidate.identity, Cancel())


def test_what_was_begun_ahead_is_taken_where_it_is_asked(held: tuple[Held, Prober], tmp_path: Path) -> None:
    check, prober = held
    begin(prober, 1)
    begin(prober, 1)
    check.wait_for(1)
    assert prober.probe(build({2})).verdict is Verdict.FAIL
    assert prober.probe(build({1})).number == 2
    assert len(check.begun) == 2
    prober.close()
    assert prober.wasted == 0
    assert [entry["key"] for entry in journal(tmp_path, "verdict")] == [build({2}).key, build({1}).key]


def test_what_nobody_asks_is_ended_and_counted(held: tuple[Held, Prober], tmp_path: Path) -> None:
    check, prober = held
    check.go = {frozenset({place}): threading.Event() for place in (1, 2, 3)}
    for place in (1, 2, 3):  # the third waits for room
        begin(prober, place)
    check.wait_for(2)
    assert prober.probe(build({4})).verdict is Verdict.FAIL
    prober.close()
    assert prober.wasted == 3
    assert len(check.begun) == 3
    assert len(journal(tmp_path, "moot")) == 3


def test_what_waits_for_room_is_run_when_it_is_asked(held: tuple[Held, Prober]) -> None:
    check, prober = held
    check.go = {frozenset({place}): threading.Event() for place in (1, 2)}
    for place in (1, 2, 3):
        begin(prober, place)
    check.wait_for(2)
    assert prober.probe(build({3})).verdict is Verdict.FAIL
    assert check.begun[2] == {3}


def test_what_breaks_beside_others_is_asked_again_alone(held: tuple[Held, Prober], tmp_path: Path) -> None:
    """Both what was begun ahead, and what is asked while that runs."""
    check, prober = held
    check.frail = {frozenset({1}), frozenset({3})}
    check.go = {frozenset({2}): threading.Event()}
    begin(prober, 2)
    check.wait_for(1)
    begin(prober, 1)
    record = prober.probe(build({1}))
    assert (record.signature, record.number) == ("mismatch", 1)
    begin(prober, 2)
    check.wait_for(4)
    assert prober.probe(build({3})).signature == "mismatch"
    assert [sorted(units) for units in check.begun] == [[2], [1], [1], [2], [3], [3]]
    assert all(entry["outcome"]["signature"] == "mismatch" for entry in journal(tmp_path, "outcome"))


def test_nobody_begins_what_is_asked(held: tuple[Held, Prober]) -> None:
    check, prober = held
    go = check.go[frozenset({1})] = threading.Event()
    asked = threading.Thread(target=prober.probe, args=(build({1}),))
    asked.start()
    check.wait_for(1)
    with pytest.raises(Moot):
        begin(prober, 1)
    go.set()
    asked.join()
    begin(prober, 1)  # it is known
    assert len(check.begun) == 1
