"""The answer of each command, as types: the fields of ``--json``, read by :func:`answer_of`.

A field that a command did not find is ``None``, or empty where it has several values.
``docs/answer.schema.json`` is made from these types (``make docs``), and a result that is read from
a file is validated with them.
"""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any, Literal

import msgspec

from bisect_trt.errors import ExitStatus, exit_status
from bisect_trt.report.summary import summary_lines
from bisect_trt.report.text import SCHEMA, Entry, Json, plural

Status = Literal["found", "not_reproduced", "inconclusive", "interrupted", "error"]
Minimality = Literal["1-minimal", "unproven"]
Whose = Literal["target", "reference", "precision", "rounding", "tie", "random", "unknown"]
Number = float | Literal["inf", "-inf", "nan"] | None
"""A number; JSON has no infinities and NaN, so these are strings."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an answer."""


class Module(_Part, frozen=True, kw_only=True):
    """The module of PyTorch that a node was exported from."""

    path: str | None = None
    cls: str | None = msgspec.field(default=None, name="class")
    source: str | None = None


class Node(_Part, frozen=True, kw_only=True):
    """A node of the model."""

    name: str
    op: str = ""
    outputs: tuple[str, ...] = ()
    module: Module | None = None


class Model(_Part, frozen=True, kw_only=True):
    """The model under test; empty where it could not be read."""

    path: str | None = None
    sha256: str | None = None
    nodes: int | None = None
    units: int | None = None
    ir_version: int | None = None
    producer: str | None = None
    opsets: Any = None
    inputs: Any = None
    outputs: Any = None
    weights: Any = None
    operators: Any = None
    layers: Any = None


class ErrorInfo(_Part, frozen=True, kw_only=True):
    """The error that ended a command."""

    code: str
    cause: str
    remedy: str


class WrongSide(_Part, frozen=True, kw_only=True):
    """The side that is wrong."""

    whose: Whose
    sentence: str
    arbiter: str | None = None
    precision: str | None = None
    node: str | None = None
    op: str | None = None
    decisions: int | None = None
    severity: Number = None
    target_error: Number = None
    reference_error: Number = None
    rounding_error: Number = None
    times_worse: Number = None


class Failure(_Part, frozen=True, kw_only=True):
    """One failure among several."""

    culprits: tuple[Node, ...]
    minimality: Minimality
    why: str | None
    reduced: str | None
    fault: WrongSide | None = None


class WorstValue(_Part, frozen=True, kw_only=True):
    """The element with the largest error."""

    index: tuple[int, ...]
    target: Number | str | bool
    reference: Number | str | bool
    error: Number | str


class ValueRange(_Part, frozen=True, kw_only=True):
    """The values of a tensor on the target."""

    min: Number
    max: Number
    absmax: Number
    nan: int
    inf: int


class Comparison(_Part, frozen=True, kw_only=True):
    """A tensor on the target, compared with the reference's."""

    name: str
    passed: bool
    kind: Literal["match", "mismatch", "nan", "inf", "shape", "dtype", "missing"]
    stat: str
    atol: Number
    rtol: Number
    max_abs: Number
    max_rel: Number
    mean_abs: Number
    mean_rel: Number
    median_abs: Number
    median_rel: Number
    quantile: Number
    quantile_abs: Number
    quantile_rel: Number
    mismatching: int
    total: int
    worst: WorstValue | None
    reference_shape: tuple[int, ...] | None
    target_shape: tuple[int, ...] | None
    reference_dtype: str | None
    target_dtype: str | None
    reference_nonfinite: int
    target_range: ValueRange | None
    reason: str | None
    details: Any
    sample: int | None
    ties: int
    most_ties: int
    step: Number
    of_tolerance: Number
    past_tolerance: Number
    required_atol: Number
    op: str | None = None
    module: Module | None = None
    own: Comparison | None = None


class Origin(_Part, frozen=True, kw_only=True):
    """A node that has matching inputs and a wrong output."""

    tensor: str
    node: Node | None
    comparison: Comparison
    inputs: tuple[str, ...] = ()
    attributes: dict[str, str] = {}


class OwnOutputs(_Part, frozen=True, kw_only=True):
    """The verdict on the model's own outputs, without marks."""

    match: bool
    reason: str


class Amplified(_Part, frozen=True, kw_only=True):
    """The operator that amplifies rounding until the model fails."""

    output: str
    moved: Number
    off: Number
    op: str | None
    spread: bool
    sentence: str


class Switches(_Part, frozen=True, kw_only=True):
    """Switches of the target that together are enough for the model to pass."""

    switches: tuple[str, ...]
    turned: str
    whole: bool
    case: bool | None = None
    seen: str
    options: tuple[str, ...]


class CauseDetail(_Part, frozen=True, kw_only=True):
    """The search of the cause among the switches of the target."""

    target: str
    on: str
    switches: int
    tried: int
    alternatives: tuple[Switches, ...]
    complete: bool
    doubted: tuple[Any, ...] = ()


class FreshCount(_Part, frozen=True, kw_only=True):
    """Fresh inputs, and the number that pass."""

    samples: int
    passed: int


class WorkaroundTried(_Part, frozen=True, kw_only=True):
    """A way around the failure that was tried."""

    kind: str
    what: str
    passes: bool | None
    file: str | None
    why: str | None
    line: str | None = None
    worst_error: Number = None
    fresh: FreshCount | None = None


class Unit(Node, frozen=True, kw_only=True):
    """A node or a Q/DQ group, with the reason why it stays in a wider precision."""

    rule: str | None = None
    reason: str | None = None
    group: int | None = None
    operators: Any = None
    nodes: tuple[str, ...] | None = None
    scales: tuple[str, ...] | None = None
    zero_points: tuple[str, ...] | None = None
    tensors: tuple[str, ...] | None = None
    bad_scales: tuple[str, ...] | None = None


class Validation(_Part, frozen=True, kw_only=True):
    """A set of kept units on fresh samples."""

    samples: int
    passed: int
    worst_error: Number
    fails_under: Number
    sentence: str
    severe: int | None = None
    confidence: Number = None
    learned: int | None = None
    nodes: int | None = None
    holds: bool | None = None
    keep: tuple[int, ...] | None = None
    drawn: str | None = None
    recommended: bool | None = None


class Use(_Part, frozen=True, kw_only=True):
    """A file or a command by which an answer is used, and whether it passed."""

    what: str
    command: str
    passed: bool | None
    reason: str


class FailureRate(_Part, frozen=True, kw_only=True):
    """The measured failure rate of the original model."""

    runs: int
    failures: int
    rate: float
    confidence: float
    passes_needed: int | None = None
    least_rate: float | None = None
    reached: float | None = None


class MetricValues(_Part, frozen=True, kw_only=True):
    """The metric that decides, on the reference and on the candidate."""

    name: str
    reference: Number = None
    candidate: Number = None
    original: Number = None
    fixed: Any = None
    bound: Number = None
    lower_is_better: bool | None = None
    passed: bool | None = None
    samples: int | None = None
    of: int | None = None
    probes: tuple[dict[str, Any], ...] = ()


class Inside(_Part, frozen=True, kw_only=True):
    """A body of an If, Loop, Scan or function, and the nodes in it that fail; iterations count from 1."""

    name: str
    op: str
    branch: str | None
    iteration: int | None
    nodes: tuple[Node, ...]
    minimality: Minimality
    why: str | None


class DynamicShapes(_Part, frozen=True, kw_only=True):
    """Whether the failure needs free dimensions, and which."""

    needed: bool
    dimensions: tuple[Any, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that every answer has.

    Attributes:
        probes: The number of probes by ending: ``run``, ``cached``, ``fail``, ``pass``, ``unresolved``, ``wasted``.
        wall_s: Seconds from start to end.
        artifacts: The files that were written, by kind; ``None`` for those that were not.
        report: The parts of report.html that have no field; they may change between versions.
        other: Fields without a type, of a command of another package.
    """

    command: str
    status: Status
    model: Model
    probes: dict[str, int]
    wall_s: float
    culprits: tuple[Unit, ...] = ()
    minimality: Minimality
    why: str | None = None
    artifacts: dict[str, str | None]
    schema: int = SCHEMA
    next: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    flaky: FailureRate | None = None
    metric: MetricValues | None = None
    places: tuple[dict[str, Any], ...] = ()
    ir_version: dict[str, Any] = {}
    export: dict[str, Any] = {}
    report: dict[str, Any] = {}
    other: dict[str, Any] = {}

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
        plain: Entry = msgspec.to_builtins(self)
        other = plain.pop("other", {})
        return {"schema": self.schema, "culprits": [], "why": None, **plain, **other}

    def summary(self) -> str:
        """Return the answer in at most 25 lines, as the command line prints it."""
        return "\n".join(f"{label}{text}" for label, text in summary_lines(self.to_json()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.status}, {self.minimality}, {plural(len(self.culprits), 'culprit')}>"

    def _repr_html_(self) -> str:
        """Return the summary and the pictures, for a notebook."""
        pictures = (self.to_json().get("pictures") or {}).values()
        shown = "".join(map(_picture, filter(Path.is_file, map(Path, pictures))))
        return f"<pre>{html.escape(self.summary())}</pre>{shown}"


def _picture(path: Path) -> str:
    kind = "svg+xml" if path.suffix == ".svg" else path.suffix[1:]
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/{kind};base64,{data}" alt="{html.escape(path.stem)}">'


class _Mixed(Answer, frozen=True, kw_only=True):
    keep_fp32: tuple[Unit, ...] = ()
    minimal: tuple[Unit, ...] = ()
    minimal_proven: bool | None = None
    probes_minimal: int | None = None
    validation: Validation | None = None
    not_validated: str | None = None
    curve: tuple[Validation, ...] = ()
    rounding: Any = None
    precision: str | None = None
    lowered: int | None = None
    not_lowered: int | None = None
    measured_on: str | None = None
    accuracy: tuple[Comparison, ...] = ()
    uses: tuple[Use, ...] = ()
    said: tuple[dict[str, Any], ...] = ()
    latency_ms: dict[str, Number] = {}
    emulated: Any = None
    groups: tuple[dict[str, Any], ...] = ()
    ladder: dict[str, Any] = {}


class _Judged(Answer, frozen=True, kw_only=True):
    fault: WrongSide | None = None
    upgrade: str | None = None
    reference_doubt: str | None = None


class ReduceAnswer(_Judged, frozen=True, kw_only=True):
    """The answer of ``reduce``."""

    failures: tuple[Failure, ...] = ()
    more_failures: bool | None = None
    held: bool | None = None
    dynamic: DynamicShapes | None = None
    inside: tuple[Inside, ...] = ()


class DiagnoseAnswer(_Mixed, frozen=True, kw_only=True):
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
    unseen: dict[str, Any] = {}
    builds: int | None = None
    cause: tuple[tuple[str, ...], ...] = ()
    cause_detail: CauseDetail | None = None
    workarounds: tuple[WorkaroundTried, ...] = ()
    amplified: Amplified | None = None
    upgrade: str | None = None
    reference_doubt: str | None = None
    looked_at: Any = None
    package: str | None = None
    releases: dict[str, Any] = {}
    first_failing: str | None = None
    first_passing: str | None = None
    failing: tuple[tuple[str, ...], ...] = ()
    reasons: dict[str, str] = {}


class WorkaroundAnswer(DiagnoseAnswer, frozen=True, kw_only=True):
    """The answer of ``workaround``, like ``diagnose`` without a reproducer."""


class LayerwiseAnswer(_Judged, frozen=True, kw_only=True):
    """The answer of ``layerwise``."""

    first_mismatch: Origin | None = None
    origins: tuple[Origin, ...] = ()
    mild_origins: tuple[Origin, ...] = ()
    tensors: tuple[Comparison, ...] = ()
    unseen: dict[str, Any] = {}
    builds: int | None = None
    own_outputs: OwnOutputs | None = None
    own_unseen: dict[str, Any] = {}
    latency: dict[str, Any] = {}


class CompareAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``run``."""

    comparisons: tuple[Comparison, ...] = ()
    partition: Any = None
    layers: tuple[dict[str, Any], ...] = ()
    precision_audit: dict[str, Any] = {}
    pictures: dict[str, str] = {}


class CauseAnswer(_Judged, frozen=True, kw_only=True):
    """The answer of ``cause``."""

    cause: tuple[tuple[str, ...], ...] = ()
    cause_detail: CauseDetail | None = None


class ReleasesAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``releases``."""

    package: str | None = None
    releases: dict[str, Any] = {}
    first_failing: str | None = None
    first_passing: str | None = None
    failing: tuple[tuple[str, ...], ...] = ()
    reasons: dict[str, str] = {}
    reference_doubt: str | None = None


class RepeatAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``repeat``."""

    runs: int | None = None
    good: int | None = None
    bad: int | None = None
    unresolved: int | None = None
    rate: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    method: str | None = None
    until: Any = None
    same_engine: bool | None = None
    builds: tuple[dict[str, Any], ...] = ()
    choices: tuple[dict[str, Any], ...] = ()
    reasons: tuple[dict[str, Any], ...] = ()
    avoid: dict[str, Any] = {}
    note: str | None = None


class SweepAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``sweep``."""

    sweep: dict[str, Any] = {}
    dynamic: DynamicShapes | None = None
    cause: Any = None
    workarounds: Any = None


class SamplesAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``samples``."""

    samples: dict[str, Any] = {}


class PrecisionAnswer(_Mixed, frozen=True, kw_only=True):
    """The answer of ``precision``."""

    reference: Any = None
    error_all_quantized: Number = None


class SanitizeAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``sanitize``."""

    changes: dict[str, Any] = {}


class InspectAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``inspect``."""

    data: Any = None
    engine: Any = None


class DiffAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``diff``."""

    runs: int | None = None
    good: int | None = None
    bad: int | None = None
    choices: tuple[dict[str, Any], ...] = ()
    builds: tuple[dict[str, Any], ...] = ()


class DoctorAnswer(Answer, frozen=True, kw_only=True):
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
    "samples": SamplesAnswer,
    "precision": PrecisionAnswer,
    "sanitize": SanitizeAnswer,
    "inspect": InspectAnswer,
    "diff": DiffAnswer,
    "doctor": DoctorAnswer,
}
"""By command; every other command has the fields of :class:`Answer`."""


def answer_of(plain: Json) -> Answer:
    """Return the typed answer from plain values, as ``--json`` writes them.

    Raises:
        msgspec.ValidationError: A field is missing or has another type.
    """
    kind = ANSWERS.get(str(plain.get("command")), Answer)
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    seen = {name: value for name, value in plain.items() if value is not None}
    other = {name: seen.pop(name) for name in seen.keys() - names}
    return msgspec.convert({**seen, "other": other}, kind)
