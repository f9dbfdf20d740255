"""TensorRT as a target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bisect_trt.errors import UsageError, quoted
from bisect_trt.targets.base import (
    Capabilities,
    Minimal,
    NotReproducible,
    Package,
    Runtime,
    ShapeRange,
    Target,
    Value,
)
from bisect_trt.targets.choices import TIMINGS
from bisect_trt.targets.settings import PRECISIONS, TargetSettings
from bisect_trt.targets.trt.options import TrtOptions
from bisect_trt.targets.trt.said import say
from bisect_trt.targets.trt.settings import TrtSettings

if TYPE_CHECKING:
    from onnx import ModelProto

    from bisect_trt.targets.choices import Choice
    from bisect_trt.targets.switches import Looked, Switch

_RUN = ("load_runtime", "allocation_strategy", "weight_streaming_budget", "dla_workspace_allocation_strategy")
"""What says how an engine is run that another process has built."""
_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})
_REPEATED = {
    "builder_flags": "--builder-flag",
    "builder_settings": "--builder-set",
    "avoid_tactics": "--avoid-tactic",
    "pin_tactics": "--pin-tactic",
}
"""Settings of which each value is said after an option of its own."""


class TensorRtEngines:
    """How TensorRT is set up to read and write engines."""

    def load(self, settings: TargetSettings, engine: Path) -> TargetSettings:
        """What else there is to say of a target says how an engine is built, but for plugins."""
        given = settings.of(TrtSettings)
        kept = {name: getattr(given, name) for name in ("plugins", *_RUN)}
        own = TrtSettings(load_engine=str(engine.absolute()), **kept)
        return replace(settings, own=own, keep=(), held=False)

    def save(self, settings: TargetSettings, engine: Path) -> TargetSettings:
        """Leave the engine that is built."""
        return settings.with_own(save_engine=str(engine.absolute()))

    def calibrate(self, settings: TargetSettings, samples: Sequence[Path], cache: Path | None) -> TargetSettings:
        """Find ranges with these samples."""
        files, known = tuple(str(path.absolute()) for path in samples), None if cache is None else str(cache.absolute())
        return settings.with_own(calibration_data=files, calibration_cache=known)


class TensorRtTarget(Target):
    """TensorRT, 8.6 or later."""

    name, title, own = "trt", "TensorRT", TrtSettings
    capabilities = Capabilities(
        costly=True,
        timed=True,
        chooses_precision=True,
        lowers_layers=True,
        runs_more=True,
        compiles_shapes=True,
        remembers_builds=True,
        pins=True,
        crowds=frozenset({"Conv", "ConvTranspose"}),
    )
    engines = TensorRtEngines()
    options = TrtOptions
    help = "TensorRT; its options are marked (T). --onnxrt beside it changes nothing."
    precisions = PRECISIONS
    needs = "tensorrt"
    packages = (Package("tensorrt"),)
    files = ("plugins", "load_timing_cache", "calibration_cache", "load_runtime")
    sent = (
        "bisect_trt.targets.trt.wording",
        "bisect_trt.targets.trt.tuned",
        "bisect_trt.targets.trt.knobs",
        "bisect_trt.targets.trt.selector",
        "bisect_trt.targets.trt.standalone",
        "bisect_trt.targets.trt.sent",
    )
    sent_files, sent_back = ("load_engine",), ("save_engine",)
    not_reproducible: ClassVar[Mapping[str, NotReproducible]] = {
        "lowering": NotReproducible("what it leads to is said: a model with Casts, or the precisions of layers"),
        "save_timing_cache": NotReproducible("says where a file goes, and changes no engine"),
        "save_tactics": NotReproducible("says where a file goes, and changes no engine"),
        "optimization_profile": NotReproducible("chooses among those of a prebuilt engine, which a reproducer has not"),
        "save_engine": NotReproducible("says where a file goes, and changes no engine"),
        "pin_timings": NotReproducible("timings are of one machine and one version; tactics that are pinned are said"),
        "record": NotReproducible("says where files go, and changes no engine"),
        "load_engine": NotReproducible("an engine is of one model, and a reproducer has a model of its own"),
        "calibration_data": NotReproducible("only `convert` calibrates, and leaves a cache, which is said"),
    }

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """TensorRT, set up."""
        from bisect_trt.targets.trt.build import TensorRtRuntime  # noqa: PLC0415 - a target that may not be asked for

        return TensorRtRuntime(settings)

    def lower(self, settings: TargetSettings, model: Path, facts: Mapping[str, Any]) -> ModelProto | None:
        """Casts where the TensorRT there has no other way, free dimensions where a profile has ranges; else named nodes."""
        from bisect_trt.onnxlib.lower import lower_fp16  # noqa: PLC0415 - as above
        from bisect_trt.onnxlib.lower_plan import LOW_TYPES  # noqa: PLC0415 - as above
        from bisect_trt.targets.runtime import load_proto  # noqa: PLC0415 - as above
        from bisect_trt.targets.trt.parse import free_dimensions, name_nodes  # noqa: PLC0415 - as above

        if settings.of(TrtSettings).load_engine is not None:
            return None
        proto = load_proto(model)
        free_dimensions(proto, settings)
        name_nodes(proto)
        if self._by_cast(settings, facts):
            return lower_fp16(proto, settings.keep, low=LOW_TYPES["bf16" if settings.bf16 else "fp16"])
        return proto

    def _by_cast(self, settings: TargetSettings, facts: Mapping[str, Any]) -> bool:
        return (settings.fp16 or settings.bf16) and facts["lowers_by"] == "cast"

    def hints(self, settings: TargetSettings, model: ModelProto, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether it is lowered, its outputs, all names for the signature of a refusal, and the nodes where some are held."""
        from bisect_trt.targets.messages import names_of  # noqa: PLC0415 - as above

        nodes = [[node.name, list(node.output)] for node in model.graph.node]
        return {
            "lowered": self._by_cast(settings, facts),
            "outputs": [value.name for value in model.graph.output],
            "names": sorted({*names_of(model.graph)}),
            "nodes": nodes if settings.keep or settings.held else [],
        }

    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"": ("tensorrt",)}

    def look(self, name: str, plain: TargetSettings) -> Iterator[tuple[str, str]]:
        """The package, or CUDA alone."""
        from bisect_trt.targets.trt import api  # noqa: PLC0415 - as above

        return api.about_tensorrt() if name == "tensorrt" else api.about_cuda()

    def describe(self, settings: TargetSettings) -> str:
        """Its precisions, and what differs from TensorRT's defaults."""
        own = [name.replace("_", " ") for name, _ in self.changed(settings) if name not in ("record", "pin_timings")]
        said = [*settings.low_precisions, *(["held to it"] if settings.held else []), *own]
        return f"{self.title} ({', '.join(said) or 'fp32'})"

    def said_to(self, tool: str, settings: TargetSettings, model: Minimal) -> list[str] | NotReproducible:
        """To Polygraphy and ``trtexec``; see :mod:`bisect_trt.targets.trt.said`."""
        own = {name: value for name, value in self.changed(settings) if name not in self.not_reproducible}
        return say(tool, own, settings, model)

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Tactics of layers where it has a selector of them, sources of tactics, options, precisions."""
        from bisect_trt.targets.trt.switches import trt_switches  # noqa: PLC0415 - a command line is read without

        return trt_switches(settings, looked)

    def recording(self, settings: TargetSettings, folder: Path) -> TargetSettings:
        """Leave tactics, layers and timings."""
        return settings.with_own(record=str(folder.absolute()))

    def pinned(
        self,
        settings: TargetSettings,
        pins: Sequence[Choice],
        bans: Sequence[Choice] = (),
        known: Sequence[Choice] = (),
    ) -> TargetSettings:
        """By the algorithm selector, or the timing cache that is edited where there is none (TensorRT 11)."""
        own = settings.of(TrtSettings)
        wanted, unwanted = (tuple(f"{each.layer}={each.value}" for each in some if each.pins) for some in (pins, bans))
        return settings.with_own(pin_tactics=(*own.pin_tactics, *wanted), avoid_tactics=(*own.avoid_tactics, *unwanted))

    def held_to(self, settings: TargetSettings, choices: Sequence[Choice], folder: Path) -> TargetSettings:
        """By tactics; where it chose none that can be pinned, by the timings of that build."""
        pins = [choice for choice in choices if choice.pins]
        if pins:
            return self.pinned(settings, pins)
        return settings.with_own(pin_timings=str((folder / TIMINGS).absolute()))

    def snippet(self, settings: TargetSettings) -> tuple[str, ...]:
        """The builder configuration."""
        from bisect_trt.targets.trt.switches import trt_snippet  # noqa: PLC0415 - as above

        return trt_snippet(settings)

    def typed(self, settings: TargetSettings) -> list[TargetSettings]:
        """As it is asked for, free to run each layer in another type than the graph's; and strongly typed, since 9."""
        plain = replace(settings, keep=(), held=False).with_own(precision_constraints="none", save_engine=None)
        return [plain, replace(plain, fp16=False, bf16=False).with_own(strongly_typed=True, lowering=None)]

    def flag(self, name: str, value: Value) -> list[str]:
        """Shapes and limits as ``NAME:VALUE``; no tactic sources as ``none``."""
        if name in _REPEATED:
            words = [each if isinstance(each, str) else "=".join(each) for each in value]
            return [part for word in words for part in (_REPEATED[name], word)]
        option = "--pool-limit" if name == "pool_limits" else f"--{'trt-' * name.endswith('_shapes')}{name}"
        if name not in ("pool_limits", "layer_precisions") and not name.endswith("_shapes"):
            return super().flag(name, value if value != () else "none")
        pairs = [f"{key}:{list(each) if isinstance(each, tuple) else each}".replace(" ", "") for key, each in value]
        return [option.replace("_", "-"), *pairs]

    def profile(self, settings: TargetSettings) -> Mapping[str, ShapeRange]:
        """Those of the optimisation profile; the most usual shapes are the largest, where they are not given."""
        own = settings.of(TrtSettings)
        usual, highs = dict(own.opt_shapes or own.max_shapes), dict(own.max_shapes)
        return {name: (low, usual[name], highs[name]) for name, low in own.min_shapes}

    def spanning(self, settings: TargetSettings, ranges: Mapping[str, ShapeRange]) -> TargetSettings:
        """With this optimisation profile."""
        low, usual, high = (tuple((name, each[place]) for name, each in ranges.items()) for place in range(3))
        return settings.with_own(min_shapes=low, opt_shapes=usual, max_shapes=high)

    def check_model(self, settings: TargetSettings, operators: Collection[str]) -> None:
        """Make sure that INT8 has ranges.

        Raises:
            UsageError: Nothing is quantized, and nothing is known of the ranges, so that TensorRT would build nothing in INT8.
        """
        own = settings.of(TrtSettings)
        known = own.calibration_data or own.calibration_cache or own.load_engine
        if settings.int8 and not known and not _QUANTIZED.intersection(operators):
            raise UsageError(
                "--int8: the model has no QuantizeLinear or DequantizeLinear node, and no ranges are given, so TensorRT would "
                "build nothing in INT8; drop it, quantize the model first, or calibrate: `bisect-trt convert --int8` makes the "
                "engine (`bisect-trt run --load-engine` runs it), `bisect-trt precision --int8` finds what must leave it."
            )

    def check_inputs(self, settings: TargetSettings, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make sure that the inputs' shapes are within the profile.

        Raises:
            UsageError: They are not.
        """
        own = settings.of(TrtSettings)
        highs = dict(own.max_shapes)
        for name, low in own.min_shapes:
            if name not in shapes:
                raise UsageError(
                    f"--trt-min-shapes: the model has no input '{name}'; its inputs are: {quoted(shapes)}."
                )
            shape, high = shapes[name], highs[name]
            fits = all(least <= size <= most for least, size, most in zip(low, shape, high, strict=False))
            if len(low) == len(shape) and not fits:
                raise UsageError(
                    f"the input '{name}' is fed {list(shape)}, which is not between --trt-min-shapes {list(low)} and "
                    f"--trt-max-shapes {list(high)}; widen them, or set --input-shapes."
                )
