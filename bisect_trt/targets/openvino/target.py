"""OpenVINO as a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bisect_trt.targets.base import Capabilities, Minimal, Package, Runtime, Script, Target, Value
from bisect_trt.targets.openvino.opening import FULL, HINT, HINTS
from bisect_trt.targets.openvino.options import OpenVinoOptions
from bisect_trt.targets.openvino.settings import CPU, OpenVinoSettings
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from onnx import ModelProto

    from bisect_trt.targets.switches import Looked, Snippet, Switch

_HERE = "bisect_trt.targets.openvino"


class OpenVinoTarget(Target):
    """OpenVINO with one of its devices."""

    name, title, own = "openvino", "OpenVINO", OpenVinoSettings
    capabilities = Capabilities()
    options, help = OpenVinoOptions, "OpenVINO; fp32 unless --fp16 or --bf16 asks for another precision."
    needs, emulator = "openvino", f"OpenVINO's CPU device with {HINT}={FULL}"
    sent = ("bisect_trt.targets.onnxrt.opening", f"{_HERE}.opening", f"{_HERE}.session", f"{_HERE}.sent")
    packages = (Package("openvino"),)
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"": ("openvino",)}

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """OpenVINO, set up."""
        from bisect_trt.targets.openvino.runtime import OpenVino  # noqa: PLC0415 - a target that may not be asked for

        return OpenVino(settings)

    def lower(self, settings: TargetSettings, model: Path, facts: Mapping[str, Any]) -> ModelProto | None:
        """Every value rounded, where the device there does not compute in the low precision."""
        if not settings.low_precisions:
            return None
        from bisect_trt.targets.openvino.runtime import target_model  # noqa: PLC0415 - as above

        return target_model(model, settings, facts)

    def hints(self, settings: TargetSettings, model: ModelProto, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """What its inputs are called: OpenVINO does not always know."""
        from bisect_trt.targets.openvino.runtime import declared  # noqa: PLC0415 - as above

        return {"inputs": declared(model)}

    def look(self, name: str, plain: TargetSettings) -> Iterator[tuple[str, str]]:
        """Its version and its devices.

        Raises:
            UnavailableError: It is not there.
        """
        from bisect_trt.targets.openvino.sent import require_openvino  # noqa: PLC0415 - as above

        openvino = require_openvino()
        yield "OpenVINO", openvino.__version__
        core = openvino.Core()
        named = {device: core.get_property(device, "FULL_DEVICE_NAME") for device in core.available_devices}
        yield "OpenVINO devices", ", ".join(f"{device} ({name})" for device, name in named.items())

    def describe(self, settings: TargetSettings) -> str:
        """Its device, properties and precisions."""
        own = settings.of(OpenVinoSettings)
        said = [f"{name}={value}" for name, value in own.properties]
        return f"{self.title} ({', '.join([own.device, *said, *(settings.low_precisions or ('fp32',))])})"

    def flag(self, name: str, value: Value) -> list[str]:
        """Each property after a flag of its own."""
        if name == "device":
            return ["--openvino-device", value]
        return [word for key, each in value for word in ("--openvino-property", f"{key}:{each}")]

    def script(self, settings: TargetSettings, model: Minimal) -> Script:
        """With nothing but OpenVINO; what the file has been rounded to already is not asked for again."""
        modules = ("bisect_trt.targets.signatures", f"{_HERE}.opening", f"{_HERE}.standalone")
        low = None if model.lowered else next(iter(settings.low_precisions), None)
        precision = FULL if low is None else HINTS[low]
        values = {**self.reproducible(settings), "precision": precision, "inputs": list(model.inputs)}
        return Script(f"{self.needs} and numpy", modules, values)

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Properties of the device, and precisions."""
        from bisect_trt.targets.openvino.switches import openvino_switches  # noqa: PLC0415 - a command line is read without

        return openvino_switches(settings, looked)

    def snippet(self, settings: TargetSettings) -> Snippet:
        """The model's compilation."""
        from bisect_trt.targets.openvino.switches import openvino_snippet  # noqa: PLC0415 - as above

        return openvino_snippet(settings)

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On the CPU, where it computes what a graph has in fp16 in fp32."""
        return settings.of(OpenVinoSettings).device == CPU

    def drops_casts(self, settings: TargetSettings) -> bool:
        """On the CPU as well: fp16 is made fp32 in the whole graph, and the Casts are none then."""
        return self.emulates_low(settings)
