"""ONNX Runtime as a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bisect_trt.targets.base import Capabilities, Minimal, NotReproducible, Runtime, Script, Target, Value
from bisect_trt.targets.onnxrt.options import OnnxRuntimeOptions
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from onnx import ModelProto

_SUFFIX = "executionprovider"


class OnnxRuntimeTarget(Target):
    """ONNX Runtime with some execution providers."""

    name, title, own = "onnxrt", "ONNX Runtime", OnnxRuntimeSettings
    capabilities = Capabilities(sliced=True)
    options, help = OnnxRuntimeOptions, "ONNX Runtime, all graph optimisations on."
    needs = "onnxruntime"
    sent = (
        "bisect_trt.targets.onnxrt.values",
        "bisect_trt.targets.onnxrt.session",
        "bisect_trt.targets.onnxrt.sent",
    )

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """ONNX Runtime, set up."""
        from bisect_trt.targets.onnxrt.runtime import OnnxRuntime  # noqa: PLC0415 - a target that may not be asked for

        return OnnxRuntime(settings)

    def lower(self, settings: TargetSettings, model: Path, facts: Mapping[str, Any]) -> ModelProto | None:
        """By Casts, as :func:`~bisect_trt.targets.onnxrt.runtime.target_model` says, for the providers that are there."""
        if not settings.low_precisions:
            return None
        from bisect_trt.targets.onnxrt.runtime import target_model  # noqa: PLC0415 - as above

        return target_model(model, settings, facts["providers"])

    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "": ("onnxruntime",),
        "--providers cuda": ("onnxruntime", "cuda-provider"),
    }

    def look(self, name: str, plain: TargetSettings) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - as it is
        """The package, or whether it runs a model on a GPU."""
        from bisect_trt.targets.onnxrt import about  # noqa: PLC0415 - as above

        return about.about_onnxruntime() if name == "onnxruntime" else about.about_cuda_provider()

    def describe(self, settings: TargetSettings) -> str:
        """Its providers, whether it optimises, and its precisions."""
        own = settings.of(OnnxRuntimeSettings)
        how = "all graph optimisations" if own.optimize else "graph optimisations off"
        words = [f"{self.title} ({', '.join(own.providers) or 'CPU'}", how, *settings.low_precisions]
        return ", ".join(words) + ")"

    def flag(self, name: str, value: Value) -> list[str]:
        """Each provider after a flag of its own; whether it optimises is no option."""
        return [word for each in value for word in ("--providers", each)] if name == "providers" else []

    def script(self, settings: TargetSettings, model: Minimal) -> Script:  # noqa: ARG002 - the file says its precision
        """With nothing but ONNX Runtime."""
        modules = ("bisect_trt.targets.signatures", "bisect_trt.targets.onnxrt.standalone")
        return Script(f"{self.needs} and numpy", modules, self.reproducible(settings))

    def said_to(self, tool: str, settings: TargetSettings, model: Minimal) -> list[str] | NotReproducible | None:
        """To Polygraphy."""
        if tool != "polygraphy":
            return super().said_to(tool, settings, model)
        own = settings.of(OnnxRuntimeSettings)
        words = ["--onnxrt", *(["--providers", *own.providers] if own.providers else [])]
        return words + ([] if own.optimize else ["--graph-optimization-level", "ORT_DISABLE_ALL"])

    def alternatives(self, settings: TargetSettings) -> list[tuple[str, TargetSettings]]:
        """Without optimisations, and on the CPU, too."""
        own, others = settings.of(OnnxRuntimeSettings), super().alternatives(settings)
        if own.optimize:
            others.append(("With graph optimisations off", settings.with_own(optimize=False)))
        if not self.emulates_low(settings):
            others.append(("On the CPU's execution provider", settings.with_own(providers=())))
        return others

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On its CPU provider."""
        names = settings.of(OnnxRuntimeSettings).providers
        return all(name.lower().removesuffix(_SUFFIX) == "cpu" for name in names)
