"""The parts of answers, as types: what steps find, ``--json`` writes, and the report shows.

A field without a default is always written; one with a default is left out where it has that.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, field
from typing_extensions import dataclass_transform

from bisect_trt.onnxlib.nodes import Module, Node
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.outcome import MetricScore
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.comparison import TensorComparison, ValueRange

Status = Literal["found", "not_reproduced", "inconclusive", "interrupted", "error"]
Minimality = Literal["1-minimal", "unproven"]
Whose = Literal[
    "target", "reference", "export", "precision", "rounding", "tie", "random", "unknown"
]
Loss = Literal["overflow", "underflow", "digits"]
Kind = Literal["step", "start", "drift", "flaky", "none"]
Names = tuple[str, ...]
Numbers = tuple[int, ...]
"""Numbers of samples, steps or units, or the sizes of a tensor."""
Shapes = dict[str, Numbers]
"""The sizes of tensors, by name."""
_Value = TypeVar("_Value")
Sought: TypeAlias = _Value | msgspec.UnsetType
"""A field that is absent until the command comes to it; ``None`` and empty are what it published when it found nothing."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of an answer; the classes below it are frozen as it is."""


class Model(Part):
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
    functions: Any = None
    layers: Any = None


class ErrorInfo(Part):
    """The error that ended a command."""

    code: str
    cause: str
    remedy: str


class WrongSide(Part):
    """The side that is wrong.

    Attributes:
        whose: The target, the reference, the export from PyTorch or the low precision; ``rounding`` where fp32 itself is
            that far off; ``tie`` where a decision is so close that both results are right;
            ``random`` where a node draws random numbers; ``unknown`` where that cannot be decided.
        sentence: The reason, with the figures.
        arbiter: The evaluator that decided.
        precision: The precision that rounding was emulated in.
        node: The node that decides or draws.
        op: Its operator, or the one that amplifies rounding.
        decisions: How many decisions differ.
        severity: The largest error of the target, in tolerances.
        target_error: The largest absolute error of the target.
        reference_error: The same of the reference.
        rounding_error: The same of rounding alone.
        times_worse: How many times worse the target is than rounding, or than the reference.
        source: ``file:line`` of the first line of the PyTorch module with values that the export lacks.
        value: The value that ``precision`` cannot represent.
        tensor: The first tensor that makes the error if it alone is rounded.
        loss: How the value is lost: past the largest number, below the least, or in its last digits.
    """

    whose: Whose
    sentence: str
    arbiter: str | None = None
    precision: str | None = None
    node: str | None = None
    op: str | None = None
    decisions: int | None = None
    severity: float | None = None
    target_error: float | None = None
    reference_error: float | None = None
    rounding_error: float | None = None
    times_worse: float | None = None
    source: str | None = None
    value: float | None = None
    tensor: str | None = None
    loss: Loss | None = None


class Inside(Part):
    """A body of an If, Loop, Scan or function, and the nodes in it that fail; iterations count from 1.

    ``fault`` is of the innermost nodes alone.
    """

    name: str
    op: str
    branch: str | None
    iteration: int | None
    nodes: tuple[Node, ...]
    minimality: Minimality
    why: str | None
    fault: WrongSide | None = None


class Failure(Part):
    """One failure among several."""

    culprits: tuple[Node, ...]
    minimality: Minimality
    why: str | None
    reduced: str | None
    inside: tuple[Inside, ...] = ()
    fault: WrongSide | None = None


class Comparison(TensorComparison, frozen=True, kw_only=True):
    """A tensor on the target, compared with the reference's.

    Attributes:
        required_atol: The absolute tolerance that an elementwise comparison needs at least to pass
            with relative tolerance 0.
        op: The operator of the node that makes it, where layers are compared.
        module: Its module.
        own: The comparison where the layer was fed the reference's values, with ``--isolate``;
            ``None`` if that could not be computed.
    """

    required_atol: float | None
    op: Sought[str] = UNSET
    module: Sought[Module] = UNSET
    own: Sought[Comparison | None] = UNSET

    @classmethod
    def of(
        cls,
        comparison: TensorComparison,
        op: Sought[str] = UNSET,
        module: Module | None = None,
        own: Sought[Comparison | None] = UNSET,
    ) -> Comparison:
        """Return a comparison as a field of an answer.

        Args:
            comparison: The comparison.
            op: The operator of the node that makes the tensor.
            module: Its module, if known.
            own: The comparison of the layer alone.
        """
        fields = msgspec.structs.asdict(comparison) | {"by_channel": UNSET}
        place = UNSET if module is None else module
        return cls(**fields, required_atol=comparison.max_abs, op=op, module=place, own=own)


class Origin(Part):
    """A node that has matching inputs and a wrong output; ``right_alone`` if it passes where it runs alone on these inputs."""

    tensor: str
    node: Node
    inputs: Names
    attributes: dict[str, str]
    comparison: Comparison
    right_alone: bool = False


class OwnOutputs(Part):
    """The verdict on the model's own outputs, without marks."""

    match: bool
    reason: str


class Amplified(Part):
    """The operator that amplifies rounding until the model fails."""

    output: str
    moved: float
    off: float
    op: str | None
    spread: bool
    sentence: str


class EngineLayer(Part):
    """A layer that a compiler made of some nodes."""

    kind: str
    nodes: Names


class LayersChanged(Part):
    """The layers that only the failing engine has, and those that only the passing one has.

    Attributes:
        fusion: The number of the fusion that the compiler's counter counts, if it was searched.
        steady: Whether each build with that fusion fails; else a tactic decides.
    """

    fusion: int | None
    failing: tuple[EngineLayer, ...]
    passing: tuple[EngineLayer, ...]
    steady: bool = True


class SetElsewhere(Part):
    """A setting as it is set without bisect-trt: its name in the runtime or the environment, and its value."""

    name: str
    value: str
    documented: bool


class Switches(Part):
    """Switches of the target that together are enough for the model to pass.

    Attributes:
        switches: Their names.
        turned: The change: ``disabled``, ``set to 0``.
        whole: Whether the whole model passes.
        case: Whether the minimal case passes; ``None`` if it was not probed.
        seen: How often it passed with them and failed without, in words.
        options: The options that set the target so.
        layers: The layers of the engine that they change.
        elsewhere: How the same is set without bisect-trt.
        larger: The folder of a larger case that passes with them, where the minimal case does not.
    """

    switches: Names
    turned: str
    whole: bool
    case: bool | None
    seen: str
    options: Names
    layers: LayersChanged | None = None
    elsewhere: SetElsewhere | None = None
    larger: str | None = None


class CauseDetail(Part):
    """The search of the cause among the switches of the target."""

    target: str
    on: str
    switches: int
    tried: int
    alternatives: tuple[Switches, ...]
    complete: bool
    doubted: Names


class FreshCount(msgspec.Struct, frozen=True):
    """Fresh inputs, and the number that pass."""

    samples: int
    passed: int


class Cost(Part):
    """The milliseconds of a run as it is and with a change; where nothing is run, the megabytes of the engine."""

    before: float
    after: float
    unit: Literal["ms", "MB"]


class WorkaroundTried(msgspec.Struct, frozen=True):
    """A way around the failure that was tried.

    Attributes:
        kind: ``switch``, ``barrier``, ``rewrite`` or ``precision``.
        what: The change, in words.
        passes: Whether the whole model passes with it; ``None`` if it was not tried.
        file: The patched model, if there is one.
        line: The options, for a switch.
        worst_error: The largest error in units of the tolerance; ``None`` if it was not measured.
        why: The confirmation, or why there is none.
        fresh: The fresh inputs on which it was run.
        cost: What a run takes without it and with it, if it passes and that was measured.
    """

    kind: Literal["switch", "barrier", "rewrite", "precision"]
    what: str
    passes: bool | None
    file: str | None = None
    line: str | None = None
    worst_error: float | None = None
    why: str = ""
    fresh: FreshCount = FreshCount(0, 0)
    cost: Cost | None = None


FOR_FRESH = "fresh sample"
"""The rule of a unit that is kept for fresh samples only."""
NEEDED = "needed"
"""The rule of a unit of which no more is known."""
NOT_RUN = "not run"
"""The rule of a unit without which the model does not run, so that no number is wrong."""
BODY_PASSES = "its body does not fail alone"


class Unit(Node, frozen=True, kw_only=True):
    """A node or a Q/DQ group, with the reason why it stays in a wider precision."""

    rule: str | None = None
    reason: str | None = None
    group: int | None = None
    operators: Names | None = None
    nodes: Names | None = None
    scales: Names | None = None
    zero_points: Names | None = None
    tensors: Names | None = None
    bad_scales: Names | None = None


class ScaleProblem(Part):
    """A problem of a scale: the rule that finds it, and the figures in a sentence."""

    rule: str
    sentence: str


class QuantizedTensor(Part):
    """A Q/DQ pair, with the scale that would fit the values that were seen."""

    tensor: str
    kind: str
    type: str
    scale: str
    scale_value: Any
    zero_point: str | None
    zero_point_value: Any
    fitted_scale: Any
    fitted_zero_point: Any
    quantize: Names
    dequantize: Names
    seen: tuple[float, float] | None
    clipped: float
    bits_lost: float
    bad: bool
    problems: tuple[ScaleProblem, ...]


class QuantizedGroup(Part):
    """A Q/DQ group, and its cost alone."""

    id: int
    name: str
    operators: tuple[Node, ...]
    nodes: Names
    scales: Names
    zero_points: Names
    tensors: tuple[QuantizedTensor, ...]
    kept: bool
    minimal: bool
    suspected: bool
    bits_lost: float
    error_alone_removed: float | None
    error_alone_quantized: float | None
    rule: str | None
    reason: str | None
    rung: str | None = None


class RungNode(Node, frozen=True, kw_only=True):
    """A node with its precision on a ladder."""

    rung: str


class Ladder(Part):
    """The precisions of a ladder, and the nodes on each."""

    rungs: Names
    counts: dict[str, int]
    nodes: tuple[RungNode, ...]
    why: Sought[str | None] = UNSET


class Validation(Part):
    """A set of kept units on fresh samples.

    Attributes:
        samples: The number of fresh samples.
        passed: Those that pass.
        severe: Those with an error far past the tolerance.
        worst_error: The largest error in tolerances; ``None`` for NaN or Inf.
        confidence: The confidence of ``fails_under``.
        fails_under: The share of samples of which it is that sure that fewer fail.
        learned: Samples that the search has used.
        sentence: The same in words.
        nodes: The number of units kept.
        holds: Whether no more samples fail than may.
        keep: The units.
        drawn: The distribution of the samples.
        recommended: Whether it is the answer.
        atol: Of each output the absolute tolerance with which all pass; empty where they do.
        argmax: Of each output the share of rows with the reference's argmax, where samples fail.
    """

    samples: int
    passed: int
    severe: int
    worst_error: float | None
    confidence: float
    fails_under: float
    learned: int
    sentence: str
    nodes: int
    holds: bool
    keep: Numbers
    drawn: str | None
    recommended: bool
    atol: dict[str, float] = {}
    argmax: dict[str, float] = {}


class TradeOff(Part):
    """A set that does not hold, with the tolerance that it passes with, and the best set for the tolerance in use.

    Attributes:
        nodes: The number of units kept in the set, which is written unless that is the best set.
        atol: Of each output the absolute tolerance with which the model with this set passes.
        argmax: Of each output the share of rows with the reference's argmax.
        nodes_for_tolerance: The number of units of the best set for the tolerance in use.
        holds_for_tolerance: Whether that holds on fresh samples.
        useful: Whether it holds and leaves at least half of the units lowered.
    """

    nodes: int
    atol: dict[str, float]
    argmax: dict[str, float]
    nodes_for_tolerance: int
    holds_for_tolerance: bool
    useful: bool


class Use(Part):
    """A file or a command by which an answer is used, and whether it passed."""

    what: str
    command: str
    passed: bool | None
    reason: str


class FailureRate(Part):
    """The measured failure rate of the original model."""

    runs: int
    failures: int
    rate: float
    confidence: float
    passes_needed: int
    least_rate: float
    reached: float | None = None


class ProbeScore(Part):
    """The score of a probe, and its number of units: of `precision`, the units that are kept."""

    probe: int
    candidate: float
    size: int


class MetricValues(MetricScore, frozen=True, omit_defaults=True):
    """The metric that decides, on the reference and on the candidate; ``streams`` are its scores on other random steps."""

    original: float | None = None
    fixed: float | None = None
    sampling_error: float | None = None
    streams: tuple[float, ...] = ()
    probes: tuple[ProbeScore, ...] = ()


class InputAxis(Part):
    """An axis of an input, and its size in the minimal case."""

    name: str
    axis: int
    size: int | None = None


class FreeDimension(Part):
    """A dimension that must stay free."""

    name: str
    inputs: tuple[InputAxis, ...]


class DynamicShapes(Part):
    """Whether the failure needs free dimensions, and which."""

    needed: bool
    dimensions: tuple[FreeDimension, ...]


class WorstSamples(Part):
    """The samples that were diagnosed, of those that fail."""

    of: int
    fail: Numbers
    stay: Numbers


class MatrixCell(Part):
    """A combination of ``matrix``.

    Attributes:
        values: Of each axis.
        verdict: Whether the target matches there.
        why: Why there is no answer.
        seconds: From start to end.
        run: The folder of its run.
        command: The command line that runs it alone.
    """

    values: Names
    verdict: Verdict
    why: str
    seconds: float
    run: str | None
    command: str


class BuildVerdict(Part):
    """A build or run, and its verdict."""

    verdict: str
    file: str | None = None
    reason: str | None = None
    signature: str | None = None
    seconds: float | None = None
    probe: int | None = None
    number: int | None = None
    files: Sought[dict[str, str]] = UNSET


class ChoiceMade(Part):
    """A choice of a build for a layer."""

    layer: str
    choice: str
    kind: str
    value: str


class ChoiceCount(ChoiceMade, kw_only=True):
    """A choice, and the numbers of good and bad builds with it."""

    good: int
    bad: int
    proven: bool


class BuildReason(Part):
    """Choices that together make builds bad."""

    choices: tuple[ChoiceMade, ...]
    proven: bool
    why: str | None


class Avoided(Part):
    """The options that forbid the choices of bad builds, and builds with them."""

    options: Names
    runs: int
    bad: int


class SizesSpan(Part):
    """Sizes next to each other with one verdict."""

    first: int = field(name="from")
    last: int = field(name="to")
    verdict: str
    tried: Numbers


class SweptDimension(Part):
    """The verdicts along a dimension, at sizes of the others."""

    name: str
    inputs: tuple[InputAxis, ...]
    at: dict[str, int]
    fail: Numbers
    passed: Numbers = field(name="pass")
    unresolved: Numbers
    intervals: tuple[SizesSpan, ...]


class SizesVerdict(Part):
    """The verdict at some sizes."""

    sizes: dict[str, int]
    shapes: Shapes
    verdict: str
    reason: str
    signature: str | None


class SweptSizes(Part):
    """The sizes at which the model fails."""

    dimensions: tuple[SweptDimension, ...]
    tried: int
    of: int
    exhaustive: bool
    smallest_failing: dict[str, int] | None
    shapes: Shapes | None
    map: tuple[SizesVerdict, ...]
    said: str
    command: str | None = None


class SampleVerdict(Part):
    """The verdict on a sample."""

    sample: int
    verdict: str
    reason: str
    signature: str | None
    shapes: Shapes


class InputElement(Part):
    """An element of an input."""

    input: str
    index: Numbers
    value: Any


class MinimalInput(Part):
    """The smallest input that fails."""

    file: str
    sample: int
    shapes: Shapes
    elements: int
    kept: int
    of: int
    elements_kept: tuple[InputElement, ...]
    minimality: Minimality
    why: str | None
    command: str
    questions: int


class SamplesVerdict(Part):
    """The samples that fail, pass, or have no verdict, by number."""

    total: int
    each: tuple[SampleVerdict, ...]
    failing: Numbers
    passing: Numbers
    unresolved: Numbers
    minimal_input: MinimalInput | None = None


class StepsWay(Part):
    """The errors of the steps in one way to run them.

    Attributes:
        first: The first step past the tolerance.
        token: The first step with another argmax than the reference's.
        worst: The largest error over its tolerance.
        errors: The worst output of each step that was run, up to one that the target does not run;
            the step is its ``sample``.
    """

    first: int | None
    token: int | None
    worst: float
    errors: tuple[Comparison, ...]


class Steps(Part):
    """The steps of a model with a state.

    Attributes:
        steps: Their number.
        taken: The output that each input takes of the step before.
        kind: ``step`` where a later one is the first that is wrong with the reference's state,
            ``start`` where the first one is, ``drift`` where none is and feedback magnifies small
            errors, ``flaky`` where none is and two runs of a step with the target's state differ,
            ``none`` where nothing is wrong.
        step: The step that is searched; ``None`` where no step is wrong with the reference's state.
        tensors: The outputs that are wrong in that step, the worst first.
        failing: The first and the last step of each stretch that is wrong with the reference's
            state.
        rate: The factor by which the error grows a step, where it drifts.
        own: The errors with the state that the target returned itself.
        right: The errors with the state of the reference.
        whole: The errors where all steps are one run; ``None`` where they cannot be.
        inputs: The file with the inputs and the state of the step.
        carriers: Where it drifts, the fewest inputs of the target's own state that make the first
            step past the tolerance wrong, the others being the reference's.
        positions: Of each carrier the fewest places that are needed: positions of a cache, else
            places along the axis along which the smallest share differs.
    """

    steps: int
    taken: dict[str, str]
    kind: Kind
    step: int | None
    tensors: Names
    failing: tuple[tuple[int, int], ...]
    rate: float | None
    own: StepsWay
    right: StepsWay
    whole: StepsWay | None = None
    inputs: str | None = None
    carriers: Names = ()
    positions: dict[str, Numbers] = {}

    @property
    def ways(self) -> dict[str, StepsWay]:
        """The ways that were run, by what they are called."""
        named = {"own state": self.own, "state of the reference": self.right, "one run": self.whole}
        return {name: series for name, series in named.items() if series is not None}


class LatencyRow(Part):
    """Nodes that are one layer on either side, and their time."""

    nodes: tuple[Node, ...]
    ms: float
    baseline_ms: float
    layers: Names
    baseline_layers: Names


class Latency(Part):
    """The time of each layer beside a baseline's."""

    ms: float
    baseline_ms: float
    baseline: str
    rows: tuple[LatencyRow, ...]


class PrecisionAudit(Part):
    """The precisions that were requested, and the layers in each."""

    asked: Names
    counts: dict[str, int]
    total: int
    sentence: str


class StepLines(msgspec.Struct):
    """A step of a command: the number of ``probes`` before it, and its lines, printed or not."""

    title: str
    probes: int
    lines: list[str]


class Story(msgspec.Struct):
    """The steps, and the lines of the answer."""

    steps: list[StepLines]
    answers: list[str]


class Proof(Part):
    """The command that shows the failure, the reason if it was not seen to do so, and the commands of further failures."""

    command: str
    why: str | None
    others: list[str] = []


class ErrorText(Part):
    """The error of a tensor, in words and in tolerances."""

    passed: bool
    ratio: float
    text: str


class GraphTensor(Part):
    """A tensor beside a node of the answer."""

    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    error: ErrorText | None = None
    own: ErrorText | None = None
    target: ValueRange | None = None
    reference: ValueRange | None = None


class GraphNode(Part):
    """A node of the answer."""

    name: str
    op: str
    domain: str
    attributes: dict[str, str]
    inputs: tuple[tuple[str, str], ...]
    outputs: Names
    written: str | None


class DrawnNode(Part):
    """A node of the picture, with the tensors that it reads, without weights, and makes."""

    name: str
    op: str
    answer: bool
    inputs: Names
    outputs: Names


class Graph(Part):
    """The nodes of the answer, the most important first, and their tensors by name.

    Attributes:
        nodes: The nodes of the answer.
        tensors: What these nodes and their neighbours read and make, by name.
        region: The nodes of the answer and their neighbours, in topological order.
        continued: Tensors of the region that other nodes read, or that the model returns.
        total: Nodes of the model that depend on an input.
    """

    nodes: tuple[GraphNode, ...]
    tensors: dict[str, GraphTensor]
    region: tuple[DrawnNode, ...] = ()
    continued: Names = ()
    total: int = 0


class CurvePoint(Part):
    """The largest error of a tensor.

    Attributes:
        place: The place of the tensor in topological order.
        name: The tensor.
        op: The operator that makes it.
        passed: Whether it matches.
        ratio: The error over its tolerance, to seven digits.
        error: The largest absolute error.
    """

    place: int
    name: str
    op: str | None
    passed: bool
    ratio: float
    error: float | None


class Curve(Part):
    """The error along the network, some of ``total`` tensors."""

    points: tuple[CurvePoint, ...]
    total: int


class ProbeLine(Record, frozen=True, kw_only=True, tag=False):
    """A probe, the last line that the check printed, and the step that it was made in."""

    printed: str = ""
    step: str


REPRODUCE_ALONE = "Reproduce the failure without bisect-trt"
LIST_PROBES = "List the probes; add a number to see one in full"


class CommandLine(Part):
    """A command to run next, which may resume the run."""

    what: str
    command: str
    resumes: bool = False


class ReportParts(msgspec.Struct, kw_only=True):
    """The parts of report.html that have no field of their own; they may change between versions."""

    target: Sought[str | None] = UNSET
    graph: Sought[Graph] = UNSET
    curve: Sought[Curve | None] = UNSET
    probes: Sought[list[ProbeLine]] = UNSET
    proof: Sought[Proof] = UNSET
    created: Sought[str] = UNSET
    exhausted: Sought[bool] = UNSET
    story: Sought[Story] = UNSET
    commands: Sought[list[CommandLine]] = UNSET
    environment: Sought[dict[str, str]] = UNSET


_PROBES = ("run", "cached", "fail", "pass", "unresolved")
_ARTIFACTS = ("reduced", "min_good", "report", "run")


class Head(msgspec.Struct):
    """The fields that every result has.

    Attributes:
        command: Which command.
        status: ``found``, ``not_reproduced``, ``inconclusive``, ``interrupted`` or ``error``.
        model: Path, sha256, number of nodes and units; empty if it could not be read.
        probes: Number of probes that ran, that were answered from memory, and by verdict.
        wall_s: Seconds from start to end, of all sessions of a resumed run.
        culprits: The nodes of the answer: name, op, outputs.
        minimality: ``1-minimal`` or ``unproven``.
        why: The reason for a missing proof, or a remark.
        artifacts: The files that were written; ``None`` for the others.
        other: Fields of a command of another package.
    """

    command: str
    status: Status = "error"
    model: Model = field(default_factory=Model)
    probes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PROBES, 0))
    wall_s: float = 0.0
    culprits: list[Node] = []
    minimality: Minimality = "unproven"
    why: str | None = None
    artifacts: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(_ARTIFACTS))
    other: dict[str, Any] = {}
