"""A target that is wrong now and then: each node named ``bad`` gives a tenth too much where its fault says so.

The truth that the tests of failures that come and go are held to. It is found as an installed package is, by the metadata
beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnOptions, OwnSettings, Runtime, Target
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions


@dataclass(frozen=True)
class UnsteadySettings(OwnSettings):
    """When it is wrong: ``never``, ``second`` (run of a session), ``odd`` (rows of a batch), ``beside`` (another session),
    ``after`` (an input of other values), ``chance:P`` (a build of P); by the number of rows: ``batch:K`` (from K on),
    ``free:K`` (the same, while a dimension is free), ``only:K``, ``multiple:K`` or ``not_multiple:K``.
    """

    fault: str = "never"


@dataclass
class UnsteadyOptions(OwnOptions):
    """Its one option."""

    fault: Annotated[str, option(metavar="WHEN", help="When it is wrong.")] = "never"

    def settings(self, common: TargetOptions, *, engines: bool) -> UnsteadySettings:  # noqa: ARG002 - nothing to check
        """As plain data."""
        return UnsteadySettings(self.fault)


class UnsteadyTarget(Target):
    """ONNX Runtime with a fault."""

    name, title, own = "unsteady", "Unsteady", UnsteadySettings
    options, help = UnsteadyOptions, "ONNX Runtime, wrong now and then."
    precisions = ()

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """Called in a worker process."""
        from unsteady_runtime import UnsteadyRuntime

        return UnsteadyRuntime(settings.of(UnsteadySettings).fault)
