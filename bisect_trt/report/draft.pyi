"""The fields of all answers in one struct, which a command fills.

This stub is for type checkers. It is generated from the types of the answers (``make docs``).
"""

from typing import Any

from msgspec import UNSET

from bisect_trt.report.parts import (
    Amplified,
    Avoided,
    BuildReason,
    BuildVerdict,
    CauseDetail,
    ChoiceCount,
    Comparison,
    DynamicShapes,
    ErrorInfo,
    Failure,
    FailureRate,
    Head,
    Inside,
    Ladder,
    Latency,
    MatrixCell,
    MetricValues,
    Names,
    Origin,
    OwnOutputs,
    PrecisionAudit,
    QuantizedGroup,
    SamplesVerdict,
    Sought,
    Steps,
    SweptSizes,
    TradeOff,
    Unit,
    Use,
    Validation,
    WorkaroundTried,
    WorstSamples,
    WrongSide,
)
from bisect_trt.report.text import Entry

class Draft(Head):
    """The fields of all answers."""

    next: Sought[list[str] | None] = UNSET
    error: Sought[ErrorInfo | None] = UNSET
    flaky: Sought[FailureRate | None] = UNSET
    metric: Sought[MetricValues | None] = UNSET
    steps: Sought[Steps | None] = UNSET
    places: Sought[list[Entry] | None] = UNSET
    ir_version: Sought[Entry | None] = UNSET
    export: Sought[Entry | None] = UNSET
    fault: Sought[WrongSide | None] = UNSET
    upgrade: Sought[str | None] = UNSET
    reference_doubt: Sought[str | None] = UNSET
    failures: Sought[list[Failure] | None] = UNSET
    more_failures: Sought[bool | None] = UNSET
    held: Sought[bool | None] = UNSET
    dynamic: Sought[DynamicShapes | None] = UNSET
    inside: Sought[list[Inside] | None] = UNSET
    keep_fp32: Sought[list[Unit] | None] = UNSET
    minimal: Sought[list[Unit] | None] = UNSET
    minimal_proven: Sought[bool | None] = UNSET
    probes_minimal: Sought[int | None] = UNSET
    validation: Sought[Validation | None] = UNSET
    not_validated: Sought[str | None] = UNSET
    curve: Sought[list[Validation] | None] = UNSET
    rounding: Sought[str | None] = UNSET
    trade_off: Sought[TradeOff | None] = UNSET
    precision: Sought[str | None] = UNSET
    lowered: Sought[int | None] = UNSET
    not_lowered: Sought[int | None] = UNSET
    measured_on: Sought[str | None] = UNSET
    accuracy: Sought[list[Comparison] | None] = UNSET
    uses: Sought[list[Use] | None] = UNSET
    latency_ms: Sought[dict[str, float | None] | None] = UNSET
    slow: Sought[bool | None] = UNSET
    large: Sought[bool | None] = UNSET
    emulated: Sought[str | None] = UNSET
    groups: Sought[list[QuantizedGroup] | None] = UNSET
    ladder: Sought[Ladder | None] = UNSET
    first_mismatch: Sought[Origin | None] = UNSET
    origins: Sought[list[Origin] | None] = UNSET
    mild_origins: Sought[list[Origin] | None] = UNSET
    tensors: Sought[list[Comparison] | None] = UNSET
    unseen: Sought[dict[str, str] | None] = UNSET
    builds: Sought[int | list[BuildVerdict] | None] = UNSET
    cause: Sought[list[Names] | None] = UNSET
    cause_detail: Sought[CauseDetail | None] = UNSET
    workarounds: Sought[list[WorkaroundTried] | None] = UNSET
    amplified: Sought[Amplified | None] = UNSET
    looked_at: Sought[WorstSamples | None] = UNSET
    package: Sought[str | None] = UNSET
    releases: Sought[dict[str, str] | None] = UNSET
    first_failing: Sought[str | None] = UNSET
    first_passing: Sought[str | None] = UNSET
    failing: Sought[list[tuple[str, str]] | None] = UNSET
    reasons: Sought[dict[str, str] | list[BuildReason] | None] = UNSET
    own_outputs: Sought[OwnOutputs | None] = UNSET
    own_unseen: Sought[dict[str, str] | None] = UNSET
    latency: Sought[Latency | None] = UNSET
    comparisons: Sought[list[Comparison] | None] = UNSET
    partition: Sought[Any | None] = UNSET
    layers: Sought[list[Entry] | None] = UNSET
    precision_audit: Sought[PrecisionAudit | None] = UNSET
    pictures: Sought[list[str] | None] = UNSET
    runs: Sought[int | None] = UNSET
    good: Sought[int | None] = UNSET
    bad: Sought[int | None] = UNSET
    choices: Sought[list[ChoiceCount] | None] = UNSET
    unresolved: Sought[int | None] = UNSET
    rate: Sought[float | None] = UNSET
    interval: Sought[tuple[float, float] | None] = UNSET
    confidence: Sought[float | None] = UNSET
    method: Sought[str | None] = UNSET
    until: Sought[str | None] = UNSET
    same_engine: Sought[bool | None] = UNSET
    avoid: Sought[Avoided | None] = UNSET
    note: Sought[str | None] = UNSET
    sweep: Sought[SweptSizes | None] = UNSET
    axes: Sought[list[str] | None] = UNSET
    cells: Sought[list[MatrixCell] | None] = UNSET
    samples: Sought[SamplesVerdict | None] = UNSET
    reference: Sought[str | None] = UNSET
    error_all_quantized: Sought[float | None] = UNSET
    changes: Sought[Entry | None] = UNSET
    data: Sought[Any | None] = UNSET
    engine: Sought[Any | None] = UNSET
    environment: Sought[dict[str, str] | None] = UNSET
    targets: Sought[dict[str, str | None] | None] = UNSET
