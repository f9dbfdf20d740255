"""The runtime itself: one function an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import input_infos
from bisect_trt.targets.interpreter import Interpreter
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.settings import TargetSettings
from numpy_target.target import NumpySettings

Array = NDArray[Any]
OPERATORS: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "MatMul": np.matmul,
    "Neg": np.negative,
    "Tanh": np.tanh,
}


class NumpyRuntime(Interpreter):
    """Makes sessions; what every interpreter answers alike is inherited."""

    name = "NumPy"

    def __init__(self, settings: TargetSettings) -> None:
        """Set it up."""
        leak = settings.of(NumpySettings).leak
        # The bug: Relu(x) is max(x, 0).
        self._operators = {**OPERATORS, "Relu": lambda x: np.where(x > 0, x, leak * x).astype(x.dtype)}

    def load(self, model: Path, feed: Mapping[str, Array] | None = None) -> NumpySession:  # noqa: ARG002 - not needed
        """Prepare a model.

        Raises:
            BuildError: It has an operator that is not here.
        """
        proto = onnx.load(str(model))
        for node in proto.graph.node:
            if node.op_type not in self._operators:
                raise BuildError(f"no operator {node.op_type} for node '{node.name}'")
        return NumpySession(proto, self._operators)


class NumpySession:
    """A model, ready to run."""

    def __init__(self, proto: onnx.ModelProto, operators: Mapping[str, Callable[..., Array]]) -> None:
        """Keep what is needed to run it."""
        self._graph, self._operators = proto.graph, operators
        self.inputs = input_infos(Network(proto))
        self.skipped: dict[str, str] = {}

    def layers(self) -> list[dict[str, Any]]:
        """None: every node is one."""
        return []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs.

        Raises:
            RunError: It fails.
        """
        values = {**{tensor.name: numpy_helper.to_array(tensor) for tensor in self._graph.initializer}, **inputs}
        for node in self._graph.node:
            try:
                values[node.output[0]] = self._operators[node.op_type](*(values[name] for name in node.input))
            except Exception as error:
                raise RunError(f"{node.op_type} node '{node.name}': {error}") from error
        return {output.name: values[output.name] for output in self._graph.output}
