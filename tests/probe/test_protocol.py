"""What a worker and its driver import, and how a model is timed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_trt.targets.messages import RunError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.npz import save_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Sample
from bisect_trt.worker.sessions import TIMED_RUNS, median_ms, median_of


@pytest.mark.parametrize(
    ("module", "without"),
    [
        # A worker in an interpreter of its own has NumPy and the runtime's package, and what it does not use takes time.
        ("bisect_trt.worker.serve", ["onnx", "onnxruntime", "onnx_graphsurgeon", "typer", "rich"]),
        # What runs models as they lie in their files.
        ("bisect_trt.targets.onnxrt.runner", ["onnx", "onnx_graphsurgeon", "ml_dtypes"]),
        # What a search with a check of the user's begins with.
        ("bisect_trt.commands.reduce", ["onnxruntime", "onnx_graphsurgeon", "xml.etree", "rich"]),
        # The driver starts its first worker before it imports what takes long.
        ("bisect_trt.worker.worker", ["numpy", "onnx", "typer", "rich"]),
    ],
)
def test_either_side_imports_little(module: str, without: list[str]) -> None:
    code = f"import sys, {module}; print(*(set({without}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("timed_for", "runs"), [(0.0, 1), (None, TIMED_RUNS)])
def test_a_slow_model_is_timed_by_as_many_runs_as_there_is_time_for(timed_for: float | None, runs: int) -> None:
    ran: list[int] = []
    session = SimpleNamespace(inputs=[], run=lambda _: ran.append(1))
    assert median_of(session, {}, 2, timed_for) > 0
    assert len(ran) == 2 + runs


def test_a_candidate_that_does_not_run_again_was_judged_all_the_same(tmp_path: Path) -> None:
    save_npz(tmp_path / "x.npz", {})
    sample = Sample(tmp_path / "x.npz", tmp_path / "x.npz")
    request = Compare(TargetSettings(), Path("m.onnx"), (sample,), ToleranceOptions(), warm_up=1, timed_for=5.0)
    ends = RunError("no memory left")

    def run(_: object) -> None:
        raise ends

    session = SimpleNamespace(inputs=[], run=run)
    assert median_ms(session, request) is None
    with pytest.raises(RunError):
        median_ms(session, replace(request, timed_for=None))
    ends = RunError("an illegal memory access", poisoned=True)
    with pytest.raises(RunError):
        median_ms(session, request)
