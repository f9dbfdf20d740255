"""Workers are replaced when they crash, hang, leak or are poisoned; a death is only believed of a fresh one."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import CommandLine
from standin_runtime import StandInPool, install, standin_pool
from support import Ran, gone, overflowing

from bisect_trt.worker import pool as devices
from bisect_trt.worker import worker as worker_module
from bisect_trt.worker.pool import default_workers, visible_gpus
from bisect_trt.worker.process import Cancel, MemoryGate
from bisect_trt.worker.protocol import CANCELLED, Failed
from bisect_trt.worker.worker import end_spare

pytestmark = pytest.mark.any_version


def signature(reply: object) -> str:
    assert isinstance(reply, Failed)
    return reply.signature


MakePool = Callable[..., StandInPool]


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePool]:
    with contextlib.ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(
            standin_pool(tmp_path, monkeypatch.setenv, *words, **options)
        )


def test_a_worker_is_kept_and_replaced_after_a_crash(make_pool: MakePool) -> None:
    pool = make_pool()
    first = pool.process()
    assert pool.process() == first
    assert signature(pool.ask("crash")) == "signal SIGSEGV"
    # It was tried in the old one and in a fresh one: both are gone.
    assert pool.tried[:3] == [first, first, first]
    assert len(pool.tried) == 4
    assert all(gone(pid) for pid in pool.tried)
    assert pool.process() not in pool.tried[:4]


def test_a_fresh_worker_that_crashes_is_believed_at_once(make_pool: MakePool) -> None:
    pool = make_pool()
    assert signature(pool.ask("crash")) == "signal SIGSEGV"
    assert len(pool.tried) == 1


def test_a_crash_that_needs_a_used_worker_is_no_answer(make_pool: MakePool) -> None:
    pool = make_pool()
    first = pool.process()
    second = pool.process("crash if used")
    assert second != first
    assert pool.tried == [first, first, second]
    assert pool.process() == second


def test_a_worker_that_hangs_is_ended(make_pool: MakePool) -> None:
    pool = make_pool()
    first = pool.process()
    assert signature(pool.ask("hang", timeout=0.5)) == "time-out"
    assert gone(first)
    assert pool.process() != first


@pytest.mark.parametrize(("patience", "kept"), [(60, True), (0.1, False)])
def test_a_worker_is_kept_where_a_request_that_is_not_needed_any_more_ends_soon(
    make_pool: MakePool, patience: float, kept: bool
) -> None:
    pool = make_pool()
    first = pool.process()
    request = pool.request("hang")
    cancel = Cancel()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(pool.workers.ask, request, cancel=cancel)
        while len(pool.tried) < 2:
            time.sleep(0.01)
        cancel.set(patience)
        if kept:
            request.model.with_suffix(".go").touch()
        assert (asked.result() is None) is kept
    # A request that was cancelled before takes no worker.
    assert signature(pool.ask("fine", cancel=cancel)) == CANCELLED
    cancel.close()
    assert len(pool.tried) == 2
    assert (pool.process() == first) is kept


def test_a_slow_start_is_no_time_out_of_what_was_asked(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write("    import time; time.sleep(2.2)\n")
    assert pool.ask("fine", timeout=2) is None


def test_a_poisoned_worker_is_replaced_and_its_answer_asked_for_again(make_pool: MakePool) -> None:
    pool = make_pool()
    first = pool.process()
    reply = pool.ask("poison")
    assert isinstance(reply, Failed)
    assert reply.kind == "run"
    assert pool.tried[1] == first
    assert len(set(pool.tried)) == 2
    assert all(gone(pid) for pid in pool.tried)
    third = pool.process()
    # What only a used one cannot do is no failure of the model.
    assert pool.process("poison if used") not in (first, third)
    assert gone(third)


@pytest.mark.parametrize(("command", "limit"), [("leak on the GPU", 4 << 30), ("leak", 32 << 20)])
def test_a_worker_that_leaks_is_replaced_once_it_has_grown_too_much(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, command: str, limit: int
) -> None:
    monkeypatch.setattr(worker_module, "GROWTH_LIMIT", limit)
    pool = make_pool()
    # What the first two answers take is what a worker needs.
    first = pool.process(command)
    assert pool.process(command) == first
    assert pool.process() == first
    assert pool.process(command) == first
    assert gone(first)
    assert pool.process() != first


def test_a_fresh_process_each(make_pool: MakePool) -> None:
    pool = make_pool(fresh_process=True)
    processes = [pool.process() for _ in range(3)]
    assert len(set(processes)) == 3
    assert all(map(gone, processes))


def test_each_of_several_workers_has_a_gpu_of_its_own(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(["3", "GPU-5f"])
    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: (together.wait(), pool.process()), range(4)))
    given = dict(line.split() for line in (tmp_path / "ran.txt").read_text().splitlines())
    assert set(given.values()) == {"3", "GPU-5f"}
    # One that is replaced leaves its GPU to the next.
    assert signature(pool.ask("crash")) == "signal SIGSEGV"
    pool.process()
    last = (tmp_path / "ran.txt").read_text().splitlines()[-1].split()[1]
    assert last in {"3", "GPU-5f"}


def test_with_one_gpu_nothing_is_hidden_from_a_worker(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool(["0"]).process()
    assert (tmp_path / "ran.txt").read_text().split()[1] == str(
        os.environ.get("CUDA_VISIBLE_DEVICES")
    )


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("", []),
        ("0", ["0"]),
        ("2, 0", ["2", "0"]),
        ("GPU-8932f937-d72c,MIG-1", ["GPU-8932f937-d72c", "MIG-1"]),
        ("1,-1,2", ["1"]),
        ("-1", []),
    ],
)
def test_gpus_that_cuda_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str, gpus: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == gpus
    for cores in (1, 2, 7, 8, 16, 400):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        # A command of the user is not asked again when memory is short.
        assert default_workers(shares_gpu=False) == (len(gpus) or cores)
        most = default_workers(shares_gpu=True)
        assert len(gpus) <= most <= max(4 * len(gpus), 0 if gpus else cores)
        assert most <= max(cores // 4, len(gpus)) or not gpus


@pytest.mark.parametrize("short", ["memory", "tactics"])
def test_builds_that_lack_memory_beside_others_are_repeated_alone(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    monkeypatch.setattr(devices, "gate", gate := MemoryGate())
    pool = make_pool()
    with ThreadPoolExecutor(2) as threads:
        replies = [*threads.map(pool.ask, [f"crowded {short}"] * 2)]
    # Both had lacked it, the second time each ran alone.
    assert replies == [None, None]
    assert len(pool.tried) == 4
    # One at a time from now on.
    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(pool.ask, [f"crowded {short}"] * 8)} == {None}
    assert len(pool.tried) == 12
    assert not gate.turns


def test_a_build_that_lacks_memory_alone_is_believed(make_pool: MakePool) -> None:
    pool = make_pool()
    assert signature(pool.ask("no memory")) == "build: out of memory"
    assert len(pool.tried) == 1


def test_gpus_that_the_kernel_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_DEVICES", tmp_path)
    assert visible_gpus() == []
    for name in ("nvidia3", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus() == ["0", "1"]


@pytest.fixture
def target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> Iterator[Callable[..., Ran]]:
    """Command lines whose workers take the stand-in for TensorRT."""
    end_spare()  # one that an earlier test has kept knows nothing of the stand-in
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "standin"
    folder.mkdir()
    install(folder, monkeypatch.setenv)
    model = overflowing(tmp_path / "model.onnx", 2, 0)

    def run(command: str, *words: str) -> Ran:
        return cli(command, model, "--trt", "--fp16", *words)

    yield run
    end_spare()


def test_fresh_process_reaches_every_probe(target: Callable[..., Ran], tmp_path: Path) -> None:
    target("reduce", "-o", "out.onnx", "--fresh-process", "--no-shrink", "--workers", "1").ended(0)
    processes = [
        line.split()[0] for line in (tmp_path / "standin" / "ran.txt").read_text().splitlines()
    ]
    assert len(set(processes)) == len(processes) > 2


@pytest.mark.parametrize(
    ("command", "level", "code", "says"),
    [
        (["run"], "missing", "BT2000", "no NVIDIA GPU"),
        (["diagnose", "-o", "out"], "missing", "BT2000", "no NVIDIA GPU"),
        (
            ["precision", "-o", "mixed.onnx"],
            "crash",
            "BT2003",
            "does not start: it crashed (SIGSEGV)",
        ),
    ],
)
def test_a_target_that_is_not_there_ends_it_before_any_search(
    target: Callable[..., Ran], tmp_path: Path, command: list[str], level: str, code: str, says: str
) -> None:
    target(*command, "--builder-set", f"stand_in={level}").refused(code, says)
    assert not (tmp_path / "standin" / "ran.txt").exists()
