"""Does a set hold on samples that the search has not seen? If not, it grows until it does: the safe set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bisect_trt.mixed_precision.samples import Fresh, Round
from bisect_trt.mixed_precision.task import Reason, Task
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import ENGINE, SEVERE, BuiltinCheck, FreshCheck
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.runner import Runner
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.grow import grow_until_held
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.tolerance import Precision

CONFIDENCE = 0.95
_ROUNDS = 5
_LEAST_QUESTIONS = 16
"""Growing may always ask so many questions; else as many as the search for the minimal set asked."""
_MOST_FAILING = 16
_LOOKED_AT = 2
"""Of the samples that fail in a round, so many have to pass from then on, and the activations of so many are looked at."""


@dataclass(frozen=True)
class Validation:
    """How a set did on samples that the search had not seen.

    Attributes:
        samples: The number of samples.
        passed: The number that match.
        severe: The number that are off by NaN, Inf, or more than ten times the tolerance.
        worst: The largest error over its tolerance.
        drawn: How the samples were made, in words.
        learned: The number that the set has grown for, so that they are fresh no more.
    """

    samples: int
    passed: int
    severe: int
    worst: float
    drawn: str
    learned: int = 0

    @property
    def fails_under(self) -> float:
        """The share of all such samples of which it is 95% sure that fewer fail; 1 where nothing was learned.

        C. Clopper and E. Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", 1934.
        """
        return upper_bound(self.samples - self.learned, self.samples - self.passed)

    def describe(self) -> str:
        """A sentence without its end."""
        held = f"held on {self.passed} of {self.samples} fresh samples"
        if self.learned:
            held += f", {self.learned} of which it was mended on"
        worst = in_tolerances(self.worst) if math.isfinite(self.worst) else "NaN or Inf"
        return f"{held} (95% sure that under {self.fails_under:.1%} fail), worst error {worst}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; the worst error is ``null`` for NaN or Inf."""
        return {
            "samples": self.samples,
            "passed": self.passed,
            "severe": self.severe,
            "worst_error": self.worst if math.isfinite(self.worst) else None,
            "confidence": CONFIDENCE,
            "fails_under": self.fails_under,
            "learned": self.learned,
            "drawn": self.drawn,
            "sentence": self.describe(),
        }


def in_tolerances(error: float) -> str:
    """An error in units of the tolerance, in words."""
    return f"{error:.2g} of the tolerance" if error <= 1 else f"{error:.3g} times the tolerance"


def upper_bound(samples: int, failures: int, confidence: float = CONFIDENCE) -> float:
    """The largest rate of failures at which so few are still as likely as ``1 - confidence``."""
    if failures >= samples:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        few = sum(math.comb(samples, k) * rate**k * (1 - rate) ** (samples - k) for k in range(failures + 1))
        low, high = (low, rate) if few < 1 - confidence else (rate, high)
    return high


@dataclass(frozen=True)
class Safe:
    """The set that is recommended.

    Attributes:
        units: The units that are kept.
        reasons: The rule by which units outside the minimal set are kept, and the reason in words.
        validation: How it did on fresh samples; ``None`` if it was held against none.
        why: Why not, then.
    """

    units: Subset
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    validation: Validation | None = None
    why: str | None = None


def find_safe(task: Task, minimum: Minimum, fresh: Fresh) -> Safe:
    """Grow the minimal set until it holds on fresh samples, or the budget for that is spent.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check = task.prober.runner.check
    if isinstance(check, PromptCheck):
        return Safe(minimum.units, why="you are the check")
    if isinstance(check, MetricCheck):
        return Safe(minimum.units, why="the metric is of a whole set, on which the answer is measured")
    if not isinstance(check, BuiltinCheck):
        return Safe(minimum.units, why="what a check of yours says of other inputs is for it to say")
    return _Growth(task, minimum, fresh).run()


class _Growth:
    """The loop's state: the failing samples seen, and the last validation."""

    def __init__(self, task: Task, minimum: Minimum, fresh: Fresh) -> None:
        self._task = task
        self._minimum = minimum
        self._fresh = fresh
        self._round = 0
        self._failing = Round((), ())
        self._learned: set[int] = set()  # of the user's samples, which are the same in each round
        self._worst: list[Sample] = []
        self._good: tuple[Subset, Validation] | None = None
        self._why: str | None = None

    def run(self) -> Safe:
        task, fresh, minimal = self._task, self._fresh, self._minimum.units
        start = minimal | task.space.certain
        if start != minimal and not self._passes_on_given(start):
            start = minimal
        if fresh.why_none is not None:
            return self._safe(start, None, fresh.why_none)
        task.console.step("Does it hold on other inputs?")
        task.console.say(f"  fresh samples: {fresh.drawn}")
        questions = max(len(task.prober.ledger.records), _LEAST_QUESTIONS)
        grow_until_held(
            start,
            lambda: task.space.order(self._worst),
            self._holds_on_new,
            self._clears,
            rounds=_ROUNDS,
            most=questions,
        )
        if self._good is None:
            return self._safe(start, None, self._why)
        units, validation = self._good
        if validation.passed < validation.samples and not fresh.given:
            task.console.say(
                f"  {validation.samples - validation.passed} of {validation.samples} still fail: before it is shipped, hold it "
                "against samples of the deployment (precision --validation-data, or --metric over a set)"
            )
        return self._safe(units, validation, None)

    def _safe(self, units: Subset, validation: Validation | None, why: str | None) -> Safe:
        minimal, certain = self._minimum.units, self._task.space.certain
        known = dict.fromkeys(certain, ("safe", "known to break on some input, whatever the samples given"))
        grown = ("fresh sample", "without it and others fresh samples fail")
        reasons = {unit: known.get(unit, grown) for unit in units - minimal}
        return Safe(units, reasons, validation, why)

    def _passes_on_given(self, units: Subset) -> bool:
        """Whether a larger set passes on the samples that were given; its engine is the one to keep from here on."""
        task = self._task
        shelf = getattr(task.prober.runner.check, "shelf", None)
        if shelf is not None:
            shelf.clear()
        return task.prober.probe(task.lowering.candidate(units)).verdict is Verdict.PASS

    def _holds_on_new(self, units: Subset) -> bool:
        """Hold a set against a new round; ``True`` ends the loop."""
        task, fresh = self._task, self._fresh
        if self._good is not None and not self._passes_on_given(units):
            return True  # more units did harm, so the set before stays the answer
        samples = fresh.round(self._round)
        self._round += 1
        if samples is None:
            self._why = "the reference does not run on other inputs"
            return True
        outcome = hold_against(task, units, samples, f"{len(samples.files)} fresh samples")
        if not outcome.errors:
            self._why = f"they cannot be compared: {outcome.reason}"
            return True
        learned = len(self._learned) if fresh.given else 0
        self._good = units, validated(outcome, fresh, learned)
        failing = failing_places(outcome.errors)
        if len(failing) <= len(outcome.errors) * task.space.allowed and max(outcome.errors) <= SEVERE:
            return True
        self._learned.update(failing)
        more = samples.only(failing[:_MOST_FAILING])
        self._failing = samples.only(sorted(self._learned)) if fresh.given else self._failing + more
        self._worst += more.samples[:_LOOKED_AT]
        return False

    def _clears(self, units: Subset) -> Verdict:
        """Whether a set passes on all failing samples seen."""
        count = len(self._failing.files)
        what = f"the {'1 sample' if count == 1 else f'{count} samples'} that failed"
        passed = hold_against(self._task, units, self._failing, what).ending is Ending.PASSED
        return Verdict.PASS if passed else Verdict.FAIL


def failing_places(errors: tuple[float, ...]) -> list[int]:
    """The samples whose error is past its tolerance, the worst first."""
    return sorted((place for place, error in enumerate(errors) if error > 1), key=lambda place: -errors[place])


def hold_against(task: Task, units: Subset, samples: Round, what: str) -> Outcome:
    """Probe a set on some samples.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check = task.prober.runner.check
    assert isinstance(check, BuiltinCheck)
    tolerance = check.tolerance
    if task.settings.tolerance is not None and not task.settings.bits:
        tolerance = replace(task.settings.tolerance, precision=Precision(task.settings.precision))
    fresh = FreshCheck(check, samples.files, tolerance)
    runner = Runner(fresh, task.subject.workspace, task.subject.reference)
    runner.flakiness = task.prober.runner.flakiness
    candidate = task.lowering.candidate(units)
    engine = task.subject.workspace.files(candidate.key).folder / ENGINE
    candidate = replace(candidate, engine=engine) if engine.exists() else candidate
    title = f"{candidate.title}, on {what}"
    record = Prober(runner, task.prober.ledger, 1).probe(_on(replace(candidate, title=title), what, samples))
    outcome = task.prober.ledger.outcome(record.key)
    assert outcome is not None, "it was probed"
    return outcome


def _on(candidate: Candidate, what: str, samples: Round) -> Candidate:
    """The same set is another candidate on other samples."""
    proto = type(candidate.proto)()
    proto.CopyFrom(candidate.proto)
    names = " ".join(each.inputs.name for each in samples.files)
    proto.metadata_props.add(key="bisect-trt.samples", value=f"{what}: {names}")
    return replace(candidate, made=proto)


def validated(outcome: Outcome, fresh: Fresh, learned: int) -> Validation:
    """How a set did in a round."""
    errors = outcome.errors
    severe = sum(error > SEVERE for error in errors)
    return Validation(
        len(errors), sum(error <= 1 for error in errors), severe, max(errors, default=math.inf), fresh.drawn, learned
    )
