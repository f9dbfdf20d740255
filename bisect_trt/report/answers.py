"""The answer of each command, as types: the fields of ``--json``, read by :func:`answer_of`.

A field that a command did not find is ``None``, or empty where it has several values.
``docs/answer.schema.json`` is made from these types (``make docs``), and a result that is read from
a file is validated with them.
"""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import dataclass_transform

from bisect_trt.errors import ExitStatus, exit_status
from bisect_trt.onnxlib.nodes import Node
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
    Inside,
    Ladder,
    Latency,
    MatrixCell,
    MetricValues,
    Minimality,
    Model,
    Names,
    Origin,
    OwnOutputs,
    PrecisionAudit,
    QuantizedGroup,
    SamplesVerdict,
    Status,
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
from bisect_trt.report.text import SCHEMA, Entry, Json, plural
from bisect_trt.tensors.comparison import to_plain


@dataclass_transform(frozen_default=True)
class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that every answer has.

    Attributes:
        probes: The number of probes by ending: ``run``, ``cached``, ``fail``, ``pass``, ``unresolved``, ``wasted``, ``shared``
            (read from ``--cache``).
        wall_s: Seconds from start to end, of all sessions of a resumed run.
        artifacts: The files that were written, by kind; ``None`` for those that were not.
        report: The parts of report.html that have no field; they may change between versions.
        other: Fields without a type, of a command of another package.
    """

    command: str
    status: Status
    model: Model
    probes: dict[str, int]
    wall_s: float
    culprits: tuple[Node, ...] = ()
    minimality: Minimality
    why: str | None = None
    artifacts: dict[str, str | None]
    schema: int = SCHEMA
    next: Names = ()
    error: ErrorInfo | None = None
    flaky: FailureRate | None = None
    metric: MetricValues | None = None
    steps: Steps | None = None
    places: tuple[Entry, ...] = ()
    ir_version: Entry = {}
    export: Entry = {}
    report: Entry = {}
    other: Entry = {}
    lines: Names = ()
    """The summary, as the command line prints it; it is not part of the JSON."""

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of the process."""
        return exit_status(self.status, self.minimality)

    @property
    def proven(self) -> bool:
        """Whether an answer was found and is 1-minimal; of ``compare`` whether everything matches."""
        return self.exit_status is ExitStatus.OK

    def to_json(self) -> Entry:
        """Return plain values, as ``--json`` writes them, without fields for which nothing was found."""
        plain: Entry = to_plain(self)
        extra = plain.pop("other", {})
        plain.pop("lines", None)
        return {"schema": self.schema, "culprits": [], "why": None, **plain, **extra}

    def summary(self) -> str:
        """Return the answer in at most 25 lines, as the command line prints it."""
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.status}, {self.minimality}, {plural(len(self.culprits), 'culprit')}>"

    def _repr_html_(self) -> str:
        """Return the summary and the pictures, for a notebook."""
        pictures = map(Path, self.to_json().get("pictures", ()))
        shown = "".join(map(_picture, filter(Path.is_file, pictures)))
        # Notebooks set the font of <pre> only where it is their own output.
        style = "font-family: monospace; white-space: pre-wrap"
        return f'<pre style="{style}">{html.escape(self.summary())}</pre>{shown}'


def _picture(path: Path) -> str:
    kind = "svg+xml" if path.suffix == ".svg" else path.suffix[1:]
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/{kind};base64,{data}" alt="{html.escape(path.stem)}">'


class _Mixed(Answer, kw_only=True):
    keep_fp32: tuple[Unit, ...] = ()
    minimal: tuple[Unit, ...] = ()
    minimal_proven: bool | None = None
    probes_minimal: int | None = None
    validation: Validation | None = None
    not_validated: str | None = None
    curve: tuple[Validation, ...] = ()
    rounding: str | None = None
    trade_off: TradeOff | None = None
    precision: str | None = None
    lowered: int | None = None
    not_lowered: int | None = None
    measured_on: str | None = None
    accuracy: tuple[Comparison, ...] = ()
    uses: tuple[Use, ...] = ()
    latency_ms: dict[str, float | None] = {}
    slow: bool = False
    large: bool = False
    emulated: str | None = None
    groups: tuple[QuantizedGroup, ...] = ()
    ladder: Ladder | None = None


class _Judged(Answer, kw_only=True):
    fault: WrongSide | None = None
    upgrade: str | None = None
    reference_doubt: str | None = None


class ReduceAnswer(_Judged, kw_only=True):
    """The answer of ``reduce``."""

    failures: tuple[Failure, ...] = ()
    more_failures: bool | None = None
    held: bool | None = None
    dynamic: DynamicShapes | None = None
    inside: tuple[Inside, ...] = ()


class DiagnoseAnswer(_Mixed, kw_only=True):
    """The answer of ``diagnose``."""

    fault: WrongSide | None = None
    failures: tuple[Failure, ...] = ()
    more_failures: bool | None = None
    held: bool | None = None
    dynamic: DynamicShapes | None = None
    inside: tuple[Inside, ...] = ()
    first_mismatch: Origin | None = None
    origins: tuple[Origin, ...] = ()
    mild_origins: tuple[Origin, ...] = ()
    tensors: tuple[Comparison, ...] = ()
    unseen: dict[str, str] = {}
    builds: int | None = None
    cause: tuple[Names, ...] = ()
    cause_detail: CauseDetail | None = None
    workarounds: tuple[WorkaroundTried, ...] = ()
    amplified: Amplified | None = None
    upgrade: str | None = None
    reference_doubt: str | None = None
    looked_at: WorstSamples | None = None
    package: str | None = None
    releases: dict[str, str] = {}
    first_failing: str | None = None
    first_passing: str | None = None
    failing: tuple[tuple[str, str], ...] = ()
    reasons: dict[str, str] = {}


class WorkaroundAnswer(DiagnoseAnswer, kw_only=True):
    """The answer of ``workaround``, like ``diagnose`` without a reproducer."""


class LayerwiseAnswer(_Judged, kw_only=True):
    """The answer of ``layerwise``."""

    first_mismatch: Origin | None = None
    origins: tuple[Origin, ...] = ()
    mild_origins: tuple[Origin, ...] = ()
    tensors: tuple[Comparison, ...] = ()
    unseen: dict[str, str] = {}
    builds: int | None = None
    own_outputs: OwnOutputs | None = None
    own_unseen: dict[str, str] = {}
    latency: Latency | None = None


class CompareAnswer(_Judged, kw_only=True):
    """The answer of ``run``."""

    comparisons: tuple[Comparison, ...] = ()
    partition: Any = None
    layers: tuple[Entry, ...] = ()
    precision_audit: PrecisionAudit | None = None
    pictures: Names = ()
    amplified: Amplified | None = None


class CauseAnswer(_Judged, kw_only=True):
    """The answer of ``cause``."""

    cause: tuple[Names, ...] = ()
    cause_detail: CauseDetail | None = None


class ReleasesAnswer(Answer, kw_only=True):
    """The answer of ``releases``."""

    package: str | None = None
    releases: dict[str, str] = {}
    first_failing: str | None = None
    first_passing: str | None = None
    failing: tuple[tuple[str, str], ...] = ()
    reasons: dict[str, str] = {}
    upgrade: str | None = None
    reference_doubt: str | None = None


class DiffAnswer(Answer, kw_only=True):
    """The answer of ``diff``."""

    runs: int | None = None
    good: int | None = None
    bad: int | None = None
    choices: tuple[ChoiceCount, ...] = ()
    builds: tuple[BuildVerdict, ...] = ()


class RepeatAnswer(DiffAnswer, kw_only=True):
    """The answer of ``repeat``."""

    unresolved: int | None = None
    rate: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    method: str | None = None
    until: str | None = None
    same_engine: bool | None = None
    reasons: tuple[BuildReason, ...] = ()
    avoid: Avoided | None = None
    cause_detail: CauseDetail | None = None
    note: str | None = None


class SweepAnswer(Answer, kw_only=True):
    """The answer of ``sweep``."""

    sweep: SweptSizes | None = None


class MatrixAnswer(Answer, kw_only=True):
    """The answer of ``matrix``."""

    axes: Names = ()
    cells: tuple[MatrixCell, ...] = ()


class SamplesAnswer(Answer, kw_only=True):
    """The answer of ``samples``."""

    samples: SamplesVerdict | None = None


class PrecisionAnswer(_Mixed, kw_only=True):
    """The answer of ``precision``."""

    reference: str | None = None
    error_all_quantized: float | None = None


class SanitizeAnswer(Answer, kw_only=True):
    """The answer of ``sanitize``."""

    changes: Entry = {}


class InspectAnswer(Answer, kw_only=True):
    """The answer of ``inspect``."""

    data: Any = None
    engine: Any = None


class DoctorAnswer(Answer, kw_only=True):
    """The answer of ``doctor``."""

    environment: dict[str, str] = {}
    targets: dict[str, str | None] = {}


ANSWERS: dict[str, type[Answer]] = {
    "reduce": ReduceAnswer,
    "diagnose": DiagnoseAnswer,
    "workaround": WorkaroundAnswer,
    "layerwise": LayerwiseAnswer,
    "run": CompareAnswer,
    "cause": CauseAnswer,
    "releases": ReleasesAnswer,
    "repeat": RepeatAnswer,
    "sweep": SweepAnswer,
    "matrix": MatrixAnswer,
    "samples": SamplesAnswer,
    "precision": PrecisionAnswer,
    "sanitize": SanitizeAnswer,
    "inspect": InspectAnswer,
    "diff": DiffAnswer,
    "doctor": DoctorAnswer,
}
"""By command; every other command has the fields of :class:`Answer`."""


def answer_of(plain: Json, lines: Names = ()) -> Answer:
    """Return the typed answer from plain values, as ``--json`` writes them, and the lines of its summary.

    Raises:
        msgspec.ValidationError: A field is missing or has another type.
    """
    kind = ANSWERS.get(str(plain.get("command")), Answer)
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    fields = {name: value for name, value in plain.items() if value is not None}
    extra = {name: fields.pop(name) for name in fields.keys() - names}
    return msgspec.convert({**fields, "other": extra, "lines": lines}, kind, strict=False)
