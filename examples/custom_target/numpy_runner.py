"""The runner of the target; it imports the runtime alone, because its source goes to other machines and into ``reproduce.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from bisect_trt.targets.messages import BuildError, RunError


def make(settings: Mapping[str, Any]) -> NumpyRunner:
    """Return what runs models, with the settings of the target as plain values."""
    return NumpyRunner(settings["leak"])


class NumpyRunner:
    """Loads models; its facts are its version."""

    def __init__(self, leak: float) -> None:
        """Define the operator with the bug: Relu(x) is max(x, 0)."""
        self.facts = {"version": onnx.__version__}

        class Relu(OpRun):
            op_domain = ""

            def _run(self, x: Any) -> tuple[Any]:  # noqa: ANN401 - an array
                return (np.where(x > 0, x, np.float32(leak) * x),)

        self._operators: list[type[OpRun]] = [Relu]

    def load(self, path: Path, feed: object, hints: Mapping[str, Any]) -> NumpySession:  # noqa: ARG002 - not needed
        """Prepare a model; it is in the file, or in the hint ``content`` where it came from another machine."""
        try:
            content = hints.get("content") or Path(path).read_bytes()
            model = onnx.load_from_string(content)
            return NumpySession(ReferenceEvaluator(model, new_ops=self._operators))
        except Exception as error:
            raise BuildError(str(error)) from error


class NumpySession:
    """A model, ready to run."""

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        """Keep the evaluator."""
        self._evaluator = evaluator

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs by name."""
        try:
            values = self._evaluator.run(None, dict(inputs))
        except Exception as error:
            raise RunError(str(error)) from error
        return dict(zip(self._evaluator.output_names, values, strict=True))
