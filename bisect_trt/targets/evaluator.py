"""ONNX's reference evaluator as a target: the standard, for the arbitration of a minimal case."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.targets.base import Target
from bisect_trt.targets.messages import BuildError, Feed, Plain, RunError
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from onnx import ModelProto


class EvaluatorTarget(Target):
    """ONNX's ``ReferenceEvaluator``: NumPy, and slow."""

    name, title, needs = "onnx", "ONNX's reference evaluator", "onnx"
    selectable, stays = False, True

    def make_runner(self, settings: TargetSettings) -> EvaluatorRunner:
        """Return the runner; it has no settings."""
        return EvaluatorRunner()

    def describe(self, settings: TargetSettings) -> str:
        """Return its name."""
        return self.title


class EvaluatorRunner:
    """ONNX's ``ReferenceEvaluator``; its facts are its version."""

    def __init__(self) -> None:
        """Read the version."""
        import onnx  # noqa: PLC0415 - a command line is read without

        self.facts = {"version": onnx.__version__}

    def load(self, path: Path, feed: Feed, hints: Plain) -> EvaluatorSession:
        """Prepare a model.

        Raises:
            BuildError: The evaluator has no implementation of an operator.
        """
        import onnx  # noqa: PLC0415 - as above

        try:
            content = hints.get("content")
            model = onnx.load_from_string(content) if content else onnx.load(str(path), load_external_data=False)
            weights = hints.get("weights", str(path.absolute().parent))
            onnx.external_data_helper.load_external_data_for_model(model, weights)
            return EvaluatorSession(model)
        except Exception as error:  # it raises what NumPy and its own code do
            raise BuildError(f"{type(error).__name__}: {error}") from error


class EvaluatorSession:
    """A loaded model; it returns all outputs."""

    def __init__(self, model: ModelProto) -> None:
        """``model`` has its weights inside."""
        import onnx  # noqa: PLC0415 - as above
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - as above
        from onnx.reference.ops._op_list import load_op  # noqa: PLC0415 - as above

        from bisect_trt.onnxlib.network import Network  # noqa: PLC0415 - as above
        from bisect_trt.onnxlib.shapes import input_infos  # noqa: PLC0415 - as above

        # Newer versions of DequantizeLinear take more types and shapes of scales, and compute the same of the older's.
        older = any(opset.domain in ("", "ai.onnx") and opset.version < 19 for opset in model.opset_import)
        newest = load_op("", "DequantizeLinear", onnx.defs.onnx_opset_version())
        added = [type("DequantizeLinear", (newest,), {"op_domain": ""})] if older else None
        self._evaluator: Any = ReferenceEvaluator(model, new_ops=added)
        self.inputs, self.skipped = input_infos(Network(model)), dict[str, str]()

    def run(self, inputs: Feed) -> dict[str, Any]:
        """Return all outputs, by name.

        Raises:
            RunError: It fails.
        """
        import numpy as np  # noqa: PLC0415 - as above

        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):  # Inf and NaN are what it is run for
                warnings.simplefilter("ignore")
                values = self._evaluator.run(None, dict(inputs))
        except Exception as error:  # as above
            raise RunError(f"{type(error).__name__}: {error}") from error
        return dict(zip(self._evaluator.output_names, map(np.asarray, values), strict=True))
