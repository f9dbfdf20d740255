"""The runtime whose word is taken."""

from __future__ import annotations

from bisect_trt.targets.onnxrt.settings import OFF, OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings


def reference_settings(target: TargetSettings | None = None) -> TargetSettings:
    """ONNX Runtime on the CPU with graph optimisations off: every node runs as it is written.

    Args:
        target: What is compared with it; it may need something without which the model runs nowhere.
    """
    plain = TargetSettings("onnxrt", own=OnnxRuntimeSettings(graph_optimization_level=OFF))
    return plain if target is None else target.target.reference(target, plain)
