"""TensorRT as a target: the plug-in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.aliases import Plain, Sizes
from bisect_trt.errors import UnknownNameError, UnsuitableModelError, ValueRefusedError, quoted
from bisect_trt.targets.base import PRECISIONS, Package, ShapeRange, Target, TargetSettings
from bisect_trt.targets.messages import names_of
from bisect_trt.targets.runtime import load_proto, low_type
from bisect_trt.targets.trt.settings import (
    COMPILER_VARIABLE,
    RtxSettings,
    TrtSettings,
    trt_switches,
)

if TYPE_CHECKING:
    from onnx import ModelProto

    from bisect_trt.targets.base import Looked, Switch
    from bisect_trt.targets.choices import Choice

_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})


class TensorRtTarget(Target):
    """TensorRT, 8.6 or later."""

    name = "trt"
    title = "TensorRT"
    own = TrtSettings
    compiles = engines = True
    help = "TensorRT. --onnxrt beside it changes nothing."
    precisions = PRECISIONS
    needs = "tensorrt"
    packages = (Package("tensorrt"),)
    reads_graph = writes_casts = True
    files = ("plugins", "load_timing_cache", "calibration_cache", "calibration_data", "load_engine")
    sent = (
        "bisect_trt.targets.choices",
        "bisect_trt.targets.trt.process",
        "bisect_trt.targets.trt.config",
        "bisect_trt.targets.trt.network",
        "bisect_trt.targets.trt.engine",
        "bisect_trt.targets.trt.runner",
    )
    sent_back = ("save_engine",)
    tools = "bisect_trt.targets.trt.equivalents"
    # Files that a build writes change no engine; a prebuilt engine is of another model; only
    # `convert` calibrates.
    not_reproducible = (
        "save_timing_cache",
        "save_engine",
        "record",
        "load_engine",
        "calibration_data",
    )

    def lower(self, settings: TargetSettings, model: Path, facts: Plain) -> ModelProto | None:
        """Return the model that TensorRT parses; ``None`` for a prebuilt engine.

        Its dimensions are free where a profile has ranges, every node has a unique name, and, if
        the graph's types run, it has Casts to the low precision.

        Args:
            settings: The settings of the target.
            model: The ONNX file.
            facts: ``lowers_by`` is ``cast`` or ``layer``.
        """
        from bisect_trt.onnxlib.lower import lower_fp16  # noqa: PLC0415 - a command line is read without

        if settings.of(TrtSettings).load_engine is not None:
            return None
        proto = load_proto(model)
        free_dimensions(proto, settings)
        name_nodes(proto)
        if self._by_cast(settings, facts):
            return lower_fp16(proto, settings.keep, low=low_type(settings))
        return proto

    def changes_model(self, settings: TargetSettings, facts: Plain) -> bool:
        """Return whether Casts or free dimensions are written into the model."""
        return self._by_cast(settings, facts) or bool(settings.of(TrtSettings).min_shapes)

    def _by_cast(self, settings: TargetSettings, facts: Plain) -> bool:
        return (settings.fp16 or settings.bf16) and facts["lowers_by"] == "cast"

    def hints(self, settings: TargetSettings, model: ModelProto, path: Path, facts: Plain) -> Plain:
        """Return whether the model is lowered, the types of its outputs, its nodes, and all names for signatures.

        Args:
            settings: The settings of the target.
            model: The model that TensorRT parses.
            path: The ONNX file.
            facts: ``lowers_by`` is ``cast`` or ``layer``.
        """
        from bisect_trt.onnxlib.shapes import element_dtype  # noqa: PLC0415 - as above

        lowered = self._by_cast(settings, facts)
        original = model
        # The nodes of the lowered model make tensors of other names.
        if lowered:
            original = load_proto(path)
            name_nodes(original)
        outputs = {node.name: list(node.output) for node in original.graph.node}
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
        return {
            "lowered": lowered,
            "types": {
                name: element_dtype(element).name for name, element in types.items() if element
            },
            "names": sorted({*names_of(model.graph)}),
            "nodes": [
                [node.name, list(node.output), list(node.input), outputs.get(node.name, [])]
                for node in model.graph.node
            ],
        }

    def describe(self, settings: TargetSettings) -> str:
        """Its precisions, and what differs from TensorRT's defaults."""
        options = [
            " ".join(value)
            if name in ("compute_capabilities", "compiler_options")
            else name.replace("_", " ")
            for name, value in self.changed(settings)
            if name != "record"
        ]
        words = [
            *settings.low_precisions,
            *(["low precision required"] if settings.held else []),
            *options,
        ]
        return f"{self.title} ({', '.join(words) or 'fp32'})"

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Tactics of layers where it has a selector of them, sources of tactics, options, precisions."""
        return trt_switches(settings, looked)

    def elsewhere(self, settings: TargetSettings, trace: Plain) -> tuple[str, str, bool] | None:
        """Return the build route where there is one, else the environment variable."""
        options = settings.of(TrtSettings).compiler_options
        words = " ".join(f"-{option}" for option in options)
        public = bool(trace.get("routes"))
        name = "IBuilderConfig.build_route" if public else COMPILER_VARIABLE
        return (name, words, public) if options else None

    def loading(self, settings: TargetSettings, engine: Path) -> TargetSettings:
        """Run a prebuilt engine; except for plugins, the other settings are about building."""
        options = self.own(
            load_engine=str(engine.absolute()), plugins=settings.of(TrtSettings).plugins
        )
        return replace(settings, own=options, keep=(), held=False)

    def recording(self, settings: TargetSettings, folder: Path) -> TargetSettings:
        """Leave tactics, layers and timings."""
        return settings.with_own(record=str(folder.absolute()))

    def pinned(
        self, settings: TargetSettings, pins: Sequence[Choice], bans: Sequence[Choice] = ()
    ) -> TargetSettings:
        """By the algorithm selector.

        Args:
            settings: The settings of the target.
            pins: The choices to hold builds to; only tactics can be.
            bans: The choices to keep them from.
        """
        options = settings.of(TrtSettings)
        wanted, unwanted = (
            tuple(f"{choice.layer}={choice.value}" for choice in choices if choice.pins)
            for choices in (pins, bans)
        )
        return settings.with_own(
            pin_tactics=(*options.pin_tactics, *wanted),
            avoid_tactics=(*options.avoid_tactics, *unwanted),
        )

    def typed(self, settings: TargetSettings) -> list[TargetSettings]:
        """With the given precisions, free to run each layer in another type than the graph's; and strongly typed, since 9."""
        plain = replace(settings, keep=(), held=False)
        plain = plain.with_own(strongly_typed=False, save_engine=None)
        return [plain, replace(plain, fp16=False, bf16=False).with_own(strongly_typed=True)]

    def profile(self, settings: TargetSettings) -> Mapping[str, ShapeRange]:
        """The shapes of the optimisation profile; the most usual shapes default to the largest."""
        options = settings.of(TrtSettings)
        usual = dict(options.opt_shapes or options.max_shapes)
        highs = dict(options.max_shapes)
        return {name: (low, usual[name], highs[name]) for name, low in options.min_shapes}

    def spanning(
        self, settings: TargetSettings, ranges: Mapping[str, ShapeRange]
    ) -> TargetSettings:
        """With this optimisation profile."""
        low, usual, high = (
            tuple((name, shapes[place]) for name, shapes in ranges.items()) for place in range(3)
        )
        return settings.with_own(min_shapes=low, opt_shapes=usual, max_shapes=high)

    def check_model(self, settings: TargetSettings, operators: Collection[str]) -> None:
        """Make sure that INT8 has ranges.

        Raises:
            UsageError: Nothing is quantized, and nothing is known of the ranges, so that TensorRT
                would build nothing in INT8.
        """
        options = settings.of(TrtSettings)
        has_ranges = options.calibration_data or options.calibration_cache or options.load_engine
        if settings.int8 and not has_ranges and not _QUANTIZED.intersection(operators):
            raise UnsuitableModelError(
                "--int8: the model has no QuantizeLinear or DequantizeLinear node, and no ranges are given, so TensorRT would "
                "build nothing in INT8; drop it, quantize the model first, or calibrate: `convert --int8` makes the "
                "engine (`run --load-engine` runs it), `precision --int8` finds what must leave it."
            )

    def check_inputs(self, settings: TargetSettings, shapes: Mapping[str, Sizes]) -> None:
        """Make sure that the inputs' shapes are within the profile.

        Raises:
            UsageError: They are not.
        """
        options = settings.of(TrtSettings)
        highs = dict(options.max_shapes)
        for name, low in options.min_shapes:
            if name not in shapes:
                raise UnknownNameError(
                    f"--trt-min-shapes: the model has no input '{name}'; its inputs are: {quoted(shapes)}.",
                    name,
                    shapes,
                )
            shape = shapes[name]
            high = highs[name]
            fits = all(
                smallest <= size <= largest
                for smallest, size, largest in zip(low, shape, high, strict=False)
            )
            if len(low) == len(shape) and not fits:
                raise ValueRefusedError(
                    f"the input '{name}' is fed {list(shape)}, which is not between --trt-min-shapes {list(low)} and "
                    f"--trt-max-shapes {list(high)}; widen them, or set --input-shapes."
                )


class TensorRtRtxTarget(TensorRtTarget):
    """TensorRT-RTX, 1.4 or later."""

    name = "trt-rtx"
    title = "TensorRT-RTX"
    tools = ""
    own = RtxSettings
    help = "TensorRT-RTX; it has the options of TensorRT. Without a GPU it builds (--build-only)."
    needs = "tensorrt-rtx-cu12-bindings, tensorrt-rtx-cu12-libs"
    packages = (
        Package(
            "tensorrt-rtx-cu12", parts=("tensorrt-rtx-cu12-libs", "tensorrt-rtx-cu12-bindings")
        ),
    )


def name_nodes(model: ModelProto) -> None:
    """Give every node a unique name, by which TensorRT's layers are found again."""
    from bisect_trt.onnxlib.nodes import first_output  # noqa: PLC0415 - as above

    counts = Counter(node.name for node in model.graph.node)
    used = set(counts)
    for node in model.graph.node:
        # The last of several equal names keeps it: the others have been renamed by then.
        if node.name and counts[node.name] == 1:
            continue
        counts[node.name] -= 1
        named = chain(
            [first_output(node)], (f"{first_output(node)}_{number}" for number in count(1))
        )
        node.name = next(name for name in named if name and name not in used)
        used.add(node.name)


def free_dimensions(model: ModelProto, settings: TargetSettings) -> None:
    """Let those input dimensions vary for which an optimization profile gives a range.

    Raises:
        UsageError: A shape has another number of dimensions than its input.
    """
    lows = dict(settings.of(TrtSettings).min_shapes)
    highs = dict(settings.of(TrtSettings).max_shapes)
    if not lows:
        return
    for value in model.graph.input:
        if value.name not in lows or value.name not in highs:
            continue
        dims = value.type.tensor_type.shape.dim
        low = lows[value.name]
        high = highs[value.name]
        if len(low) != len(dims):
            raise ValueRefusedError(
                f"--trt-min-shapes: the input '{value.name}' has {len(dims)} dimensions, but {list(low)} has {len(low)}; give "
                "one number for each."
            )
        for place in [place for place in range(len(dims)) if low[place] != high[place]]:
            dims[place].dim_param = f"{value.name}_{place}"
    # Inferred shapes have the fixed sizes, and the parser believes them.
    del model.graph.value_info[:]
