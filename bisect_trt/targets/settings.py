"""Which runtime, and how it is set up: plain data that crosses to the worker as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Shapes by tensor name, hashable."""
Lowering = Literal["cast", "layer"]
"""How a model is lowered: by Casts in the ONNX graph, or by the runtime's own per-layer precision."""


@dataclass(frozen=True)
class TrtSettings:
    """What only TensorRT has; see the options of the same names.

    Attributes:
        precision_constraints: Whether layer precisions are ``none``, ``prefer`` or ``obey``.
        lowering: How it is lowered; ``None`` for what the version has: ``layer`` before 11, ``cast`` from then on.
        min_shapes: The optimisation profile's smallest input shapes; those of the data where empty.
        opt_shapes: Its most usual ones.
        max_shapes: Its largest ones.
        pool_limits: Bytes by memory pool, as (``workspace``, 4294967296).
        tactic_sources: Names of tactic sources; ``None`` for TensorRT's default, empty for none.
        builder_optimization_level: 0 to 5; ``None`` for TensorRT's default.
        plugins: Shared libraries to load first.
        strongly_typed: Whether the types in the ONNX graph are the types that run.
        version_compatible: Whether the engine shall run on later versions of TensorRT.
        hardware_compatibility_level: ``none``, ``ampere_plus`` or ``same_compute_capability``; ``None`` for the default.
        load_timing_cache: A timing cache to start from.
        save_timing_cache: Where the timing cache goes.
        load_engine: A prebuilt engine to run instead of the model.
        save_engine: Where the engine goes.
        calibration_cache: Where the ranges for INT8 are read from, if it is there, and else written to.
        calibration_data: Files of sample inputs to find those ranges with.
    """

    precision_constraints: Literal["none", "prefer", "obey"] = "none"
    lowering: Lowering | None = None
    min_shapes: Shapes = ()
    opt_shapes: Shapes = ()
    max_shapes: Shapes = ()
    pool_limits: tuple[tuple[str, int], ...] = ()
    tactic_sources: tuple[str, ...] | None = None
    builder_optimization_level: int | None = None
    plugins: tuple[str, ...] = ()
    strongly_typed: bool = False
    version_compatible: bool = False
    hardware_compatibility_level: str | None = None
    load_timing_cache: str | None = None
    save_timing_cache: str | None = None
    load_engine: str | None = None
    save_engine: str | None = None
    calibration_cache: str | None = None
    calibration_data: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetSettings:
    """Which runtime, and how it is set up.

    Attributes:
        runtime: Its name: ``onnxrt`` for ONNX Runtime, ``trt`` for TensorRT, ``onnx`` for ONNX's reference evaluator.
        fp16: Whether it may run in half precision. ONNX Runtime does what the model says, so the model is lowered.
        bf16: Whether it may run in bfloat16.
        fp8: Whether it may run in 8-bit floats.
        int8: Whether it may run in 8-bit integers.
        tf32: Whether fp32 products may be computed in TF32.
        keep: Nodes that stay in fp32 all the same, each given by its first output tensor.
        held: Whether all else runs in the low precision, also where the runtime would choose fp32.
        providers: ONNX Runtime's execution providers, by long or short name (``cuda``); its CPU provider where empty.
        optimize: Whether ONNX Runtime may optimise the graph.
        trt: What only TensorRT has.
    """

    runtime: Literal["onnxrt", "trt", "onnx"] = "onnxrt"
    fp16: bool = False
    bf16: bool = False
    fp8: bool = False
    int8: bool = False
    tf32: bool = False
    keep: tuple[str, ...] = ()
    held: bool = False
    providers: tuple[str, ...] = ()
    optimize: bool = True
    trt: TrtSettings = field(default_factory=TrtSettings)

    @property
    def low_precisions(self) -> tuple[str, ...]:
        """The precisions below fp32 that it may run in, as their options are called."""
        return tuple(name for name in ("tf32", "fp16", "bf16", "fp8", "int8") if getattr(self, name))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TargetSettings:
        """What :meth:`to_json` wrote, before or after it was JSON."""
        values = {name: _frozen(value) for name, value in plain.items() if name != "trt"}
        return cls(**values, trt=TrtSettings(**{name: _frozen(value) for name, value in plain["trt"].items()}))

    def flags(self) -> list[str]:
        """The options that ask for it, in the words of a command line."""
        words = [f"--{self.runtime}", *(f"--{name}" for name in self.low_precisions)]
        words += ["--hold-precision"] if self.held else []
        words += ["--keep-fp32", *self.keep] if self.keep else []
        words += [word for name in self.providers for word in ("--providers", name)]
        return words + [word for name in _changed(self.trt) for word in _flag(name, getattr(self.trt, name))]

    def describe(self) -> str:
        """In words."""
        if self.runtime == "trt":
            said = [*self.low_precisions, *(["held to it"] if self.held else []), *_said(self.trt)]
            return f"TensorRT ({', '.join(said)})" if said else "TensorRT (fp32)"
        if self.runtime == "onnx":
            return ", ".join(["ONNX's reference evaluator", *self.low_precisions])
        where = ", ".join(self.providers) or "CPU"
        how = "all graph optimisations" if self.optimize else "graph optimisations off"
        return ", ".join([f"ONNX Runtime ({where}", how, *self.low_precisions]) + ")"


def _flag(name: str, value: Any) -> list[str]:  # noqa: ANN401 - of a dataclass
    """A field of :class:`TrtSettings` as its option, in the words of a command line."""
    flag = f"--{'trt-' if name.endswith('_shapes') else ''}{name.removesuffix('s') if name == 'pool_limits' else name}"
    flag = flag.replace("_", "-")
    if isinstance(value, bool):
        return [flag]
    if not isinstance(value, tuple):
        return [flag, str(value)]
    pairs = [each for each in value if isinstance(each, tuple)]
    texts = [f"{key}:{list(each) if isinstance(each, tuple) else each}".replace(" ", "") for key, each in pairs]
    return [flag, *(texts or map(str, value) if value else ["none"])]


def _said(trt: TrtSettings) -> list[str]:
    """What differs from TensorRT's defaults, in words."""
    return [name.replace("_", " ") for name in _changed(trt)]


def _changed(trt: TrtSettings) -> list[str]:
    """The fields that differ from their defaults."""
    defaults = TrtSettings()
    return [entry.name for entry in fields(trt) if getattr(trt, entry.name) != getattr(defaults, entry.name)]


def _frozen(value: Any) -> Any:  # noqa: ANN401 - of JSON
    """Lists as tuples, at any depth, so that settings can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
