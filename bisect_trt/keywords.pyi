"""Types of the Python functions, and of their keywords, one of each group of options.

Nothing imports them: this stub is for type checkers. It is generated from the declarations of the
options (``make docs``).
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, Protocol, TypeAlias, TypedDict

from typing_extensions import Unpack

from bisect_trt.api import Check
from bisect_trt.report import answers
from bisect_trt.session.source import Inputs, Model

File: TypeAlias = str | PathLike[str]
"""A path."""
Files: TypeAlias = File | Sequence[File]
Texts: TypeAlias = str | Sequence[str]
Pairs: TypeAlias = Texts | Mapping[str, object]
"""Pairs as on the command line, or by name."""
Numbers: TypeAlias = Sequence[int | float]
Sizes: TypeAlias = Texts | Numbers | Mapping[str, str | Numbers]
"""Shapes or ranges, of one input or by name."""

class CallGroup(TypedDict, total=False):
    """Keywords of every function."""

    output: File
    run: File
    verbose: bool | int

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
    keep_fp32: Texts
    fresh_process: bool
    providers: Texts
    provider_option: Pairs
    all_on_ep: bool
    session_option: Pairs
    graph_optimization_level: str
    disable_optimizer: Texts
    custom_op_library: Files
    build_only: bool
    strongly_typed: bool
    trt_min_shapes: Sizes
    trt_opt_shapes: Sizes
    trt_max_shapes: Sizes
    pool_limit: Pairs
    tactic_sources: Texts
    builder_optimization_level: int
    plugins: Files
    builder_flag: Texts
    builder_set: Pairs
    avoid_tactic: Pairs
    pin_tactic: Pairs
    compiler_option: Pairs
    load_timing_cache: File
    save_timing_cache: File
    load_engine: File
    save_engine: File
    compute_capability: Texts
    openvino_device: str
    openvino_property: Pairs
    through: str

class PlacesGroup(TypedDict, total=False):
    """Options of one group."""

    on: Texts

class CompareGroup(TypedDict, total=False):
    """Options of one group."""

    atol: float | Texts | Mapping[str, float]
    rtol: float | Texts | Mapping[str, float]
    check_error_stat: Texts | Mapping[str, str]
    error_quantile: float | Texts | Mapping[str, float]
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

    input_shapes: Sizes
    val_range: Sizes
    seed: int
    iterations: int
    load_inputs: Files
    data_loader_script: File
    external_data_dir: File
    array_swap_mb: int
    memory_limit: int | str

class LoopGroup(TypedDict, total=False):
    """Options of one group."""

    steps: int
    state: Pairs

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
    memory_limit_of: float | Texts | Mapping[str, float]
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

    fail_regex: Texts
    fail_code: int | Sequence[int]
    ignore_fail_code: int | Sequence[int]
    timeout: float
    candidate: File
    artifacts: Files
    artifacts_dir: File

class LayerwiseGroup(TypedDict, total=False):
    """Options of one group."""

    timeout: float
    isolate: bool
    debug_tensors: bool
    latency: bool
    baseline: str
    no_other_release: bool

class RunGroup(TypedDict, total=False):
    """Options of one group."""

    onnx_outputs: Texts
    onnx_exclude_outputs: Texts
    save_onnx: File
    explain_fusions: bool
    timeout: float
    save_inputs: File
    save_outputs: File
    reference: File
    load_outputs: Files

class PlotsGroup(TypedDict, total=False):
    """Options of one group."""

    save_heatmaps: File
    save_error_metrics_plot: File

class CauseGroup(TypedDict, total=False):
    """Options of one group."""

    compiler_switch: Pairs
    no_other_release: bool

class ReleasesGroup(TypedDict, total=False):
    """Options of one group."""

    from_: str
    to: str
    all: bool
    package: str
    with_: Texts
    fusion: Texts

class MatrixGroup(TypedDict, total=False):
    """Options of one group."""

    over: Pairs
    all: bool
    timeout: float

class RepeatGroup(TypedDict, total=False):
    """Options of one group."""

    number: int
    until: str
    same_engine: bool
    compiler_switch: Pairs

class SweepGroup(TypedDict, total=False):
    """Options of one group."""

    shapes: Pairs
    tries: int

class SamplesGroup(TypedDict, total=False):
    """Options of one group."""

    overwrite: bool

class PrecisionGroup(TypedDict, total=False):
    """Options of one group."""

    include: Texts
    exclude: Texts
    validation_data: Files | Mapping[str, object]
    fresh_samples: int
    keep_set: int
    fail_share: float | str
    error: float | str
    int4: bool
    ladder: Texts
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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.diagnose`."""

class Diagnose(Protocol):
    """Find out why the target is wrong, and write a reproducer."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = "onnxrt",
        **options: Unpack[DiagnoseKeywords],
    ) -> answers.DiagnoseAnswer: ...

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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.reduce`."""

class Reduce(Protocol):
    """Find the smallest model that still fails, with your own check, a built-in comparison, or by asking you."""

    def __call__(
        self,
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Unpack[ReduceKeywords],
    ) -> answers.ReduceAnswer: ...

class LayerwiseKeywords(
    LayerwiseGroup, TargetGroup, PlacesGroup, CompareGroup, DataGroup, CallGroup, total=False
):
    """Keywords of :func:`bisect_trt.layerwise`."""

class Layerwise(Protocol):
    """Compare every tensor with the reference, and name the first that is wrong; or compare the time of every layer."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = "onnxrt",
        **options: Unpack[LayerwiseKeywords],
    ) -> answers.LayerwiseAnswer: ...

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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.compare`."""

class Compare(Protocol):
    """Compare a target with the reference or with saved results, or saved results with each other."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = "onnxrt",
        **options: Unpack[CompareKeywords],
    ) -> answers.CompareAnswer: ...

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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.cause`."""

    check: Callable[..., object] | Texts

class Cause(Protocol):
    """Find the pass, option or tactic that is the cause: the fewest switches of the target that fix the model."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = "onnxrt",
        **options: Unpack[CauseKeywords],
    ) -> answers.CauseAnswer: ...

class ReleasesKeywords(
    ReleasesGroup,
    CheckGroup,
    TargetGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.releases`."""

class Releases(Protocol):
    """Find the release of the target in which a failure appeared, and the one in which it was fixed."""

    def __call__(
        self,
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Unpack[ReleasesKeywords],
    ) -> answers.ReleasesAnswer: ...

class MatrixKeywords(MatrixGroup, TargetGroup, CompareGroup, DataGroup, CallGroup, total=False):
    """Keywords of :func:`bisect_trt.matrix`."""

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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.repeat`."""

class Repeat(Protocol):
    """Build or run a model repeatedly: how often it fails, and which choices of the bad builds are the reason."""

    def __call__(
        self,
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Unpack[RepeatKeywords],
    ) -> answers.RepeatAnswer: ...

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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.sweep`."""

    check: Callable[..., object] | Texts

class Sweep(Protocol):
    """Find the sizes at which the target goes wrong: of a batch, or of any dimensions of the inputs."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Unpack[SweepKeywords],
    ) -> answers.SweepAnswer: ...

class SamplesKeywords(
    SamplesGroup,
    CheckGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.samples`."""

class Samples(Protocol):
    """Find which of many inputs fail, and the smallest input that still fails."""

    def __call__(
        self,
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Unpack[SamplesKeywords],
    ) -> answers.SamplesAnswer: ...

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
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.precision`."""

    low: Literal["fp16", "bf16", "fp8", "int8", "int4"]

class Precision(Protocol):
    """Find the fewest nodes that have to stay in fp32 for the rest to run in fp16 or bf16, and write that model."""

    def __call__(
        self,
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Unpack[PrecisionKeywords],
    ) -> answers.PrecisionAnswer: ...

class WorkaroundKeywords(
    WorkaroundGroup,
    TargetGroup,
    PlacesGroup,
    CompareGroup,
    LimitsGroup,
    DataGroup,
    LoopGroup,
    SearchGroup,
    CallGroup,
    total=False,
):
    """Keywords of :func:`bisect_trt.workaround`."""

class Workaround(Protocol):
    """Write a model that passes, with the least loss: fusion barriers, another form of the culprit, layers in fp32."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = "onnxrt",
        **options: Unpack[WorkaroundKeywords],
    ) -> answers.WorkaroundAnswer: ...

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
