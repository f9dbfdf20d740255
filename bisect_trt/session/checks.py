"""The check of a command: what decides whether a candidate fails, and the prober that asks it."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from pathlib import Path

import onnx
from msgspec import structs

from bisect_trt.errors import (
    ConflictError,
    ModelRefusedError,
    OutputFileError,
    UnsuitableModelError,
)
from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.state import make_steps, next_tokens
from bisect_trt.options.compare import CompareOptions, Limits, MetricOptions
from bisect_trt.options.shared import CheckOptions, Search
from bisect_trt.options.spec import written
from bisect_trt.plugins import contained
from bisect_trt.probe.check import Check
from bisect_trt.probe.engine_cache import EngineCache
from bisect_trt.probe.ledger import Ledger, Record, Watcher
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck, EngineCheck, outcome_of_failure
from bisect_trt.probe.outcome import Ending, Outcome, Reason
from bisect_trt.probe.prober import Prober, Vet
from bisect_trt.probe.scale import Scale
from bisect_trt.probe.user_checks import CommandCheck, FunctionCheck, PromptCheck
from bisect_trt.probe.verdict_cache import VerdictCache
from bisect_trt.probe.workspace import FIXED_PATH, POLYGRAPHYS_PATH, CandidateFiles
from bisect_trt.report.console import Console
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.search.oracle import Verdict
from bisect_trt.session.oracle import Oracle
from bisect_trt.session.places import require_fit, require_reference
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.compare import check_script
from bisect_trt.tensors.files import load_npz
from bisect_trt.tensors.inputs import labelled_inputs
from bisect_trt.tensors.metrics import Evaluation, Metric, find_metric
from bisect_trt.tensors.state import state_after
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.place import Place, make_place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel, workers_within
from bisect_trt.worker.protocol import Collect, Compare, Failed

FOLDERS = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNRESOLVED: "unresolved"}
"""The folders that files of probes go to, by verdict."""
_PLACEHOLDERS = ("{model}", "{dir}", "{engine}")
"""A command with one of these gets the candidate's path; other commands read it from a fixed
path."""
_CHUNK = 64
"""Samples that the reference runs in one request."""
_FEW = 30


@dataclass(frozen=True)
class CheckSettings:
    """The settings of a check, which decides whether a candidate fails.

    Attributes:
        options: The options of the check; ``timeout`` also applies to the built-in comparison.
        argv: The user's command; empty without one.
        metric: The metric that replaces the tolerances, if one does.
        limits: The limits of time, memory and size that replace them, if any do.
        by_layer: Whether the target lowers candidates itself, layer by layer; a command is then
            given their engines.
        timed: Whether the built-in comparison measures the latency of a candidate.
    """

    options: CheckOptions = field(default_factory=CheckOptions)
    argv: tuple[str, ...] = ()
    target: TargetSettings | None = None
    tolerance: ToleranceOptions = field(default_factory=ToleranceOptions)
    metric: MetricOptions | None = None
    limits: Limits | None = None
    function: Callable[..., object] | None = None
    oracle: Oracle | None = None
    by_layer: bool = False
    timed: bool = False

    @property
    def timeout(self) -> float | None:
        """Seconds a candidate may take."""
        return self.options.timeout

    @property
    def runtime(self) -> TargetSettings:
        """The target, where one is required."""
        assert self.target is not None, "the options require one"
        return self.target

    @property
    def judged_runtime(self) -> TargetSettings | None:
        """The target, where neither a command, a function nor a plug-in decides."""
        if self.argv or self.function is not None or self.oracle is not None:
            return None
        return self.target

    @property
    def words(self) -> list[str]:
        """The tolerances, the metric or the limits, and the check command with its conditions, as words of a command line."""
        compared = written(self.limits or self.metric or self.tolerance)
        compared += [] if self.oracle is None else written(self.oracle)
        if self.target is not None and not self.argv:
            return compared
        conditions = replace(
            self.options, check=(), artifacts=(), artifacts_dir=CheckOptions.artifacts_dir
        )
        return [*compared, *written(conditions), *(("--check", *self.argv) if self.argv else ())]

    def without_target(self, console: Console) -> CheckSettings:
        """Return the check without a target that a check command makes useless; prints that."""
        if not self.argv or self.target is None:
            return self
        console.say(f"{' '.join(self.target.flags())} has no effect beside --check")
        return replace(self, target=None)

    @property
    def fixed_path(self) -> Path | None:
        """The path that every candidate is written to, if the check does not receive paths."""
        if self.options.candidate is not None:
            return self.options.candidate
        words = " ".join(self.argv)
        decides = self.target or self.function or self.oracle
        if (decides and not words) or any(name in words for name in _PLACEHOLDERS):
            return None
        # A command written for Polygraphy reads Polygraphy's file.
        return POLYGRAPHYS_PATH if POLYGRAPHYS_PATH.name in words else FIXED_PATH


def tolerance_options(
    compare: CompareOptions, target: TargetSettings | None, *, nonfinite_equal: bool = True
) -> ToleranceOptions:
    """Return the tolerances for a target.

    Args:
        compare: The options of the user.
        target: The target; its precision widens automatic tolerances.
        nonfinite_equal: Whether the same NaN or Inf on both sides matches.

    Raises:
        UsageError: Options conflict, or the comparison script does not exist.
    """
    if compare.compare_func_script is not None:
        check_script(compare.compare_func_script)
    return ToleranceOptions(
        **vars(compare), precision=_coarsest(target), nonfinite_equal=nonfinite_equal
    )


def _coarsest(target: TargetSettings | None) -> Precision:
    """Return the coarsest precision that a target may compute in; 8-bit types count as bfloat16, which has as few digits."""
    low = frozenset(target.low_precisions if target is not None else ())
    if low & {"bf16", "fp8", "int8"}:
        return Precision.BF16
    return Precision.FP16 if "fp16" in low else Precision.TF32 if "tf32" in low else Precision.FP32


def make_check(settings: CheckSettings, workers: WorkerPool) -> Check:
    """Return the user's function or command, else the built-in comparison, else a prompt.

    Raises:
        UsageError: Options of the check conflict.
    """
    options = settings.options
    target = settings.target
    if settings.oracle is not None:
        builtin = make_check(replace(settings, oracle=None), workers)
        return contained(settings.oracle.check, Check, builtin)
    if settings.function is not None:
        return FunctionCheck(settings.function)
    if settings.argv:
        command = CommandCheck(
            settings.argv,
            tuple(options.fail_code),
            tuple(options.ignore_fail_code),
            tuple(map(re.compile, options.fail_regex)),
            settings.timeout,
            workers.memory_limit,
        )
        if settings.by_layer and target is not None:
            return EngineCheck(workers, target, command)
        return command
    if target is not None:
        return _runtime_check(settings, workers, target)
    return PromptCheck()


def _runtime_check(
    settings: CheckSettings,
    workers: WorkerPool,
    target: TargetSettings,
    lost: Callable[[], float | None] = lambda: None,
) -> BuiltinCheck:
    """Return the check of a target by its limits, or by comparison with the reference.

    Args:
        settings: The tolerances or limits, and the time limit of a probe.
        workers: The processes that run models.
        target: The runtime under test.
        lost: Returns the milliseconds that the original loses to the baseline, once they are known.

    Raises:
        UnavailableError: The environment of the baseline cannot be made.
        UsageError: The target has no engines, or models are not run, or the baseline is not known.
    """
    limits = settings.limits
    if limits is None:
        return BuiltinCheck(
            workers,
            target,
            settings.tolerance,
            settings.timeout,
            timed=settings.timed,
            engine_cache=EngineCache() if settings.by_layer else None,
        )
    from bisect_trt.probe.limit_check import LimitCheck  # noqa: PLC0415 - of such checks alone

    if limits.engine_size_limit is not None and not target.target.engines:
        raise ConflictError(
            f"--engine-size-limit: {target.target.title} writes no engines; use --memory-limit-of."
        )
    if limits.times and target.build_only:
        raise ConflictError(
            "--slower-than and --latency-limit time runs, and --build-only runs nothing; drop one."
        )
    baseline, place = baseline_of(workers, limits.baseline, target)
    return LimitCheck(
        workers,
        target,
        settings.tolerance,
        settings.timeout,
        limits=limits,
        baseline=baseline,
        beside=place,
        lost=lost,
    )


def baseline_of(
    workers: WorkerPool, name: str | None, target: TargetSettings
) -> tuple[TargetSettings, Place | None]:
    """Return the runtime of a baseline, and its place.

    Args:
        workers: The workers of the run; their first place runs the baseline too.
        name: What the user wrote: a target, or a release (``PACKAGE==VERSION``); ``None`` for the reference.
        target: The target that is measured.

    Raises:
        UnavailableError: The environment of a release cannot be made.
        UsageError: It is not known.
    """
    from bisect_trt.probe.limit_check import baseline_target  # noqa: PLC0415 - of such checks alone

    baseline = baseline_target(name, target)
    if name is not None and "==" in name:
        from bisect_trt.worker.environments import Environment, interpreter  # noqa: PLC0415 - of releases alone

        return baseline, make_place(
            f"env={name}", lambda text: str(interpreter(Environment.parse(text)))
        )
    return baseline, workers.places[0] if name is not None and workers.places else None


def sort_file(
    file: Path, folder: Path, verdict: Verdict, number: int, *, copy: bool = False
) -> Path:
    """Move a file of a probe, if it exists, to ``good/``, ``bad/`` or ``unresolved/``, a number before its name; return that.

    Args:
        file: The file.
        folder: The folder of ``good/``, ``bad/`` and ``unresolved/``.
        verdict: The verdict of the probe.
        number: The number of the probe.
        copy: Whether the file stays where it is too.

    Raises:
        UsageError: It cannot be moved.
    """
    target = folder / FOLDERS[verdict] / f"{number:04d}_{file.name}"
    try:
        if file.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copyfile if copy else shutil.move)(file, target)
    except OSError as error:
        raise OutputFileError(
            f"{file} cannot be moved to {target}: {error.strerror}; make room, or name another folder (--artifacts-dir)."
        ) from error
    return target


@dataclass(frozen=True)
class CheckLeavings(Watcher):
    """Sorts the files that a check left by verdict."""

    options: CheckOptions

    def probed(self, record: Record) -> None:
        """Move each file."""
        for file in self.options.artifacts:
            sort_file(file, self.options.artifacts_dir, record.verdict, record.number)


def open_ledger(
    settings: CheckSettings,
    search: Search,
    subject: Subject,
    console: Console,
    cache: VerdictCache | None = None,
) -> Ledger:
    """Open the ledger of a search, which its caller closes.

    Args:
        settings: The check.
        search: The bounds of the search.
        subject: The model.
        console: Shows the probes.
        cache: Outcomes of other runs.

    Raises:
        UsageError: The journal cannot be written.
        UnavailableError: The journal is damaged.
    """
    watchers: list[Watcher] = [console, CheckLeavings(settings.options)]
    ledger = Ledger(
        subject.workspace.folder,
        describe_outcome,
        watchers,
        max_probes=search.max_probes,
        deadline=subject.workers.deadline,
        cache=cache,
    )
    for entry in ledger.unfinished.values():
        console.say(f"  unfinished when the run ended, and probed again if needed: {entry.title}")
    return ledger


def make_prober(
    settings: CheckSettings,
    search: Search,
    subject: Subject,
    ledger: Ledger,
    *,
    elsewhere: bool = False,
    fed: bool = True,
) -> Prober:
    """Return a prober for a check.

    Args:
        settings: The check.
        search: How many probes run at a time, and how often the original is probed.
        subject: The model.
        ledger: Records the probes.
        elsewhere: Whether candidates run in environments of their own only, so that the target
            need not be installed here.
        fed: Whether candidates are fed the reference's activations; else they have values of their
            own.

    Raises:
        UsageError: An option does not fit the check or the model.
        UnavailableError: The target or the reference cannot run the model.
    """
    shares_gpu = settings.judged_runtime is not None
    workers = workers_within(search.workers, subject.workers.width(shares_gpu=shares_gpu))
    if settings.fixed_path is not None or settings.options.artifacts:
        # A fixed path holds one candidate at a time.
        workers = 1
    vet = None
    if elsewhere:
        # A command judges a model that ONNX Runtime refuses here too.
        if not settings.argv:
            require_reference(subject)
        check = make_check(settings, subject.workers)
    elif settings.judged_runtime is not None:
        check = _judging(settings, subject, settings.judged_runtime, ledger, fed=fed)
        # Without a measured failure rate, a crash is confirmed: another process may have caused it.
        check = check.under(confirm=search.repeat == 1)
        vet = make_vet(subject) if check.metric is None else None
    else:
        check = make_check(settings, subject.workers)
        if subject.workers.places and not check.follows_places:
            raise ConflictError(
                "--on runs a target elsewhere, and a check runs here; drop --on, or use a target."
            )
    activations = subject.reference if fed else None
    return Prober(check, subject.workspace, activations, ledger, workers, vet=vet)


def _judging(
    settings: CheckSettings, subject: Subject, target: TargetSettings, ledger: Ledger, *, fed: bool
) -> Check:
    """Return the check of a target that no code of the user judges, by values, limits or a metric.

    Raises:
        UsageError: An option does not fit the check or the model.
        UnavailableError: The target or the reference cannot run the model.
    """
    check = _runtime_check(
        settings,
        subject.workers,
        target,
        lost=lambda: None if ledger.apart else ledger.severity,
    )
    require_fit(subject, target)
    if fed and not target.target.compiles:
        require_reference(subject)
    return check if settings.metric is None else metric_check(subject, check, settings.metric)


def make_vet(subject: Subject) -> Vet:
    """Return a function that runs a piece, which the target does not run, on the reference.

    A piece that no runtime runs (an ``If`` cut off from its condition, say) shows no failure of the
    target. The reference has no say where it does not run the original.
    """
    models = subject.models

    @cache
    def runs_original() -> bool:
        reference = subject.reference
        # A reference that fails on the whole model proves nothing about a piece.
        if reference.refused is not None or reference.missing:
            return False
        return not (
            models.build_only
            and isinstance(models.run("whole", subject.network.proto, reference.inputs), Failed)
        )

    def vet(files: CandidateFiles, outcome: Outcome, cancel: Cancel | None) -> Outcome:
        request = Compare(models.reference, files.model, files.samples[:1], ToleranceOptions())
        reply = models.ask(request, cancel=cancel)
        if not isinstance(reply, Failed):
            return outcome
        if reply.kind == "cancelled":
            return outcome_of_failure(reply)
        if reply.kind not in ("build", "run") or not runs_original():
            return outcome
        refused = replace(outcome, ending=Ending.OTHER)
        return refused.seeing(Reason.PIECE_REFUSED, reply.message)

    return vet


def _write_steps(subject: Subject, metric: Metric, folder: Path, other: int) -> Evaluation:
    """Write the steps of a model with a state as the set of samples, with the next tokens as labels for perplexity."""
    stream = subject.stream
    if other:
        values = subject.data
        drawn = replace(values, seed=values.seed + other)
        stream = make_steps(subject.network, subject.state, drawn, len(stream))
    tokens = next_tokens(stream) if metric.name == "perplexity" else None
    data = Evaluation.write(folder, zip(stream, tokens or repeat(None)))  # noqa: B905 - no end
    return structs.replace(data, state=subject.state.taken)


def _run_reference(subject: Subject, data: Evaluation) -> None:
    """Run the reference on the set of samples.

    Raises:
        UnavailableError: It does not run on a sample.
    """
    model = subject.models.write("scored", subject.truth.proto)
    for start in range(0, data.count, _CHUNK):
        places = range(start, min(start + _CHUNK, data.count))
        files = tuple(map(data.inputs, places)), tuple(map(data.golden, places))
        before = data.golden(start - 1) if data.state and start else None
        request = Collect(subject.models.reference, model, *files, state=data.state, before=before)
        reply = subject.models.ask(request)
        if isinstance(reply, Failed):
            raise ModelRefusedError(
                f"the reference cannot run the model on all samples of the set: {reply.message}. Remove the samples that it "
                "cannot run."
            )


def make_scale(subject: Subject, options: MetricOptions, other: int = 0) -> Scale:
    """Write the set of samples, run the reference on it, and score its outputs.

    Args:
        subject: The model.
        options: The metric and its bound.
        other: The number of another stream of random values, for a model with a state.

    Raises:
        UsageError: A sample does not fit the model, or the metric does not fit the outputs or
            labels.
        UnavailableError: The reference does not run on a sample.
    """
    console = subject.console
    asked = options.metric
    assert asked is not None, "there is no scale without a metric"
    metric = find_metric(asked, lower_is_better=options.lower_is_better)
    folder = subject.workspace.scratch(f"metric-{other}" if other else "metric")
    stream = subject.stream
    if stream:
        data = _write_steps(subject, metric, folder, other)
    else:
        samples = labelled_inputs(input_infos(subject.network), subject.data)
        data = Evaluation.write(folder, subject.with_sizes(samples))
    _run_reference(subject, data)
    if stream and not other:  # a state that grows is larger in the last step
        state = state_after(data.state, data.golden(data.count - 2) if data.count > 1 else None)
        last = {**stream[-1], **state}
        [*subject.with_sizes([({name: last[name] for name in subject.samples[0]}, None)])]
    # The reference's own score is what a drop is measured from.
    reference = data.score(metric, (load_npz(data.golden(place)) for place in range(data.count)))
    bound = options.bound(reference, lower_is_better=metric.lower_is_better)
    _check_reference(metric, reference, bound, drop=options.max_drop is not None)
    limit = "most" if metric.lower_is_better else "least"
    bounded = "" if bound is None else f"; required: at {limit} {metric.say(bound)}"
    labels = (
        ""
        if data.labelled or asked.endswith(".py")
        else " (no labels: its own outputs are the labels)"
    )
    console.say(
        f"  {metric.name} of the reference: {metric.say(reference)} on {data.count} samples{labels}{bounded}"
    )
    if data.count < _FEW and bound is not None and not other:
        source = "--steps" if stream else "--data-loader-script, --iterations"
        console.warn(f"{data.count} samples are few for a metric; give more ({source})")
    return Scale(metric, asked, data, reference, bound, subject.models.reference)


def _check_reference(metric: Metric, reference: float, bound: float | None, *, drop: bool) -> None:
    """Check that the reference meets the bound itself.

    Raises:
        UsageError: It does not.
    """
    name = f"{metric.name} of the reference"
    worse = metric.lower_is_better
    if math.isnan(reference):
        fix = (
            "correct the metric"
            if metric.of_set is not None
            else "no label of the set counts; correct the loader"
        )
        raise UnsuitableModelError(
            f"{name} is NaN, so no candidate can be compared with it: {fix}."
        )
    if math.isinf(reference) and drop:
        raise UnsuitableModelError(
            f"{name} is {reference:g}, so a drop from it is undefined; use --{'max' if worse else 'min'} instead of "
            "--max-drop."
        )
    if bound is not None and (reference > bound if worse else reference < bound):
        raise UnsuitableModelError(
            f"{name} is {metric.say(reference)}, worse than the bound {metric.say(bound)}; give a weaker bound, or "
            "--max-drop."
        )


def metric_check(subject: Subject, runs: BuiltinCheck, options: MetricOptions) -> MetricCheck:
    """Return the check by a metric.

    Raises:
        UsageError: As :func:`make_scale`.
        UnavailableError: As :func:`make_scale`.
    """
    network = subject.network

    def part(inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto | None:
        if not outputs:
            return None
        return splice(
            network, between(network, tuple(inputs), tuple(outputs)), subject.infos, nothing_stored
        ).proto

    def rest(piece: onnx.ModelProto) -> tuple[onnx.ModelProto | None, onnx.ModelProto | None]:
        """Return the parts of the model before and after a piece."""
        weights = {entry.name for entry in piece.graph.initializer}
        fed = [value.name for value in piece.graph.input if value.name not in weights]
        outputs = [value.name for value in piece.graph.output]
        inner = [name for name in fed if name not in network.inputs]
        ends = [
            name for name in network.outputs if name not in outputs and name in network.producer
        ]
        return part((), inner), part([name for name in outputs if name in network.producer], ends)

    check = MetricCheck(runs, make_scale(subject, options), rest)
    if not subject.stream or subject.settings.data.given:
        return check
    # Steps that were made up are drawn anew for fresh prompts; given ones are all there are.
    return replace(
        check,
        other_stream=lambda stream: replace(check, scale=make_scale(subject, options, stream)),
    )
