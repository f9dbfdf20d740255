"""The runtime whose word is taken."""

from __future__ import annotations

from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings


def reference_settings() -> TargetSettings:
    """ONNX Runtime on the CPU with graph optimisations off: every node runs as it is written."""
    return TargetSettings("onnxrt", own=OnnxRuntimeSettings(optimize=False))
