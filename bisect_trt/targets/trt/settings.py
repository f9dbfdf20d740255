"""What only TensorRT has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bisect_trt.targets.base import Lowering, OwnSettings

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Shapes by tensor name, hashable."""


@dataclass(frozen=True)
class TrtSettings(OwnSettings):
    """What only TensorRT has; see the options of the same names.

    Attributes:
        precision_constraints: Whether layer precisions are ``none``, ``prefer`` or ``obey``.
        layer_precisions: Types in which layers run, by their names, as (``conv``, ``fp32``).
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
        builder_flags: Names of builder flags that are set.
        builder_settings: Attributes of the builder configuration, by name, and their values as words.
        preview_features: Names of preview features that are on, all others being off; ``None`` for TensorRT's defaults.
        onnx_flags: Names of flags of the ONNX parser that are set.
        avoid_tactics: Tactics that layers do not take where they have another, as ``LAYER=IMPLEMENTATION:TACTIC``.
        pin_tactics: Tactics that layers have to take, in the same words; a build that cannot is refused.
        pin_timings: A timing cache of the build that others are held to; one that needs another timing is refused.
        record: The folder in which each build leaves what it chose; ``None`` for nowhere.
        load_timing_cache: A timing cache to start from.
        save_timing_cache: Where the timing cache goes.
        save_tactics: Where the tactics that a build took go, as Polygraphy replays them.
        load_engine: A prebuilt engine to run instead of the model.
        save_engine: Where the engine goes.
        load_runtime: The library of a lean runtime that loads engines which have none inside.
        optimization_profile: Which profile of a prebuilt engine is run, from 0; ``None`` for the first.
        weight_streaming_budget: Weights that the GPU holds: bytes, ``N%``, ``-1`` for TensorRT's choice, ``-2`` for all.
        allocation_strategy: When memory for activations is taken: ``static``, ``profile`` or ``runtime``.
        dla_workspace_allocation_strategy: How engines on one DLA share memory: ``default`` or ``shared_static``.
        plugin_instancenorm: Whether InstanceNormalization is the plugin's.
        calib_base_cls: Which of TensorRT's calibrators finds ranges for INT8; ``None`` for ``IInt8EntropyCalibrator2``.
        quantile: Of the legacy calibrator; ``None`` for 0.5.
        regression_cutoff: The same.
        calibration_cache: Where the ranges for INT8 are read from, if it is there, and else written to.
        calibration_data: Files of sample inputs to find those ranges with.
    """

    precision_constraints: Literal["none", "prefer", "obey"] = "none"
    layer_precisions: tuple[tuple[str, str], ...] = ()
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
    builder_flags: tuple[str, ...] = ()
    builder_settings: tuple[tuple[str, str], ...] = ()
    preview_features: tuple[str, ...] | None = None
    onnx_flags: tuple[str, ...] = ()
    avoid_tactics: tuple[str, ...] = ()
    pin_tactics: tuple[str, ...] = ()
    pin_timings: str | None = None
    record: str | None = None
    load_timing_cache: str | None = None
    save_timing_cache: str | None = None
    save_tactics: str | None = None
    load_engine: str | None = None
    save_engine: str | None = None
    load_runtime: str | None = None
    optimization_profile: int | None = None
    weight_streaming_budget: str | None = None
    allocation_strategy: Literal["static", "profile", "runtime"] | None = None
    dla_workspace_allocation_strategy: str | None = None
    plugin_instancenorm: bool = False
    calib_base_cls: str | None = None
    quantile: float | None = None
    regression_cutoff: float | None = None
    calibration_cache: str | None = None
    calibration_data: tuple[str, ...] = ()
