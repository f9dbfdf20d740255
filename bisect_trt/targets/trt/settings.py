"""The settings and the options that only TensorRT has."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bisect_trt.errors import UsageError
from bisect_trt.options.reading import assignment, pool_limit, shape
from bisect_trt.options.spec import option, switch
from bisect_trt.targets.base import OwnOptions, OwnSettings
from bisect_trt.targets.settings import PRECISIONS

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Shapes by tensor name, hashable."""
LAYER_TYPES = ("fp32", "fp16", "bf16", "int8", "int32")
_ALIASES = {"float": "fp32", "float32": "fp32", "half": "fp16", "float16": "fp16", "bfloat16": "bf16"}
"""Polygraphy's words for types."""
_WITH_AN_ENGINE = ("load-engine", "plugins", "fresh-process", *PRECISIONS)
"""Options that may stand beside a prebuilt engine; a precision also says how far the results may be off."""
OWN_OPTIONS = ("builder_optimization_level", "tactic_sources")
"""Attributes of the builder configuration that ``--builder-set`` leaves to their own options."""


@dataclass(frozen=True)
class TrtSettings(OwnSettings):
    """The settings that only TensorRT has; see the options of the same names.

    Attributes:
        precision_constraints: Whether layer precisions are ``none``, ``prefer`` or ``obey``.
        layer_precisions: Types in which layers run, by their names, as (``conv``, ``fp32``).
        min_shapes: The smallest input shapes of the optimization profile; those of the data where empty.
        opt_shapes: Its usual ones; the largest where empty.
        max_shapes: Its largest ones.
        pool_limits: Bytes by memory pool, as (``workspace``, 4294967296).
        tactic_sources: Names of tactic sources; ``None`` for TensorRT's default, empty for none.
        builder_optimization_level: 0 to 5; ``None`` for TensorRT's default.
        plugins: Shared libraries to load first.
        strongly_typed: Whether the types in the ONNX graph are the types that run.
        builder_flags: Names of flags of the builder and the ONNX parser that are set.
        builder_settings: Attributes of the builder configuration, by name, and their values as text.
        avoid_tactics: Tactics that layers do not take where they have another, as ``LAYER=IMPLEMENTATION:TACTIC``.
        pin_tactics: Tactics that layers have to take, in the same form; a build that cannot is refused.
        pin_timings: A timing cache of the build that others are held to; one that needs another timing is refused.
        record: The folder in which each build leaves what it chose; ``None`` for nowhere.
        load_timing_cache: A timing cache to start from.
        save_timing_cache: Where the timing cache goes.
        load_engine: A prebuilt engine to run instead of the model.
        save_engine: Where the engine goes.
        calibration_cache: The file that ranges for INT8 are read from, if it exists, and else written to.
        calibration_data: Files of sample inputs to find those ranges with.
    """

    precision_constraints: Literal["none", "prefer", "obey"] = "none"
    layer_precisions: tuple[tuple[str, str], ...] = ()
    min_shapes: Shapes = ()
    opt_shapes: Shapes = ()
    max_shapes: Shapes = ()
    pool_limits: tuple[tuple[str, int], ...] = ()
    tactic_sources: tuple[str, ...] | None = None
    builder_optimization_level: int | None = None
    plugins: tuple[str, ...] = ()
    strongly_typed: bool = False
    builder_flags: tuple[str, ...] = ()
    builder_settings: tuple[tuple[str, str], ...] = ()
    avoid_tactics: tuple[str, ...] = ()
    pin_tactics: tuple[str, ...] = ()
    pin_timings: str | None = None
    record: str | None = None
    load_timing_cache: str | None = None
    save_timing_cache: str | None = None
    load_engine: str | None = None
    save_engine: str | None = None
    calibration_cache: str | None = None
    calibration_data: tuple[str, ...] = ()


def layer_type(value: object) -> str:
    """Return the name of a type in which a layer may run.

    Raises:
        ValueError: It is none.
    """
    name = _ALIASES.get(str(value).lower(), str(value).lower())
    if name not in LAYER_TYPES:
        raise ValueError(f"one of {', '.join(LAYER_TYPES)}")
    return name


class Constraints(str, Enum):
    """Whether TensorRT follows layer precisions."""

    NONE = "none"
    PREFER = "prefer"
    OBEY = "obey"


@dataclass
class TrtOptions(OwnOptions):
    """The options that only TensorRT has."""

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
    builder_flag: Annotated[
        list[str],
        option(metavar="NAME", help="A flag of TensorRT's BuilderFlag or OnnxParserFlag, such as DIRECT_IO (T)."),
    ] = field(default_factory=list)
    builder_set: Annotated[
        list[tuple[str, str]],
        option(
            metavar="KEY=VALUE",
            help="An attribute of TensorRT's IBuilderConfig, such as max_aux_streams=0 (T).",
            read=assignment,
        ),
    ] = field(default_factory=list)
    avoid_tactic: Annotated[
        list[str],
        option(metavar="LAYER=IMPLEMENTATION:TACTIC", help="A tactic that a layer shall not take (T)."),
    ] = field(default_factory=list)
    pin_tactic: Annotated[
        list[str],
        option(
            metavar="LAYER=IMPLEMENTATION:TACTIC",
            help="A tactic that a layer has to take if it exists (T).",
        ),
    ] = field(default_factory=list)
    load_timing_cache: Annotated[Path | None, option(metavar="FILE", help="Timings to start from (T).")] = None
    save_timing_cache: Annotated[Path | None, option(metavar="FILE", help="File for timings (T).")] = None
    load_engine: Annotated[
        Path | None, option(metavar="FILE", help="A prebuilt engine of the model to run instead (T).")
    ] = None
    save_engine: Annotated[Path | None, option(metavar="FILE", help="Where the engine goes (T).")] = None

    def settings(self, common: TargetOptions, *, engines: bool) -> TrtSettings:
        """Return the options as settings.

        Raises:
            UsageError: An option that conflicts with others, or a file that does not exist.
        """
        self._check_engines(common.given(), engines=engines)
        low, usual, high = (tuple(getattr(self, f"trt_{name}_shapes").items()) for name in ("min", "opt", "max"))
        for flag, shapes in (("--trt-min-shapes", low), ("--trt-opt-shapes", usual or high)):
            if {name: len(shape) for name, shape in shapes} != {name: len(shape) for name, shape in high}:
                raise UsageError(f"{flag} and --trt-max-shapes name other inputs, or other ranks; give both for each.")
        for name in ("plugins", "load_timing_cache", "load_engine"):
            given = getattr(self, name)
            for path in [given] if isinstance(given, Path) else given or ():
                if not path.is_file():
                    raise UsageError(f"--{name.replace('_', '-')}: there is no file {path}; check the path.")
        for name in (names := [name for name, _ in self.builder_set]):
            if names.count(name) > 1:
                raise UsageError(f"--builder-set {name} is given twice; give it once.")
            if name in OWN_OPTIONS:
                raise UsageError(f"--builder-set {name}: use --{name.replace('_', '-')}.")
        alike = {entry.name for entry in fields(self)} & {entry.name for entry in fields(TrtSettings)}
        told: dict[str, Any] = {name: _plain(getattr(self, name)) for name in alike}
        told.update(
            min_shapes=low,
            opt_shapes=usual,
            max_shapes=high,
            layer_precisions=tuple(self.layer_precisions.items()),
            pool_limits=tuple(self.pool_limit),
            builder_flags=tuple(dict.fromkeys(name.upper() for name in self.builder_flag)),
            builder_settings=tuple(self.builder_set),
            avoid_tactics=tuple(self.avoid_tactic),
            pin_tactics=tuple(self.pin_tactic),
        )
        if self.tactic_sources is not None:
            told["tactic_sources"] = tuple(name for name in self.tactic_sources if name.lower() != "none")
        return TrtSettings(**told)

    def files(self) -> list[Path]:
        """Return the files that are read."""
        named = (self.load_timing_cache, self.load_engine, *self.plugins)
        return [path for path in named if path is not None]

    def _check_engines(self, options: list[str], *, engines: bool) -> None:
        """Check that an engine that is loaded or saved is the one of the model that is run."""
        for flag in options:
            if flag in ("--load-engine", "--save-engine") and not engines:
                raise UsageError(
                    f"{flag} is for `run` alone: other commands build engines of other models too; drop it, or save "
                    "timings instead (--save-timing-cache)."
                )
        idle = [flag for flag in options if flag[2:] not in _WITH_AN_ENGINE]
        if self.load_engine is not None and idle:
            raise UsageError(f"{idle[0]} says how an engine is built, and --load-engine brings one that is; drop it.")


def _plain(value: object) -> object:
    """Return an option's value as plain data, with absolute paths, since the worker reads them."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, Path):
        return str(value.absolute())
    return value.value if isinstance(value, Enum) else value
