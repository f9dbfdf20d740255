"""The outcome of a probe, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from bisect_trt.aliases import Fields, Plain
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.messages import error_class
from bisect_trt.tensors.comparison import TensorComparison, required_severity
from bisect_trt.worker.protocol import CANCELLED, CRASHED, OVER_MEMORY, Failed

SLOW = "slow"
"""The signature of a time past its limit."""
UNDECIDED = "undecided"
"""The signature where noise hides which side of a limit a measurement lies on."""


class Ending(str, Enum):
    """The end of a check, before the verdict."""

    FAILED = "failed"
    """The check failed."""
    MISMATCHED = "mismatched"
    """The built-in check found an output that is off."""
    PASSED = "passed"
    """The check passed."""
    SKIPPED = "skipped"
    """The check cannot judge this candidate."""
    OTHER = "other"
    """It broke in another way than the one asked for."""
    BROKEN = "broken"
    """It was killed, ran out of time, or the runtime refused the model: a failure if the original's
    is of this kind."""


class Reason(str, Enum):
    """Reasons of an outcome, and circumstances; :mod:`bisect_trt.report.outcomes` has the sentences."""

    EXIT = "exit"
    IGNORED_EXIT = "ignored-exit"
    SKIP_EXIT = "skip-exit"
    OTHER_EXIT = "other-exit"
    OTHER_PASS = "other-pass"
    OUTPUT_LEFT_OUT = "output-left-out"
    LOG_GONE = "log-gone"
    KILLED = "killed"
    KILLED_OFTEN = "killed-often"
    TIME_OUT = "time-out"
    NOT_NEEDED = "not-needed"
    RAISED = "raised"
    CHECK_FAILS = "check-fails"
    CHECK_PASSES = "check-passes"
    CHECK_SKIPS = "check-skips"
    PROMPT_GOOD = "prompt-good"
    PROMPT_BAD = "prompt-bad"
    PROMPT_SKIPS = "prompt-skips"
    BUILDS = "builds"
    MATCH = "match"
    NOT_COMPARED = "not-compared"
    WORST = "worst"
    """The output of ``Outcome.comparisons`` that is off most, by name."""
    SAMPLES_MATCH = "samples-match"
    SAMPLES_FAIL = "samples-fail"
    SCORE = "score"
    """``Outcome.metric``, with its unit."""
    NO_BASELINE = "no-baseline"
    DEVICE_MEMORY = "device-memory"
    HOST_MEMORY = "host-memory"
    BUILD_TIME = "build-time"
    ENGINE_SIZE = "engine-size"
    LATENCY = "latency"
    PERCENTILE = "percentile"
    LOST_TIME = "lost-time"
    RATIO = "ratio"
    TOO_SLOW = "too-slow"
    TIME_UNDECIDED = "time-undecided"
    FUSED = "fused"
    PIECE_REFUSED = "piece-refused"
    UNSUPPORTED = "unsupported"
    SAMPLE = "sample"
    MILDER = "milder"
    AKIN = "akin"
    RUN = "run"
    RATE = "rate"


class Finding(msgspec.Struct, frozen=True):
    """A reason with its figures, or a circumstance of one."""

    reason: Reason
    figures: tuple[str | int | float, ...] = ()


class Layer(msgspec.Struct):
    """The values of a layer that :func:`~bisect_trt.targets.choices.choices_of_layers` reads, to validate a saved layer."""

    name: str
    tactic: str | int | None = None
    tensors: list[str] | None = None
    precisions: list[str] | None = None
    formats: list[str] | None = None


class MetricScore(msgspec.Struct, frozen=True):
    """The score of a candidate by a metric.

    Attributes:
        name: The name of the metric.
        reference: The score of the reference.
        candidate: The score of the candidate.
        bound: The bound of the score; ``None`` if it is measured only.
        lower_is_better: Whether a lower score is better.
        passed: Whether the score is within the bound; ``None`` without one.
        samples: The number of samples.
        of: The number of samples of the whole set.
        first: The first step that is past the bound alone, and its score, where samples are steps;
            ``None`` without one.
    """

    name: str
    reference: float
    candidate: float
    bound: float | None
    lower_is_better: bool
    passed: bool | None
    samples: int
    of: int
    first: tuple[int, float] | None = None


@dataclass(frozen=True)
class Outcome:
    """The report of a check on one candidate.

    Attributes:
        ending: How it ended.
        signature: The kind of failure, the same for the same failure on another model:
            ``mismatch``, ``exit 1``, ``signal SIGSEGV``, ``time-out``, or a message with its
            numbers masked.
        reason: The words of code that is not this program's: a plug-in, a script, a runtime.
        seconds: The time of all runs of the check; where a check reports none, the prober measures
            it.
        tail: The last lines of what the check printed, where it broke in another way or failed by
            its exit status alone.
        comparisons: What the built-in check saw of each output.
        runs: How often the check ran.
        failures: How many of the runs failed; only measured of the original.
        severity: How many times the worst output is past the tolerance, weighed by
            ``severity_weight``; ``None`` where any mismatch counts.
        latency_ms: How long one run took, the fastest of several, where that was measured.
        layers: The engine's layers, where they were asked for; see ``Session.layers``.
        sample: The number of the input sample that this was seen on, from 1, where there are
            several.
        place: Where it ran, as it was asked for, if not here.
        errors: Of each fresh sample, the largest error over its tolerance, where errors decide the
            verdict.
        metric: Its score, where a metric is the check.
        measured: Its times and memory, where limits are the check.
        failed: The reply of the runtime, where that does not run the model.
        findings: Reasons and circumstances, in the order of the sentence.
    """

    ending: Ending
    signature: str
    reason: str = ""
    seconds: float = 0.0
    tail: str = ""
    comparisons: tuple[TensorComparison, ...] = ()
    runs: int = 1
    failures: int = 1
    severity: float | None = None
    latency_ms: float | None = None
    layers: tuple[Fields, ...] = ()
    sample: int | None = None
    place: str | None = None
    errors: tuple[float, ...] = ()
    metric: MetricScore | None = None
    measured: Plain | None = None
    failed: Failed | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def message(self) -> str:
        """The words of the runtime, or of other code that is not this program's."""
        return self.reason if self.failed is None else self.failed.message

    def seeing(self, reason: Reason, *figures: str | int | float) -> Outcome:
        """Return the outcome with one more finding."""
        return replace(self, findings=(*self.findings, Finding(reason, figures)))

    @property
    def cancelled(self) -> bool:
        """Whether the check was ended because its answer was not needed any more."""
        return self.signature == CANCELLED

    def judge(self, original: str | None, severity: float | None = None) -> Verdict:
        """Return the verdict, given the signature of the original's failure and its severity, where they are known."""
        if self.ending is Ending.FAILED:
            same = original is None or raised(original) == raised(self.signature)
            return Verdict.FAIL if same else Verdict.UNRESOLVED
        if self.ending is Ending.MISMATCHED:
            if self.is_milder(severity):
                return Verdict.PASS
            # A search for a crash or a refused build is not answered by a wrong number.
            return (
                Verdict.FAIL
                if original is None or not original.startswith(BROKEN_PREFIXES)
                else Verdict.UNRESOLVED
            )
        if self.ending is Ending.PASSED:
            return Verdict.PASS
        if self.ending is Ending.BROKEN and original in (None, self.signature):
            return Verdict.FAIL
        return Verdict.UNRESOLVED

    def is_milder(self, original: float | None) -> bool:
        """Whether it mismatches, but not as the original with this severity does."""
        if self.ending is not Ending.MISMATCHED or self.severity is None or original is None:
            return False
        return self.severity < required_severity(original)

    def is_akin(self, original: str | None) -> bool:
        """Whether the runtime broke in the same function as on the original, with this signature, but on other operands."""
        if self.ending is not Ending.BROKEN or original is None or original == self.signature:
            return False
        return error_class(original) == error_class(self.signature)


BARE_EXIT = "exit "
"""Start of the signature of a check command that ended by itself and met no condition."""


def raised(signature: str) -> str:
    """Return the class of the Python exception with which a check command ended, and words that say that the file is too new."""
    return signature.partition(": ")[2] if signature.startswith(BARE_EXIT) else ""


BROKEN_PREFIXES = (CRASHED, "time-out", OVER_MEMORY, "build: ", "run: ")
"""Starts of the signatures of ``Ending.BROKEN``."""
