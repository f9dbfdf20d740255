"""The options of a target."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from bisect_trt.errors import UsageError
from bisect_trt.options.spec import option
from bisect_trt.options.values import pool_limit, shape
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings

_WITH_AN_ENGINE = ("load-engine", "plugins", "fresh-process")
"""What a prebuilt engine leaves to be said."""
_PRECISIONS = ("tf32", "fp16", "bf16", "fp8", "int8")


class Constraints(str, Enum):
    """What becomes of layer precisions."""

    NONE = "none"
    PREFER = "prefer"
    OBEY = "obey"


class LoweringChoice(str, Enum):
    """Who lowers a model."""

    CAST = "cast"
    LAYER = "layer"


@dataclass
class Target:
    """The runtime under suspicion."""

    onnxrt: Annotated[bool, option("--onnxrt", help="ONNX Runtime, all graph optimisations on.")] = False
    trt: Annotated[
        bool, option("--trt", help="TensorRT; its options are marked (T). --onnxrt beside it changes nothing.")
    ] = False
    fp16: Annotated[bool, option("--fp16", help="In half precision.")] = False
    bf16: Annotated[bool, option("--bf16", help="In bfloat16.")] = False
    fp8: Annotated[bool, option("--fp8", help="In 8-bit floats (T).")] = False
    int8: Annotated[bool, option("--int8", help="In 8-bit integers (T).")] = False
    tf32: Annotated[bool, option("--tf32", help="With fp32 products in TF32 (T).")] = False
    providers: Annotated[
        list[str], option(metavar="NAME", help="ONNX Runtime's execution providers: cpu, cuda, ...")
    ] = field(default_factory=list)
    lowering: Annotated[
        LoweringChoice | None,
        option(help="fp16 by Casts in the graph, or by TensorRT's layers; default layer before TensorRT 11 (T)."),
    ] = None
    precision_constraints: Annotated[
        Constraints, option(help="Whether precisions of layers are only preferred, or obeyed (T).")
    ] = Constraints.NONE
    hold_precision: Annotated[
        bool,
        option("--hold-precision", help="All layers in the low precision, fp32 only where there is no other (T)."),
    ] = False
    keep_fp32: Annotated[
        list[str], option(metavar="TENSOR", help="But the nodes that make these tensors first stay in fp32.")
    ] = field(default_factory=list)
    strongly_typed: Annotated[
        bool, option("--strongly-typed", help="The types in the graph are those that run (T).")
    ] = False
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
        dict[str, tuple[int, ...]],
        option(metavar="NAME:[D,...]", help="Largest ones (T).", read=shape, need_name=True),
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
    version_compatible: Annotated[
        bool, option("--version-compatible", help="An engine for later versions too (T).")
    ] = False
    hardware_compatibility_level: Annotated[
        str | None, option(metavar="LEVEL", help="none, ampere_plus, same_compute_capability (T).")
    ] = None
    load_timing_cache: Annotated[Path | None, option(metavar="FILE", help="Timings to start from (T).")] = None
    save_timing_cache: Annotated[Path | None, option(metavar="FILE", help="Where timings go (T).")] = None
    load_engine: Annotated[
        Path | None, option(metavar="FILE", help="A prebuilt engine of the model to run instead (T).")
    ] = None
    save_engine: Annotated[Path | None, option(metavar="FILE", help="Where the engine goes (T).")] = None
    fresh_process: Annotated[
        bool, option("--fresh-process", help="Each candidate in a process of its own: slower, nothing shared.")
    ] = False

    def settings(self, *, engines: bool = False) -> TargetSettings | None:
        """As plain data; ``None`` if no target was asked for.

        Args:
            engines: Whether engines may be loaded and saved: where one model is built, and not one after the other.

        Raises:
            UsageError: An option of a target without the target, or of the other one, or one that others rule out.
        """
        defaults = Target()
        given = [each.name for each in fields(self) if getattr(self, each.name) != getattr(defaults, each.name)]
        options = [f"--{name.replace('_', '-')}" for name in given if name not in ("onnxrt", "trt")]
        if not (self.onnxrt or self.trt):
            if options:
                raise UsageError(f"{options[0]} is an option of a target, and none is named; add --onnxrt or --trt.")
            return None
        if self.trt:
            if self.providers:
                raise UsageError("--providers is an option of ONNX Runtime, and the target is TensorRT; drop one.")
            self._check_engines(options, engines=engines)
            self._check_types()
            return TargetSettings(
                runtime="trt", **self._precisions(), held=self.hold_precision, own=self._trt_settings()
            )
        for flag in options:
            if flag not in ("--fp16", "--bf16", "--keep-fp32", "--providers", "--fresh-process"):
                raise UsageError(f"{flag} is an option of TensorRT, and the target is ONNX Runtime; use --trt.")
        return TargetSettings("onnxrt", **self._precisions(), own=OnnxRuntimeSettings(tuple(self.providers)))

    def required(self, *, engines: bool = False) -> TargetSettings:
        """As plain data; see :meth:`settings`.

        Raises:
            UsageError: No target was asked for.
        """
        settings = self.settings(engines=engines)
        if settings is None:
            raise UsageError(
                "no target is named, so there is nothing to compare with the reference; add --onnxrt or --trt."
            )
        return settings

    def files(self) -> list[Path]:
        """The files that the target depends on."""
        named = (self.load_timing_cache, self.load_engine, *self.plugins)
        return [path for path in named if path is not None]

    def _check_engines(self, options: list[str], *, engines: bool) -> None:
        """Make sure that an engine that is loaded or saved is the one of the model that is run."""
        for flag in options:
            if flag in ("--load-engine", "--save-engine") and not engines:
                raise UsageError(
                    f"{flag} is for `run` alone: other commands build engines of other models too; drop it, or save "
                    "timings instead (--save-timing-cache)."
                )
        # The precision also says how far the results may be off.
        idle = [flag for flag in options if flag[2:] not in (*_PRECISIONS, *_WITH_AN_ENGINE)]
        if self.load_engine is not None and idle:
            raise UsageError(f"{idle[0]} says how an engine is built, and --load-engine brings one that is; drop it.")

    def _check_types(self) -> None:
        """Make sure that those who say what runs in which type do not contradict each other."""
        if self.lowering is not None and not (self.fp16 or self.bf16):
            raise UsageError("--lowering says how half precision comes about, and none is asked for; add --fp16.")
        if self.strongly_typed and self.lowering is LoweringChoice.LAYER:
            raise UsageError(
                "--lowering layer leaves types to TensorRT, and --strongly-typed takes them from the graph; drop one."
            )

    def _precisions(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in _PRECISIONS}, "keep": tuple(self.keep_fp32)}

    def _trt_settings(self) -> TrtSettings:
        low, usual, high = (tuple(getattr(self, f"trt_{name}_shapes").items()) for name in ("min", "opt", "max"))
        for flag, shapes in (("--trt-min-shapes", low), ("--trt-opt-shapes", usual or high)):
            if {name: len(shape) for name, shape in shapes} != {name: len(shape) for name, shape in high}:
                raise UsageError(f"{flag} and --trt-max-shapes name other inputs, or other ranks; give both for each.")
        sources = None if self.tactic_sources is None else tuple(n for n in self.tactic_sources if n.lower() != "none")
        return TrtSettings(
            precision_constraints=self.precision_constraints.value,
            lowering=self.lowering.value if self.lowering is not None else None,
            min_shapes=low,
            opt_shapes=usual,
            max_shapes=high,
            pool_limits=tuple(self.pool_limit),
            tactic_sources=sources,
            builder_optimization_level=self.builder_optimization_level,
            plugins=tuple(str(_existing("--plugins", path)) for path in self.plugins),
            strongly_typed=self.strongly_typed,
            version_compatible=self.version_compatible,
            hardware_compatibility_level=self.hardware_compatibility_level,
            load_timing_cache=_text(_existing("--load-timing-cache", self.load_timing_cache)),
            save_timing_cache=_text(self.save_timing_cache),
            load_engine=_text(_existing("--load-engine", self.load_engine)),
            save_engine=_text(self.save_engine),
        )


def _existing(flag: str, path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise UsageError(f"{flag}: there is no file {path}; check the path.")
    return path


def _text(path: Path | None) -> str | None:
    """Absolute: the worker reads it."""
    return None if path is None else str(path.absolute())
