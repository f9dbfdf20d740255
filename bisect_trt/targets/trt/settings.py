"""The settings that only TensorRT has, with their options and switches: tactics, options of the builder, precisions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from bisect_trt.aliases import Names, Plain, Sizes
from bisect_trt.errors import ConflictError, UnknownNameError
from bisect_trt.options.reading import (
    Pairs,
    absolute,
    assignment,
    compiler_option,
    existing_file,
    once,
    pool_limit,
    shape,
)
from bisect_trt.options.spec import option, switch
from bisect_trt.targets.base import (
    PRECISIONS,
    Looked,
    OwnSettings,
    Switch,
    TargetSettings,
    Tier,
    precision_switches,
)
from bisect_trt.targets.switches import adding, changing, left_out, setting
from bisect_trt.targets.trt.passes import compiler_switches

Shapes = tuple[tuple[str, Sizes], ...]
"""Shapes by tensor name, hashable."""
_WITH_AN_ENGINE = ("load-engine", "plugins", "fresh-process", *PRECISIONS)
"""Options that may stand beside a prebuilt engine; a precision also sets the tolerance."""
DEFAULT_CAPABILITY = "SM89"
"""The kind of GPU that TensorRT-RTX builds for with ``--build-only``."""
COMPILER_VARIABLE = "__LUNOWUD"
"""The environment variable with options of the compiler; the settings take them over, so that results and scripts show them."""
OWN_OPTIONS = ("builder_optimization_level", "tactic_sources")
"""Attributes of the builder configuration that ``--builder-set`` leaves to their own options."""


def _flag_names(names: Sequence[str]) -> Names:
    return tuple(dict.fromkeys(name.upper() for name in names))


def _source_names(names: Sequence[str]) -> Names:
    return tuple(name for name in names if name.lower() != "none")


def _attributes(pairs: Pairs) -> Pairs:
    for name, _ in once("--builder-set")(pairs):
        if name in OWN_OPTIONS:
            raise ConflictError(f"--builder-set {name}: use --{name.replace('_', '-')}.")
    return pairs


def tactic(value: Any) -> str:
    """``LAYER=IMPLEMENTATION:TACTIC``, two whole numbers after the name of a layer.

    Raises:
        ValueError: It is not that.
    """
    if not re.fullmatch(r"(?s).+=-?\d{1,20}:-?\d{1,20}", str(value), re.ASCII):
        raise ValueError(
            "LAYER=IMPLEMENTATION:TACTIC, with two whole numbers, as `layerwise` and `repeat` report them"
        )
    return str(value)


def _shapes(flag: str, help: str) -> Any:  # noqa: A002 - as `option` calls it; a declaration
    return option(flag, metavar="NAME:[D,...]", help=help, read=shape, need_name=True)


@dataclass(frozen=True)
class TrtSettings(OwnSettings):
    """The settings that only TensorRT has.

    Attributes:
        opt_shapes: The usual input shapes of the optimization profile; the largest where empty.
        pool_limits: Bytes by memory pool, as (``workspace``, 4294967296).
        tactic_sources: Names of tactic sources; ``None`` for TensorRT's default, empty for none.
        record: The folder in which each build leaves what it chose; ``None`` for nowhere.
        debug_tensors: Whether an engine also returns the tensors that the compiler keeps.
        calibration_cache: The file that ranges for INT8 are read from, if it exists, and else
            written to.
        calibration_data: Files of sample inputs to find those ranges with.
        compute_capabilities: Kinds of GPUs to build for, as ``SM89``; those that are here if empty.
            TensorRT-RTX alone has it.
    """

    build_only: Annotated[
        bool, switch("Only whether it parses and builds: no engine is run, and no reference (T).")
    ] = False
    strongly_typed: Annotated[bool, switch("The types in the graph are those that run (T).")] = (
        False
    )
    min_shapes: Annotated[
        Shapes, _shapes("--trt-min-shapes", "Smallest input shapes of the profile (T).")
    ] = ()
    opt_shapes: Annotated[
        Shapes, _shapes("--trt-opt-shapes", "Usual ones; default: as --trt-max-shapes (T).")
    ] = ()
    max_shapes: Annotated[Shapes, _shapes("--trt-max-shapes", "Largest ones (T).")] = ()
    pool_limits: Annotated[
        tuple[tuple[str, int], ...],
        option(
            "--pool-limit", metavar="POOL:SIZE", help="Such as workspace:4G (T).", read=pool_limit
        ),
    ] = ()
    tactic_sources: Annotated[
        Names | None,
        option(
            metavar="NAME",
            help="Only these sources of tactics; none: no others (T).",
            check=_source_names,
        ),
    ] = None
    builder_optimization_level: Annotated[
        int | None, option(metavar="0..5", min=0, max=5, help="How hard to search for tactics (T).")
    ] = None
    plugins: Annotated[
        Names, option(metavar="FILE", help="Plugin libraries to load (T).", read=existing_file)
    ] = ()
    builder_flags: Annotated[
        Names,
        option(
            "--builder-flag",
            metavar="NAME",
            help="A flag of TensorRT's BuilderFlag or OnnxParserFlag, such as DIRECT_IO (T).",
            check=_flag_names,
        ),
    ] = ()
    builder_settings: Annotated[
        Pairs,
        option(
            "--builder-set",
            metavar="KEY=VALUE",
            help="An attribute of TensorRT's IBuilderConfig, such as max_aux_streams=0 (T).",
            read=assignment,
            check=_attributes,
        ),
    ] = ()
    avoid_tactics: Annotated[
        Names,
        option(
            "--avoid-tactic",
            metavar="LAYER=IMPLEMENTATION:TACTIC",
            help="A tactic that a layer must not use (T).",
            read=tactic,
        ),
    ] = ()
    pin_tactics: Annotated[
        Names,
        option(
            "--pin-tactic",
            metavar="LAYER=IMPLEMENTATION:TACTIC",
            help="A tactic that a layer has to take if it exists (T).",
            read=tactic,
        ),
    ] = ()
    compiler_options: Annotated[
        Names,
        option(
            "--compiler-option",
            metavar="NAME=VALUE",
            help="An option of TensorRT's compiler, such as peep:fc_h_fusion=off; undocumented before 11.1 (T).",
            read=compiler_option,
        ),
    ] = ()
    record: str | None = None
    debug_tensors: bool = False
    load_timing_cache: Annotated[
        str | None, option(metavar="FILE", help="Timings to start from (T).", read=existing_file)
    ] = None
    save_timing_cache: Annotated[
        str | None,
        option(
            metavar="FILE",
            help="File for timings (T).",
            read=absolute,
            writes=True,
            updates="load_timing_cache",
        ),
    ] = None
    load_engine: Annotated[
        str | None,
        option(
            metavar="FILE",
            help="A prebuilt engine of the model to run instead (T).",
            read=existing_file,
        ),
    ] = None
    save_engine: Annotated[
        str | None,
        option(metavar="FILE", help="Where the engine goes (T).", read=absolute, writes=True),
    ] = None
    calibration_cache: str | None = None
    calibration_data: Names = ()
    compute_capabilities: Names = ()

    def checked(self, given: Sequence[str], *, engines: bool) -> TrtSettings:
        """Check that the shapes belong together, and that an engine belongs to the model that is run.

        Raises:
            UsageError: They do not, or it is not.
        """
        ranks = [
            {name: len(dims) for name, dims in shapes}
            for shapes in (self.min_shapes, self.opt_shapes or self.max_shapes, self.max_shapes)
        ]
        for flag, ranks_by_name in zip(
            ("--trt-min-shapes", "--trt-opt-shapes"), ranks, strict=False
        ):
            if ranks_by_name != ranks[-1]:
                raise UnknownNameError(
                    f"{flag} and --trt-max-shapes name other inputs, or other ranks; give both for each."
                )
        for flag in given:
            if flag in ("--load-engine", "--save-engine") and not engines:
                raise ConflictError(
                    f"{flag} is for `run` alone: other commands build engines of other models too; drop it, or save "
                    "timings instead (--save-timing-cache)."
                )
            if self.load_engine is not None and flag[2:] not in _WITH_AN_ENGINE:
                raise ConflictError(f"{flag} has no effect with --load-engine; drop it.")
        # Options in the environment act on every build, so they belong to what was tested.
        inherited = (
            word.removeprefix("-") for word in os.environ.get(COMPILER_VARIABLE, "").split()
        )
        options = tuple(dict.fromkeys([*inherited, *self.compiler_options]))
        return replace(self, compiler_options=options)


@dataclass(frozen=True)
class RtxSettings(TrtSettings):
    """The settings of TensorRT-RTX: the settings of TensorRT, and the kinds of GPUs to build for, which need no GPU."""

    compute_capabilities: Annotated[
        Names,
        option(
            "--compute-capability",
            metavar="NAME",
            help="A kind of GPU to build for; with --build-only SM89 unless given (TensorRT-RTX).",
            check=_flag_names,
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Name the kind of GPU where models are only built, so that they are built for the same one on each machine."""
        if self.build_only and not self.compute_capabilities:
            object.__setattr__(self, "compute_capabilities", (DEFAULT_CAPABILITY,))


_SMALL_WORKSPACE = 1 << 20
"""Bytes; too small for most tactics with scratch space."""
_FLAGS = ("REFIT", "ENABLE_TACTIC_HEURISTIC", "DISTRIBUTIVE_INDEPENDENCE", "STRICT_NANS")
"""Flags that change no precision and no shape, where a version has them."""
_LEAST = (("hardware_compatibility_level", "ampere_plus"), ("max_aux_streams", "0"))
"""Attributes that are not given, each with the value that asks least of TensorRT."""
_GIVEN = ("strongly_typed", "pool_limits", "builder_optimization_level", "load_timing_cache")
"""Settings that are left out where they are given."""


def trt_switches(settings: TargetSettings, looked: Looked) -> list[Switch]:
    """Return all switches that this version has, by the trace of a build: tactics, then options, then precisions."""
    options = settings.of(TrtSettings)
    trace = looked.trace or {}
    # A prebuilt engine has no choices left.
    if options.load_engine is not None:
        return []
    switches = {
        candidate.name: candidate
        for candidate in (*_tactics(options, trace), *_given(options), *_other(options, trace))
    }
    wholes = precision_switches(settings)
    inner = compiler_switches(looked.compiler or (), trace.get("routes", ""))
    chosen = inner if looked.compiler else [*switches.values(), *wholes, *inner]
    return sorted(chosen, key=lambda candidate: candidate.tier)


def _tactics(options: TrtSettings, trace: Plain) -> Iterator[Switch]:
    """Yield, for each layer that has a choice, another tactic than it took, and each source of tactics, left out."""
    for layer, tactic, offered in trace.get("tactics", ()):
        if offered > 1:
            yield Switch(
                f"tactic:{layer}",
                adding("avoid_tactics", tactic),
                Tier.PASS,
                how="given another tactic",
            )
    used = (
        tuple(trace.get("sources", ()))
        if options.tactic_sources is None
        else options.tactic_sources
    )

    def left(without: str, current: Iterable[str] | None) -> Names:
        return tuple(
            source
            for source in (used if current is None else current)
            if source.lower() != without.lower()
        )

    for name in used:
        yield Switch(
            f"tactic-source:{name.upper()}", changing("tactic_sources", partial(left, name))
        )


def _given(options: TrtSettings) -> Iterator[Switch]:
    """Yield what is given and differs from the default, each left out."""
    for field in ("builder_flags", "builder_settings"):
        yield from left_out(options, field, weight=1.0)
    for name in _GIVEN:
        default = getattr(TrtSettings(), name)
        if getattr(options, name) != default:
            yield Switch(f"option:{name}", setting(**{name: default}), how="left out")


def _other(options: TrtSettings, trace: Plain) -> Iterator[Switch]:
    """Yield what is not given: levels and limits that ask little of TensorRT, and flags."""
    builder_settings = dict(options.builder_settings)
    # At level 0 the first tactic that runs is taken, so other kernels are in the engine.
    if options.builder_optimization_level is None:
        yield Switch("option:builder_optimization_level=0", setting(builder_optimization_level=0))
    if not options.pool_limits:
        yield Switch("option:workspace=1M", adding("pool_limits", ("workspace", _SMALL_WORKSPACE)))
    for name, value in _LEAST:
        if name not in builder_settings and trace:
            yield Switch(f"option:{name}={value}", adding("builder_settings", (name, value)))
    for flag in _FLAGS:
        if flag in trace.get("flags", ()) and flag not in options.builder_flags:
            yield Switch(f"option:{flag}", adding("builder_flags", flag), how="enabled")
