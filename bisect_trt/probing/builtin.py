"""The built-in check: run the candidate on the target and compare with the reference."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.probing.outcome import CANCELLED, Ending, Outcome
from bisect_trt.probing.shelf import ENGINE, EngineShelf
from bisect_trt.probing.workers.pool import WorkerDied, WorkerPool
from bisect_trt.probing.workers.process import Cancel, ProcessEnd
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.targets.base import Engines
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions


@dataclass(frozen=True)
class BuiltinCheck:
    """Compares a target with the reference, in a worker process.

    Attributes:
        workers: Who runs the models.
        target: The runtime under suspicion.
        tolerance: How far it may be off.
        timeout: Seconds a candidate may take.
        timed: Whether to measure how long a candidate runs, and to ask of which layers its engine is made.
        shelf: Where the engines of candidates that pass stay, if any shall.
    """

    workers: WorkerPool
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    parallel: bool = True
    timed: bool = False
    shelf: EngineShelf | None = None

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: A tolerance names no output.
            UnavailableError: The target's runtime is not installed.
        """
        request: dict[str, Any] = {"op": "compare", "model": str(files.model), "log": str(files.log)}
        request |= {"inputs": str(files.inputs), "golden": str(files.golden)}
        request |= {"target": self._built(files).to_json(), "tolerance": self.tolerance.to_json()}
        request |= {"timed": self.timed, "layers": self.timed}
        given = bool(self.tolerance.atol or self.tolerance.rtol)  # what the user gives is meant to the letter
        if files.more:
            # A mild mismatch may be none, so without tolerances all samples are looked at for the most severe.
            request |= {"more": [[str(inputs), str(golden)] for inputs, golden in files.more], "every": not given}
        outcome = self._ask(request, cancel)
        if self.shelf is not None and files.engine is None:
            self.shelf.offer(files, passed=outcome.ending is Ending.PASSED)
        with files.log.open("a", encoding="utf-8") as log:
            log.write(outcome.reason + "\n")
        (files.folder / "command.txt").write_text(self.by_hand(files) + "\n")
        return outcome

    def _ask(self, request: dict[str, Any], cancel: Cancel | None) -> Outcome:
        began = time.monotonic()
        try:
            reply = self.workers.ask(request, self.timeout, cancel)
        except WorkerDied as death:
            return outcome_of_death(death.end)
        outcome = outcome_of_reply(reply, time.monotonic() - began, self.tolerance)
        return replace(outcome, layers=tuple(reply.get("layers", ())))

    def _target(self, files: CandidateFiles) -> TargetSettings:
        """The target as it takes this candidate."""
        if files.engine is not None:
            return _engines(self.target).load(self.target, files.engine)
        return replace(self.target, keep=files.keep or self.target.keep, held=files.held or self.target.held)

    def _built(self, files: CandidateFiles) -> TargetSettings:
        """The same, with its engine left in the candidate's folder."""
        target = self._target(files)
        if self.shelf is None or files.engine is not None:
            return target
        return _engines(target).save(target, files.folder / ENGINE)

    def by_hand(self, files: CandidateFiles) -> str:
        """The command that does the same."""
        words = ["bisect-trt", "run", str(files.model), *self._target(files).flags(), *self.tolerance.words()]
        return shlex.join([*words, "--load-inputs", str(files.inputs), "--load-outputs", str(files.golden)])


def _engines(target: TargetSettings) -> Engines:
    engines = target.target.engines
    assert engines is not None  # or there would be no engine
    return engines


def outcome_of_death(end: ProcessEnd) -> Outcome:
    """What it means that the worker died over a candidate."""
    if end.cancelled:
        return Outcome(Ending.SKIPPED, CANCELLED, "its answer was not needed any more", end.seconds)
    if end.timed_out:
        return Outcome(Ending.BROKEN, "time-out", f"no answer after {end.seconds:.1f} s", end.seconds)
    name = end.signal_name or f"exit status {end.code}"
    return Outcome(Ending.BROKEN, f"signal {name}", f"the target crashed ({name})", end.seconds)


def outcome_of_reply(reply: dict[str, Any], seconds: float, tolerance: ToleranceOptions) -> Outcome:
    """What a worker's answer to ``compare`` means; how severe a failure is counts unless the user gave tolerances."""
    if "error" in reply:
        return outcome_of_error(reply, seconds)
    latency = reply.get("latency_ms")
    comparisons = _worst_sample([TensorComparison.from_json(entry) for entry in reply["comparisons"]])
    sample = comparisons[0].sample if comparisons else None
    failed = [comparison for comparison in comparisons if not comparison.passed]
    given = bool(tolerance.atol or tolerance.rtol)  # what the user gives is meant to the letter
    severity = None if given else max((comparison.severity for comparison in comparisons), default=None)
    if not failed:
        said = "1 output matches" if len(comparisons) == 1 else f"{len(comparisons)} outputs match"
        known: dict[str, Any] = {"comparisons": tuple(comparisons), "latency_ms": latency, "severity": severity}
        return Outcome(Ending.PASSED, "match", said, seconds, **known)
    worst = max(failed, key=lambda comparison: comparison.severity)
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    where = "" if sample is None else f"sample {sample}: "
    reason = f"{where}'{worst.name}': {worst.describe()}{more}"
    return Outcome(
        Ending.MISMATCHED,
        worst.kind.value,
        reason,
        seconds,
        comparisons=tuple(comparisons),
        sample=sample,
        latency_ms=latency,
        severity=severity,
    )


def outcome_of_error(reply: dict[str, Any], seconds: float) -> Outcome:
    """What it means that the target does not build or run the model."""
    doing = "the target refuses the model" if reply["error"] == "build" else "the target fails while running"
    return Outcome(Ending.BROKEN, reply["signature"], f"{doing}: {reply['message']}", seconds)


def _worst_sample(comparisons: list[TensorComparison]) -> list[TensorComparison]:
    """The comparisons of the input sample that fails most severely; of the last if none does."""
    samples: dict[int | None, list[TensorComparison]] = {}
    for comparison in comparisons:
        samples.setdefault(comparison.sample, []).append(comparison)
    failing = [seen for seen in samples.values() if not all(comparison.passed for comparison in seen)]
    if not failing:
        return list(samples.values())[-1] if samples else []
    return max(failing, key=lambda seen: max(comparison.severity for comparison in seen))
