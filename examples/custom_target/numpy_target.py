"""NumPy as a target of bisect-trt, with a bug in its Relu: a target in one file, which imports nothing large at the top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnSettings, Target, TargetSettings
from bisect_trt.targets.messages import BuildError, RunError

OPERATORS = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "MatMul": "matmul",
    "Neg": "negative",
}
"""NumPy's functions of ONNX's operators."""


@dataclass(frozen=True)
class NumpySettings(OwnSettings):
    """The settings of this target alone: plain values, which go to the worker processes and into ``reproduce.py``.

    Each has its option; those that all targets share (``--keep-fp32``, ...) are there already.
    """

    leak: Annotated[
        float, option(metavar="SLOPE", min=0, max=1, help="How much Relu leaks, with --numpy.")
    ] = 0.01


class NumpyTarget(Target):
    """A NumPy interpreter of ONNX."""

    name = "numpy"
    title = "NumPy"
    own = NumpySettings
    help = "A NumPy interpreter with a leaky Relu."
    precisions = ()
    needs = "bisect-trt-numpy-target"

    def make_runner(self, settings: TargetSettings) -> NumpyRunner:
        """Return what runs models; called in a worker process."""
        return NumpyRunner(settings.of(NumpySettings).leak)

    def describe(self, settings: TargetSettings) -> str:
        """Return it in words."""
        return f"NumPy (leak {settings.of(NumpySettings).leak:g})"


@dataclass(frozen=True)
class NumpyRunner:
    """Loads models."""

    leak: float

    def load(self, path: Path, feed: object, hints: object) -> NumpySession:  # noqa: ARG002 - not needed
        """Prepare a model, or raise ``BuildError``."""
        return NumpySession(path, self.leak)


class NumpySession:
    """A model, ready to run."""

    def __init__(self, model: Path, leak: float) -> None:
        """Read the model."""
        import onnx  # noqa: PLC0415 - workers alone need it

        proto = onnx.load(str(model))
        if unknown := [
            node for node in proto.graph.node if node.op_type not in (*OPERATORS, "Relu")
        ]:
            raise BuildError(f"no operator {unknown[0].op_type} for node '{unknown[0].name}'")
        self._graph = proto.graph
        self._leak = leak
        self._weights = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer
        }

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs by name, or raise ``RunError``."""
        import numpy as np  # noqa: PLC0415 - workers alone need it

        values = {**self._weights, **inputs}
        for node in self._graph.node:
            x = [values[name] for name in node.input]
            try:
                # The bug: Relu(x) is max(x, 0).
                leaky = np.where(x[0] > 0, x[0], np.float32(self._leak) * x[0])
                made = leaky if node.op_type == "Relu" else getattr(np, OPERATORS[node.op_type])(*x)
                values[node.output[0]] = made
            except Exception as error:
                raise RunError(f"{node.op_type} node '{node.name}': {error}") from error
        return {output.name: values[output.name] for output in self._graph.output}
