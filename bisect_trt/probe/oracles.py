"""Built-in oracles: each runs a candidate on a target and returns an outcome."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from bisect_trt.aliases import Fields
from bisect_trt.errors import OutputFileError, ValueRefusedError
from bisect_trt.options.spec import written
from bisect_trt.probe.check import Check, Conditions
from bisect_trt.probe.engine_cache import ENGINE, EngineCache
from bisect_trt.probe.outcome import Ending, Outcome, Reason
from bisect_trt.probe.user_checks import CommandCheck, note_command
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison, severity_weight
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.place import Place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import BuildEngine, Compare, Compared, Failed, Sample

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class BuiltinCheck(Check):
    """Compares a target with the reference, in a worker process.

    Attributes:
        workers: The processes that run models.
        target: The runtime under suspicion.
        tolerance: How far it may be off.
        timeout: Seconds a candidate may take.
        timed: Whether to measure how long a candidate runs, and to ask of which layers its engine
            is made.
        engine_cache: The store of engines of candidates that pass, if they are kept.
        confirm: Whether a crash counts only once it has been seen twice.
        fresh: Whether each candidate gets a worker that has run nothing else.
        layers: Whether to ask of which layers its engine is made, if it is not timed.
        same: Whether one session runs whatever is alike, candidate after candidate.
        finds_weights: Whether it needs no copy of weights in files of their own; its workers see to
            those.
        records: Whether each build leaves its engine, and what it chose, in the candidate's folder.
    """

    workers: WorkerPool
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    parallel: bool = True
    timed: bool = False
    engine_cache: EngineCache | None = None
    confirm: bool = False
    fresh: bool = False
    layers: bool = False
    same: bool = False
    finds_weights: bool = True
    records: bool = False

    runs_user_code = False
    """No: the target and the reference decide."""

    @property
    def runtime(self) -> TargetSettings:
        """The target."""
        return self.target

    @property
    def tolerances(self) -> ToleranceOptions:
        """The tolerances of the user, or none."""
        return self.tolerance

    @property
    def engines(self) -> EngineCache | None:
        """The store of engines."""
        return self.engine_cache

    def under(self, **conditions: Unpack[Conditions]) -> BuiltinCheck:
        """Return the same check under other conditions."""
        names = {entry.name for entry in fields(self)}
        changes: Fields = {name: value for name, value in conditions.items() if name in names}
        return replace(self, **changes)

    compares = True
    """The outputs are compared."""

    def on_samples(self, samples: Sequence[Sample], tolerance: ToleranceOptions) -> FreshCheck:
        """Return a comparison on other samples."""
        return FreshCheck(self, tuple(samples), tolerance)

    def require_portable(self) -> None:
        """Runtimes are loaded by workers, in whichever interpreter."""

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: A tolerance names no output.
            UnavailableError: The target's runtime is not installed.
        """
        # With something else turned, less of the failure is no pass.
        strict = self.tolerance.explicit or files.target is not None
        request = Compare(
            self.built(files),
            files.model,
            files.samples,
            self.tolerance,
            # A mild mismatch may be none, so without tolerances all samples are looked at for the
            # most severe.
            every=len(files.samples) > 1 and not strict,
            layers=self.timed or self.layers,
            timed=self.timed,
            same=self.same,
        )
        places: list[Place] = []
        try:
            reply = self.workers.ask(
                request,
                self.timeout,
                cancel,
                log=files.log,
                confirm=self.confirm,
                fresh=self.fresh,
                on_place=places.append,
            )
        except ValueRefusedError as error:
            if files.target is None:
                raise
            # A setting that a search turns, and that this runtime does not keep, says nothing about
            # the model.
            return Outcome(Ending.OTHER, "setting refused", str(error))
        place = places[-1].said if places else None
        outcome = replace(self._read(reply, strict=strict), place=place)
        if self.engine_cache is not None and files.engine is None:
            self.engine_cache.offer(files, passed=outcome.ending is Ending.PASSED)
        note_command(files, self._by_hand(files, place))
        return outcome

    def _read(self, reply: Compared | Failed, *, strict: bool) -> Outcome:
        if isinstance(reply, Failed):
            return outcome_of_failure(reply)
        if self.target.build_only:
            builds = Outcome(Ending.PASSED, "builds", layers=reply.layers)
            return builds.seeing(Reason.BUILDS)
        return replace(
            outcome_of_comparisons(reply, self.tolerance, strict=strict), layers=reply.layers
        )

    def target_of(self, files: CandidateFiles) -> TargetSettings:
        """The target as it takes this candidate."""
        if files.engine is not None:
            return self.target.target.loading(self.target, files.engine)
        return files.settings(self.target)

    def built(self, files: CandidateFiles) -> TargetSettings:
        """Return the target, with its engine in the candidate's folder."""
        target = self.target_of(files)
        if files.engine is not None:
            return target
        if target.target.engines and (self.records or self.engine_cache is not None):
            target = target.with_own(save_engine=str((files.folder / ENGINE).absolute()))
        return target.target.recording(target, files.folder) if self.records else target

    def _by_hand(self, files: CandidateFiles, place: str | None) -> str:
        """The command that does the same, in the place where the candidate ran."""
        target = self.target_of(files)
        words = ["bisect-trt", "run", str(files.model), *target.flags(), *written(self.tolerance)]
        words += [] if place is None else ["--on", place]
        words += [] if files.weights is None else ["--external-data-dir", str(files.weights)]
        return shlex.join(
            [*words, "--load-inputs", str(files.inputs), "--load-outputs", str(files.golden)]
        )


def outcome_of_failure(failed: Failed) -> Outcome:
    """Return the outcome of a candidate that the target does not run."""
    if failed.kind in ("cancelled", "lost"):
        return Outcome(Ending.SKIPPED, failed.signature, failed.message)
    return Outcome(Ending.BROKEN, failed.signature, failed=failed)


def outcome_of_comparisons(
    reply: Compared, tolerance: ToleranceOptions, *, strict: bool = False
) -> Outcome:
    """The outcome of comparing a candidate's outputs; its severity counts too, unless any mismatch does (``strict``).

    Args:
        reply: The comparisons of all outputs and samples.
        tolerance: The tolerance that they were made with.
        strict: Whether any mismatch fails; else one has to be as severe as the user's failure.
    """
    samples = _grouped(reply.comparisons, "sample")
    # The outcome is that of one sample: a mix of several is a failure that no input shows.
    sample = max(
        samples,
        key=lambda number: max(comparison.severity for comparison in samples[number]),
        default=None,
    )
    if sample is None or all(comparison.passed for comparison in samples[sample]):
        sample = next(reversed(samples), None)
    comparisons = samples.get(sample, [])
    failed = [comparison for comparison in comparisons if not comparison.passed]
    # The user's tolerance is a verdict of its own, however small the error past it is.
    strict = strict or tolerance.explicit
    weight = severity_weight(tolerance.precision)
    severity = (
        None
        if strict
        else max((weight * comparison.severity for comparison in comparisons), default=None)
    )
    figures: Fields = {
        "comparisons": tuple(comparisons),
        "latency_ms": reply.latency_ms,
        "severity": severity,
    }
    if not failed:
        passed = Outcome(Ending.PASSED, "match", **figures).seeing(Reason.MATCH, len(comparisons))
        for name, reason in reply.skipped.items():
            passed = passed.seeing(Reason.NOT_COMPARED, name, reason)
        return passed
    worst = max(failed, key=lambda comparison: comparison.severity)
    outcome = Outcome(Ending.MISMATCHED, worst.kind.value, sample=sample, **figures)
    if sample is not None:
        outcome = outcome.seeing(Reason.SAMPLE, sample)
    return outcome.seeing(Reason.WORST, worst.name, len(failed) - 1)


def _grouped(
    comparisons: Iterable[TensorComparison], field: str
) -> dict[Any, list[TensorComparison]]:
    """Return the comparisons by the value of one of their fields."""
    groups: dict[Any, list[TensorComparison]] = {}
    for comparison in comparisons:
        groups.setdefault(getattr(comparison, field), []).append(comparison)
    return groups


SEVERE = 10.0
"""An error of more than so many times its tolerance is no matter of rounding."""


@dataclass(frozen=True)
class FreshCheck(Check):
    """Runs a candidate on all samples, whatever it does on the first; a missing tolerance follows from the values of each."""

    check: BuiltinCheck
    samples: tuple[Sample, ...]
    tolerance: ToleranceOptions
    parallel: bool = True
    finds_weights: bool = True

    runs_user_code = False
    """No: the target and the reference decide."""

    @property
    def runtime(self) -> TargetSettings:
        """The target."""
        return self.check.target

    def under(self, **conditions: Unpack[Conditions]) -> FreshCheck:
        """Return the same check under other conditions."""
        return replace(self, check=self.check.under(**conditions))

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate; ``Outcome.errors`` has one number for each sample."""
        target = self.check.target_of(files)
        request = Compare(
            target, files.model, self.samples, self.tolerance, every=True, details=True
        )
        timeout = None if self.check.timeout is None else self.check.timeout * len(self.samples)
        reply = self.check.workers.ask(request, timeout, cancel, log=files.log)
        if isinstance(reply, Failed):
            return outcome_of_failure(reply)
        return outcome_of_samples(reply.comparisons, len(self.samples))


def outcome_of_samples(comparisons: Sequence[TensorComparison], samples: int) -> Outcome:
    """Return the outcome of a candidate from its errors on each sample; of each output it has the worst comparison."""
    groups = _grouped(comparisons, "sample")
    errors = tuple(
        max(comparison.tolerance_ratio for comparison in groups[number])
        for number in sorted(groups, key=lambda number: number or 1)
    )
    failing = {
        number: group
        for number, group in groups.items()
        if not all(comparison.passed for comparison in group)
    }
    worst = max(errors, default=0.0)
    if not failing:
        passed = Outcome(Ending.PASSED, "match", errors=errors)
        return passed.seeing(Reason.SAMPLES_MATCH, samples, worst)
    # The reproducer gets one sample, so the worst one is named.
    number = max(
        failing,
        key=lambda sample: max(comparison.tolerance_ratio for comparison in failing[sample]),
    )
    wrong = (comparison for comparison in failing[number] if not comparison.passed)
    output = max(wrong, key=lambda comparison: comparison.tolerance_ratio)
    outcome = Outcome(
        Ending.MISMATCHED,
        output.kind.value,
        comparisons=tuple(_worst_of_outputs(comparisons)),
        sample=number,
        errors=errors,
    )
    figures = len(failing), samples, number or 1
    return outcome.seeing(Reason.SAMPLES_FAIL, *figures).seeing(Reason.WORST, output.name, 0)


def _worst_of_outputs(comparisons: Sequence[TensorComparison]) -> Iterable[TensorComparison]:
    """Yield the comparison of each output with the largest error; its details are the worst ones, and the mean argmax."""
    for alike in _grouped(comparisons, "name").values():
        worst = max(alike, key=lambda comparison: comparison.tolerance_ratio)
        details = [comparison.details for comparison in alike if comparison.details is not None]
        needed = [detail.atol_needed for detail in details]
        rows = [detail.argmax for detail in details if detail.argmax is not None]
        if worst.details is not None:
            # No tolerance passes where one sample needs NaN.
            atol = math.nan if any(map(math.isnan, needed)) else max(needed)
            argmax = sum(rows) / len(rows) if rows else None
            snr_db = min(
                (detail.snr_db for detail in details if detail.snr_db is not None), default=None
            )
            summed = structs.replace(worst.details, atol_needed=atol, argmax=argmax, snr_db=snr_db)
            worst = structs.replace(worst, details=summed)
        yield worst


FIXED_ENGINE = Path("bisect_trt_debug.engine")
POLYGRAPHYS_ENGINE = Path("polygraphy_debug.engine")
"""Paths of the engine for a command without a placeholder; the second if the command names it."""


@dataclass(frozen=True)
class EngineCheck(Check):
    """Builds a candidate's engine, then runs a command on it.

    Attributes:
        workers: The processes that build engines.
        target: The runtime, and how it is set up.
        command: The check command; ``{engine}`` in it, or ``BISECT_TRT_ENGINE``, is the engine.
        engine_cache: Which engines stay.
        records: See :class:`BuiltinCheck`.
    """

    workers: WorkerPool
    target: TargetSettings
    command: CommandCheck
    engine_cache: EngineCache = field(default_factory=EngineCache)
    records: bool = False

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.command.parallel

    @property
    def runtime(self) -> TargetSettings:
        """The runtime that builds."""
        return self.target

    @property
    def engines(self) -> EngineCache:
        """The store of engines."""
        return self.engine_cache

    def under(self, **conditions: Unpack[Conditions]) -> EngineCheck:
        """Return the same check under the conditions that concern a build."""
        return replace(
            self,
            workers=conditions.get("workers", self.workers),
            target=conditions.get("target", self.target),
            records=conditions.get("records", self.records),
        )

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: The engine cannot be written, or the command cannot be run.
            UnavailableError: The target's runtime is not installed.
        """
        if files.engine is not None:
            return self._judge(files, cancel)
        engine = files.folder / ENGINE
        target = (
            replace(self.target, keep=files.keep or ()) if files.target is None else files.target
        )
        target = target.target.recording(target, files.folder) if self.records else target
        request = BuildEngine(
            target.with_own(save_engine=str(engine.absolute())), files.model, files.inputs
        )
        reply = self.workers.ask(request, self.command.timeout, cancel, log=files.log)
        if isinstance(reply, Failed):
            return outcome_of_failure(reply)
        passed = False
        try:
            outcome = self._judge(replace(files, engine=engine), cancel)
            passed = outcome.ending is Ending.PASSED
        finally:
            if not self.records:
                self.engine_cache.offer(files, passed=passed)
        return outcome

    def _judge(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        """Run the command on an engine."""
        if not self.command.names_placeholder and files.engine is not None:
            # A command written for Polygraphy reads Polygraphy's file.
            theirs = any(POLYGRAPHYS_ENGINE.name in word for word in self.command.argv)
            fixed = POLYGRAPHYS_ENGINE if theirs else FIXED_ENGINE
            try:
                shutil.copyfile(files.engine, fixed)
            except OSError as error:
                raise OutputFileError(
                    f"{fixed} cannot be written: {error.strerror}; run where you can write."
                ) from error
        return self.command.run(files, cancel)
