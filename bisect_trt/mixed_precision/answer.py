"""The answer of a search for precision: written, read back, probed, put into the result and printed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.mixed_precision.curve import CONFIDENCE, ENDED, Fix, in_tolerances, row_of
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
from bisect_trt.onnxlib.nodes import first_output, in_module
from bisect_trt.onnxlib.save import said_beside
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.console import IN_JSON, Console, listed
from bisect_trt.report.parts import FOR_FRESH, NEEDED, Comparison, TradeOff, Unit, Use
from bisect_trt.report.result import Result
from bisect_trt.report.summary import LARGE, why_no_use
from bisect_trt.report.text import named
from bisect_trt.search.oracle import Minimum, Subset, Verdict
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
_SHOWN_SUSPECTS = 5
_SHOWN = 30


def _why_unproven(fix: Fix, record: Record) -> str | None:
    """Return why what was written proves no fix."""
    task = fix.task
    point = fix.point
    if record.verdict is not Verdict.PASS:
        return f"the final re-check disagreed: {record.reason}"
    if refused := why_no_use(task.result):
        return refused
    if task.result.slow:
        return f"it is as slow as the model in {task.space.high}"
    if point is not None and not point.holds:
        return f"the fix does not hold: {row_of(point.to_part())}"
    return f"{LARGE} in {task.space.high}" if task.result.large else None


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
        record = believed.record
        outcome = task.outcome(record)
        task.console.say(f"  {believed.seen or record.reason}")
    else:
        outcome = fix.passes_by_trade(written)
        record = task.prober.ledger.records[-1]
        task.console.say(f"  with {_atol_option(fix)}: {outcome.reason}")
    fill_in(fix, outcome, record)
    task.score_whole(written)
    metric = task.result.metric
    if metric:
        probes = tuple(each for each in metric.probes if each.probe not in fix.stream_probes)
        task.result.metric = structs.replace(metric, streams=fix.streams, probes=probes)
    _add_sampling_error(task)
    why = _why_unproven(fix, record)
    return fix.minimum if why is None else fix.minimum.unproven(why)


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
    fix.minimum = structs.replace(fix.minimum, units=minimal, proven=False, why=ENDED)
    fix.why = ENDED
    fill_in(fix, task.outcome_of(units), None)
    task.result.culprits = space.culprits(units)
    count = f"{len(units)} of {space.count(len(task.lowering.units))} in {space.high}"
    # A file of another set must not stand for this one.
    if fix.written != units:
        task.result.uses = []
        task.result.artifacts["mixed"] = None
        task.console.answer(f"The best so far, {count}, cannot be written.")
        tell_kept(task.result.keep_fp32 or (), task.console)
        return
    tell(task, f"{recommended(task.result) or task.settings.output}: the best so far, {count}.")


def kept_units(task: Task, minimum: Minimum, units: Subset) -> list[Unit]:
    """Units for the result: name, operator, outputs, the rule that applies, and the reason."""
    suspects = {entry.unit: entry for entry in task.space.suspects}
    rows = []
    for unit, node in zip(sorted(units), task.space.describe(units), strict=True):
        entry = suspects.get(unit)
        minimal = unit in minimum.units
        broken = task.breaks(minimum.units - {unit}) if minimal else None
        if broken is not None:
            # The model is not run, so there is no number that is wrong.
            rule = "not run"
            reason = f"without it: {broken}"
        elif entry is not None and (entry.score >= INSIDE or minimal):
            rule = entry.rule
            reason = entry.reason
        elif minimal:
            proven = "needed: without it the check fails"
            rule = NEEDED
            reason = (
                proven if minimum.proven else "kept when the check passed; not proven to be needed"
            )
        else:
            rule = FOR_FRESH
            reason = "without it and others fresh samples fail"
        rows.append(structs.replace(node, rule=rule, reason=reason))
    return rows


def measured_on(task: Task) -> str:
    """The runtime and the number of samples of the accuracy, in words."""
    settings = task.settings
    check = task.prober.check
    if settings.target is None:
        return "the check"
    samples = len(task.subject.samples) if check.metric is None else check.metric.data.count
    caveat = f" only: others may need more {task.space.noun}s in {task.space.high}"
    basis = f"{samples} input sample{caveat if samples == 1 else 's'}"
    peaked = {} if settings.bits else peaked_outputs(task.subject.network)
    for name, operator in peaked.items():
        basis += f"; '{name}' by its largest value, as {operator} makes it"
    if settings.emulated and not settings.bits:
        basis = f"with every value of fp32 nodes rounded to {settings.precision}, not the nodes of the written model; on {basis}"
        return f"{settings.target.target.emulator}, {basis}"
    return f"{settings.target.describe()}, on {basis}"


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
    result.not_validated = fix.why
    result.curve = curve
    result.trade_off = _numbers_of_trade(fix)
    sentences = (
        _trade_off(fix, result.trade_off) or _rounding(fix),
        _lost(fix),
        _said_of_bf16(fix),
    )
    result.rounding = " ".join(filter(None, sentences)) or None
    result.large = fix.point is not None and not settings.bits and fix.is_large(fix.kept)
    result.precision = settings.low
    result.lowered = len(task.lowering.units) - len(fix.kept)
    result.measured_on = measured_on(task)
    result.accuracy = [] if outcome is None else list(map(Comparison.of, outcome.comparisons))
    ran = _run_as_file(task, fix.kept)
    result.uses = try_uses(task, fix.kept, written)
    # A set that fails by rounding may be off as a file too.
    if ran is not None and ran.ending is not Ending.PASSED and not (fix.traded and ran.comparisons):
        runtime = f"{settings.target.target.title} " if settings.target else ""
        reason = ran.reason.replace("the target ", runtime, 1)
        reason = f"{settings.output.name} does not pass as it is: {reason}"
        result.uses = [structs.replace(use, passed=False, reason=reason) for use in result.uses]
    space.fill_in(result, fix.kept, minimum.units)
    result.latency_ms = _latency(fix, ran, timed=written is not None)
    if _is_slow(result.latency_ms or {}) and not settings.emulated:
        result.slow = True
    if settings.by_layer:
        result.artifacts["engine"] = str(engine_path(settings.output))


def _run_as_file(task: Task, keep: Subset) -> Outcome | None:
    """Run what was written on the given samples, as the user will; ``None`` where it has been, or nothing is run.

    The search emulates low precision on some targets, so this is what they make of the types.
    """
    target = task.settings.target
    if target is None or target.target.compiles or target.build_only:
        return None
    output = task.settings.output
    files = task.prober.write(task.lowering.read_back(keep, output))
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


def _atol_option(fix: Fix) -> str:
    """The option with which a set that does not hold passes."""
    outputs = fix.task.subject.network.outputs
    values = [
        f"{atol:g}" if len(outputs) == 1 else f"{name}:{atol:g}" for name, atol in fix.atol.items()
    ]
    return shlex.join(["--atol", *values])


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


def _trade_off(fix: Fix, trade: TradeOff | None) -> str | None:
    """Sentences, where the recommended set does not hold or is large: whether values are lost, and how large the error is.

    That no node loses its values alone and that the error is past the tolerance are two facts.
    """
    traded = fix.traded or fix.point
    point = fix.cure
    if trade is None or traded is None or point is None:
        return None
    space = fix.task.space
    low = fix.task.settings.low
    count = space.count(trade.nodes_for_tolerance)
    text = ""
    if not trade.useful:
        share = f": {count} of {len(fix.task.everything)} would stay in {space.high}"
        text = f"No useful mix at this tolerance{share if traded.holds else ' was seen'}. "
    kept = f"With {space.count(trade.nodes)} in {space.high}"
    left = f"{kept} there are"
    if point.cures and space.measured and space.losing <= point.units:
        none = f"{kept} no other" if trade.nodes else "No node"
        text += f"{none} loses its values alone in {low}. "
        left = "Rounding then leaves"
    text += f"{left} errors up to {in_tolerances(max(point.errors))}"
    if fix.atol:  # a search that was stopped has not measured it
        text += f": with `{_atol_option(fix)}` it passes"
    shares = [f"{_percent(share)} of the rows of '{name}'" for name, share in point.argmax.items()]
    text += f"; the argmax agrees in {' and '.join(shares)}." if shares else "."
    if traded.holds:
        return f"{text} For this tolerance {count} are enough."
    if traded is point:
        return f"{text} No larger set was seen to meet this tolerance."
    return f"{text} With {count}: {row_of(traded.to_part())}."


def _percent(share: float) -> str:
    """A share in percent, rounded down, so that 100% is all."""
    return f"{math.floor(1000 * share) / 10:g}%"


def _said_of_bf16(fix: Fix) -> str | None:
    """A sentence, where the whole model was tried in bf16."""
    if fix.passes_in_bf16 is None:
        return None
    emulated = " when it is emulated" if fix.task.settings.emulated else ""
    outcome = f"passes{emulated}: try --bf16" if fix.passes_in_bf16 else "fails as well"
    return f"In bf16 the whole model {outcome}."


def _rounding(fix: Fix) -> str | None:
    """Sentences, where most of the model has to stay in floats."""
    if not fix.everywhere:
        return None
    low = fix.task.settings.low
    space = fix.task.space
    reason = f"most of the model has to stay in {space.high}."
    if 2 * max(len(fix.minimum.units), 1) < len(fix.kept):
        reason = (
            f"rounding to {low} in most of the model adds up past it; no few nodes are the reason."
        )
    return f"No useful mix at this tolerance: {reason}"


def _lost(fix: Fix) -> str | None:
    """A sentence, where many units are kept that no tolerance spares."""
    space = fix.task.space
    lost = len(fix.kept & space.losing)
    if not (lost and fix.is_large(fix.kept)):
        return None
    low = fix.task.settings.low
    return f"{space.count(lost)} lose values alone in {low}, or are near to it: a larger tolerance does not spare these."


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
    reason = "as it passed in the search"
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
        untried = "the engine was probed instead"
    for hint in target.target.typed(target):
        command = shlex.join(["bisect-trt", "run", str(output), *hint.flags()])
        passed = None
        reason = untried or "a check command judges engines; try the model yourself"
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


def tell_suspects(task: Task) -> None:
    """Print the suspects, and why they are."""
    space = task.space
    console = task.console
    if not space.suspects:
        console.say("  none")
    shown = [f"{space.label(entry.unit)}: {entry.reason}" for entry in space.suspects]
    for line in listed(shown, _SHOWN_SUSPECTS, ", less suspicious"):
        console.say(line)


def tell(task: Task, *lines: str | None) -> None:
    """Print what the summary leaves out, after some lines: the reason of each unit, the accuracy, and how to use the files."""
    result = task.result
    settings = task.settings
    answer = task.console.answer
    warning = said_beside(settings.output) if task.lowering.writes_model(settings.output) else None
    for line in filter(None, (task.not_run, *lines, warning and f"  {warning}")):
        answer(line)
    tell_kept(result.keep_fp32 or (), task.console)
    comparisons = (result.accuracy or [])[:_SHOWN]
    reason = (result.why or "").removeprefix(task.not_run or "").strip()
    notes = (
        *(f"accuracy: '{comparison.name}': {comparison.describe()}" for comparison in comparisons),
        f"measured on {result.measured_on}",
        result.validation and f"fresh samples: {result.validation.drawn}",
        *_use_lines(result),
        reason,
    )
    for text in filter(None, notes):
        answer(f"  {text}")


def _use_lines(result: Result) -> Iterator[str]:
    """Each file that was tried, with its command; those that passed first."""
    for use in sorted(
        result.uses or (), key=lambda use: (use.passed is not True, use.passed is None)
    ):
        verdict = {True: "seen to pass", False: "does not pass", None: "not tried"}[use.passed]
        reason = "" if use.passed else f" ({use.reason})"
        # A file that passed without a command has been named above.
        if use.command or not use.passed:
            yield f"{verdict}{reason}: {use.what}{': ' if use.command else ''}{use.command}"


def tell_kept(nodes: Sequence[Unit], console: Console) -> None:
    """Print the units to keep, with the reason of each."""
    for line in listed(
        [f"{named(node)}{in_module(node)}: {node.reason}" for node in nodes], _SHOWN, IN_JSON
    ):
        console.answer(line)


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
    kept = f"{len(fix.kept)} of {len(task.lowering.units)} nodes in fp32"
    tell(
        task,
        None
        if recommended(part)
        else f"No fix by precision: with {kept} nothing that was written passes.",
    )
    if not minimum.proven:
        console.answer(
            f"  this fix is preliminary: {minimum.why}; this command searches on for fewer nodes: {command}"
        )
        session.result.suggest(command)
