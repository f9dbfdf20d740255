"""The answer of a search for precision: written, read back, probed, put into the result and printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.commands.metric import measure_whole
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.curve import (
    ENDED,
    PrecisionAnswer,
    Progress,
    rounding_everywhere,
    row_of,
)
from bisect_trt.mixed_precision.lowering import LayerLowering, engine_path, with_metadata
from bisect_trt.mixed_precision.search import Task
from bisect_trt.mixed_precision.suspicion import LOSES
from bisect_trt.onnxlib.exported import in_module
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.save import said_beside
from bisect_trt.probe.ledger import BudgetSpent, Record
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.console import IN_JSON, Console
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.tensors.comparison import TensorComparison

_SHOWN_SUSPECTS, _SHOWN = 5, 30
_NEEDED = "needed: without it the check fails"
_NOT_PROVEN = "kept when the check passed; that it is needed was not proven"


def write_answer(task: Task, answer: PrecisionAnswer) -> Minimum:
    """Read back what was written, probe it, and fill in the result.

    Returns:
        The minimal set; unproven if what was written does not pass, or does not hold on fresh samples.
    """
    minimum, output, prober, lowering = answer.minimum, task.settings.output, task.prober, task.lowering
    nothing, written = lowering.candidate(frozenset()), lowering.read_back(answer.units, output)
    believed = reconfirm(prober, nothing, written)
    record, point = believed.record, answer.point
    task.console.say(f"  {believed.seen or record.reason}")
    problem = checker_problem(task.subject.settings.path, output) if lowering.writes_model(output) else None
    if minimum.proven and minimum.units != answer.units:
        minimal = reconfirm(prober, nothing, lowering.candidate(minimum.units)).record
        if minimal.verdict is not Verdict.PASS:
            minimum = replace(minimum, proven=False, why=f"of the minimal set: {minimal.reason}")
    task.result.artifacts["mixed"] = str(output)
    fill_in(task, replace(answer, minimum=minimum), task.outcome(record), record)
    measure_whole(task, written)
    if record.verdict is not Verdict.PASS:
        return replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    if problem is not None:
        return replace(minimum, proven=False, why=f"ONNX's checker refuses {output}: {problem}")
    if point is not None and not point.holds:
        return replace(minimum, proven=False, why=f"the fix does not hold: {point.row()}")
    return minimum


def deliver(task: Task, answer: PrecisionAnswer) -> Result:
    """Probe what was written, conclude, and print the answer."""
    task.console.step("Written and read back: does it pass?")
    task.conclude(write_answer(task, answer))
    task.result.culprits = task.space.culprits(answer.minimum.units)
    tell_answer(task)
    return task.result


def leave_best(task: Task, progress: Progress) -> Subset | None:
    """Where the search ends early, write the best set so far and print what is known of it.

    Returns:
        Its units; ``None`` if nothing smaller than the whole model was seen to pass.
    """
    task.tell_not_run()
    answer = progress.answer
    if answer is None:
        best = _smallest_passing(task)
        if best is None:
            return None
        answer = PrecisionAnswer(Minimum(best, proven=False), best, why=ENDED)
    answer = replace(answer, minimum=replace(answer.minimum, proven=False, why=ENDED))
    progress.keep(answer)
    task.result.artifacts["mixed"] = str(task.settings.output)
    fill_in(task, answer, task.prober.ledger.outcome(task.lowering.candidate(answer.units).key), None)
    name, space = recommended(task.result.extra["uses"]) or task.settings.output, task.space
    count = f"{len(answer.units)} of {space.count(len(task.lowering.units))} in {space.high}"
    task.console.answer(f"{name}: the best so far, {count}.")
    tell_curve(task.result, task.console)
    tell_details(task.result, task.console)
    return answer.units


def tell_unwritten(task: Task, progress: Progress) -> None:
    """Print the nodes of an answer that cannot be written."""
    answer, space = progress.answer, task.space
    if answer is None:
        return
    fill_in(task, answer, task.prober.ledger.outcome(task.lowering.candidate(answer.units).key), None)
    task.result.extra["uses"] = []
    nodes = task.result.extra["keep_fp32"]
    task.console.answer(f"Fix: keep {space.count(len(nodes))} in {space.high}. It cannot be written.")
    tell_kept(nodes, task.console)


def _smallest_passing(task: Task) -> Subset | None:
    """The smallest set of units that was seen to be enough, if there is one but all of them."""
    passed = {each.key: each.units for each in task.prober.ledger.passed if each.units < task.everything}
    ordered = sorted(passed.items(), key=lambda entry: (len(entry[1]), sorted(entry[1])))
    # After a diagnosis the pieces that it probed are among them.
    return next((units for key, units in ordered if task.lowering.candidate(units).key == key), None)


def checker_problem(original: Path, written: Path) -> str | None:
    """What ONNX's checker has against the written model, unless it has something against the original too."""
    problem = _checked(written)
    return None if problem is None or _checked(original) is not None else problem


def _checked(path: Path) -> str | None:
    """What the checker has against a model; by its path it reads the binary format only, but any size."""
    try:
        model = onnx.load(str(path), load_external_data=False)
        onnx.checker.check_model(str(path) if has_external_data(model) else model, full_check=True)
    except Exception as error:  # of the checker, of shape inference, of protobuf
        return " ".join(str(error).split())[:300]
    return None


def kept_units(task: Task, answer: PrecisionAnswer, units: Subset) -> list[dict[str, Any]]:
    """Units for the result: name, operator, outputs, the rule that applies, and the reason."""
    suspects, broken = {entry.unit: entry for entry in task.space.suspects}, task.broken_without(answer.minimum)
    nodes = task.space.describe(units)
    for unit, node in zip(sorted(units), nodes, strict=True):
        entry, minimal = suspects.get(unit), unit in answer.minimum.units
        if unit in broken:  # the model is not run, so no number speaks against the unit
            rule, reason = broken[unit]
        elif entry is not None and (entry.score >= LOSES or minimal):
            rule, reason = entry.rule, entry.reason
        elif minimal:
            rule, reason = "needed", _NEEDED if answer.minimum.proven else _NOT_PROVEN
        elif unit in task.space.certain:
            rule, reason = "safe", "known to break on some input, whatever the samples given"
        else:
            rule, reason = "fresh sample", "without it and others fresh samples fail"
        node["rule"], node["reason"] = rule, reason
    return nodes


def measured_on(task: Task) -> str:
    """The runtime and the number of samples of the accuracy, in words."""
    settings, check = task.settings, task.prober.runner.check
    if settings.target is None:
        return "the check"
    samples = check.scale.data.count if isinstance(check, MetricCheck) else len(task.subject.samples)
    more = f": others may need more {task.space.noun}s in {task.space.high}"
    seen = f"1 input sample only{more}" if samples == 1 else f"{samples} input samples"
    if settings.emulated and not settings.bits:
        return (
            f"{settings.target.target.emulator}, which does not compute in {settings.precision}: fp32 nodes with every value "
            f"rounded to {settings.precision} between them, not the nodes of the written model themselves; on {seen}"
        )
    return f"{settings.target.describe()}, on {seen}"


def fill_in(task: Task, answer: PrecisionAnswer, outcome: Outcome | None, written: Record | None) -> None:
    """Put an answer into the result.

    Args:
        task: The search.
        answer: What was found.
        outcome: The outcome of the check, if known: of the written model, or of the best so far.
        written: The probe of what was written, read back; ``None`` if the search was ended before.
    """
    space, settings, extra = task.space, task.settings, task.result.extra
    points = sorted(answer.curve, key=lambda each: len(each.units))
    curve = [{**each.to_json(), "drawn": answer.drawn, "recommended": each is answer.point} for each in points]
    extra |= {
        "keep_fp32": kept_units(task, answer, answer.units),
        "minimal": kept_units(task, answer, answer.minimum.units),
        "minimal_proven": answer.minimum.proven,
        "validation": next((point for point in curve if point["recommended"]), None),
        "not_validated": answer.why,
        "curve": curve,
        "rounding": _rounding(task, answer),
        "precision": settings.low,
        "lowered": len(task.lowering.units) - len(answer.units),
        "measured_on": measured_on(task),
        "accuracy": [] if outcome is None else [comparison.to_json() for comparison in outcome.comparisons],
        "uses": [vars(use) for use in try_uses(task, answer.units, written)],
        "latency_ms": None,
        **space.extra(answer.units, answer.minimum.units),
    }
    if settings.target is None or not settings.target.target.capabilities.timed:
        return
    sets = {"fp32": task.everything, "mixed": answer.units, "lowered": frozenset(), "minimal": answer.minimum.units}
    outcomes = {name: task.prober.ledger.outcome(task.lowering.candidate(units).key) for name, units in sets.items()}
    latency = {name: None if each is None else each.latency_ms for name, each in outcomes.items()}
    extra["latency_ms"] = latency if any(value is not None for value in latency.values()) else None
    if settings.by_layer:
        task.result.artifacts["engine"] = str(engine_path(settings.output))


def _rounding(task: Task, answer: PrecisionAnswer) -> str | None:
    """A sentence, where rounding in most of the model breaks the tolerance rather than a few units."""
    if not rounding_everywhere(task, answer):
        return None
    said = (
        f"Rounding to {task.settings.low} in most of the model adds up past the tolerance; no few nodes are the reason."
    )
    small = [point for point in answer.curve if not point.severe and len(point.units) < len(answer.units) / 2]
    if not small:
        return said
    point = min(small, key=lambda each: len(each.units))
    count, samples = task.space.count(len(point.units)), len(point.errors)
    return f"{said} With {count} in {task.space.high} all {samples} fresh samples hold at {point.worst:.2g} times the tolerance."


@dataclass(frozen=True)
class Use:
    """One way to use an answer.

    Attributes:
        what: The file.
        command: The command line that runs it.
        passed: Whether it was seen to pass; ``None`` where it was not tried.
        reason: What was seen, or why nothing was.
    """

    what: str
    command: str
    passed: bool | None
    reason: str


def try_uses(task: Task, keep: Subset, written: Record | None) -> list[Use]:
    """Probe each file that was written as it will be used.

    Args:
        task: The search.
        keep: The units that stay in fp32.
        written: The probe of what was written, read back; ``None`` if the search was ended, and nothing more is run.
    """
    target, output, lowering = task.settings.target, task.settings.output, task.lowering
    if target is None:
        return []
    # If the search was ended, it is one of the candidates that passed.
    passed, reason = (True, "as it passed in the search")
    if written is not None:
        passed, reason = written.verdict is Verdict.PASS, written.reason
    if not isinstance(lowering, LayerLowering):
        return [Use(str(output), "", passed, reason)]
    engine = engine_path(output)
    load = target.target.loading(target, engine).flags() if target.target.capabilities.engines else []
    command = shlex.join(["bisect-trt", "run", str(task.subject.settings.path), *load])
    return [*_models(task, lowering, keep, tried=written is not None), Use(str(engine), command, passed, reason)]


def _models(task: Task, lowering: LayerLowering, keep: Subset, *, tried: bool) -> Iterator[Use]:
    """The model with Casts, built in each way in which the target takes such a one."""
    target, output, prober = task.settings.target, task.settings.output, task.prober
    if target is None or lowering.cast is None or not lowering.writes_model(output):
        return
    check, why = prober.runner.check, None if tried else ENDED
    if tried and task.settings.most is not None:  # the fix of a diagnosis: each build may take minutes
        why = "the engine was probed instead"
    for how in target.target.typed(target):
        command = shlex.join(["bisect-trt", "run", str(output), *how.flags()])
        if why is not None or not isinstance(check, BuiltinCheck):
            yield Use(str(output), command, None, why or "the check is a command of yours: try it by hand")
            continue
        candidate = with_metadata(lowering.cast.read_back(keep, output), "bisect-trt.use", command)
        candidate = replace(candidate, title=f"{output.name}, built with {' '.join(how.flags())}")
        built = replace(check, target=how, engine_cache=None, timed=False)
        try:
            record = prober.beside(built, 1).probe(candidate)
        except BudgetSpent as error:
            yield Use(str(output), command, None, str(error))
        except UsageError:  # this version of the target has no such way
            continue
        else:
            yield Use(str(output), command, record.verdict is Verdict.PASS, record.reason)


def recommended(uses: Sequence[Mapping[str, Any]]) -> str | None:
    """The file of the first use that was seen to pass."""
    return next((str(use["what"]) for use in uses if use["passed"]), None)


def tell_suspects(task: Task) -> None:
    """Print the suspects, and why they are."""
    space = task.space
    if not space.suspects:
        task.console.say("  none")
    task.console.say_first(
        space.suspects,
        _SHOWN_SUSPECTS,
        lambda entry: f"  {space.label(entry.unit)}: {entry.reason}",
        ", less suspicious",
    )


def tell_answer(task: Task) -> None:
    """Print what to keep, why, and how accurate the rest is."""
    settings, result, console = task.settings, task.result, task.console
    kept, lowered = len(result.extra["keep_fp32"]), result.extra["lowered"]
    proof = f" ({result.minimality})" if kept == len(result.extra["minimal"]) else ""
    name = recommended(result.extra["uses"]) or settings.output
    free = "free to run in" if settings.by_layer else "in"  # a target that lowers layers itself chooses among types
    task.tell_not_run()
    console.answer(f"{name}: {task.space.count(kept)} in {task.space.high}, {lowered} {free} {settings.low}{proof}.")
    if task.lowering.writes_model(settings.output) and (beside := said_beside(settings.output)) is not None:
        console.answer(f"  {beside}")
    tell_safe(result, console, "1-minimal" if result.extra["minimal_proven"] else "unproven")
    tell_details(result, console)
    task.tell_why()


def tell_safe(result: Result, console: Console, minimality: str) -> None:
    """Print how the written set does on fresh samples, and the minimal set where that is smaller.

    ``minimality`` is that of the minimal set: the result's is another answer's where this one is a step of `diagnose`.
    """
    extra = result.extra
    if extra["validation"] is not None:
        console.answer(f"  {extra['validation']['sentence']}")
        console.answer(f"  fresh samples: {extra['validation']['drawn']}")
        tell_curve(result, console)
    elif extra["not_validated"] is not None:
        console.answer(f"  not held against fresh samples: {extra['not_validated']}")
    minimal = len(extra["minimal"])
    if minimal < len(extra["keep_fp32"]):
        what = f"{minimal} of these {'is' if minimal == 1 else 'are'} enough for what was given"
        named = [_named(node) for node in extra["minimal"][:_SHOWN_SUSPECTS]]
        more = ", ..." if minimal > _SHOWN_SUSPECTS else ""
        console.answer(f"  the minimal set: {what} ({minimality}): {', '.join(named)}{more}")


def tell_curve(result: Result, console: Console) -> None:
    """Print the sets to choose from, where there is more than one, and whether rounding everywhere is the reason."""
    curve = result.extra["curve"]
    if len(curve) > 1:
        console.answer("  the sets to choose from, by --keep-set N without a new search:")
        for point in curve:
            chosen = " (written)" if point["recommended"] else ""
            console.answer(f"    {point['nodes']:>5}: {row_of(point)}{chosen}")
    if result.extra["rounding"]:
        console.answer(f"  {result.extra['rounding']}")


def _named(node: Mapping[str, Any]) -> str:
    return f"{node['op']} '{node['name'] or node['outputs'][0]}'"


def tell_details(result: Result, console: Console) -> None:
    """Print which units are kept, and what was measured of the rest."""
    tell_kept(result.extra["keep_fp32"], console)
    for output in result.extra["accuracy"][:_SHOWN]:
        comparison = TensorComparison.from_json(output)
        console.answer(f"  accuracy: '{comparison.name}': {comparison.describe()}")
    console.answer(f"  measured on {result.extra['measured_on']}")
    latency = result.extra["latency_ms"] or {}
    times = [f"{name} {value:.3f} ms" for name, value in latency.items() if value is not None]
    if times:
        console.answer(f"  one run takes (median, copies included): {', '.join(times)}")
    tell_uses(result.extra["uses"], console)


def tell_kept(nodes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the units to keep, with the reason of each."""
    console.answer_first(nodes, _SHOWN, lambda node: f"  {_named(node)}{in_module(node)}: {node['reason']}", IN_JSON)


def tell_uses(uses: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print each file that was tried, with its command; those that passed first."""
    for use in sorted(uses, key=lambda use: (use["passed"] is not True, use["passed"] is None)):
        if use["passed"]:
            if use["command"]:
                console.answer(f"  seen to pass: {use['what']}: {use['command']}")
        elif use["passed"] is None:
            console.answer(f"  not tried ({use['reason']}): {use['what']}: {use['command']}")
        else:
            by = f" by {use['command']}" if use["command"] else ""
            console.answer(f"  does not pass: {use['what']}{by}: {use['reason']}")
