"""What runs models for the unsteady target."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import input_infos
from bisect_trt.targets.interpreter import Interpreter
from bisect_trt.targets.messages import BuildError

_RUNNING: list[object] = []
"""A session for each run that is under way."""


def spoiled(model: onnx.ModelProto) -> onnx.ModelProto:
    """With a tenth more behind each bad node."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    nodes = list(wrong.graph.node)
    del wrong.graph.node[:]
    for node in nodes:
        if node.name.startswith("bad"):
            out = node.output[0]
            node.output[0] = f"{out}.right"
            wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.1, np.float32), f"{out}.factor"))
            more = onnx.helper.make_node("Mul", [f"{out}.right", f"{out}.factor"], [out])
            wrong.graph.node.extend([node, more])
        else:
            wrong.graph.node.append(node)
    return wrong


class Session:
    skipped: Mapping[str, str] = {}

    def __init__(self, model: onnx.ModelProto, fault: str) -> None:
        self._fault = fault
        self.inputs = input_infos(Network(model))
        self._free = not all(info.is_static for info in self.inputs)
        self._outputs = [value.name for value in model.graph.output]
        try:
            self._right, self._wrong = (
                onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
                for each in (model, spoiled(model))
            )
        except Exception as error:
            raise BuildError(str(error)) from error
        self._runs = 0
        self._last: bytes | None = None
        kind, _, chance = fault.partition(":")
        self._unlucky = kind == "chance" and random.random() < float(chance)

    def layers(self) -> list[dict[str, Any]]:
        return []

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        _RUNNING.append(self)
        try:
            return self._run(inputs, len(_RUNNING))
        finally:
            _RUNNING.remove(self)

    def _run(self, inputs: Mapping[str, Any], together: int) -> dict[str, Any]:
        self._runs += 1
        feed = {info.name: inputs[info.name] for info in self.inputs}
        fed = b"".join(value.tobytes() for value in feed.values())
        last, self._last = self._last, fed
        right = dict(zip(self._outputs, self._right.run(None, feed), strict=True))
        wrong = dict(zip(self._outputs, self._wrong.run(None, feed), strict=True))
        rows = next(iter(feed.values())).shape[0]
        kind, _, number = self._fault.partition(":")
        if kind == "odd":
            return {
                name: np.where((np.arange(len(v)) % 2).reshape(-1, *[1] * (v.ndim - 1)), wrong[name], v)
                for name, v in right.items()
            }
        bad = (
            (kind == "second" and self._runs == 2)
            or (kind == "batch" and rows >= int(number))
            or (kind == "free" and self._free and rows >= int(number))
            or (kind == "only" and rows == int(number))
            or (kind == "multiple" and rows % int(number) == 0)
            or (kind == "not_multiple" and rows % int(number) != 0)
            or (kind == "beside" and together > 1)
            or (kind == "after" and last not in (None, fed))
            or self._unlucky
        )
        return wrong if bad else right


class UnsteadyRuntime(Interpreter):
    """Makes sessions with a fault."""

    name = "Unsteady"

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def load(self, model: Path, feed: Mapping[str, Any] | None = None) -> Session:  # noqa: ARG002 - not needed
        """Prepare a model."""
        return Session(onnx.load(str(model)), self._fault)
