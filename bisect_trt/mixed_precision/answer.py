"""The answer of a search for precision: what the result holds, and what the terminal shows."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.commands.layer_report import describe_fp32, fp32_layers
from bisect_trt.commands.suspicion import LOSES
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.lowering import LayerLowering, engine_path
from bisect_trt.mixed_precision.search import latency_of
from bisect_trt.mixed_precision.task import Space, Task
from bisect_trt.mixed_precision.validation import Safe
from bisect_trt.onnxlib.exported import in_module
from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.onnxlib.save import said_beside
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.journal import Record
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.runner import Runner
from bisect_trt.report.console import IN_JSON, Console
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.worker.process import run_to_end

_SHOWN_SUSPECTS, _SHOWN_LOWERED, _SHOWN = 5, 3, 30
_NEEDED = "needed: without it the check fails"
_NOT_PROVEN = "kept when the check passed; that it is needed was not proven"


@dataclass(frozen=True)
class Answer:
    """The end of a search.

    Attributes:
        minimum: The units to keep, and whether that is proven.
        safe: The set that is recommended; it holds the minimal one.
    """

    minimum: Minimum
    safe: Safe

    @property
    def units(self) -> Subset:
        """The units that are kept in what is recommended."""
        return self.safe.units


def kept_units(task: Task, answer: Answer, units: Subset) -> list[dict[str, Any]]:
    """Units for the result: name, operator, outputs, the rule that applies, and the reason."""
    suspects, broken = {entry.unit: entry for entry in task.space.suspects}, task.broken_without(answer.minimum)
    nodes = task.space.describe(units)
    for unit, node in zip(sorted(units), nodes, strict=True):
        entry = suspects.get(unit)
        if unit in broken:  # no number is what speaks against it
            rule, reason = broken[unit]
        elif entry is not None and (entry.score >= LOSES or unit in answer.minimum.units):
            rule, reason = entry.rule, entry.reason
        elif unit in answer.minimum.units:
            rule, reason = "needed", _NEEDED if answer.minimum.proven else _NOT_PROVEN
        else:
            rule, reason = answer.safe.reasons.get(unit, ("safe", "kept with the others when the check passed"))
        node["rule"], node["reason"] = rule, reason
    return nodes


def lowered_suspects(space: Space, answer: Answer) -> list[dict[str, Any]]:
    """The units that were suspected of more than an oddity and stay lowered all the same, strongest first."""
    left = [entry for entry in space.suspects if entry.score >= LOSES and entry.unit not in answer.units]
    described = [space.describe(frozenset({entry.unit}))[0] for entry in left]
    return [{**node, "rule": e.rule, "reason": e.reason} for node, e in zip(described, left, strict=True)]


def measured_on(task: Task) -> str:
    """What the accuracy was measured on, in words; what a check command feeds is not known."""
    settings, check = task.settings, task.prober.runner.check
    samples = check.scale.data.count if isinstance(check, MetricCheck) else len(task.subject.samples)
    if settings.target is None:
        return "the check"
    more = f": others may need more {task.space.noun}s in {task.space.high}"
    seen = f"1 input sample only{more}" if samples == 1 else f"{samples} input samples"
    if settings.emulated and not settings.bits:
        return (
            f"{settings.target.target.emulator}, which does not compute in {settings.precision}: fp32 nodes with every value "
            f"rounded to {settings.precision} between them, not the nodes of the written model themselves; on {seen}"
        )
    return f"{settings.target.describe()}, on {seen}"


def fill_in(task: Task, answer: Answer, outcome: Outcome | None, written: Record | None) -> None:
    """Put an answer into the result.

    Args:
        task: The search.
        answer: What was found.
        outcome: The outcome of the check, if known: of the written model, or of the best so far.
        written: The probe of what was written, read back; ``None`` if the search was ended before.
    """
    space, lowering, settings = task.space, task.lowering, task.settings
    nodes = kept_units(task, answer, answer.units)
    validation = answer.safe.validation
    uses = try_uses(task, answer.units, written)
    task.result.extra |= {
        "keep_fp32": nodes,
        "minimal": kept_units(task, answer, answer.minimum.units),
        "minimal_proven": answer.minimum.proven,
        "validation": None if validation is None else validation.to_json(),
        "not_validated": answer.safe.why,
        "advice": _advice(task, nodes, grown=len(answer.units) > len(answer.minimum.units)),
        "suspects_lowered": lowered_suspects(space, answer),
        "precision": settings.low,
        "lowered": len(lowering.units) - len(nodes),
        "measured_on": measured_on(task),
        "accuracy": [] if outcome is None else [comparison.to_json() for comparison in outcome.comparisons],
        "uses": [vars(use) for use in uses],
        "latency_ms": None,
        "ran_fp32": None,
        **space.extra(answer.units, answer.minimum.units),
    }
    if settings.target is not None and settings.target.target.capabilities.timed:
        _add_latency(task, answer)


def _add_latency(task: Task, answer: Answer) -> None:
    """How long each of the models runs (the median of several runs), and what of the answer ran in fp32."""
    ends = {
        "fp32": task.everything,
        "mixed": answer.units,
        "lowered": frozenset[int](),
        "minimal": answer.minimum.units,
    }
    keys = {name: task.lowering.candidate(units).key for name, units in ends.items()}
    found = {name: latency_of(task.prober, key) for name, key in keys.items()}
    extra, network = task.result.extra, task.subject.network
    extra["latency_ms"] = found if any(value is not None for value in found.values()) else None
    outcome = task.prober.ledger.outcome(keys["mixed"])
    if outcome is not None and not task.settings.bits:
        kept = frozenset(network.order[unit] for unit in answer.units)
        extra["ran_fp32"] = fp32_layers(network, outcome.layers, kept)
    if task.settings.by_layer:
        task.result.artifacts["engine"] = str(engine_path(task.settings.output))


def _advice(task: Task, nodes: Sequence[Mapping[str, Any]], *, grown: bool) -> list[str]:
    """What else to try where most of the model is kept, so that little is gained; none of it was tried."""
    if 2 * len(nodes) <= len(task.lowering.units) or task.settings.bits:
        return []
    ways = []
    if grown and not task.settings.validation_data:
        ways.append("your own samples, which may need less than those that were made up (--validation-data)")
    if task.settings.precision == "fp16" and any("65504" in node["reason"] for node in nodes):
        ways.append("bf16, which has the range of fp32, and fewer digits (--bf16)")
        ways.append("another form of what overflows (bisect-trt workaround)")
    return ways


def tell_suspects(task: Task) -> None:
    """Say what is suspected, and why."""
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
    """Say what to keep, why, and how accurate the rest is."""
    settings, result, console = task.settings, task.result, task.console
    kept, lowered = len(result.extra["keep_fp32"]), result.extra["lowered"]
    proof = f" ({_proof(result, result.minimality)})" if kept == len(result.extra["minimal"]) else ""
    name = recommended(result.extra["uses"]) or settings.output
    free = "free to run in" if settings.by_layer else "in"  # a target that lowers layers itself chooses among types
    task.tell_not_run()
    console.answer(f"{name}: {task.space.count(kept)} in {task.space.high}, {lowered} {free} {settings.low}{proof}.")
    if task.lowering.writes_model(settings.output) and (beside := said_beside(settings.output)) is not None:
        console.answer(f"  {beside}")
    tell_safe(result, console, result.minimality)
    if result.extra["advice"]:
        ways = "; ".join(result.extra["advice"])
        console.answer(f"  most of it stays in fp32, so little is gained; not tried: {ways}")
    tell_details(result, console)
    task.tell_why()


def tell_safe(result: Result, console: Console, minimality: str) -> None:
    """Say how what is recommended does on fresh samples, and how much less is enough for the samples that were given.

    ``minimality`` is that of the minimal set: the result's is another answer's where this one is a step of `diagnose`.
    """
    extra = result.extra
    if extra["validation"] is not None:
        console.answer(f"  {extra['validation']['sentence']}")
        console.answer(f"  fresh samples: {extra['validation']['drawn']}")
    elif extra["not_validated"] is not None:
        console.answer(f"  not held against fresh samples: {extra['not_validated']}")
    minimal = len(extra["minimal"])
    if minimal < len(extra["keep_fp32"]):
        what = f"{minimal} of these {'is' if minimal == 1 else 'are'} enough for what was given"
        named = [_named(node) for node in extra["minimal"][:_SHOWN_SUSPECTS]]
        more = ", ..." if minimal > _SHOWN_SUSPECTS else ""
        console.answer(f"  the minimal set: {what} ({_proof(result, minimality)}): {', '.join(named)}{more}")


def _proof(result: Result, minimality: str) -> str:
    by_regions = minimality == "1-minimal" and result.extra.get("regions")
    return f"{minimality} by regions" if by_regions else minimality


def _named(node: Mapping[str, Any]) -> str:
    return f"{node['op']} '{node['name'] or node['outputs'][0]}'"


def tell_details(result: Result, console: Console) -> None:
    """Say which units are kept and which suspects are not, and what was measured of the rest."""
    tell_kept(result.extra["keep_fp32"], console)
    tell_lowered(result, console)
    for output in result.extra["accuracy"][:_SHOWN]:
        comparison = TensorComparison.from_json(output)
        console.answer(f"  accuracy: '{comparison.name}': {comparison.describe()}")
    console.answer(f"  measured on {result.extra['measured_on']}")
    latency = result.extra["latency_ms"] or {}
    times = [f"{name} {value:.3f} ms" for name, value in latency.items() if value is not None]
    if times:
        console.answer(f"  one run takes (median, copies included): {', '.join(times)}")
    for line in describe_fp32(result.extra["ran_fp32"]) if result.extra["ran_fp32"] else ():
        console.answer(f"  {line}")
    tell_uses(result.extra["uses"], console)


def tell_kept(nodes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """List the units to keep, with the reason of each."""
    console.answer_first(nodes, _SHOWN, lambda node: f"  {_named(node)}{in_module(node)}: {node['reason']}", IN_JSON)


def tell_lowered(result: Result, console: Console) -> None:
    """Name the strongest suspects that stay lowered: other inputs may need them too."""
    for node in result.extra["suspects_lowered"][:_SHOWN_LOWERED]:
        console.answer(f"  also suspicious, left in {result.extra['precision']}: {_named(node)} ({node['reason']})")


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


TRTEXEC = "trtexec"
_NOT_TRIED = "the search did not come to its end"


@dataclass(frozen=True)
class Use:
    """One way to use an answer.

    Attributes:
        what: What is used: a file, or the options of ``trtexec``.
        command: The command line that uses it.
        passed: Whether it was seen to pass; ``None`` where it was not tried.
        reason: What was seen, or why nothing was.
    """

    what: str
    command: str
    passed: bool | None
    reason: str


def try_uses(task: Task, keep: Subset, written: Record | None) -> list[Use]:
    """Try every way to use what was written.

    Args:
        task: The search.
        keep: The units that stay in fp32.
        written: What was said of what was written, read back; ``None`` if the search was ended, and nothing more is run.
    """
    target, output, lowering = task.settings.target, task.settings.output, task.lowering
    if target is None:
        return []
    if not isinstance(lowering, LayerLowering):  # it was read back as any runtime reads it
        return [_use(str(output), "", written)]
    model, engine = str(task.subject.settings.path), engine_path(output)
    load = target.target.engines.load(target, engine).flags() if target.target.engines is not None else []
    # The fix of a diagnosis does not build the other ways too: the engine was probed, and each may take minutes.
    tried = written is not None and task.settings.most is None
    uses = [*_models(task, lowering, keep, target, tried=tried)] if lowering.writes_model(output) else []
    uses.append(_use(str(engine), shlex.join(["bisect-trt", "run", model, *load]), written))
    return [*uses, *_trtexec(task, lowering, keep, target, tried=written is not None)]


def _use(what: str, command: str, record: Record | None) -> Use:
    if record is None:  # of the candidates that passed it is the one, as it was built then
        return Use(what, command, passed=True, reason="as it passed in the search")
    return Use(what, command, record.verdict is Verdict.PASS, record.reason)


def _models(task: Task, lowering: LayerLowering, keep: Subset, target: TargetSettings, *, tried: bool) -> Iterator[Use]:
    """The model with Casts, built in each way in which the target takes such a one."""
    output = task.settings.output
    for how in target.target.typed(target):
        command = shlex.join(["bisect-trt", "run", str(output), *how.flags()])
        if not tried:
            yield Use(str(output), command, None, _NOT_TRIED)
            continue
        title = f"{output.name}, built with {' '.join(how.flags())}"
        assert lowering.cast is not None  # a model was written
        candidate = replace(lowering.cast.read_back(keep, output), title=title)
        try:
            yield _probed(task, str(output), command, _told_apart(candidate, command), how)
        except UsageError:  # of a way that this version does not have, nothing need be said
            continue


def _probed(task: Task, what: str, command: str, candidate: Candidate, target: TargetSettings) -> Use:
    """Probe a candidate on a target that is set up as a user will have it."""
    prober = task.prober
    check = prober.runner.check
    if not isinstance(check, BuiltinCheck):
        return Use(what, command, None, "the check is a command of yours: try it by hand")
    runner = Runner(
        replace(check, target=target, shelf=None, timed=False), task.subject.workspace, task.subject.reference
    )
    runner.flakiness = prober.runner.flakiness
    try:
        record = Prober(runner, prober.ledger, 1).probe(candidate)
    except BudgetSpent as error:
        return Use(what, command, None, str(error))
    return Use(what, command, record.verdict is Verdict.PASS, record.reason)


def _told_apart(candidate: Candidate, how: str) -> Candidate:
    """The same file is another candidate if it is used in another way."""
    model = onnx.ModelProto()
    model.CopyFrom(candidate.proto)
    model.metadata_props.add(key="bisect-trt.use", value=how)
    return replace(candidate, made=model)


def _trtexec(
    task: Task, lowering: LayerLowering, keep: Subset, target: TargetSettings, *, tried: bool
) -> Iterator[Use]:
    """The options that tell TensorRT the same: run, if the tool is there, and its engine probed."""
    subject, network = task.subject, task.subject.network
    nodes = tuple((node.name, tuple(node.output)) for node in network.nodes)
    minimal = Minimal(str(subject.settings.path), inputs=tuple(network.inputs), nodes=nodes)
    said = target.target.said_to(TRTEXEC, replace(target, keep=lowering.names(keep)), minimal)
    if said is None:
        return
    what = f"the options of {TRTEXEC}"
    if isinstance(said, NotReproducible):
        yield Use(what, "", None, said.reason)
        return
    words = [TRTEXEC, f"--onnx={minimal.file}", *said]
    command, tool = shlex.join(words), shutil.which(TRTEXEC)
    if not tried or tool is None:
        yield Use(what, command, None, _NOT_TRIED if not tried else f"there is no {TRTEXEC} on the PATH")
        return
    engine, log = subject.workspace.scratch("trtexec.engine"), subject.workspace.scratch("trtexec.log")
    engine.unlink(missing_ok=True)
    end = run_to_end([tool, *words[1:], f"--saveEngine={engine}", "--skipInference"], log=log, environment=os.environ)
    if end.code != 0 or not engine.exists():
        yield Use(what, command, passed=False, reason=f"{TRTEXEC} builds no engine (exit status {end.code}); see {log}")
        return
    candidate = replace(lowering.read_back(keep, task.settings.output), title="the engine of trtexec", engine=engine)
    yield _probed(task, what, command, _told_apart(candidate, TRTEXEC), target)


def recommended(uses: Sequence[Mapping[str, Any]]) -> str | None:
    """What is used in the first way that was seen to pass."""
    return next((str(use["what"]) for use in uses if use["passed"]), None)


def tell_uses(uses: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Say of each way whether it works, and how it is gone."""
    for use in sorted(uses, key=lambda use: (use["passed"] is not True, use["passed"] is None)):
        if use["passed"]:
            if use["command"]:
                console.answer(f"  seen to pass: {use['what']}: {use['command']}")
        elif use["passed"] is None:
            command = f": {use['command']}" if use["command"] else ""
            console.answer(f"  not tried ({use['reason']}): {use['what']}{command}")
        else:
            by = f" by {use['command']}" if use["command"] else ""
            console.answer(f"  does not pass: {use['what']}{by}: {use['reason']}")
