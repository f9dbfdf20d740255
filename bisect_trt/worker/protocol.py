"""What is asked of a worker and what it answers: plain data, one line of JSON each way.

Each request has one type of reply, or :class:`Failed` where the runtime does not run the model. The worker's side needs
this module, NumPy and the runtime's package, and no more. It is long because it is all declarations, which are read side by
side; ``worker/codec.py`` has what becomes of them on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:  # a driver starts its first worker before it imports NumPy
    from bisect_trt.targets.base import Lowering
    from bisect_trt.targets.settings import TargetSettings
    from bisect_trt.tensors.comparison import TensorComparison
    from bisect_trt.tensors.tolerance import ToleranceOptions

PLACE_FOLDER, PLACE_PYTHON = "@BISECT_TRT_FOLDER@", "@BISECT_TRT_PYTHON@"
"""In the words of a command that runs in a place: the folder of its files, and the place's interpreter."""


class Reply:
    """What a worker answers."""


R_co = TypeVar("R_co", bound=Reply, covariant=True)


@dataclass(frozen=True)
class Failed(Reply):
    """The runtime does not run the model.

    Attributes:
        kind: Whether it refuses to ``build`` it or fails to ``run`` it; whether the worker made a ``crash`` of it or ran past
            its ``time-out`` or its limit of ``memory``, was ``cancelled``, or was ``lost``: ended by somebody else, which
            says nothing of the model.
        message: Why, in words.
        signature: The kind of failure, the same for the same failure of another model; see ``Outcome``.
        poisoned: Whether whatever else that worker runs would fail too.
    """

    kind: Literal["build", "run", "crash", "time-out", "memory", "cancelled", "lost"]
    message: str
    signature: str
    poisoned: bool = False


@dataclass(frozen=True)
class Died(Reply):
    """The process that runs models in a place has ended, which a worker that is no place's does itself.

    Attributes:
        code: Its exit status, or minus the signal's number.
        over_memory: Whether it was ended because it held more than it may.
    """

    code: int
    over_memory: bool = False


@dataclass(frozen=True)
class Misuse(Reply):
    """The request names something that is wrong or not there; it is raised where it was asked.

    Attributes:
        status: The exit status of the error.
        message: What it says.
    """

    status: int
    message: str


@dataclass(frozen=True)
class Done(Reply):
    """It is done."""


@dataclass(frozen=True)
class Started(Reply):
    """What a target says of itself, now that it has started.

    Attributes:
        lowers_by: Who lowers a model for it.
    """

    lowers_by: Lowering


@dataclass(frozen=True)
class Compared(Reply):
    """What a model's tensors look like beside the reference's.

    Attributes:
        comparisons: Of each tensor, on every input sample that was looked at.
        skipped: Outputs that the target does not hand out, with the reason.
        layers: What the target makes of the model; see ``Session.layers``.
        latency_ms: The median of several runs, where that was asked for.
        unsupported: Whether the target cannot show what was asked for.
    """

    comparisons: tuple[TensorComparison, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[dict[str, Any], ...] = ()
    latency_ms: float | None = None
    unsupported: bool = False


@dataclass(frozen=True)
class Measured(Reply):
    """What a candidate scores.

    Attributes:
        value: The metric: of the whole set, or what it is by the samples that were seen.
        samples: How many samples were seen.
        passed: Whether it is within its bound; ``None`` without one.
        layers: What the target makes of the model; see ``Session.layers``.
        latency_ms: The median of several runs, where that was asked for.
        gains: By how much each sample adds more to the metric than the reference does, in the order in which they are seen;
            of the whole set alone, where the metric is of that form.
    """

    value: float
    samples: int
    passed: bool | None = None
    layers: tuple[dict[str, Any], ...] = ()
    latency_ms: float | None = None
    gains: tuple[float, ...] = ()


@dataclass(frozen=True)
class Described(Reply):
    """What an engine is made of, as plain values."""

    engine: dict[str, Any]


@dataclass(frozen=True)
class Traced(Reply):
    """What the target does to a model on the way to running it; see ``Runtime.trace``."""

    found: dict[str, Any]


@dataclass(frozen=True)
class Lowered(Reply):
    """Whether the target runs another form of the model, which is written then."""

    lowered: bool


@dataclass(frozen=True)
class Looked(Reply):
    """What there is in a place.

    Attributes:
        found: ``host``, ``Python``, ``packages`` and so on; see ``worker/facts.py``.
        target: What the target says of itself there, its ``version`` for one; empty if it is not started.
    """

    found: dict[str, Any]
    target: dict[str, Any]


@dataclass(frozen=True)
class Executed(Reply):
    """How a command has ended.

    Attributes:
        code: Its exit status, or minus the signal's number.
        left_out: How many bytes of its output are not in the log, because it printed too much.
    """

    code: int
    left_out: int = 0


@dataclass(frozen=True)
class Request(Generic[R_co]):
    """Something for a worker to do.

    Attributes:
        target: The runtime that it is about.
    """

    target: TargetSettings


@dataclass(frozen=True)
class About(Request[Started]):
    """Start the target, and say how it lowers."""


@dataclass(frozen=True)
class Build(Request[Done]):
    """Write what the target makes of a model.

    Attributes:
        model: The ONNX file.
        inputs: What it will be fed, ``.npz``.
        to: Where the engine goes.
    """

    model: Path
    inputs: Path
    to: Path


@dataclass(frozen=True)
class Collect(Request[Done]):
    """Run a model and keep every output.

    Attributes:
        model: The ONNX file.
        inputs: What it is fed, ``.npz``; it may hold more than the model takes.
        to: An ``.npz`` file, or else the folder of an ``ActivationStore``.
        feeds: A store with more to feed.
        append: Whether to add to the store that is there.
    """

    model: Path
    inputs: Path
    to: Path
    feeds: Path | None = None
    append: bool = False


@dataclass(frozen=True)
class Series(Request[Done]):
    """Run a model on one input after the other, and keep the outputs of each.

    Attributes:
        model: The ONNX file.
        inputs: What it is fed, ``.npz``, in this order.
        to: Where the outputs of each go, ``.npz``.
        sessions: Whether all inputs share ``one`` session; or ``each`` has its own, or each kind of ``shapes``.
    """

    model: Path
    inputs: tuple[Path, ...]
    to: tuple[Path, ...]
    sessions: Literal["one", "each", "shapes"] = "one"


@dataclass(frozen=True)
class Sample:
    """One input sample.

    Attributes:
        inputs: The values fed, ``.npz``.
        golden: What should come out: ``.npz``, or the folder of an ``ActivationStore``.
    """

    inputs: Path
    golden: Path


@dataclass(frozen=True)
class Compare(Request[Compared]):
    """Run a model and compare each of its outputs that the reference has a value of.

    Attributes:
        model: The ONNX file.
        samples: On what; one after the other, until one does not match.
        tolerance: How far a tensor may be off.
        names: What to compare; all outputs where empty.
        every: Whether to go on after a sample that does not match.
        unfused: Whether to see all that the target does not fuse away, rather than the outputs alone.
        layers: Whether to say what the target makes of the model.
        warm_up: How often it runs before it is timed; ``None`` if it is not.
        timed_for: Seconds of timed runs after which there is no other one; ``None`` for all of them, however long.
        details: Whether to measure all there is of an error.
        fail_fast: Whether to stop at the first output that does not match.
        fed: Activations of the reference that are fed too: tensor by the name of the input.
        feeds: A store with more to feed.
        keep: Outputs that go into a store of their own,
        keep_in: which is this one; added to it if ``feeds`` is given.
        save_outputs: Where the outputs of each sample go, ``.npz``.
        same: Whether the session is that of the last such request, if that was about the same model on the same target.
    """

    model: Path
    samples: tuple[Sample, ...]
    tolerance: ToleranceOptions
    names: tuple[str, ...] = ()
    every: bool = False
    unfused: bool = False
    layers: bool = False
    warm_up: int | None = None
    timed_for: float | None = None
    details: bool = False
    fail_fast: bool = False
    fed: Mapping[str, str] = field(default_factory=dict)
    feeds: Path | None = None
    keep: tuple[str, ...] = ()
    keep_in: Path | None = None
    save_outputs: tuple[Path, ...] = ()
    same: bool = False


@dataclass(frozen=True)
class Scoring:
    """By what outputs on a set of samples are scored.

    Attributes:
        data: The folder of an ``Evaluation``.
        metric: The metric, as the user names it.
        lower_is_better: Whether less is better, of the user's own.
        bound: What it must reach.
        error: How likely a wrong verdict may be; 0 for that of the whole set.
    """

    data: Path
    metric: str
    lower_is_better: bool = False
    bound: float | None = None
    error: float = 0.0


@dataclass(frozen=True)
class Measure(Request[Measured]):
    """Score what a model makes of a set of samples.

    Attributes:
        model: The ONNX file, which may be a piece of the model that is scored.
        scoring: By what.
        reference: Runs the rest of the model, where this is a piece.
        before: A model that makes of a sample what the piece is fed.
        after: A model that makes the outputs of what the piece makes.
        layers: Whether to say what the target makes of the model.
        warm_up: How often it runs before it is timed; ``None`` if it is not.
    """

    model: Path
    scoring: Scoring
    reference: TargetSettings | None = None
    before: Path | None = None
    after: Path | None = None
    layers: bool = False
    warm_up: int | None = None


@dataclass(frozen=True)
class Describe(Request[Described]):
    """Say what the target's prebuilt engine is made of."""


@dataclass(frozen=True)
class Trace(Request[Traced]):
    """Say what the target does to a model on the way to running it.

    Attributes:
        model: The ONNX file.
        inputs: What it will be fed, ``.npz``.
    """

    model: Path
    inputs: Path


@dataclass(frozen=True)
class Lower(Request[Lowered]):
    """Write the form of a model that the target really runs, if that is another.

    Attributes:
        model: The ONNX file.
        to: Where it goes.
    """

    model: Path
    to: Path


@dataclass(frozen=True)
class Look(Request[Looked]):
    """Say what there is in the place.

    Attributes:
        packages: The packages whose versions are wanted.
        start: Whether the target is started there too, for what it says of itself.
    """

    packages: tuple[str, ...]
    start: bool = True


@dataclass(frozen=True)
class Execute(Request[Executed]):
    """Run a command in the place; what it prints goes to the log.

    Attributes:
        argv: Its words; :data:`PLACE_FOLDER` and :data:`PLACE_PYTHON` in them are what these are there.
        files: What lies in its folder: files here, by their path there.
        environment: Variables beside the place's own.
        cwd: Where it runs, if not in that folder.
    """

    argv: tuple[str, ...]
    files: Mapping[str, Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True)
class Order:
    """A request on its way to a worker.

    Attributes:
        request: What to do.
        log: Where what the runtime prints goes.
        cwd: The folder that paths are relative to.
    """

    request: Request[Reply]
    log: Path
    cwd: Path


@dataclass(frozen=True)
class Answer:
    """A reply on its way back.

    Attributes:
        reply: What came of it.
        host_bytes: What the worker holds of memory.
        gpu_bytes: What is in use of its GPU, by anybody.
        peak_bytes: The most memory that it held since it began.
        spent: Seconds by what they were spent on; see ``probe/times.py``.
    """

    reply: Reply
    host_bytes: int = 0
    gpu_bytes: int = 0
    peak_bytes: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)


BEGUN = {"event": "begun"}
"""Sent when a worker has read an order; if it ends before, that has nothing to do with the model."""
READY = {"event": "ready"}
"""Sent when the runtime is loaded: the time until then does not count for the model."""
