"""What a worker answers (it serves in this process here), what it imports, and how long it is kept."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, load
from support import SHAPE, save

from bisect_trt.errors import UnavailableError
from bisect_trt.probe.oracles import outcome_of_comparisons
from bisect_trt.probe.outcome import Ending
from bisect_trt.targets.base import make_runtime
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker import serve
from bisect_trt.worker import worker as spare
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About, Compare, Compared, Order, Sample
from bisect_trt.worker.serve import Worker, median_ms

ORT = TargetSettings("onnxrt")


class Forgetful:
    """ONNX Runtime that hands out all outputs but the last."""

    def __init__(self, settings: TargetSettings) -> None:
        self._runtime: Any = make_runtime(settings)

    def load(self, model: Path, feed: Mapping[str, Any] | None = None) -> Forgetful:
        self._session = self._runtime.load(model, feed)
        self.skipped, self.inputs = self._session.skipped, self._session.inputs
        return self

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(list(self._session.run(inputs).items())[:-1])

    def gpu_memory(self) -> int:
        return 0


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """A model of two outputs and the values that are right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "_print_to", lambda _: None)  # what this process prints stays where it goes
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
    model = save(tmp_path / "model.onnx", nodes, outputs=["y", "z"])
    values = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.savez(tmp_path / "inputs.npz", x=values)
    np.savez(tmp_path / "golden.npz", y=-values, z=values)
    return Compare(ORT, model, (Sample(tmp_path / "inputs.npz", tmp_path / "golden.npz"),), ToleranceOptions())


def served(request: Compare) -> Compared:
    reply = Worker().serve(Order(request, Path("log"), Path())).reply
    assert isinstance(reply, Compared)
    return reply


def test_an_output_that_is_missing_is_no_match(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of_comparisons(served(compare), 0, compare.tolerance).ending is Ending.PASSED
    monkeypatch.setattr(serve, "make_runtime", Forgetful)
    outcome = outcome_of_comparisons(served(compare), 0, compare.tolerance)
    assert (outcome.ending, outcome.reason) == (Ending.MISMATCHED, "'z': the target does not have this output")


def test_what_cannot_be_compared_is_said(compare: Compare) -> None:
    proto = load(compare.model)
    proto.graph.node.append(helper.make_node("SequenceConstruct", ["y", "z"], ["s"]))
    proto.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    compare.model.write_bytes(proto.SerializeToString())
    outcome = outcome_of_comparisons(served(compare), 0, compare.tolerance)
    assert outcome.ending is Ending.PASSED
    assert outcome.reason.startswith("2 outputs match (not compared: 's': a seq(tensor(float))")


def test_an_error_of_a_plug_in_comes_over_as_one_of_ours(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    class OddError(UnavailableError):
        def __init__(self, one: str, other: str) -> None:
            super().__init__(f"{one} is not {other}")

    def make(_: object) -> None:
        raise OddError("this", "that")

    monkeypatch.setattr(serve, "make_runtime", make)
    answer = pickle.loads(pickle.dumps(Worker().serve(Order(compare, Path("log"), Path()))))
    assert (type(answer.reply), str(answer.reply)) == (UnavailableError, "this is not that")


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


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_candidate_that_does_not_run_again_was_judged_all_the_same(poisoned: bool) -> None:
    def run(_: object) -> None:
        raise RunError("no memory left", poisoned=poisoned)

    session: Any = SimpleNamespace(inputs=[], run=run)
    with pytest.raises(RunError) if poisoned else contextlib.nullcontext():
        assert median_ms(session, {}) is None


def test_a_process_of_several_runs_keeps_one_worker_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spare, "_most_kept", 0)
    spare.end_spare()
    spare.keep_spare()
    try:
        with WorkerPool(tmp_path) as pool:
            assert pool.ask(About(TargetSettings())) == "cast"
            (kept,) = pool._idle
        with WorkerPool(tmp_path) as pool:
            assert pool.ask(About(TargetSettings())) == "cast"
            assert pool._idle == [kept]
            assert kept.served == 2
        with WorkerPool(tmp_path) as pool:
            fresh = pool._take(fresh=True)  # what was kept has served
            assert (fresh.served, kept.alive) == (0, True)
            pool._dismiss(fresh)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as a notebook may, in between
        with WorkerPool(tmp_path) as pool:
            assert pool.ask(About(TargetSettings())) == "cast"
            assert pool._idle != [kept]
            assert not kept.alive
    finally:
        spare.end_spare()
    assert not kept.alive
