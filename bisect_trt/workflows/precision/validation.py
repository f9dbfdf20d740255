"""Does a set hold on samples that the search has not seen? How many of them, how sure that makes, and how near it came."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.fresh_check import SEVERE, FreshCheck
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.shelf import ENGINE
from bisect_trt.search.oracle import Subset
from bisect_trt.tensors.tolerance import Precision
from bisect_trt.workflows.precision.rounds import Fresh, Round
from bisect_trt.workflows.precision.task import Task

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Validation:
    """How a set did on samples that the search had not seen.

    Attributes:
        samples: How many.
        passed: How many of them match.
        severe: How many are off by NaN, Inf, or more than ten times the tolerance.
        worst: The largest error over its tolerance.
        drawn: What the samples are, in words.
        learned: How many of them an earlier round had failed on, so that they are fresh no more.
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
    candidate = built(task, task.lowering.candidate(units))
    title = f"{candidate.title}, on {what}"
    record = Prober(runner, task.prober.ledger, 1).probe(_told_apart(replace(candidate, title=title), what, samples))
    outcome = task.prober.ledger.outcome(record.key)
    assert outcome is not None, "it was probed"
    return outcome


def built(task: Task, candidate: Candidate) -> Candidate:
    """A candidate with the engine that was built of it, where that is kept."""
    engine = task.subject.workspace.files(candidate.key).folder / ENGINE
    return replace(candidate, engine=engine) if engine.exists() else candidate


def _told_apart(candidate: Candidate, what: str, samples: Round) -> Candidate:
    """The same set is another candidate on other samples."""
    proto = type(candidate.proto)()
    proto.CopyFrom(candidate.proto)
    names = " ".join(each.inputs.name for each in samples.files)
    proto.metadata_props.add(key="bisect-trt.samples", value=f"{what}: {names}")
    return replace(candidate, made=proto)


def validated(outcome: Outcome, fresh: Fresh, learned: int) -> Validation:
    """What came of a round."""
    errors = outcome.errors
    severe = sum(error > SEVERE for error in errors)
    return Validation(
        len(errors), sum(error <= 1 for error in errors), severe, max(errors, default=math.inf), fresh.drawn, learned
    )
