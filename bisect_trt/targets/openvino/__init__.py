"""OpenVINO as a target: its settings, its options, the plug-in and its switches.

A release build of OpenVINO has no switch for a single transformation of the graph; two properties
leave out whole families of them: ``SNIPPETS_MODE`` the fusion of elementwise nodes into generated
code, ``LP_TRANSFORMS_MODE`` the propagation of QuantizeLinear and DequantizeLinear
(``src/plugins/intel_cpu/src/config.cpp``). The device does not list them among its properties, so
the runner tries which it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.aliases import Fields, Plain
from bisect_trt.errors import ConflictError
from bisect_trt.options.reading import Pairs, once, pair
from bisect_trt.options.spec import option
from bisect_trt.targets.base import (
    LIKELY,
    Looked,
    OwnSettings,
    Package,
    Script,
    Switch,
    Target,
    TargetSettings,
    Tier,
    precision_switches,
)
from bisect_trt.targets.runtime import load_proto, low_type
from bisect_trt.targets.switches import adding, left_out

if TYPE_CHECKING:
    from onnx import ModelProto


CPU = "CPU"
HINT = "INFERENCE_PRECISION_HINT"
FULL = "f32"
_CAPABILITIES = {"fp16": "FP16", "bf16": "BF16"}
_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})


def openvino_property(value: Any) -> tuple[str, str]:  # noqa: ANN401 - whatever was given
    """A property, by its name in capital letters, and its value."""
    name, text = pair(value)
    return name.upper(), text


@dataclass(frozen=True)
class OpenVinoSettings(OwnSettings):
    """The settings of OpenVINO: its device (``CPU``, ``GPU.0``, ``AUTO``, ``HETERO:GPU,CPU``), and the device's properties."""

    device: Annotated[
        str, option("--openvino-device", metavar="DEVICE", help="OpenVINO's: CPU, GPU.0, AUTO, ...")
    ] = CPU
    properties: Annotated[
        Pairs,
        option(
            "--openvino-property",
            metavar="K:V",
            help="A property of OpenVINO's device, such as EXECUTION_MODE_HINT:ACCURACY.",
            read=openvino_property,
            check=once("--openvino-property"),
        ),
    ] = ()

    def checked(self, given: Sequence[str], *, engines: bool) -> OpenVinoSettings:
        """Check that at most one precision is given.

        Raises:
            UsageError: Two are.
        """
        low = next((flag for flag in ("--fp16", "--bf16") if flag in given), None)
        if low is not None and HINT in dict(self.properties):
            raise ConflictError(
                f"{low} and --openvino-property {HINT} both set the precision; drop one."
            )
        if {"--fp16", "--bf16"} <= {*given}:
            raise ConflictError(
                "--fp16 and --bf16 are two precisions, and OpenVINO runs in one; drop one of them."
            )
        return self


class OpenVinoTarget(Target):
    """OpenVINO with one of its devices."""

    name = "openvino"
    title = "OpenVINO"
    own = OpenVinoSettings
    help = "OpenVINO; fp32 unless --fp16 or --bf16 asks for another precision."
    needs = "openvino"
    emulator = f"OpenVINO's CPU device with {HINT}={FULL}"
    sent = ("bisect_trt.targets.openvino.runner",)
    reads_graph = True
    packages = (Package("openvino"),)

    def lower(self, settings: TargetSettings, model: Path, facts: Plain) -> ModelProto | None:
        """Return the model with every value rounded, where the device does not compute in the low precision.

        Args:
            settings: The settings of the target.
            model: The ONNX file.
            facts: ``capabilities`` has the precisions of the device.
        """
        low = next(iter(settings.low_precisions), None)
        if low is None or (not settings.keep and _CAPABILITIES[low] in facts["capabilities"]):
            return None
        from bisect_trt.onnxlib.roundings import lower_roundtrip  # noqa: PLC0415 - a command line is read without

        return lower_roundtrip(load_proto(model), settings.keep, None, low_type(settings))

    def hints(self, settings: TargetSettings, model: ModelProto, path: Path, facts: Plain) -> Plain:
        """Return the names of the model's inputs, which OpenVINO does not always know.

        Args:
            settings: The settings of the target.
            model: The model.
            path: The ONNX file.
            facts: The facts that its runner reports, such as the version.
        """
        weights = {tensor.name for tensor in model.graph.initializer}
        return {"inputs": [value.name for value in model.graph.input if value.name not in weights]}

    def describe(self, settings: TargetSettings) -> str:
        """Its device, properties and precisions."""
        options = settings.of(OpenVinoSettings)
        properties = [f"{name}={value}" for name, value in options.properties]
        return f"{self.title} ({', '.join([options.device, *properties, *(settings.low_precisions or ('fp32',))])})"

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On the CPU, where it computes in fp32 what a graph has in bf16.

        Raises:
            ConflictError: It removes Casts to fp16, so there fp16 cannot be emulated.
        """
        on_cpu = settings.of(OpenVinoSettings).device == CPU
        if on_cpu and settings.fp16:
            raise ConflictError(
                "--fp16: OpenVINO's CPU device computes in fp32 what a graph has in fp16; use --bf16, or --onnxrt --fp16, "
                "which rounds each value."
            )
        return on_cpu

    def script(self, settings: TargetSettings, hints: Plain) -> Script:
        """Return how ``reproduce.py`` runs a model; what the file is rounded to already is not asked for again."""
        full: Fields = dict.fromkeys(settings.low_precisions, False) if hints["lowered"] else {}
        return super().script(replace(settings, **full), hints)

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Return properties that are given, each left out; those that the device takes, each set; precisions."""
        options = settings.of(OpenVinoSettings)
        takes = (looked.trace or {}).get("takes", {})
        switches = list(left_out(options, "properties"))
        for name, value in takes.items():
            quantized = name.startswith("LP_")
            if name not in dict(options.properties) and (
                not quantized or looked.operators & _QUANTIZED
            ):
                tier = Tier.PASS if name in ("LP_TRANSFORMS_MODE", "SNIPPETS_MODE") else Tier.OPTION
                weight = LIKELY if quantized and looked.suspects & _QUANTIZED else 1.0
                switches.append(
                    Switch(
                        f"option:{name}={value}", adding("properties", (name, value)), tier, weight
                    )
                )
        return sorted(
            [*switches, *precision_switches(settings)], key=lambda candidate: candidate.tier
        )
