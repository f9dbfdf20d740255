"""ONNX Runtime as a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bisect_trt.targets.base import Capabilities, Minimal, NotReproducible, Package, Runtime, Script, Target, Value
from bisect_trt.targets.onnxrt.opening import short_name
from bisect_trt.targets.onnxrt.options import OnnxRuntimeOptions
from bisect_trt.targets.onnxrt.settings import ALL, OFF, OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from onnx import ModelProto

    from bisect_trt.targets.switches import Looked, Snippet, Switch

_LEVELS = {ALL: "all graph optimisations", OFF: "graph optimisations off"}
_OPTIONS = {
    "disabled_optimizers": "--disable-optimizer",
    "provider_options": "--provider-option",
    "session_options": "--session-option",
    "custom_op_libraries": "--custom-op-library",
    "ep_libraries": "--ep-library",
}
"""Of settings whose options are called otherwise: they may be repeated."""
_POLYGRAPHY = ("providers", "graph_optimization_level")
"""What `polygraphy run` can be told of."""

_TAKES_A_FOLDER = (1, 21)
"""The first release that can be told where the weights of a model in memory are."""


@cache
def _version(package: str) -> tuple[int, ...]:
    """The release of a package; nothing if it is not here."""
    from importlib import metadata  # noqa: PLC0415 - a worker that runs the reference alone starts without

    try:
        return tuple(int(part) for part in metadata.version(package).split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return ()


class OnnxRuntimeTarget(Target):
    """ONNX Runtime with some execution providers."""

    name, title, own = "onnxrt", "ONNX Runtime", OnnxRuntimeSettings
    capabilities = Capabilities(sliced=True)
    options, help = OnnxRuntimeOptions, "ONNX Runtime, all graph optimisations on."
    needs, emulator = "onnxruntime", "ONNX Runtime's CPU provider"
    sent = (
        "bisect_trt.targets.onnxrt.values",
        "bisect_trt.targets.onnxrt.session",
        "bisect_trt.targets.onnxrt.opening",
        "bisect_trt.targets.onnxrt.listening",
        "bisect_trt.targets.onnxrt.sent",
    )
    packages = tuple(Package(name, (((1, 19), "numpy<2"),)) for name in ("onnxruntime", "onnxruntime-gpu"))
    files = ("custom_op_libraries",)

    def package(self, settings: TargetSettings) -> Package:
        """The build for CPUs, where it runs on nothing else."""
        return self.packages[0 if self.emulates_low(settings) else 1]

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """ONNX Runtime, set up."""
        from bisect_trt.targets.onnxrt.runtime import OnnxRuntime  # noqa: PLC0415 - a target that may not be asked for

        return OnnxRuntime(settings)

    def lower(self, settings: TargetSettings, model: Path, facts: Mapping[str, Any]) -> ModelProto | None:
        """By Casts, as :func:`~bisect_trt.targets.onnxrt.memory.target_model` says, for the providers that are there."""
        if not settings.low_precisions:
            return None
        from bisect_trt.targets.onnxrt.memory import target_model  # noqa: PLC0415 - as above

        return target_model(model, settings, facts["providers"])

    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "": ("onnxruntime",),
        "--providers cuda": ("onnxruntime", "cuda-provider"),
    }

    def look(self, name: str, plain: TargetSettings) -> Iterator[tuple[str, str]]:
        """The package, or whether it runs a model on a GPU."""
        from bisect_trt.targets.onnxrt import about  # noqa: PLC0415 - as above

        return about.about_onnxruntime() if name == "onnxruntime" else about.about_cuda_provider()

    def describe(self, settings: TargetSettings) -> str:
        """Its providers, whether it optimises, and its precisions."""
        own = settings.of(OnnxRuntimeSettings)
        words = [", ".join(own.providers or [name for name, _ in own.ep_libraries]) or "CPU"]
        words += [_LEVELS.get(own.graph_optimization_level, own.graph_optimization_level)]
        words += [f"without {', '.join(own.disabled_optimizers)}"] if own.disabled_optimizers else []
        words += [f"{name}={value}" for name, value in (*own.provider_options, *own.session_options)]
        words += [Path(path).name for path in own.custom_op_libraries]
        return f"{self.title} ({', '.join([*words, *settings.low_precisions])})"

    def flag(self, name: str, value: Value) -> list[str]:
        """Each value after a flag of its own, pairs with a colon."""
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        if isinstance(value, str):
            return [option, value]
        return [word for each in value for word in (option, each if isinstance(each, str) else ":".join(each))]

    def script(self, settings: TargetSettings, model: Minimal) -> Script:
        """With nothing but ONNX Runtime."""
        folder = "bisect_trt.targets.onnxrt"
        modules = ("bisect_trt.targets.signatures", f"{folder}.opening", f"{folder}.standalone")
        return Script(f"{self.needs} and numpy", modules, self.reproducible(settings))

    def said_to(self, tool: str, settings: TargetSettings, model: Minimal) -> list[str] | NotReproducible | None:
        """To Polygraphy."""
        if tool != "polygraphy":
            return super().said_to(tool, settings, model)
        own = settings.of(OnnxRuntimeSettings)
        unsaid = [self.flag(name, value)[0] for name, value in self.changed(settings) if name not in _POLYGRAPHY]
        if unsaid:
            return NotReproducible(f"it has no option for {', '.join(unsaid)}")
        words = ["--onnxrt", *(["--providers", *own.providers] if own.providers else [])]
        level = own.graph_optimization_level
        return words + ([] if level == ALL else ["--graph-optimization-level", level])

    def alternatives(self, settings: TargetSettings) -> list[tuple[str, TargetSettings]]:
        """Without optimisations, and on the CPU, too."""
        own, others = settings.of(OnnxRuntimeSettings), super().alternatives(settings)
        if own.optimize:
            others.append(("With graph optimisations off", settings.with_own(graph_optimization_level=OFF)))
        if not self.emulates_low(settings):
            plain = settings.with_own(providers=(), provider_options=(), ep_libraries=())
            others.append(("On the CPU's execution provider", plain))
        return others

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Its graph optimizers one by one, options, levels."""
        from bisect_trt.targets.onnxrt.switches import ort_switches  # noqa: PLC0415 - a command line is read without

        return ort_switches(settings, looked)

    def snippet(self, settings: TargetSettings) -> Snippet:
        """The session's opening."""
        from bisect_trt.targets.onnxrt.switches import ort_snippet  # noqa: PLC0415 - as above

        return ort_snippet(settings)

    def reference(self, settings: TargetSettings, plain: TargetSettings) -> TargetSettings:
        """With the same kernels for operators of others."""
        return plain.with_own(custom_op_libraries=settings.of(OnnxRuntimeSettings).custom_op_libraries)

    def finds_weights(self, settings: TargetSettings) -> bool:
        """From 1.21 on, with its own providers."""
        own = settings.of(OnnxRuntimeSettings)
        versions = [found for name in ("onnxruntime", "onnxruntime-gpu") if (found := _version(name))]
        plain = {short_name(name) for name in own.providers} <= {"cpu", "cuda"} and not own.ep_libraries
        return plain and bool(versions) and min(versions) >= _TAKES_A_FOLDER

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On its CPU provider."""
        own = settings.of(OnnxRuntimeSettings)
        names = own.providers or [name for name, _ in own.ep_libraries] or ["cpu"]
        return all(short_name(name) == "cpu" for name in names)
