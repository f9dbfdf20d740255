"""The options that only OpenVINO has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from bisect_trt.errors import UsageError
from bisect_trt.options.reading import pair
from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnOptions
from bisect_trt.targets.openvino.settings import CPU, OpenVinoSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions

PRECISION = "INFERENCE_PRECISION_HINT"


@dataclass
class OpenVinoOptions(OwnOptions):
    """What only OpenVINO has."""

    openvino_device: Annotated[str, option(metavar="DEVICE", help="OpenVINO's: CPU, GPU.0, AUTO, ...")] = CPU
    openvino_property: Annotated[
        list[tuple[str, str]],
        option(metavar="K:V", help="A property of OpenVINO's device, such as EXECUTION_MODE_HINT:ACCURACY.", read=pair),
    ] = field(default_factory=list)

    def settings(self, common: TargetOptions, *, engines: bool) -> OpenVinoSettings:
        """As plain data.

        Raises:
            UsageError: A property has two values, or is about the precision, which has options of its own.
        """
        names = [name.upper() for name, _ in self.openvino_property]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"--openvino-property is given twice for {twice[0]!r}; give it once")
        low = next((f"--{name}" for name in ("fp16", "bf16") if getattr(common, name)), None)
        if low is not None and PRECISION in names:
            raise UsageError(f"{low} and --openvino-property {PRECISION} both say in which precision to run; drop one.")
        if common.fp16 and common.bf16:
            raise UsageError("--fp16 and --bf16 are two precisions, and OpenVINO runs in one; drop one of them.")
        return OpenVinoSettings(
            self.openvino_device, tuple((name.upper(), value) for name, value in self.openvino_property)
        )
