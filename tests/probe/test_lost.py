"""What somebody else ends says nothing of a candidate: it is asked again, and if it is ended again and again, unresolved."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine
from msgspec import structs
from onnx import helper
from standin_runtime import StandInPool, standin_pool
from support import (
    SHAPE,
    assert_gone,
    candidate_files,
    chain,
    gone,
    has,
    read_json,
    run_check,
    save,
    script,
)

from bisect_trt.aliases import Fields
from bisect_trt.errors import UnavailableError
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.reference import Models
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import RunError
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker import serve
from bisect_trt.worker import worker as spare
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Turn
from bisect_trt.worker.protocol import LOST, About, Compare, Compared, Failed, Order, Sample
from bisect_trt.worker.serve import Worker, fastest_ms
from bisect_trt.worker.worker import end_spare

TRT = TargetSettings("trt")


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInPool]:
    """Workers whose runtime is the stand-in."""
    for name in ("i.npz", "g.npz"):
        np.savez(tmp_path / name)
    with standin_pool(tmp_path, monkeypatch.setenv) as made:
        yield made


@pytest.mark.parametrize(("name", "warm"), [("SIGKILL", False), ("SIGTERM", True)])
def test_a_worker_that_is_ended_from_outside_is_asked_again(
    pool: StandInPool, name: str, warm: bool
) -> None:
    if warm:
        pool.ask("fine")
    assert pool.ask(f"{name} 2") is None
    assert len(pool.tried) == 3 + warm


def test_a_worker_that_takes_more_memory_than_it_may_is_ended_and_that_is_an_answer(
    pool: StandInPool, tmp_path: Path
) -> None:
    pool.workers.memory_limit = 400 << 20
    assert pool.ask("fine") is None
    assert pool.ask("hold").kind == "memory"
    (tmp_path / "m.onnx").write_text("hold")
    outcome = BuiltinCheck(pool.workers, TRT, ToleranceOptions()).run(candidate_files(tmp_path))
    assert (outcome.ending, outcome.signature) == (Ending.BROKEN, "memory limit")
    assert describe_outcome(outcome) == "it took more memory than --memory-limit"


def test_one_that_is_ended_again_and_again_says_nothing(pool: StandInPool, tmp_path: Path) -> None:
    name = "SIGKILL"
    reply = pool.ask(f"{name} 3")
    assert (reply.kind, name in reply.message) == ("lost", True)
    assert len(pool.tried) == 3
    assert all(map(gone, pool.tried))
    (tmp_path / "m.onnx").write_text(f"{name} 3")
    outcome = BuiltinCheck(pool.workers, TRT, ToleranceOptions()).run(candidate_files(tmp_path))
    assert (outcome.ending, outcome.signature) == (Ending.SKIPPED, LOST)
    assert name in describe_outcome(outcome)
    for original in (None, "signal SIGKILL", LOST, "nan"):
        assert outcome.judge(original) is Verdict.UNRESOLVED


def test_one_that_the_kernel_ends_for_memory_is_out_of_memory(
    pool: StandInPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare, "oom_kills", iter(range(99)).__next__)
    assert pool.ask("SIGKILL 3").signature == "run: out of memory"


def test_an_idle_worker_that_somebody_has_ended_costs_no_answer(pool: StandInPool) -> None:
    for _ in range(3):
        pool.ask("fine")
        (last,) = {*pool.tried[-1:]}
        os.kill(last, signal.SIGKILL)
        assert_gone([last])
    assert pool.ask("fine") is None


def test_a_crash_is_confirmed_where_that_is_asked(pool: StandInPool) -> None:
    assert pool.ask("SIGSEGV 1", confirm=True) is None
    assert pool.ask("SIGSEGV 2", confirm=True).signature == "signal SIGSEGV"


def test_workers_that_do_not_start_are_said(pool: StandInPool, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    reply = pool.ask("fine")
    assert (reply.kind, "before it began (exit status 7)" in reply.message) == ("lost", True)


def test_what_an_ended_reference_leaves_is_no_answer_either(
    pool: StandInPool, tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_text("SIGKILL 3")
    models = Models(Workspace(tmp_path / "run"), pool.workers)
    with pytest.raises(
        UnavailableError,
        match=r"could not run a model: .*ended from outside \(SIGKILL\).*Free memory",
    ):
        models.collect(tmp_path / "m.onnx", tmp_path / "i.npz", tmp_path / "out.npz", TRT)


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
        assert (
            "ended from outside (SIGKILL), and so were those that were asked after it" in ran.error
        )


@pytest.mark.parametrize(
    "how", ["kill -9 $$", "kill -9 0", "kill -15 $$", "sh -c 'kill -9 $$'; exit $?", "exit 143"]
)
def test_a_check_that_is_killed_is_run_again_and_no_verdict_if_it_always_is(
    tmp_path: Path, how: str
) -> None:
    for times in (1, 2):
        body = f'cd "{tmp_path}"; echo x >> ran; test "$(grep -c x ran)" -gt {times} || {{ {how}; }}; exit 1'
        outcome = run_check(tmp_path, body)
        assert (outcome.ending, outcome.signature) == (Ending.FAILED, "exit 1")
        (tmp_path / "ran").unlink()
    outcome = run_check(tmp_path, f"cd '{tmp_path}'; echo x >> ran; {how}")
    assert (tmp_path / "ran").read_text().count("x") == 3
    assert (outcome.ending, outcome.signature) == (Ending.SKIPPED, LOST)
    assert all(
        outcome.judge(original) is Verdict.UNRESOLVED for original in (None, LOST, "signal SIGKILL")
    )


def test_an_exit_status_that_was_asked_for_is_no_sign_of_a_kill(tmp_path: Path) -> None:
    assert (
        run_check(tmp_path, f"echo x >> '{tmp_path}/ran'; exit 137", fail_codes=(137,)).ending
        is Ending.FAILED
    )
    assert (tmp_path / "ran").read_text() == "x\n"


# What a worker answers (it serves in this process here), what it imports, and how long it is kept.


ORT = TargetSettings("onnxrt")


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """A model of two outputs and the values that are right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        serve, "_print_to", lambda _: None
    )  # what this process prints stays where it goes
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
    model = save(tmp_path / "model.onnx", nodes, outputs=["y", "z"])
    values = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.savez(tmp_path / "inputs.npz", x=values)
    np.savez(tmp_path / "golden.npz", y=-values, z=values)
    return Compare(
        ORT, model, (Sample(tmp_path / "inputs.npz", tmp_path / "golden.npz"),), ToleranceOptions()
    )


def served(request: Compare) -> Compared:
    reply = Worker().serve(Order(request, Path("log"), Path())).reply
    assert isinstance(reply, Compared)
    return reply


def test_an_error_of_a_plug_in_comes_over_as_one_of_ours(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OddError(UnavailableError):
        def __init__(self, one: str, other: str) -> None:
            super().__init__(f"{one} is not {other}")

    def make(_: object) -> None:
        raise OddError("this", "that")

    monkeypatch.setattr(serve, "Runtime", make)
    answer = pickle.loads(pickle.dumps(Worker().serve(Order(compare, Path("log"), Path()))))
    assert (type(answer.reply), str(answer.reply)) == (UnavailableError, "this is not that")


def test_it_tells_which_of_several_samples_runs(compare: Compare) -> None:
    told: list[Fields] = []
    both = structs.replace(compare, samples=compare.samples * 2)
    Worker(tell=told.append).serve(Order(both, Path("log"), Path()))
    turn = Turn()
    for event in told:
        turn.begin(**event)
    running = [(event["run"], event["runs"]) for event in told if event["work"] == "running"]
    assert running == [(1, 2), (2, 2)]
    since = turn.since
    turn.begin("running", 3, 3)
    assert (turn.since, turn.run) == (since, 3)


@pytest.mark.parametrize(
    ("module", "without"),
    [
        # A worker in an interpreter of its own has NumPy and the runtime's package, and what it
        # does not use takes time.
        ("bisect_trt.worker.serve", ["onnx", "onnxruntime", "onnx_graphsurgeon", "typer", "rich"]),
        # What runs models as they lie in their files.
        ("bisect_trt.targets.onnxrt.runner", ["onnx", "onnx_graphsurgeon", "ml_dtypes"]),
        # What a search with a check of the user's begins with.
        ("bisect_trt.commands.reduce", ["onnxruntime", "onnx_graphsurgeon", "xml.etree", "rich"]),
    ],
)
def test_either_side_imports_little(module: str, without: list[str]) -> None:
    code = f"import sys, {module}; print(*(set({without}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_candidate_that_does_not_run_again_was_judged_all_the_same(poisoned: bool) -> None:
    def run(_: object) -> None:
        raise RunError("no memory left", poisoned=poisoned)

    session: Any = SimpleNamespace(inputs=[], run=run)
    with pytest.raises(RunError) if poisoned else contextlib.nullcontext():
        assert fastest_ms(session, {}) is None


def test_a_process_of_several_runs_keeps_one_worker_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spare, "_most_kept", 0)
    spare.end_spare()
    spare.keep_spare()
    try:
        with WorkerPool(tmp_path) as pool:
            assert not isinstance(pool.ask(About(TargetSettings())), Failed)
            (kept,) = pool._idle
        with WorkerPool(tmp_path) as pool:
            assert not isinstance(pool.ask(About(TargetSettings())), Failed)
            assert pool._idle == [kept]
            assert kept.served == 2
        with WorkerPool(tmp_path) as pool:
            fresh = pool._take(fresh=True)  # what was kept has served
            assert (fresh.served, kept.alive) == (0, True)
            pool._dismiss(fresh)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as a notebook may, in between
        with WorkerPool(tmp_path) as pool:
            assert not isinstance(pool.ask(About(TargetSettings())), Failed)
            assert pool._idle != [kept]
            assert not kept.alive
    finally:
        spare.end_spare()
    assert not kept.alive
