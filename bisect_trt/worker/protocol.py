"""Requests to a worker and their replies: frozen structs, each request with its type of reply.

A worker on this machine runs the same interpreter and the same package as its driver, so an
:class:`Order` and its :class:`Answered` are pickled. What goes to another machine is JSON; see
:mod:`bisect_trt.worker.connection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import Struct

from bisect_trt.aliases import Fields, Names, Plain
from bisect_trt.worker.place import Place, Seen

if TYPE_CHECKING:
    # A driver starts its first worker before it imports NumPy.
    from bisect_trt.targets.base import TargetSettings
    from bisect_trt.tensors.comparison import TensorComparison
    from bisect_trt.tensors.metrics import Evaluation
    from bisect_trt.tensors.tolerance import ToleranceOptions

CANCELLED = "cancelled"
"""The signature of a check that was ended because its answer was not needed any more."""
LOST = "lost"
"""The signature of a check that another process has ended three times, which is no verdict about
the candidate."""
CRASHED = "signal "
"""Start of the signature of a crash."""
OVER_MEMORY = "memory limit"
"""The signature of a check that was ended because it took too much memory."""
R_co = TypeVar("R_co", covariant=True)
"""The reply to a request that succeeds."""


class Failed(Struct, frozen=True):
    """The runtime does not run the model; the reply to any request.

    Attributes:
        kind: Whether it refuses to ``build`` it or fails to ``run`` it; whether the worker ended by
            a ``crash``, its ``time-out`` or its limit of ``memory``, was ``cancelled``, or was
            ``lost``: ended by something else, which says nothing of the model.
        message: The reason.
        signature: The kind of failure, the same for the same failure of another model; see
            ``Outcome``.
        poisoned: Whether that worker fails at everything else too.
    """

    kind: Literal["build", "run", "crash", "time-out", "memory", "cancelled", "lost"]
    message: str
    signature: str
    poisoned: bool = False

    def describe(self, runtime: str) -> str:
        """Return how the ``runtime`` ends, in a sentence."""
        sentences = {
            "build": f"{runtime} refuses the model: {self.message}",
            "run": f"{runtime} fails while running: {self.message}",
            "crash": f"{runtime} crashed ({self.signature.removeprefix(CRASHED)})",
        }
        return sentences.get(self.kind, self.message)


class Compared(Struct, frozen=True):
    """A model's tensors compared with the reference's, on every input sample that was run.

    Attributes:
        skipped: Outputs that the target does not return, with the reason.
        layers: The layers of the engine; see ``RuntimeSession``.
        latency_ms: The fastest of several runs, where that was asked for.
    """

    comparisons: tuple[TensorComparison, ...] = ()
    skipped: Mapping[str, str] = {}
    layers: tuple[Fields, ...] = ()
    latency_ms: float | None = None


class Scored(Struct, frozen=True):
    """The score of a model, and whether it is within its bound (``None`` without one).

    Attributes:
        layers: As for :class:`Compared`, and so is ``latency_ms``.
        first: The first step past the bound, and its score; ``None`` without one.
    """

    value: float
    passed: bool | None = None
    layers: tuple[Fields, ...] = ()
    latency_ms: float | None = None
    first: tuple[int, float] | None = None


class Blocks(Struct, frozen=True):
    """The timed blocks of a model and its baseline.

    Attributes:
        seconds: Of each block of the model, its fastest run; or each run.
        baseline: Of each block of the baseline; empty without one.
        over: The number of them in which the model took too long.
        slow: Whether it takes too long; ``None`` if that was not known in the time given, or
            nothing was timed.
    """

    seconds: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()
    over: int = 0
    slow: bool | None = None


class Measured(Blocks, frozen=True):
    """The time and memory that a model takes.

    Attributes:
        build_s: Seconds that it takes to build or load, the fastest time.
        memory: Bytes that it takes beyond what the process had before, by the kind: ``build`` and
            ``run`` are peaks of the host's memory, ``device`` is the GPU's in use.
        idle_s: Seconds that a model that computes nothing loses to the baseline.
        refused: Why the baseline does not run it, if so.
    """

    build_s: float = 0.0
    memory: Mapping[str, int] = {}
    idle_s: float = 0.0
    refused: str | None = None


class Request(Struct, Generic[R_co], frozen=True):
    """A request to a worker about a runtime."""

    target: TargetSettings


class OnModel(Request[R_co], frozen=True):
    """A request about an ONNX file."""

    model: Path


class About(Request[Plain], frozen=True):
    """Start the target, and return its facts; see :mod:`bisect_trt.targets.runtime`."""


class BuildEngine(OnModel[None], frozen=True):
    """Build a model for what it will be fed (``.npz``); the target's settings name the file of its engine."""

    inputs: Path


class Collect(OnModel[None], frozen=True):
    """Run a model on one input after the other in one session, and keep every output.

    Attributes:
        inputs: What it is fed, ``.npz``, in this order; each may hold more than the model takes.
        to: The outputs of each: an ``.npz`` file, or else the folder of an ``ActivationStore``.
        append: Whether to feed what is in that store too, and to add to it.
        state: The outputs that are fed to the next run too, by input.
        before: The outputs of the run before the first one, ``.npz``.
    """

    inputs: tuple[Path, ...]
    to: tuple[Path, ...]
    append: bool = False
    state: Mapping[str, str] = {}
    before: Path | None = None


class Sample(Struct, frozen=True):
    """One input sample (``.npz``), and the expected values: ``.npz``, or the folder of an ``ActivationStore``.

    Attributes:
        before: The outputs of the step before (``.npz``), where the model has a state.
    """

    inputs: Path
    golden: Path
    before: Path | None = None


class Compare(OnModel[Compared], frozen=True):
    """Run a model and compare each of its outputs that the reference has a value of.

    Attributes:
        samples: On these; one after the other, until one does not match.
        tolerance: How far a tensor may be off.
        names: The tensors to compare; all outputs where empty.
        every: Whether to go on after a sample that does not match.
        layers: Whether to return the layers of the engine.
        timed: Whether to measure how long it runs.
        details: Whether to measure all there is of an error.
        fed: Activations of the reference that are fed too: tensor by the name of the input.
        save_outputs: The files of the outputs of each sample, ``.npz``.
        same: Whether to use the session of the last such request, if that had the same model and
            target.
        state: The outputs of the step before that are fed too, by input.
        feeds_back: Whether each sample after the first is fed the state that the model itself
            returned for the one before.
    """

    samples: tuple[Sample, ...]
    tolerance: ToleranceOptions
    names: Names = ()
    every: bool = False
    layers: bool = False
    timed: bool = False
    details: bool = False
    fed: Mapping[str, str] = {}
    save_outputs: tuple[Path, ...] = ()
    same: bool = False
    state: Mapping[str, str] = {}
    feeds_back: bool = False


class Scoring(Struct, frozen=True):
    """The scoring of outputs by a metric, as the user names it, on samples."""

    data: Evaluation
    metric: str
    lower_is_better: bool = False
    bound: float | None = None


class Score(OnModel[Scored], frozen=True):
    """Score a model, or a piece of the model that is scored, on a set of samples.

    The reference runs the rest of the model, where this is a piece: a model ``before`` computes
    from a sample what the piece is fed, one ``after`` the outputs from the piece's. It may also
    return the layers of the engine, and measure how long it runs.
    """

    scoring: Scoring
    reference: TargetSettings | None = None
    before: Path | None = None
    after: Path | None = None
    layers: bool = False
    timed: bool = False


class Measure(OnModel[Measured], frozen=True):
    """Build a model, run it, and time it beside a baseline until it is known whether it takes too long.

    Attributes:
        inputs: What it is fed, ``.npz``.
        budget_s: Seconds that the timing may take; ``None`` for no timing.
        baseline: The runtime that it is compared with, if any.
        beside: The place of the baseline, if it is not the worker itself.
        baseline_model: The ONNX file that the baseline runs, if it is another one.
        ratio: The ratio to the baseline past which a block is too long.
        lost_s: Instead of the ratio: the seconds lost to the baseline past which a block is too
            long, and those up to which it is not, beyond what a model that computes nothing loses.
            What lies between may be called either.
        limit_s: Seconds past which a block is too long.
        share: The share of single runs that has to keep ``limit_s``; ``None`` where the fastest run
            of each block counts.
        build_limit_s: Seconds past which a build is timed again, three times at most.
        piecewise: Whether pieces of the model are compared by what they lose, so that what an idle
            model loses has to be known.
    """

    inputs: Path
    budget_s: float | None = None
    baseline: TargetSettings | None = None
    beside: Place | None = None
    baseline_model: Path | None = None
    ratio: float | None = None
    lost_s: tuple[float, float] | None = None
    limit_s: float | None = None
    share: float | None = None
    build_limit_s: float | None = None
    piecewise: bool = True

    def lost(self, seconds: float, baseline: float) -> float:
        """Return the seconds that a block takes longer than the baseline's, or than the ratio allows if that is less than 1."""
        return seconds - min(self.ratio or 0.0, 1.0) * baseline

    def judge(self, seconds: float, baseline: float, idle_s: float = 0.0) -> tuple[bool, bool]:
        """Return whether a block is too long beside the baseline's, and whether it is not; with ``lost_s`` it may be both.

        Args:
            seconds: The time of the block.
            baseline: The time of the baseline's block beside it.
            idle_s: Seconds that any model loses beside the baseline.
        """
        if self.limit_s is not None and (seconds > self.limit_s or self.ratio is None):
            return seconds > self.limit_s, seconds <= self.limit_s
        if self.ratio is None:
            return False, True
        if self.lost_s is None:
            return seconds > self.ratio * baseline, seconds <= self.ratio * baseline
        lost = self.lost(seconds, baseline) - idle_s
        return lost > self.lost_s[0], lost <= self.lost_s[1]


class Describe(Request[Fields], frozen=True):
    """Return the contents of the target's prebuilt engine, as plain values."""


class Trace(OnModel[Fields], frozen=True):
    """Return what the target reports of a model for what it will be fed (``.npz``); see ``Runtime.trace``.

    Attributes:
        what: Its changes to the model before running it, the time of each layer, the layers that its
            compiler makes, or the provider of each node.
        beside: The place of the target, if it is not the worker itself.
    """

    inputs: Path
    what: Literal["trace", "profile", "fusions", "placement"] = "trace"
    beside: Place | None = None


class Lower(OnModel[bool], frozen=True):
    """Write the form of a model that the target really runs to a file, and return whether that is another than the model."""

    to: Path


class Look(Request[Seen], frozen=True):
    """Return the versions of packages in a place, its hardware, and, unless ``start`` is false, the facts of the target there."""

    packages: Names
    start: bool = True


class Order(Struct, frozen=True):
    """A request on its way to a worker, with the log of what the runtime prints, and the folder that paths are relative to."""

    request: Request[Any]
    log: Path
    cwd: Path


class Answered(Struct, frozen=True):
    """A reply, or an exception to raise where the request was made; and the memory of the worker, see ``host.held``."""

    reply: Any
    memory: Mapping[str, int] = {}


BEGUN = {"work": "starting"}
"""Sent when a worker has read an order; if it ends before, that has nothing to do with the
model."""
READY = {"work": "building"}
"""Sent when the runtime is loaded: the time until then does not count for the model."""
LOADED = {"work": "running"}
"""Sent when the target has built or loaded the model, with ``run`` and ``runs`` before each of several samples."""
