"""Workers that are made ready beforehand: probes wait for them rather than start others, and none is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker import pool as pools
from bisect_trt.worker import worker as spare
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About
from bisect_trt.worker.worker import WorkerProcess

ABOUT = About(TargetSettings())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WorkerProcess]]:
    """The processes that are started, which are all gone in the end."""
    made: list[WorkerProcess] = []

    class Noted(WorkerProcess):
        def __init__(self, *words: object, **named: object) -> None:
            super().__init__(*words, **named)  # type: ignore[arg-type]  # what it was given
            made.append(self)

    monkeypatch.setattr(pools, "WorkerProcess", Noted)
    spare.end_spare()  # what an earlier test in this process has left for the next run, and that a run leaves any
    monkeypatch.setattr(spare, "_most_kept", 0)
    yield made
    assert not any(worker.alive for worker in made)


def test_probes_wait_for_those_that_get_ready(started: list[WorkerProcess], tmp_path: Path) -> None:
    with WorkerPool(tmp_path) as pool:
        pool.warm(ABOUT, 2)
        replies: list[object] = []
        probes = [threading.Thread(target=lambda: replies.append(pool.ask(ABOUT))) for _ in range(2)]
        for probe in probes:
            probe.start()
        for probe in probes:
            probe.join()
        assert len(replies) == 2
        assert all(reply == "cast" for reply in replies)
        assert len(started) == 2


def test_those_that_are_not_ready_when_all_ends_are_ended(started: list[WorkerProcess], tmp_path: Path) -> None:
    with WorkerPool(tmp_path) as pool:
        pool.warm(ABOUT, 3)
    assert len(started) <= 3


def test_nothing_is_made_ready_or_kept_after_the_end(started: list[WorkerProcess], tmp_path: Path) -> None:
    with WorkerPool(tmp_path) as pool:
        late = WorkerProcess()
    pool.warm(ABOUT, 1)
    assert not started
    pool._give_back(late)
    assert not late.alive


def test_a_target_that_does_not_start_is_nobodys_end(started: list[WorkerProcess], tmp_path: Path) -> None:
    with WorkerPool(tmp_path) as pool:
        pool.warm(About(TargetSettings("trt")), 1)  # without TensorRT it says so; with it, it is ready
        assert pool.ask(ABOUT) == "cast"
    assert started


def test_nothing_is_made_ready_that_could_not_be_taken(started: list[WorkerProcess], tmp_path: Path) -> None:
    with WorkerPool(tmp_path, fresh_process=True) as pool:
        pool.warm(ABOUT, 2)
    assert not started


def test_a_process_of_several_runs_keeps_one_worker_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spare, "_most_kept", 0)
    spare.end_spare()
    spare.keep_spare()
    try:
        with WorkerPool(tmp_path) as pool:
            assert pool.ask(ABOUT) == "cast"
            (kept,) = pool._idle
        with WorkerPool(tmp_path) as pool:
            assert pool.ask(ABOUT) == "cast"
            assert pool._idle == [kept]
            assert kept.served == 2
        with WorkerPool(tmp_path) as pool:
            fresh = pool._take(fresh=True)  # what was kept has served
            assert (fresh.served, kept.alive) == (0, True)
            pool._dismiss(fresh)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as a notebook may, in between
        with WorkerPool(tmp_path) as pool:
            assert pool.ask(ABOUT) == "cast"
            assert pool._idle != [kept]
            assert not kept.alive
    finally:
        spare.end_spare()
    assert not kept.alive
