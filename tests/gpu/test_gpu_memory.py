"""Builds side by side on a GPU that has room for fewer of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from building import save_text

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.process import tensorrt
from bisect_trt.worker import pool
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import MemoryGate
from bisect_trt.worker.protocol import Collect

MB = 1 << 20


def test_builds_that_lack_memory_beside_others_are_repeated_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = tensorrt().cuda
    assert cuda is not None
    monkeypatch.setattr(pool, "gate", gate := MemoryGate())
    # Each run holds one gigabyte in the output alone.
    save_text(
        tmp_path / "m.onnx",
        "(float[16384, 1] x) => (float[16384, 16384] y)",
        "y = Mul(x, row)",
        {"row": np.ones((1, 16384), np.float32)},
    )
    np.savez(tmp_path / "in.npz", x=np.ones((16384, 1), np.float32))
    requests = [
        Collect(
            TargetSettings("trt"),
            tmp_path / "m.onnx",
            (tmp_path / "in.npz",),
            (tmp_path / f"out-{number}.npz",),
        )
        for number in range(4)
    ]
    with WorkerPool(tmp_path) as workers, ThreadPoolExecutor(4) as threads:
        small = tmp_path / "small.onnx"
        save_text(small, "(float[4] x) => (float[4] y)", "y = Relu(x)", {})
        np.savez(tmp_path / "small.npz", x=np.ones(4, np.float32))
        # All four hold their context.
        barrier = [
            Collect(TargetSettings("trt"), small, (tmp_path / "small.npz",), (request.to[0],))
            for request in requests
        ]
        assert [*threads.map(workers.ask, barrier)] == [None] * 4
        free, _ = cuda.memory()
        held = cuda.malloc(free - 2200 * MB)
        try:
            logs = [tmp_path / f"{number}.log" for number in range(4)]
            replies = [
                *threads.map(lambda request, log: workers.ask(request, log=log), requests, logs)
            ]
        finally:
            cuda.free(held)
    assert replies == [None] * 4
    assert gate.most is not None
