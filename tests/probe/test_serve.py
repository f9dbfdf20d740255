"""What a worker answers; it serves in this process here."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, load
from support import SHAPE, save

from bisect_trt.errors import UnavailableError
from bisect_trt.probe.oracles import outcome_of_comparisons
from bisect_trt.probe.outcome import Ending
from bisect_trt.targets.base import make_runtime
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker import serve
from bisect_trt.worker.protocol import Compare, Compared, Order, Sample
from bisect_trt.worker.serve import Worker

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


def served(request: Compare, **given: Any) -> Compared:
    reply = Worker(**given).serve(Order(request, Path("log"), Path())).reply
    assert isinstance(reply, Compared)
    return reply


def test_an_output_that_is_missing_is_no_match(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of_comparisons(served(compare), 0, compare.tolerance).ending is Ending.PASSED
    monkeypatch.setattr(serve, "make_runtime", Forgetful)
    outcome = outcome_of_comparisons(served(compare), 0, compare.tolerance)
    assert (outcome.ending, outcome.reason) == (Ending.MISMATCHED, "'z': the target has no such output")


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


def test_it_is_ready_once_the_runtime_is_there(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Noted(Forgetful):
        def __init__(self, settings: TargetSettings) -> None:
            order.append("runtime")
            super().__init__(settings)

        def load(self, model: Path, feed: Mapping[str, Any] | None = None) -> Forgetful:
            order.append("model")
            return super().load(model, feed)

    monkeypatch.setattr(serve, "make_runtime", Noted)
    served(compare, ready=lambda: order.append("ready"))
    assert order == ["runtime", "ready", "model"]
