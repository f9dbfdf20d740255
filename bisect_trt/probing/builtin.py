"""The built-in check: run the candidate on the target and compare with the reference."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisect_trt.probing.models import ask
from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.probing.pin import Pin
from bisect_trt.probing.places.place import Place
from bisect_trt.probing.protocol import Compare, Compared, Failed, Sample
from bisect_trt.probing.shelf import ENGINE, EngineShelf
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.targets.base import Engines
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison, severity_weight
from bisect_trt.tensors.tolerance import ToleranceOptions

CRASHED = "the target crashed"
_TIMED_FOR = 5.0
"""Seconds of timed runs for one candidate: of a slow one a few say enough, and its time limit is for one run."""


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
        confirm: Whether a crash counts only once it has been seen twice.
        layers: Whether to ask of which layers its engine is made, if it is not timed.
        same: Whether one session runs whatever is alike, candidate after candidate.
        finds_weights: Whether it needs no copy of weights in files of their own; its workers see to those.
        pin: What builds are held to, if they shall be.
    """

    workers: WorkerPool
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    parallel: bool = True
    timed: bool = False
    shelf: EngineShelf | None = None
    confirm: bool = False
    layers: bool = False
    same: bool = False
    finds_weights: bool = True
    pin: Pin | None = None

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: A tolerance names no output.
            UnavailableError: The target's runtime is not installed.
        """
        given = bool(self.tolerance.atol or self.tolerance.rtol)  # what the user gives is meant to the letter
        strict = given or files.target is not None  # with something else turned, less of the failure is no pass
        request = Compare(
            target := self.built(files),
            files.model,
            tuple(Sample(inputs, golden) for inputs, golden in ((files.inputs, files.golden), *files.more)),
            self.tolerance,
            # A mild mismatch may be none, so without tolerances all samples are looked at for the most severe.
            every=bool(files.more) and not strict,
            layers=self.timed or self.layers or self.pin is not None,
            warm_up=1 if self.timed else None,
            timed_for=_TIMED_FOR,
            same=self.same,
        )

        def asked(of: TargetSettings) -> Outcome:
            return self._ask(replace(request, target=of), files.log, cancel, strict=strict)

        pin = None if files.engine is not None else self.pin
        outcome = asked(target) if pin is None else pin.probe(target, files, asked)
        if self.shelf is not None and files.engine is None:
            self.shelf.offer(files, passed=outcome.ending is Ending.PASSED)
        with files.log.open("a", encoding="utf-8") as log:
            log.write(outcome.reason + "\n")
        (files.folder / "command.txt").write_text(self.by_hand(files) + "\n", "utf-8", "surrogateescape")
        return outcome

    def _ask(self, request: Compare, log: Path, cancel: Cancel | None, *, strict: bool) -> Outcome:
        began = time.monotonic()
        places: list[Place] = []
        reply = ask(self.workers, request, self.timeout, cancel, log=log, confirm=self.confirm, told=places.append)
        seconds = time.monotonic() - began
        place = places[-1].said if places else None
        if isinstance(reply, Failed):
            return replace(outcome_of_failure(reply, seconds), place=place)
        outcome = outcome_of_comparisons(reply, seconds, self.tolerance, strict=strict)
        return replace(outcome, layers=reply.layers, place=place)

    def target_of(self, files: CandidateFiles) -> TargetSettings:
        """The target as it takes this candidate."""
        if files.engine is not None:
            return _engines(self.target).load(self.target, files.engine)
        target = self.target if files.target is None else files.target
        return replace(target, keep=files.keep or target.keep, held=files.held or target.held)

    def built(self, files: CandidateFiles) -> TargetSettings:
        """The same, with its engine left in the candidate's folder."""
        target = self.target_of(files)
        if self.shelf is None or files.engine is not None:
            return target
        return _engines(target).save(target, files.folder / ENGINE)

    def by_hand(self, files: CandidateFiles) -> str:
        """The command that does the same."""
        target = self.target_of(files)
        target = target if self.pin is None or files.engine is not None else self.pin.hold(target)
        words = ["bisect-trt", "run", str(files.model), *target.flags(), *self.tolerance.words()]
        words += [] if files.weights is None else ["--external-data-dir", str(files.weights)]
        return shlex.join([*words, "--load-inputs", str(files.inputs), "--load-outputs", str(files.golden)])


def _engines(target: TargetSettings) -> Engines:
    engines = target.target.engines
    assert engines is not None  # or there would be no engine
    return engines


def outcome_of_failure(failed: Failed, seconds: float) -> Outcome:
    """What it means for a candidate that the target does not run it."""
    if failed.kind in ("cancelled", "lost"):
        return Outcome(Ending.SKIPPED, failed.signature, failed.message, seconds)
    reasons = {
        "build": f"the target refuses the model: {failed.message}",
        "run": f"the target fails while running: {failed.message}",
        "crash": f"{CRASHED} ({failed.signature.removeprefix('signal ')})",
    }
    return Outcome(Ending.BROKEN, failed.signature, reasons.get(failed.kind, failed.message), seconds)


def outcome_of_comparisons(
    reply: Compared, seconds: float, tolerance: ToleranceOptions, *, strict: bool = False
) -> Outcome:
    """What it means how far a candidate's outputs are off; how severe that is counts too, unless any mismatch does."""
    comparisons = _worst_sample(reply.comparisons)
    sample = comparisons[0].sample if comparisons else None
    failed = [comparison for comparison in comparisons if not comparison.passed]
    strict = strict or bool(tolerance.atol or tolerance.rtol)  # what the user gives is meant to the letter
    weight = severity_weight(tolerance.precision)
    severity = None if strict else max((weight * comparison.severity for comparison in comparisons), default=None)
    if not failed:
        said = "1 output matches" if len(comparisons) == 1 else f"{len(comparisons)} outputs match"
        left_out = [f"'{name}': {why}" for name, why in reply.skipped.items()]
        said += f" (not compared: {'; '.join(left_out)})" if left_out else ""
        known: dict[str, Any] = {
            "comparisons": tuple(comparisons),
            "latency_ms": reply.latency_ms,
            "severity": severity,
        }
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
        latency_ms=reply.latency_ms,
        severity=severity,
    )


def _worst_sample(comparisons: Iterable[TensorComparison]) -> list[TensorComparison]:
    """The comparisons of the input sample that fails most severely; of the last if none does."""
    samples: dict[int | None, list[TensorComparison]] = {}
    for comparison in comparisons:
        samples.setdefault(comparison.sample, []).append(comparison)
    failing = [seen for seen in samples.values() if not all(comparison.passed for comparison in seen)]
    if not failing:
        return list(samples.values())[-1] if samples else []
    return max(failing, key=lambda seen: max(comparison.severity for comparison in seen))
