"""ONNX's own reference evaluator as a target: a second opinion beside another (``run --onnx``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.targets.base import Target
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from onnx import ModelProto


class EvaluatorTarget(Target):
    """ONNX's ``ReferenceEvaluator``."""

    name, title, selectable, stays = "onnx", "ONNX's reference evaluator", False, True
    needs, sent = "onnx", ("bisect_trt.targets.evaluator.runner",)

    def lower(self, settings: TargetSettings, model: Path, facts: Mapping[str, Any]) -> ModelProto | None:
        """Return the model with nodes of the low precision; ``None`` if it runs as it is."""
        if not settings.low_precisions:
            return None
        from bisect_trt.onnxlib.lower import lower_fp16  # noqa: PLC0415 - a command line is read without
        from bisect_trt.targets.runtime import load_proto, low_type  # noqa: PLC0415 - as above

        low = low_type(settings)
        return None if low is None else lower_fp16(load_proto(model), settings.keep, low=low)

    def describe(self, settings: TargetSettings) -> str:
        """Return its name and its precisions."""
        return ", ".join([self.title, *settings.low_precisions])
