"""The options that only TensorRT has.

It is long because an option is a declaration of several lines, and TensorRT has fifty.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.errors import UsageError
from bisect_trt.options.reading import assignment, pool_limit, shape, streaming_budget
from bisect_trt.options.spec import option, switch
from bisect_trt.targets.base import OwnOptions
from bisect_trt.targets.settings import PRECISIONS
from bisect_trt.targets.trt.knobs import NAMED_ATTRIBUTES, TYPES
from bisect_trt.targets.trt.settings import TrtSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions

_RUN = (
    *("load-runtime", "optimization-profile", "allocation-strategy", "weight-streaming-budget"),
    "dla-workspace-allocation-strategy",
)
"""What says how an engine is run, not how it is built."""
_WITH_AN_ENGINE = ("load-engine", "plugins", "fresh-process", *_RUN)
"""What a prebuilt engine leaves to be said."""


BUILDER_FLAGS = {
    "sparse_weights": "SPARSE_WEIGHTS",
    "refittable": "REFIT",
    "strip_plan": "STRIP_PLAN",
    "weight_streaming": "WEIGHT_STREAMING",
    "exclude_lean_runtime": "EXCLUDE_LEAN_RUNTIME",
    "error_on_timing_cache_miss": "ERROR_ON_TIMING_CACHE_MISS",
    "disable_compilation_cache": "DISABLE_COMPILATION_CACHE",
    "direct_io": "DIRECT_IO",
    "allow_gpu_fallback": "GPU_FALLBACK",
    "trt_safety_restricted": "SAFETY_SCOPE",
}
"""Options that set a builder flag, under the names that Polygraphy has for them."""
_TYPES = {"float": "fp32", "float32": "fp32", "half": "fp16", "float16": "fp16", "bfloat16": "bf16"}
"""Other words for types, which Polygraphy has."""


def layer_type(value: object) -> str:
    """A type in which a layer may run.

    Raises:
        ValueError: It is none.
    """
    name = _TYPES.get(str(value).lower(), str(value).lower())
    if name not in TYPES:
        raise ValueError(f"one of {', '.join(TYPES)}")
    return name


OWN_OPTIONS = ("builder_optimization_level", "hardware_compatibility_level")


class Constraints(str, Enum):
    """What becomes of layer precisions."""

    NONE = "none"
    PREFER = "prefer"
    OBEY = "obey"


class Allocation(str, Enum):
    """When an engine takes memory for what it computes."""

    STATIC = "static"
    PROFILE = "profile"
    RUNTIME = "runtime"


class Calibrator(str, Enum):
    """TensorRT's ways to find ranges for INT8."""

    ENTROPY_2 = "IInt8EntropyCalibrator2"
    ENTROPY = "IInt8EntropyCalibrator"
    MIN_MAX = "IInt8MinMaxCalibrator"
    LEGACY = "IInt8LegacyCalibrator"


class LoweringChoice(str, Enum):
    """Who lowers a model."""

    CAST = "cast"
    LAYER = "layer"


@dataclass
class TrtOptions(OwnOptions):
    """What only TensorRT has."""

    lowering: Annotated[
        LoweringChoice | None,
        option(help="fp16 by Casts in the graph, or by TensorRT's layers; default layer before TensorRT 11 (T)."),
    ] = None
    precision_constraints: Annotated[
        Constraints, option(help="Whether precisions of layers are only preferred, or obeyed (T).")
    ] = Constraints.NONE
    layer_precisions: Annotated[
        dict[str, str],
        option(
            metavar="LAYER:TYPE",
            help="In which type layers run, by their names: fp32, fp16, bf16, int8, int32 (T).",
            read=layer_type,
            need_name=True,
        ),
    ] = field(default_factory=dict)
    strongly_typed: Annotated[bool, switch("The types in the graph are those that run (T).")] = False
    trt_min_shapes: Annotated[
        dict[str, tuple[int, ...]],
        option(metavar="NAME:[D,...]", help="Smallest input shapes of the profile (T).", read=shape, need_name=True),
    ] = field(default_factory=dict)
    trt_opt_shapes: Annotated[
        dict[str, tuple[int, ...]],
        option(
            metavar="NAME:[D,...]",
            help="Usual ones; default those of --trt-max-shapes (T).",
            read=shape,
            need_name=True,
        ),
    ] = field(default_factory=dict)
    trt_max_shapes: Annotated[
        dict[str, tuple[int, ...]], option(metavar="NAME:[D,...]", help="Largest ones (T).", read=shape, need_name=True)
    ] = field(default_factory=dict)
    pool_limit: Annotated[
        list[tuple[str, int]], option(metavar="POOL:SIZE", help="Such as workspace:4G (T).", read=pool_limit)
    ] = field(default_factory=list)
    tactic_sources: Annotated[
        list[str] | None, option(metavar="NAME", help="Only these sources of tactics; none: no others (T).")
    ] = None
    builder_optimization_level: Annotated[
        int | None, option(metavar="0..5", min=0, max=5, help="How hard to search for tactics (T).")
    ] = None
    plugins: Annotated[list[Path], option(metavar="FILE", help="Plugin libraries to load (T).")] = field(
        default_factory=list
    )
    version_compatible: Annotated[bool, switch("An engine for later versions too (T).")] = False
    hardware_compatibility_level: Annotated[
        str | None, option(metavar="LEVEL", help="none, ampere_plus, same_compute_capability (T).")
    ] = None
    max_aux_streams: Annotated[
        int | None, option(metavar="N", min=0, help="So many streams beside the main one at most (T).")
    ] = None
    sparse_weights: Annotated[bool, switch("Tactics for sparse weights too (T).")] = False
    refittable: Annotated[bool, switch("An engine whose weights can be changed (T).")] = False
    strip_plan: Annotated[bool, switch("An engine without its weights (T).")] = False
    weight_streaming: Annotated[bool, switch("Weights may stay on the host (T).")] = False
    exclude_lean_runtime: Annotated[bool, switch("No runtime inside of the engine (T).")] = False
    error_on_timing_cache_miss: Annotated[bool, switch("Refuse what the timings do not have (T).")] = False
    disable_compilation_cache: Annotated[bool, switch("Compile kernels anew (T).")] = False
    direct_io: Annotated[bool, switch("No reformatting at inputs and outputs (T).")] = False
    use_dla: Annotated[bool, switch("On the DLA, where layers run there (T).")] = False
    allow_gpu_fallback: Annotated[bool, switch("With --use-dla: other layers on the GPU (T).")] = False
    preview_features: Annotated[
        list[str] | None, option(metavar="NAME", help="Only these preview features; none: no others (T).")
    ] = None
    onnx_flags: Annotated[list[str], option(metavar="NAME", help="Flags of the ONNX parser (T).")] = field(
        default_factory=list
    )
    engine_capability: Annotated[
        str | None, option(metavar="NAME", help="standard, safety, dla_standalone; not all can be run here (T).")
    ] = None
    trt_safety_restricted: Annotated[bool, switch("Refuse what the safe runtime does not have (T).")] = False
    profiling_verbosity: Annotated[
        str | None, option(metavar="NAME", help="What engines tell of layers: detailed unless said (T).")
    ] = None
    quantization_flags: Annotated[
        list[str] | None, option(metavar="NAME", help="Only these flags of --int8; none: no others (T).")
    ] = None
    runtime_platform: Annotated[
        str | None, option(metavar="NAME", help="For which system: same_as_build, windows_amd64 (T).")
    ] = None
    tiling_optimization_level: Annotated[
        str | None, option(metavar="LEVEL", help="none, fast, moderate, full (T).")
    ] = None
    builder_flag: Annotated[
        list[str], option(metavar="NAME", help="Any other flag of TensorRT's BuilderFlag, as DIRECT_IO (T).")
    ] = field(default_factory=list)
    builder_set: Annotated[
        list[tuple[str, str]],
        option(
            metavar="ATTRIBUTE=VALUE",
            help="Any attribute of the builder configuration, as avg_timing_iterations=4 (T).",
            read=assignment,
        ),
    ] = field(default_factory=list)
    avoid_tactic: Annotated[
        list[str],
        option(metavar="LAYER=IMPLEMENTATION:TACTIC", help="A tactic that a layer shall not take, up to 10 (T)."),
    ] = field(default_factory=list)
    pin_tactic: Annotated[
        list[str],
        option(
            metavar="LAYER=IMPLEMENTATION:TACTIC",
            help="A tactic that a layer has to take if it is there, up to 10 (T).",
        ),
    ] = field(default_factory=list)
    load_timing_cache: Annotated[Path | None, option(metavar="FILE", help="Timings to start from (T).")] = None
    save_timing_cache: Annotated[Path | None, option(metavar="FILE", help="Where timings go (T).")] = None
    load_tactics: Annotated[
        Path | None, option(metavar="FILE", help="Tactics that layers have to take, as Polygraphy saves them (T).")
    ] = None
    save_tactics: Annotated[
        Path | None, option(metavar="FILE", help="Where the tactics go that layers took, as Polygraphy saves them (T).")
    ] = None
    plugin_instancenorm: Annotated[bool, switch("InstanceNormalization by the plugin (T).")] = False
    calib_base_cls: Annotated[
        Calibrator | None,
        option(
            "--calib-base-cls",
            "--calibration-base-class",
            metavar="CLASS",
            help="TensorRT's calibrator for --int8; default IInt8EntropyCalibrator2 (T).",
        ),
    ] = None
    quantile: Annotated[
        float | None, option(metavar="P", min=0, max=1, help="Of IInt8LegacyCalibrator; default 0.5 (T).")
    ] = None
    regression_cutoff: Annotated[
        float | None, option(metavar="P", min=0, max=1, help="Of IInt8LegacyCalibrator; default 0.5 (T).")
    ] = None
    load_runtime: Annotated[
        Path | None, option(metavar="FILE", help="A lean runtime, for engines that have none inside (T).")
    ] = None
    optimization_profile: Annotated[
        int | None, option(metavar="N", min=0, help="Which profile of a --load-engine is run, from 0 (T).")
    ] = None
    allocation_strategy: Annotated[
        Allocation | None, option(help="When memory for activations is taken; default static (T).")
    ] = None
    dla_workspace_allocation_strategy: Annotated[
        str | None, option(metavar="NAME", help="default, or shared_static for engines on one DLA (T).")
    ] = None
    weight_streaming_budget: Annotated[
        str | None,
        option(
            metavar="SIZE",
            help="Weights that the GPU holds: 512M, 40%, -1 for TensorRT's choice, -2 for all (T).",
            read=streaming_budget,
        ),
    ] = None
    load_engine: Annotated[
        Path | None, option(metavar="FILE", help="A prebuilt engine of the model to run instead (T).")
    ] = None
    save_engine: Annotated[Path | None, option(metavar="FILE", help="Where the engine goes (T).")] = None

    def settings(self, common: TargetOptions, *, engines: bool) -> TrtSettings:
        """As plain data.

        Raises:
            UsageError: An option that others rule out, or a file that is not there.
        """
        self._check_engines(common.given(), engines=engines)
        self._check_types(common)
        self._check_calibrator(common)
        if self.optimization_profile and self.load_engine is None:
            raise UsageError(
                "--optimization-profile chooses among the profiles of a --load-engine; an engine that is built here has one, 0."
            )
        low, usual, high = (tuple(getattr(self, f"trt_{name}_shapes").items()) for name in ("min", "opt", "max"))
        for flag, shapes in (("--trt-min-shapes", low), ("--trt-opt-shapes", usual or high)):
            if {name: len(shape) for name, shape in shapes} != {name: len(shape) for name, shape in high}:
                raise UsageError(f"{flag} and --trt-max-shapes name other inputs, or other ranks; give both for each.")
        for name in ("plugins", "load_tactics", "load_timing_cache", "load_runtime", "load_engine"):
            _check_files(f"--{name.replace('_', '-')}", getattr(self, name))
        alike = {entry.name for entry in fields(self)} & {entry.name for entry in fields(TrtSettings)}
        told: dict[str, Any] = {name: _told(getattr(self, name)) for name in alike}
        told.update(
            min_shapes=low,
            opt_shapes=usual,
            max_shapes=high,
            layer_precisions=tuple(self.layer_precisions.items()),
            pool_limits=tuple(self.pool_limit),
            tactic_sources=_only(self.tactic_sources),
            builder_flags=tuple(dict.fromkeys([*self._named_flags(), *(name.upper() for name in self.builder_flag)])),
            builder_settings=self._builder_settings(),
            preview_features=_only(self.preview_features),
            onnx_flags=tuple(name.upper() for name in self.onnx_flags),
            avoid_tactics=tuple(self.avoid_tactic),
            pin_tactics=(*self.pin_tactic, *_replayed(self.load_tactics)),
        )
        return TrtSettings(**told)

    def files(self) -> list[Path]:
        """Those that are read."""
        named = (self.load_timing_cache, self.load_engine, self.load_tactics, self.load_runtime, *self.plugins)
        return [path for path in named if path is not None]

    def _named_flags(self) -> list[str]:
        """The builder flags that have options of their own."""
        return [flag for name, flag in BUILDER_FLAGS.items() if getattr(self, name)]

    def _builder_settings(self) -> tuple[tuple[str, str], ...]:
        """The attributes of the builder configuration that are given.

        Raises:
            UsageError: One is given twice, or has an option of its own.
        """
        pairs = list(self.builder_set)
        for name in NAMED_ATTRIBUTES:
            value = getattr(self, name)
            if value is not None:
                pairs.append((name, ",".join(value) if isinstance(value, list) else str(value)))
        if self.use_dla:
            pairs += [("default_device_type", "DLA"), *([] if "DLA_core" in dict(pairs) else [("DLA_core", "0")])]
        for name in (names := [name for name, _ in pairs]):
            if names.count(name) > 1:
                raise UsageError(f"the attribute {name} of the builder configuration is given twice; give it once.")
            if name in OWN_OPTIONS:
                raise UsageError(
                    f"--builder-set {name}: that has an option of its own; use --{name.replace('_', '-')}."
                )
        return tuple(pairs)

    def _check_engines(self, options: list[str], *, engines: bool) -> None:
        """Make sure that an engine that is loaded or saved is the one of the model that is run."""
        for flag in options:
            if flag in ("--load-engine", "--save-engine", "--save-tactics") and not engines:
                raise UsageError(
                    f"{flag} is for `run` alone: other commands build engines of other models too; drop it, or save "
                    "timings instead (--save-timing-cache)."
                )
        # The precision also says how far the results may be off.
        idle = [flag for flag in options if flag[2:] not in (*PRECISIONS, *_WITH_AN_ENGINE)]
        if self.load_engine is not None and idle:
            raise UsageError(f"{idle[0]} says how an engine is built, and --load-engine brings one that is; drop it.")

    def _check_calibrator(self, common: TargetOptions) -> None:
        """Make sure that what says how ranges are found is about a calibrator that is asked for."""
        named = self.calib_base_cls is not None
        if (named or self.quantile is not None or self.regression_cutoff is not None) and not common.int8:
            raise UsageError(
                "--calib-base-cls, --quantile and --regression-cutoff say how ranges for INT8 are found, which is not asked for; "
                "add --int8."
            )
        if (
            self.quantile is not None or self.regression_cutoff is not None
        ) and self.calib_base_cls is not Calibrator.LEGACY:
            raise UsageError(
                "--quantile and --regression-cutoff are of one calibrator; add --calib-base-cls IInt8LegacyCalibrator."
            )

    def _check_types(self, common: TargetOptions) -> None:
        """Make sure that those who say what runs in which type do not contradict each other."""
        if self.lowering is not None and not (common.fp16 or common.bf16):
            raise UsageError("--lowering says how half precision comes about, and none is asked for; add --fp16.")
        if self.strongly_typed and self.lowering is LoweringChoice.LAYER:
            raise UsageError(
                "--lowering layer leaves types to TensorRT, and --strongly-typed takes them from the graph; drop one."
            )


def _check_files(flag: str, paths: Path | list[Path] | None) -> None:
    """Make sure that the files that an option names are there.

    Raises:
        UsageError: One is not.
    """
    for path in [paths] if isinstance(paths, Path) else paths or ():
        if not path.is_file():
            raise UsageError(f"{flag}: there is no file {path}; check the path.")


def _told(value: object) -> object:
    """What an option was given, as the setting of its name has it: plain data, and absolute, since the worker reads it."""
    if isinstance(value, list):
        return tuple(map(_told, value))
    if isinstance(value, Path):
        return str(value.absolute())
    return value.value if isinstance(value, Enum) else value


def _only(names: list[str] | None) -> tuple[str, ...] | None:
    """Names of which no others count; the word none is none of them."""
    return None if names is None else tuple(name for name in names if name.lower() != "none")


def _replayed(path: Path | None) -> list[str]:
    """The tactics of one of Polygraphy's replays, as ``--pin-tactic`` has them.

    Raises:
        UsageError: It is none.
    """
    if path is None:
        return []
    try:
        layers = json.loads(path.read_text(encoding="utf-8"))["replay"]
        return [f"{name}={each['implementation']}:{each['tactic']}" for name, each in layers.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--load-tactics: {path} is no tactic replay of Polygraphy's ({error!r}); --save-tactics writes one."
        ) from error
