"""Runs models in ONNX's reference evaluator: NumPy, slow, and what the standard says."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.tensors.info import TensorInfo


class EvaluatorRunner:
    """ONNX's ``ReferenceEvaluator``.

    Attributes:
        facts: Its version.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """There is nothing to set up."""
        self.facts = {"lowers_by": "cast", "version": onnx.__version__}

    def gpu_memory(self) -> int:
        """Return 0: it runs on the CPU."""
        return 0

    def load(
        self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any], unfused: bool
    ) -> EvaluatorSession | None:
        """Prepare a model; ``None`` for ``unfused``.

        Raises:
            BuildError: The evaluator has no implementation of an operator.
        """
        if unfused:
            return None
        try:
            content = hints.get("content")
            model = onnx.load_from_string(content) if content else onnx.load(str(path), load_external_data=False)
            weights = hints.get("weights", str(path.absolute().parent))
            onnx.external_data_helper.load_external_data_for_model(model, weights)
            return EvaluatorSession(model)
        except Exception as error:  # it raises what NumPy and its own code do
            raise BuildError(f"{type(error).__name__}: {error}") from error


make = EvaluatorRunner


class EvaluatorSession:
    """A loaded model.

    Attributes:
        inputs: What it has to be fed.
        skipped: Nothing: it hands out all outputs.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """``model`` has its weights inside."""
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.ops._op_list import load_op

        # Newer versions of DequantizeLinear take more types and shapes of scales, and compute the same of the older's.
        older = any(opset.domain in ("", "ai.onnx") and opset.version < 19 for opset in model.opset_import)
        newest = load_op("", "DequantizeLinear", onnx.defs.onnx_opset_version())
        added = [type("DequantizeLinear", (newest,), {"op_domain": ""})] if older else None
        self._evaluator: Any = ReferenceEvaluator(model, new_ops=added)
        weights = {tensor.name for tensor in model.graph.initializer}
        self.inputs = [_input_info(value) for value in model.graph.input if value.name not in weights]
        self.skipped: dict[str, str] = {}

    def layers(self) -> list[dict[str, Any]]:
        """Return nothing: every node is a layer."""
        return []

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs, by name.

        Raises:
            RunError: It fails.
        """
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):  # Inf and NaN are what it is run for
                warnings.simplefilter("ignore")
                values = self._evaluator.run(None, dict(inputs))
        except Exception as error:  # as above
            raise RunError(f"{type(error).__name__}: {error}") from error
        return dict(zip(self._evaluator.output_names, map(np.asarray, values), strict=True))


def _input_info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return TensorInfo(value.name, dtype, tuple(dims) if kind.HasField("shape") else None)
