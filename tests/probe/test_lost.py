"""What somebody else ends says nothing of a candidate: it is asked again, and if it is ended again and again, unresolved."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine
from standin_runtime import install
from support import chain, gone, has, read_json, run_check, script

from bisect_trt.errors import UnavailableError
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.reference import Models
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import LOST, Collect
from bisect_trt.worker.worker import end_spare

TARGET = TargetSettings("trt")
FROM_OUTSIDE = ["SIGKILL", "SIGTERM"]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks workers whose runtime is the stand-in."""
    install(tmp_path, monkeypatch.setenv)
    end_spare()
    np.savez(tmp_path / "in.npz")
    with WorkerPool(tmp_path) as pool:

        def ask(command: str, **options: Any) -> Any:
            (tmp_path / "m.model").write_text(command)
            return pool.ask(Collect(TARGET, tmp_path / "m.model", tmp_path / "in.npz", tmp_path / "out.npz"), **options)

        ask.pool = pool  # type: ignore[attr-defined]  # for those who end it
        yield ask
    end_spare()


def processes(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "ran.txt").read_text().splitlines()]


@pytest.mark.parametrize("name", FROM_OUTSIDE)
@pytest.mark.parametrize("warm", [False, True])
def test_a_worker_that_is_ended_from_outside_is_asked_again(ask: Any, tmp_path: Path, name: str, warm: bool) -> None:
    if warm:
        ask("fine")
    assert ask(f"{name} 2") is None
    assert len(processes(tmp_path)) == 3 + warm


def test_a_worker_that_takes_more_memory_than_it_may_is_ended_and_that_is_an_answer(ask: Any, tmp_path: Path) -> None:
    ask.pool.memory_limit = 400 << 20
    assert ask("fine") is None
    assert ask("hold").kind == "memory"
    files = CandidateFiles(tmp_path, tmp_path / "m.model", tmp_path / "in.npz", tmp_path / "in.npz", tmp_path / "log")
    outcome = BuiltinCheck(ask.pool, TARGET, ToleranceOptions()).run(files)
    assert (outcome.ending, outcome.signature) == (Ending.BROKEN, "memory limit")
    assert outcome.reason == "it took more memory than --memory-limit"


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_one_that_is_ended_again_and_again_says_nothing(ask: Any, tmp_path: Path, name: str) -> None:
    reply = ask(f"{name} 3")
    assert (reply.kind, name in reply.message) == ("lost", True)
    assert len(processes(tmp_path)) == 3
    assert all(map(gone, processes(tmp_path)))
    files = CandidateFiles(tmp_path, tmp_path / "m.model", tmp_path / "in.npz", tmp_path / "in.npz", tmp_path / "log")
    (tmp_path / "m.times").unlink()
    outcome = BuiltinCheck(ask.pool, TARGET, ToleranceOptions()).run(files)
    assert (outcome.ending, outcome.signature) == (Ending.SKIPPED, LOST)
    assert name in outcome.reason
    for original in (None, "signal SIGKILL", LOST, "nan"):
        assert outcome.judge(original) is Verdict.UNRESOLVED


def test_an_idle_worker_that_somebody_has_ended_costs_no_answer(ask: Any, tmp_path: Path) -> None:
    for _ in range(3):
        ask("fine")
        (last,) = {*processes(tmp_path)[-1:]}
        os.kill(last, signal.SIGKILL)
        while not gone(last):
            time.sleep(0.01)
    assert ask("fine") is None


def test_a_crash_is_confirmed_where_that_is_asked(ask: Any, tmp_path: Path) -> None:
    assert ask("SIGSEGV 1", confirm=True) is None
    (tmp_path / "m.times").unlink()
    assert ask("SIGSEGV 2", confirm=True).signature == "signal SIGSEGV"


def test_workers_that_do_not_start_are_said(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    reply = ask("fine")
    assert (reply.kind, "before it began (exit status 7)" in reply.message) == ("lost", True)


def test_what_an_ended_reference_leaves_is_no_answer_either(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "m.model").write_text("SIGKILL 3")
    models = Models(Workspace(tmp_path / "run"), ask.pool)
    with pytest.raises(UnavailableError, match=r"could not run a model: .*ended from outside \(SIGKILL\).*Free memory"):
        models.collect(tmp_path / "m.model", tmp_path / "in.npz", tmp_path / "out.npz", TARGET)


ENDING_WORKERS = """
import os, sys
if 'bisect_trt.worker.serve' in ' '.join(getattr(sys, 'orig_argv', [])):
    from bisect_trt.targets.onnxrt import runner
    real = runner.OrtRunner.load
    def load(self, *rest, **more):
        counted = {counted!r}
        number = len(open(counted).read()) if os.path.exists(counted) else 0
        if number < {times}:
            open(counted, 'a').write('x')
            os.kill(os.getpid(), 9)
        return real(self, *rest, **more)
    runner.OrtRunner.load = load
"""


@pytest.mark.parametrize("times", [2, 1000])
def test_an_ended_reference_run_is_not_taken_for_operators_without_a_kernel(
    cli: CommandLine, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    model = chain(here / "model.onnx", 6)
    code = ENDING_WORKERS.format(counted=str(tmp_path / "counted"), times=times)
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    end_spare()
    check = script(here / "check", f"! ({has('<3>')})")
    ran = cli("reduce", model, "-o", "out.onnx", "--json", "r.json", "--check", check, "{model}")
    end_spare()
    assert "ONNX Runtime cannot run" not in ran.out + ran.err
    if times == 2:
        assert ran.status == 0, ran.err
        assert [node["name"] for node in read_json(Path("r.json"))["culprits"]] == ["<3>"]
    else:
        assert ran.status == 4
        assert "ended from outside (SIGKILL), and so were those that were asked after it" in ran.error


@pytest.mark.parametrize("how", ["kill -9 $$", "kill -9 0", "kill -15 $$", "sh -c 'kill -9 $$'; exit $?", "exit 143"])
def test_a_check_that_is_killed_is_run_again_and_no_verdict_if_it_always_is(tmp_path: Path, how: str) -> None:
    for times in (1, 2):
        body = f'cd "{tmp_path}"; echo x >> ran; test "$(grep -c x ran)" -gt {times} || {{ {how}; }}; exit 1'
        outcome = run_check(tmp_path, body)
        assert (outcome.ending, outcome.signature) == (Ending.FAILED, "exit 1")
        (tmp_path / "ran").unlink()
    outcome = run_check(tmp_path, f"cd '{tmp_path}'; echo x >> ran; {how}")
    assert (tmp_path / "ran").read_text().count("x") == 3
    assert (outcome.ending, outcome.signature) == (Ending.SKIPPED, LOST)
    assert all(outcome.judge(original) is Verdict.UNRESOLVED for original in (None, LOST, "signal SIGKILL"))


def test_an_exit_status_that_was_asked_for_is_no_sign_of_a_kill(tmp_path: Path) -> None:
    assert run_check(tmp_path, f"echo x >> '{tmp_path}/ran'; exit 137", fail_codes=(137,)).ending is Ending.FAILED
    assert (tmp_path / "ran").read_text() == "x\n"
