"""ONNX Runtime as a target."""

from __future__ import annotations

from bisect_trt.targets.base import Capabilities, Runtime, Target, Value
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings

_SUFFIX = "executionprovider"


class OnnxRuntimeTarget(Target):
    """ONNX Runtime with some execution providers."""

    name, title, own = "onnxrt", "ONNX Runtime", OnnxRuntimeSettings
    capabilities = Capabilities(sliced=True)

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """ONNX Runtime, set up."""
        from bisect_trt.targets.onnxrt.runtime import OnnxRuntime  # noqa: PLC0415 - a target that may not be asked for

        return OnnxRuntime(settings)

    def describe(self, settings: TargetSettings) -> str:
        """Its providers, whether it optimises, and its precisions."""
        own = settings.of(OnnxRuntimeSettings)
        how = "all graph optimisations" if own.optimize else "graph optimisations off"
        words = [f"{self.title} ({', '.join(own.providers) or 'CPU'}", how, *settings.low_precisions]
        return ", ".join(words) + ")"

    def flag(self, name: str, value: Value) -> list[str]:
        """Each provider after a flag of its own; whether it optimises is no option."""
        return [word for each in value for word in ("--providers", each)] if name == "providers" else []

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On its CPU provider."""
        names = settings.of(OnnxRuntimeSettings).providers
        return all(name.lower().removesuffix(_SUFFIX) == "cpu" for name in names)
