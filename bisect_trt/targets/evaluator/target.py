"""ONNX's own reference evaluator as a target, beside another (``run --onnx``)."""

from __future__ import annotations

from bisect_trt.targets.base import Runtime, Target
from bisect_trt.targets.settings import TargetSettings


class EvaluatorTarget(Target):
    """ONNX's ``ReferenceEvaluator``."""

    name, title = "onnx", "ONNX's reference evaluator"

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """The evaluator."""
        from bisect_trt.targets.evaluator.runtime import Evaluator  # noqa: PLC0415 - a target that may not be asked for

        return Evaluator(settings)

    def describe(self, settings: TargetSettings) -> str:
        """Its name and its precisions."""
        return ", ".join([self.title, *settings.low_precisions])
