"""What the GPU tests of tactics share."""

from __future__ import annotations

import pytest

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.process import tensorrt

PLAIN = TargetSettings("trt")
NO_LIBRARY = "could not be loaded, check function name against library symbol"
"""TensorRT calls cuBLAS or cuDNN, which need not be installed."""


def needs_selector() -> None:
    if not hasattr(tensorrt().trt, "IAlgorithmSelector"):
        pytest.skip("this TensorRT has no algorithm selector")
