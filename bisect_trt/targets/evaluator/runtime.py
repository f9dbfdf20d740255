"""ONNX's own reference evaluator: NumPy, slow, and what the standard says."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.graph.lower import lower_fp16
from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import input_infos
from bisect_trt.targets.base import Arrays
from bisect_trt.targets.evaluator.standalone import evaluator
from bisect_trt.targets.interpreter import Interpreter, low_type
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.settings import TargetSettings


class Evaluator(Interpreter):
    """ONNX's ``ReferenceEvaluator``."""

    name = "ONNX's reference evaluator"

    def __init__(self, settings: TargetSettings) -> None:
        """There is nothing to set up."""
        self._settings = settings

    def lowered(self, model: Path) -> onnx.ModelProto | None:
        """The model with real nodes of the low precision, if there is one; ``None`` if that is the model itself."""
        low = low_type(self._settings)
        if low is None:
            return None
        return lower_fp16(onnx.load(str(model), load_external_data=False), self._settings.keep, low=low)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> EvaluatorSession:
        """Prepare a model; ``feed`` makes no difference.

        Raises:
            BuildError: It has no implementation of an operator.
        """
        proto = self.lowered(model) or onnx.load(str(model), load_external_data=False)
        try:
            onnx.external_data_helper.load_external_data_for_model(proto, str(model.absolute().parent))
            return EvaluatorSession(proto)
        except Exception as error:  # it raises what NumPy and its own code do
            raise BuildError(str(error)) from error


class EvaluatorSession:
    """A loaded model.

    Attributes:
        inputs: What it has to be fed.
        skipped: Nothing: it hands out all outputs.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        """``proto`` has its weights inside."""
        self.inputs = input_infos(Network(proto))
        self.skipped: dict[str, str] = {}
        self._evaluator = evaluator(proto)

    def layers(self) -> list[dict[str, Any]]:
        """None: every node is one."""
        return []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs.

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
