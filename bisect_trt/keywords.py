"""Keywords of the Python functions, as types of each group of options.

This module is generated from the declarations of the options (``make docs``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, TypeAlias, TypedDict

File: TypeAlias = str | PathLike[str]
"""A path."""


class DiagnoseGroup(TypedDict, total=False):
    """Options of one group."""

    timeout: float
    zip: bool
    anonymise: bool
    reference: File
    all: bool
    releases: bool
    no_other_release: bool
    overwrite: bool


class TargetGroup(TypedDict, total=False):
    """Options of one group."""

    onnxrt: bool
    trt: bool
    trt_rtx: bool
    openvino: bool
    fp16: bool
    bf16: bool
    fp8: bool
    int8: bool
    tf32: bool
    hold_precision: bool
    keep_fp32: str | Sequence[str]
    fresh_process: bool
    providers: str | Sequence[str]
    provider_option: str | Sequence[str] | Mapping[str, object]
    all_on_ep: bool
    session_option: str | Sequence[str] | Mapping[str, object]
    graph_optimization_level: str
    disable_optimizer: str | Sequence[str]
    custom_op_library: File | Sequence[File]
    build_only: bool
    strongly_typed: bool
    trt_min_shapes: (
        str | Sequence[str] | Sequence[int | float] | Mapping[str, str | Sequence[int | float]]
    )
    trt_opt_shapes: (
        str | Sequence[str] | Sequence[int | float] | Mapping[str, str | Sequence[int | float]]
    )
    trt_max_shapes: (
        str | Sequence[str] | Sequence[int | float] | Mapping[str, str | Sequence[int | float]]
    )
    pool_limit: str | Sequence[str] | Mapping[str, object]
    tactic_sources: str | Sequence[str]
    builder_optimization_level: int
    plugins: File | Sequence[File]
    builder_flag: str | Sequence[str]
    builder_set: str | Sequence[str] | Mapping[str, object]
    avoid_tactic: str | Sequence[str] | Mapping[str, object]
    pin_tactic: str | Sequence[str] | Mapping[str, object]
    compiler_option: str | Sequence[str] | Mapping[str, object]
    load_timing_cache: File
    save_timing_cache: File
    load_engine: File
    save_engine: File
    compute_capability: str | Sequence[str]
    openvino_device: str
    openvino_property: str | Sequence[str] | Mapping[str, object]
    through: str


class PlacesGroup(TypedDict, total=False):
    """Options of one group."""

    on: str | Sequence[str]


class CompareGroup(TypedDict, total=False):
    """Options of one group."""

    atol: float | str | Sequence[str] | Mapping[str, float]
    rtol: float | str | Sequence[str] | Mapping[str, float]
    check_error_stat: str | str | Sequence[str] | Mapping[str, str]
    error_quantile: float | str | Sequence[str] | Mapping[str, float]
    infinities_compare_equal: bool
    validate: bool
    compare_func_script: File


class MetricGroup(TypedDict, total=False):
    """Options of one group."""

    metric: File
    max_drop: float | str
    min: float
    max: float
    lower_is_better: bool


class DataGroup(TypedDict, total=False):
    """Options of one group."""

    input_shapes: (
        str | Sequence[str] | Sequence[int | float] | Mapping[str, str | Sequence[int | float]]
    )
    val_range: (
        str | Sequence[str] | Sequence[int | float] | Mapping[str, str | Sequence[int | float]]
    )
    seed: int
    iterations: int
    load_inputs: File | Sequence[File]
    data_loader_script: File
    external_data_dir: File
    array_swap_mb: int
    memory_limit: int | str


class LoopGroup(TypedDict, total=False):
    """Options of one group."""

    steps: int
    state: str | Sequence[str] | Mapping[str, object]


class SearchGroup(TypedDict, total=False):
    """Options of one group."""

    workers: int
    repeat: int
    confidence: float
    shrink: bool
    max_probes: int
    max_time: float
    cache: str
    cache_proof: bool


class LimitsGroup(TypedDict, total=False):
    """Options of one group."""

    slower_than: float
    baseline: str
    latency_limit: float
    percentile: float
    build_time_limit: float
    memory_limit_of: float | str | Sequence[str] | Mapping[str, float]
    engine_size_limit: float
    measure_time: float


class ReduceGroup(TypedDict, total=False):
    """Options of one group."""

    min_good: File
    reduce_inputs: bool
    reduce_outputs: bool
    mode: Literal["auto", "bisect", "linear", "ddmin"]
    all: bool
    no_other_release: bool
    overwrite: bool


class CheckGroup(TypedDict, total=False):
    """Options of one group."""

    fail_regex: str | Sequence[str]
    fail_code: int | Sequence[int]
    ignore_fail_code: int | Sequence[int]
    timeout: float
    candidate: File
    artifacts: File | Sequence[File]
    artifacts_dir: File


class LayerwiseGroup(TypedDict, total=False):
    """Options of one group."""

    timeout: float
    isolate: bool
    latency: bool
    baseline: str
    no_other_release: bool


class RunGroup(TypedDict, total=False):
    """Options of one group."""

    onnx_outputs: str | Sequence[str]
    onnx_exclude_outputs: str | Sequence[str]
    save_onnx: File
    explain_fusions: bool
    timeout: float
    save_inputs: File
    save_outputs: File
    reference: File
    load_outputs: File | Sequence[File]


class PlotsGroup(TypedDict, total=False):
    """Options of one group."""

    save_heatmaps: File
    save_error_metrics_plot: File


class CauseGroup(TypedDict, total=False):
    """Options of one group."""

    compiler_switch: str | Sequence[str] | Mapping[str, object]
    no_other_release: bool


class ReleasesGroup(TypedDict, total=False):
    """Options of one group."""

    from_: str
    to: str
    all: bool
    package: str
    with_: str | Sequence[str]
    fusion: str | Sequence[str]


class MatrixGroup(TypedDict, total=False):
    """Options of one group."""

    over: str | Sequence[str] | Mapping[str, object]
    all: bool
    timeout: float


class RepeatGroup(TypedDict, total=False):
    """Options of one group."""

    number: int
    until: str
    same_engine: bool
    compiler_switch: str | Sequence[str] | Mapping[str, object]


class SweepGroup(TypedDict, total=False):
    """Options of one group."""

    shapes: str | Sequence[str] | Mapping[str, object]
    tries: int


class SamplesGroup(TypedDict, total=False):
    """Options of one group."""

    overwrite: bool


class PrecisionGroup(TypedDict, total=False):
    """Options of one group."""

    include: str | Sequence[str]
    exclude: str | Sequence[str]
    validation_data: File | Sequence[File] | Mapping[str, object]
    fresh_samples: int
    keep_set: int
    fail_share: float | str
    error: float | str
    int4: bool
    ladder: str | Sequence[str]
    reference: File
    calibration_cache: File
    sensitivity: bool
    overwrite: bool


class WorkaroundGroup(TypedDict, total=False):
    """Options of one group."""

    timeout: float
    no_other_release: bool
    overwrite: bool


class DiagnoseKeywords(
    DiagnoseGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    MetricGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    LimitsGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.diagnose`."""

    output: File
    run: File
    verbose: bool | int


class ReduceKeywords(
    ReduceGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    MetricGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    LimitsGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.reduce`."""

    output: File
    run: File
    verbose: bool | int


class LayerwiseKeywords(
    LayerwiseGroup, TargetGroup, PlacesGroup, CompareGroup, DataGroup, total=False
):
    """Keywords of :func:`bisect_trt.layerwise`."""

    output: File
    run: File
    verbose: bool | int


class CompareKeywords(
    TargetGroup,
    PlacesGroup,
    RunGroup,
    CompareGroup,
    MetricGroup,
    LimitsGroup,
    PlotsGroup,
    DataGroup,
    LoopGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.compare`."""

    output: File
    run: File
    verbose: bool | int


class CauseKeywords(
    CauseGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.cause`."""

    output: File
    run: File
    verbose: bool | int
    check: Callable[..., object] | str | Sequence[str]


class ReleasesKeywords(
    ReleasesGroup,
    CheckGroup,
    TargetGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.releases`."""

    output: File
    run: File
    verbose: bool | int


class MatrixKeywords(MatrixGroup, TargetGroup, CompareGroup, DataGroup, total=False):
    """Keywords of :func:`bisect_trt.matrix`."""

    output: File
    run: File
    verbose: bool | int


class RepeatKeywords(
    RepeatGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.repeat`."""

    output: File
    run: File
    verbose: bool | int


class SweepKeywords(
    SweepGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.sweep`."""

    output: File
    run: File
    verbose: bool | int
    check: Callable[..., object] | str | Sequence[str]


class SamplesKeywords(
    SamplesGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.samples`."""

    output: File
    run: File
    verbose: bool | int


class PrecisionKeywords(
    PrecisionGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    MetricGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    LimitsGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.precision`."""

    output: File
    run: File
    verbose: bool | int
    low: Literal["fp16", "bf16", "fp8", "int8", "int4"]


class WorkaroundKeywords(
    WorkaroundGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.workaround`."""

    output: File
    run: File
    verbose: bool | int


class MatchKeywords(
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    MetricGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.assert_matches`: what ``run`` and ``diagnose`` both take."""

    output: File
