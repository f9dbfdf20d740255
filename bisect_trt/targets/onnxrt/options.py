"""The options that only ONNX Runtime has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnOptions
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions


@dataclass
class OnnxRuntimeOptions(OwnOptions):
    """What only ONNX Runtime has."""

    providers: Annotated[
        list[str], option(metavar="NAME", help="ONNX Runtime's execution providers: cpu, cuda, ...")
    ] = field(default_factory=list)

    def settings(self, common: TargetOptions, *, engines: bool) -> OnnxRuntimeSettings:  # noqa: ARG002 - there are none
        """As plain data."""
        return OnnxRuntimeSettings(tuple(self.providers))
