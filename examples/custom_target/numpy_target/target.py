"""What bisect-trt has to know of the target; imported to parse a command line, so it imports nothing large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnOptions, OwnSettings, Runtime, Target
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions


@dataclass(frozen=True)
class NumpySettings(OwnSettings):
    """What only this target has; it goes to the worker processes and into ``reproduce.py``.

    Attributes:
        leak: How much of a negative value Relu lets through.
    """

    leak: float = 0.01


@dataclass
class NumpyOptions(OwnOptions):
    """The options for it; those that all targets share (``--keep-fp32``, ...) are there already."""

    leak: Annotated[float, option(metavar="SLOPE", min=0, max=1, help="How much Relu leaks, with --numpy.")] = 0.01

    def settings(self, common: TargetOptions, *, engines: bool) -> NumpySettings:  # noqa: ARG002 - nothing to check
        """As plain data."""
        return NumpySettings(self.leak)


class NumpyTarget(Target):
    """A NumPy interpreter of ONNX."""

    name, title, own = "numpy", "NumPy", NumpySettings
    options, help = NumpyOptions, "A NumPy interpreter with a leaky Relu."
    precisions = ()
    needs = "bisect-trt-numpy-target"

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """Called in a worker process."""
        from numpy_target.runtime import NumpyRuntime  # noqa: PLC0415 - it imports onnx, and workers alone need it

        return NumpyRuntime(settings)

    def describe(self, settings: TargetSettings) -> str:
        """In words."""
        return f"NumPy (leak {settings.of(NumpySettings).leak:g})"
