"""ONNX's own reference evaluator as a target, beside another (``run --onnx``)."""

from __future__ import annotations

from bisect_trt.targets.base import Minimal, Runtime, Script, Target
from bisect_trt.targets.settings import TargetSettings


class EvaluatorTarget(Target):
    """ONNX's ``ReferenceEvaluator``."""

    name, title, selectable, stays = "onnx", "ONNX's reference evaluator", False, True

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """The evaluator."""
        from bisect_trt.targets.evaluator.runtime import Evaluator  # noqa: PLC0415 - a target that may not be asked for

        return Evaluator(settings)

    def script(self, settings: TargetSettings, model: Minimal) -> Script:
        """With nothing but ONNX."""
        modules = ("bisect_trt.targets.signatures", "bisect_trt.targets.evaluator.standalone")
        return Script("onnx and numpy", modules, self.reproducible(settings))

    def describe(self, settings: TargetSettings) -> str:
        """Its name and its precisions."""
        return ", ".join([self.title, *settings.low_precisions])
