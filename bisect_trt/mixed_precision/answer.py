"""The answer of a search for precision: written, read back, probed, put into the result and printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import UNSET, structs

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.mixed_precision.curve import CONFIDENCE, MILD, Fix
from bisect_trt.mixed_precision.lowering import LayerLowering, engine_path
from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes, peaked_outputs, with_peaked
from bisect_trt.mixed_precision.search import (
    INSIDE,
    PrecisionSettings,
    Task,
    half_of,
    marked,
    with_metadata,
)
from bisect_trt.onnxlib.host import keep_on_host, with_inferred_shapes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.save import said_beside
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.mixed import (
    ENDED,
    ENGINE_ALONE,
    FAILS_AS_FILE,
    NO_FIX,
    PASSED,
    PRELIMINARY,
    SINGLE_STEPS,
    TRY_IT,
    Mix,
    atol_option,
    describe_data,
    describe_own_loop,
    said_of_bf16,
    tell_kept,
    tell_mixed,
    why_kept,
    why_no_fix,
)
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import FOR_FRESH, NEEDED, NOT_RUN, Comparison, TradeOff, Unit, Use
from bisect_trt.report.proofs import describe, describe_confirmation, last_record
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum, Note, Subset, Verdict
from bisect_trt.search.statistics import rate_interval
from bisect_trt.session.checks import CheckSettings, make_check
from bisect_trt.session.session import Session
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.deadline import BudgetSpent
from bisect_trt.worker.process import workers_within
from bisect_trt.worker.protocol import Compare, Failed
from bisect_trt.worker.protocol import Sample as SampleFiles

_FASTER = 0.95
"""A model is faster than another one if it takes at most this share of its time."""
_NOISE_MS = 0.05
"""Milliseconds by which runs of the same engine differ on a busy machine; less is no gain."""
_SHOWN = 30


def write_answer(fix: Fix) -> Minimum:
    """Read back what was written, probe it, and fill in the result.

    Returns:
        The minimal set; unproven if what was written does not pass, or does not hold on fresh
        samples.
    """
    task = fix.task
    task.console.step("Written and read back: does it pass?")
    output = task.settings.output
    lowering = task.lowering
    written = lowering.read_back(fix.kept, output)
    # On the given samples nothing may fail without it.
    fails = fix.kept and (fix.minimum.units or not fix.minimum.proven)
    if not (fails or fix.traded or task.settings.rungs):
        record = task.prober.probe(written)
        outcome = task.outcome(record)
    elif fix.traded is None:
        believed = reconfirm(task.prober, lowering.candidate(frozenset()), written)
        record = last_record(believed)
        outcome = task.outcome(record)
        task.console.say(f"  {describe_confirmation(believed)}")
    else:
        outcome = fix.passes_by_trade(written)
        record = task.prober.ledger.records[-1]
        task.console.say(f"  with {_option_of(fix)}: {describe_outcome(outcome)}")
    fill_in(fix, outcome, record)
    _run_loop(fix)
    task.score_whole(written)
    metric = task.result.metric
    if metric:
        probes = tuple(each for each in metric.probes if each.probe not in fix.stream_probes)
        task.result.metric = structs.replace(metric, streams=fix.streams, probes=probes)
    _add_sampling_error(task)
    disagreed = None if record.verdict is Verdict.PASS else record.reason
    point = None if fix.point is None else fix.point.to_part()
    why = why_no_fix(task.result, task.space.high, disagreed, point)
    return fix.minimum if why is None else fix.minimum.unproven(Note.NO_FIX, why)


def _run_loop(fix: Fix) -> None:
    """Run the loop of the kept units with its own state; past twice the tolerance they are no fix, whatever each step does."""
    task = fix.task
    run = task.subject.run_fixed
    runtime = task.prober.check.runtime
    if run is None or not task.subject.state.taken:
        return
    text = SINGLE_STEPS
    if task.cheap and runtime is not None and not task.settings.bits:
        candidate = task.lowering.candidate(fix.kept)
        own = run(candidate.proto, candidate.settings(runtime))
        if own is not None:
            text = describe_own_loop(own)
            if not own.worst <= MILD:
                uses = task.result.uses or ()
                task.result.uses = [structs.replace(use, passed=False, reason=text) for use in uses]
                return
    task.result.rounding = f"{task.result.rounding or ''} {text}".strip()


def _add_sampling_error(task: Task) -> None:
    """Add half the 95% interval of an accuracy to the metric of the result: other samples may score lower by as much."""
    metric = task.result.metric
    if task.settings.most is None and metric and metric.name.startswith("top-"):
        low, high = rate_interval(round(metric.candidate * metric.of), metric.of, CONFIDENCE)
        task.result.metric = structs.replace(metric, sampling_error=(high - low) / 2)


def deliver(fix: Fix) -> Result:
    """Probe what was written, conclude, and print the answer."""
    task = fix.task
    task.conclude(write_answer(fix))
    task.result.culprits = task.space.culprits(fix.minimum.units)
    tell(task)
    return task.result


def leave_best(fix: Fix) -> None:
    """Print the best set so far, where the search ends early; it is in the file."""
    with fix.task.subject.workers.deadline.extended():
        _leave_best(fix)


def _leave_best(fix: Fix) -> None:
    task, space = fix.task, fix.task.space
    if fix.units is None and fix.passing is not None:
        fix.minimum = Minimum(fix.passing, proven=False)
    units = fix.passing if fix.units is None else fix.units
    if units is None:
        if task.not_run is not None:
            task.console.answer(task.not_run)
        return
    # Where there is no room, the answer is printed.
    with suppress(UsageError):
        fix.leave(units)
    searched = bool(fix.minimum.units) or fix.minimum.proven
    minimal = fix.minimum.units if searched else units
    fix.minimum = structs.replace(fix.minimum, units=minimal).unproven(Note.ENDED)
    fix.why = ENDED
    outcome = task.outcome_of(units)
    with suppress(BudgetSpent):
        fix.measure_trade()
        if fix.traded and fix.written == units:
            outcome = fix.passes_by_trade(task.lowering.read_back(units, task.settings.output))
            fix.atol = fix.atol if outcome.ending is Ending.PASSED else {}
    fill_in(fix, outcome, None)
    task.result.culprits = space.culprits(units)
    # A file of another set must not stand for this one.
    if fix.written != units:
        task.result.uses = []
        task.result.artifacts["mixed"] = None
        task.console.answer(_mix(task).best(len(units), None))
        tell_kept(task.result.keep_fp32 or (), task.console)
        return
    tell(task, _mix(task).best(len(units), recommended(task.result) or task.settings.output))


def kept_units(task: Task, minimum: Minimum, units: Subset) -> list[Unit]:
    """Units for the result: name, operator, outputs, the rule that applies, and the reason."""
    suspects = {entry.unit: entry for entry in task.space.suspects}
    rows = []
    for unit, node in zip(sorted(units), task.space.describe(units), strict=True):
        entry = suspects.get(unit)
        minimal = unit in minimum.units
        broken = task.breaks(minimum.units - {unit}) if minimal else None
        if broken is not None:
            rule = NOT_RUN
        elif entry is not None and (entry.score >= INSIDE or minimal):
            rows.append(structs.replace(node, rule=entry.rule, reason=entry.reason))
            continue
        elif minimal:
            rule = NEEDED
        else:
            rule = FOR_FRESH
        reason = why_kept(rule, broken, proven=minimum.proven)
        rows.append(structs.replace(node, rule=rule, reason=reason))
    return rows


def measured_on(task: Task) -> str:
    """The runtime and the number of samples of the accuracy, in words."""
    settings = task.settings
    check = task.prober.check
    if settings.target is None:
        return "the check"
    samples = len(task.subject.samples) if check.metric is None else check.metric.data.count
    peaked = {} if settings.bits else peaked_outputs(task.subject.network)
    more = f"more {task.space.noun}s in {task.space.high}"
    runtime = settings.target.describe()
    rounded = None
    if settings.emulated and not settings.bits:
        runtime = settings.target.target.emulator
        rounded = settings.precision
    return describe_data(runtime, samples, more, peaked, rounded)


def fill_in(fix: Fix, outcome: Outcome | None, written: Record | None) -> None:
    """Put an answer into the result."""
    task = fix.task
    minimum = fix.minimum
    space = task.space
    settings = task.settings
    result = task.result
    points = sorted(fix.curve, key=lambda point: len(point.units))
    curve = [point.to_part(fix.drawn, recommended=point is fix.point) for point in points]
    result.artifacts["mixed"] = str(settings.output)
    result.keep_fp32 = kept_units(task, minimum, fix.kept)
    result.minimal = kept_units(task, minimum, minimum.units)
    result.minimal_proven = minimum.proven
    result.validation = next((point for point in curve if point.recommended), None)
    result.not_validated = fix.why if result.validation is None else None
    result.curve = curve
    result.trade_off = _numbers_of_trade(fix)
    result.rounding = " ".join(_sentences(fix, result.trade_off)) or None
    result.precision = settings.low
    result.lowered = len(task.lowering.units) - len(fix.kept)
    if _keeps_too_much(fix):
        result.large = True
    result.measured_on = measured_on(task)
    compared = () if outcome is None else outcome.comparisons
    result.accuracy = [*map(Comparison.of, compared)] or UNSET
    ran = _run_as_file(fix)
    result.uses = try_uses(task, fix.kept, written)
    # A set that fails by rounding may be off as a file too.
    if ran is not None and ran.ending is not Ending.PASSED and not (fix.traded and ran.comparisons):
        result.uses = _failing_uses(task, ran, result.uses)
    space.fill_in(result, fix.kept, minimum.units)
    result.latency_ms = _latency(fix, ran, timed=written is not None)
    if _is_slow(result.latency_ms or {}) and not settings.emulated:
        result.slow = True
    if settings.by_layer:
        result.artifacts["engine"] = str(engine_path(settings.output))


def _keeps_too_much(fix: Fix) -> bool:
    """Return whether more nodes stay than of a fix: all, or a set that is large; groups may all stay."""
    if fix.task.settings.bits:
        return False
    if len(fix.kept) == len(fix.task.lowering.units):
        return bool(fix.kept)
    return fix.point is not None and fix.is_large(fix.kept)


def _failing_uses(task: Task, ran: Outcome, uses: list[Use]) -> list[Use]:
    """Return uses of a file that fails as it ``ran``."""
    reason = FAILS_AS_FILE.format(task.settings.output.name, describe_outcome(ran, task.runtime))
    return [structs.replace(use, passed=False, reason=reason) for use in uses]


def _run_as_file(fix: Fix) -> Outcome | None:
    """Run what was written on the given samples, as the user will; ``None`` where it has been, or nothing is run.

    The search emulates low precision on some targets, so this is what they make of the types.
    """
    task = fix.task
    target = task.settings.target
    # Without room on the disk there is no file.
    if target is None or target.target.compiles or target.build_only or fix.written != fix.kept:
        return None
    output = task.settings.output
    files = task.prober.write(task.lowering.read_back(fix.kept, output))
    return task.prober.check.under(timed=True).run(replace(files, model=output.absolute()))


def _latency(fix: Fix, ran: Outcome | None, *, timed: bool) -> dict[str, float | None] | None:
    """Return the milliseconds of one run with all units kept, with the answer's, and with none.

    A target that compiles was timed with each probe. On others the answer ``ran``, and the models
    beside it are timed now; ``timed`` says whether there is time for it.
    """
    task = fix.task
    target = task.settings.target
    if target is None or target.build_only:
        return None
    latency: dict[str, float | None] = {}
    if target.target.compiles:
        sets = {
            "fp32": task.everything,
            "mixed": fix.kept,
            "lowered": frozenset[int](),
            "minimal": fix.minimum.units,
        }
        outcomes = {name: task.outcome_of(units) for name, units in sets.items()}
        latency = {
            name: None if outcome is None else outcome.latency_ms
            for name, outcome in outcomes.items()
        }
    elif timed:
        latency = {
            "fp32": _time(task, task.everything, "fp32"),
            "mixed": None if ran is None else ran.latency_ms,
            "lowered": _time(task, frozenset(), "lowered"),
        }
    return latency if any(value is not None for value in latency.values()) else None


def _is_slow(latency: Mapping[str, float | None]) -> bool:
    """Return whether a mixed model is as slow as the one in fp32, and the lowered one is faster."""
    full, mixed, lowered = (latency.get(name) for name in ("fp32", "mixed", "lowered"))
    if full is None or mixed is None or lowered is None:
        return False
    return full - lowered > _NOISE_MS and lowered < _FASTER * full <= mixed


def _time(task: Task, units: Subset, name: str) -> float | None:
    """Time the model with some units kept, as it would be written; ``None`` where it does not run."""
    subject = task.subject
    target = task.settings.target
    path = subject.workspace.scratch(f"timed-{name}.onnx")
    assert target is not None, "it runs"
    try:
        task.lowering.write(units, path)
    except UsageError:
        # There is no room on the disk.
        return None
    outputs = subject.reference.select(subject.network.outputs)
    sample = SampleFiles(
        subject.models.feed("timed-in", subject.samples[0]),
        subject.models.feed("timed-out", outputs),
    )
    # The graph has the types.
    plain = replace(target, fp16=False, bf16=False)
    reply = subject.workers.ask(Compare(plain, path, (sample,), ToleranceOptions(), timed=True))
    return None if isinstance(reply, Failed) else reply.latency_ms


def _option_of(fix: Fix) -> str:
    return atol_option(fix.atol, one=len(fix.task.subject.network.outputs) == 1)


def _numbers_of_trade(fix: Fix) -> TradeOff | None:
    """The tolerances at which the written set or a smaller one passes, and the set that the tolerance of the search needs."""
    traded = fix.traded or fix.point
    point = fix.cure
    if traded is None or point is None:
        return None
    return TradeOff(
        nodes=len(point.units),
        atol=fix.atol,
        argmax=point.argmax,
        nodes_for_tolerance=len(traded.units),
        holds_for_tolerance=traded.holds,
        useful=traded.holds and 2 * len(traded.units) <= len(fix.task.everything),
    )


def _mix(task: Task) -> Mix:
    return Mix(task.settings.low, task.space.high, task.space.count, len(task.lowering.units))


def _sentences(fix: Fix, trade: TradeOff | None) -> Iterator[str]:
    """Yield the sentences about rounding, where many units are kept, or the recommended set does not hold."""
    space = fix.task.space
    mix = _mix(fix.task)
    best = fix.traded or fix.point
    small = fix.cure
    if trade is not None and best is not None and small is not None:
        spared = small.cures and space.measured and space.losing <= small.units
        # A search that was stopped has not measured the tolerance.
        option = _option_of(fix) if fix.atol else ""
        yield mix.trade(trade, small.to_part(), best.to_part(), option, spared=spared)
    elif fix.everywhere:
        yield mix.everywhere(few=2 * max(len(fix.minimum.units), 1) < len(fix.kept))
    lost = len(fix.kept & space.losing)
    if lost and fix.is_large(fix.kept):
        yield mix.lost(lost)
    if fix.passes_in_bf16 is not None:
        yield said_of_bf16(passes=fix.passes_in_bf16, emulated=fix.task.settings.emulated)


def _use(path: Path, command: str, reason: str, *, passed: bool | None) -> Use:
    return Use(what=str(path), command=command, passed=passed, reason=reason)


def try_uses(task: Task, keep: Subset, written: Record | None) -> list[Use]:
    """Probe each file that was written as it will be used."""
    target = task.settings.target
    output = task.settings.output
    lowering = task.lowering
    if target is None:
        return []
    # If the search was ended, it is one of the candidates that passed.
    passed = True
    reason = PASSED
    if written is not None:
        passed = written.verdict is Verdict.PASS
        reason = written.reason
    if not isinstance(lowering, LayerLowering):
        return [_use(output, "", reason, passed=passed)]
    engine = engine_path(output)
    load = target.target.loading(target, engine).flags() if target.target.engines else []
    command = shlex.join(["bisect-trt", "run", str(task.subject.settings.path), *load])
    return [
        *_models(task, lowering, keep, tried=written is not None),
        _use(engine, command, reason, passed=passed),
    ]


def _models(task: Task, lowering: LayerLowering, keep: Subset, *, tried: bool) -> Iterator[Use]:
    """The model with Casts, built in each way in which the target takes such a one."""
    target = task.settings.target
    output = task.settings.output
    prober = task.prober
    if target is None or lowering.cast is None or not lowering.writes_model(output):
        return
    check = prober.check
    untried = None if tried else ENDED
    if tried and task.settings.most is not None:
        # The fix of a diagnosis: each build may take minutes.
        untried = ENGINE_ALONE
    for hint in target.target.typed(target):
        command = shlex.join(["bisect-trt", "run", str(output), *hint.flags()])
        passed = None
        reason = untried or TRY_IT
        if untried is None and check.judges_runtime:
            candidate = with_metadata(
                lowering.cast.read_back(keep, output), "bisect-trt.use", command
            )
            candidate = replace(
                candidate, title=f"{output.name}, built with {' '.join(hint.flags())}"
            )
            try:
                built = check.under(target=hint, engine_cache=None, timed=False)
                record = prober.beside(built, 1).probe(candidate)
                passed = record.verdict is Verdict.PASS
                reason = record.reason
            except BudgetSpent as error:
                reason = str(error)
            except UsageError:
                # This version of the target has no such way.
                continue
        yield _use(output, command, reason, passed=passed)


def recommended(result: Result) -> str | None:
    """The file of the first use that was seen to pass, unless it is as slow as the model in fp32."""
    passed = (use.what for use in result.uses or () if use.passed and not result.slow)
    return next(passed, None)


def tell(task: Task, *lines: str | None) -> None:
    """Print what the summary leaves out, after some lines; the result's reason begins with :attr:`Task.not_run`."""
    output = task.settings.output
    warning = said_beside(output) if task.lowering.writes_model(output) else None
    tell_mixed(task.result, task.console, task.not_run, *lines, warning and f"  {warning}")
    task.result.why = " ".join(filter(None, (task.not_run, task.result.why))) or None


_MOST_PROBES = 20
_MOST_COSTLY_PROBES = 4
"""The largest number of probes of the search for the minimal set; fewer where a build takes
minutes."""
_FRESH_SAMPLES = 60
"""None of so many failing shows with 95% certainty that under 5% of all fail; `precision` tries
more."""


def _in_fp32(
    case: Candidate,
    infos: Mapping[str, TensorInfo],
    target: TargetSettings,
    precision: str,
    *,
    by_layer: bool,
) -> Candidate:
    """Return the minimal case with nothing of it lowered.

    Args:
        case: The minimal case.
        infos: The types of the original's tensors. ONNX infers none behind operators of a runtime.
        target: The target, which lowers it.
        precision: The low precision.
        by_layer: Whether the target lowers layer by layer.
    """
    control = replace(case, title="the minimal case in fp32")
    every = tuple(map(first_output, case.proto.graph.node))
    if by_layer:
        return replace(control, keep=every)
    if target.target.computes_low(target):
        inferred = with_inferred_shapes(Network(case.proto), infos)
        control = replace(control, made=keep_on_host(case.proto, every, inferred))
    return marked(control, precision)


def find_fix(
    session: Session, check: CheckSettings, search: Search, case: Candidate, output: Path
) -> None:
    """After a diagnosis: if the minimal case passes in fp32, look for the nodes to keep in fp32, and leave that model.

    Where no fix is found, the reason is printed, and nothing is raised: the failure itself was
    found before.
    """
    target = check.target
    if target is None or (precision := half_of(target)) is None:
        return
    subject = session.subject
    prober = session.prober
    console = session.console
    compiles = target.target.compiles
    by_layer = compiles and subject.about(target) == "layer"
    check = replace(check, tolerance=with_peaked(check.tolerance, subject.network))
    own = PrecisionOptions(
        subject.settings.path, output, fresh_samples=_FRESH_SAMPLES, overwrite=True
    )
    most = _MOST_COSTLY_PROBES if compiles else _MOST_PROBES
    settings = PrecisionSettings(
        own, precision, target, by_layer=by_layer, most=most, tolerance=check.tolerance
    )
    command = session.command("precision", check)
    console.step("Search the nodes to keep in fp32")
    fixed = make_check(
        built_in_check(replace(check, by_layer=by_layer), subject, precision),
        subject.workers,
    )
    if prober.check.metric is not None and fixed.runtime is not None:
        fixed = prober.check.under(
            target=fixed.runtime, engine_cache=fixed.engines, confirm=False, timed=check.timed
        )
    fixer = prober.beside(
        fixed, workers_within(search.workers, subject.workers.width(shares_gpu=True))
    )  # it shares journal and budget
    alone = _in_fp32(case, subject.infos, target, precision, by_layer=by_layer)
    part = Result("precision")  # of its own, so that the answer of the diagnosis stays as it is
    fix = None
    try:
        # One probe tells whether precision is the reason, before nodes are searched.
        record = fixer.probe(alone)
        if record.verdict is not Verdict.PASS:
            console.say(f"  no: the minimal case does not pass in fp32 either: {record.reason}")
            return
        space = make_nodes(subject, settings)
        space.suspect_case(case.proto)
        task = Task(subject, console, part, fixer, space, settings)
        fix = Fix(task)
        # A target that lowers weights' nodes too may fail where the written model passes.
        fix.search(nothing_may_pass=not by_layer or bool(check.tolerance.peaks))
        minimum = write_answer(fix)
    except BudgetSpent as error:
        # A validated set is worth more than none, however the search ended.
        if fix is not None:
            leave_best(fix)
        console.say(f"  {error} This goes on: {command}")
        session.result.suggest(command)
        return
    except BisectError as error:
        if fix is None or not part.keep_fp32:
            console.say(f"  no fix by precision: {error}")
        return
    finally:
        prober.wasted += fixer.wasted
        session.result.take(part)
    none = NO_FIX.format(len(fix.kept), len(task.lowering.units))
    tell(task, None if recommended(part) else none)
    if not minimum.proven:
        console.answer(PRELIMINARY.format(describe(minimum.remark), command))
        session.result.suggest(command)
