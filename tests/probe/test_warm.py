"""A process of several runs keeps a worker for the next; nothing else outlives its pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker import worker as spare
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About
from bisect_trt.worker.worker import WorkerProcess

ABOUT = About(TargetSettings())


def test_nothing_is_kept_after_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spare, "_most_kept", 0)
    with WorkerPool(tmp_path) as pool:
        late = WorkerProcess()
        assert pool.ask(ABOUT) == "cast"
        (idle,) = pool._idle
    pool._give_back(late)
    assert not late.alive
    assert not idle.alive


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
