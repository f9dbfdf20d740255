"""ONNX's evaluator, which computes with NumPy, as a target of bisect-trt; nothing large is imported at the top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnSettings, Target, TargetSettings


@dataclass(frozen=True)
class NumpySettings(OwnSettings):
    """The settings of this target alone: plain values, which go to the worker processes and into ``reproduce.py``.

    Each has its option; those that all targets share (``--keep-fp32``, ...) exist already.
    """

    leak: Annotated[
        float, option(metavar="SLOPE", min=0, max=1, help="How much Relu leaks, with --numpy.")
    ] = 0.01


class NumpyTarget(Target):
    """ONNX's evaluator with a bug in its Relu."""

    name = "numpy"
    title = "NumPy"
    own = NumpySettings
    help = "ONNX's NumPy evaluator with a leaky Relu."
    precisions = ()
    needs = "onnx"
    sent = ("numpy_runner",)

    def describe(self, settings: TargetSettings) -> str:
        """Return it in words."""
        return f"NumPy (leak {settings.of(NumpySettings).leak:g})"
