"""OpenVINO as a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from bisect_trt.targets.base import Capabilities, Minimal, Package, Runtime, Script, Target, Value
from bisect_trt.targets.openvino.opening import FULL, HINT, HINTS
from bisect_trt.targets.openvino.options import OpenVinoOptions
from bisect_trt.targets.openvino.settings import CPU, OpenVinoSettings
from bisect_trt.targets.settings import TargetSettings


class OpenVinoTarget(Target):
    """OpenVINO with one of its devices."""

    name, title, own = "openvino", "OpenVINO", OpenVinoSettings
    capabilities = Capabilities()
    options, help = OpenVinoOptions, "OpenVINO; fp32 unless --fp16 or --bf16 asks for another precision."
    needs, emulator = "openvino", f"OpenVINO's CPU device with {HINT}={FULL}"
    packages = (Package("openvino"),)
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"": ("openvino",)}

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """OpenVINO, set up.

        Raises:
            UnavailableError: It is not installed, or cannot be loaded.
        """
        from bisect_trt.targets.openvino.about import require_openvino  # noqa: PLC0415 - a target that may not be asked for

        require_openvino()
        from bisect_trt.targets.openvino.runtime import OpenVino  # noqa: PLC0415 - as above

        return OpenVino(settings)

    def look(self, name: str, plain: TargetSettings) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - as it is
        """The package, and its devices."""
        from bisect_trt.targets.openvino.about import about_openvino  # noqa: PLC0415 - as above

        return about_openvino()

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
        folder = "bisect_trt.targets.openvino"
        modules = ("bisect_trt.targets.signatures", f"{folder}.opening", f"{folder}.standalone")
        low = None if model.lowered else next(iter(settings.low_precisions), None)
        precision = FULL if low is None else HINTS[low]
        return Script(f"{self.needs} and numpy", modules, {**self.reproducible(settings), "precision": precision})

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On the CPU, where it computes what a graph has in fp16 in fp32."""
        return settings.of(OpenVinoSettings).device == CPU

    def drops_casts(self, settings: TargetSettings) -> bool:
        """On the CPU as well: fp16 is made fp32 in the whole graph, and the Casts are none then."""
        return self.emulates_low(settings)
