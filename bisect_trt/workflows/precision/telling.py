"""What a search for precision says: suspects, the answer, the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.errors import BisectError
from bisect_trt.graph.exported import in_module
from bisect_trt.graph.externals import has_external_data
from bisect_trt.graph.save import said_beside
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.outcome import Outcome
from bisect_trt.reporting.console import IN_JSON, Console
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.engine_layers import describe_fp32
from bisect_trt.workflows.precision.safe import Safe
from bisect_trt.workflows.precision.said import tell_said
from bisect_trt.workflows.precision.task import PrecisionSettings, Task
from bisect_trt.workflows.precision.uses import recommended, tell_uses
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion import Suspect
from bisect_trt.workflows.suspicion.facts import LOSES

_SHOWN_SUSPECTS, _SHOWN_LOWERED, _SHOWN = 5, 3, 30
_NEEDED = "needed: without it the check fails"
_NOT_PROVEN = "in fp32 when the check passed; that it is needed was not proven"


@dataclass(frozen=True)
class Answer:
    """What a search ended with.

    Attributes:
        minimum: The units to keep, and whether that is proven.
        suspects: What was suspected before.
        safe: What is recommended; the minimal set where the search did not come to that.
    """

    minimum: Minimum
    suspects: Sequence[Suspect]
    safe: Safe | None = None

    @property
    def units(self) -> Subset:
        """The units in fp32 of what is recommended."""
        return self.minimum.units if self.safe is None else self.safe.units


def tell_suspects(subject: Subject, suspects: Sequence[Suspect], console: Console) -> None:
    """Say what is suspected, and why."""
    network = subject.network
    if not suspects:
        console.say("  none")

    def line(entry: Suspect) -> str:
        return f"  {network.describe(network.order[entry.unit])}: {entry.reason}"

    console.say_first(suspects, _SHOWN_SUSPECTS, line, ", less suspicious")


def kept_nodes(task: Task, answer: Answer, units: Subset) -> list[dict[str, Any]]:
    """Nodes to keep for the result: name, operator, outputs, the rule that applies, and the reason."""
    found, broken = {entry.unit: entry for entry in answer.suspects}, task.broken_without(answer.minimum)
    nodes = task.subject.describe_searched(units)
    needed = _NEEDED if answer.minimum.proven else _NOT_PROVEN
    grown = {} if answer.safe is None else answer.safe.reasons
    for unit, node in zip(sorted(units), nodes, strict=True):
        entry = found.get(unit)
        if unit in broken:  # no number is what speaks against it
            node["rule"], node["reason"] = broken[unit]
        elif unit in grown and (entry is None or entry.score < LOSES):  # an oddity is not why it is kept
            node["rule"], node["reason"] = grown[unit]
        elif entry is not None:
            node["rule"], node["reason"] = entry.rule, entry.reason
        elif unit in answer.minimum.units:
            node["rule"], node["reason"] = "needed", needed
        else:
            node["rule"], node["reason"] = "safe", "kept with the others when the check passed"
    return nodes


def lowered_suspects(subject: Subject, answer: Answer) -> list[dict[str, Any]]:
    """The nodes that were suspected of more than an oddity and stay lowered all the same, strongest first."""
    left = [entry for entry in answer.suspects if entry.score >= LOSES and entry.unit not in answer.units]
    described = [subject.describe_searched(frozenset({entry.unit}))[0] for entry in left]
    return [{**node, "rule": e.rule, "reason": e.reason} for node, e in zip(described, left, strict=True)]


def samples_seen(task: Task) -> int:
    """How many samples the answer was measured on: with a metric, the whole set."""
    check = task.prober.runner.check
    return check.scale.data.count if isinstance(check, MetricCheck) else len(task.subject.samples)


def measured_on(task: Task) -> str:
    """What the accuracy was measured on, in words; what a check command feeds is not known."""
    settings, samples = task.settings, samples_seen(task)
    if settings.target is None:
        return "the check"
    seen = "1 input sample only: others may need more nodes in fp32" if samples == 1 else f"{samples} input samples"
    if settings.emulated:
        return (
            f"{settings.target.target.emulator}, which does not compute in {settings.precision}: fp32 nodes with every value "
            f"rounded to {settings.precision} between them, not the nodes of the written model themselves; on {seen}"
        )
    return f"{settings.target.describe()}, on {seen}"


def fill_in(task: Task, answer: Answer, outcome: Outcome | None) -> None:
    """Put an answer into the result.

    Args:
        task: The search.
        answer: What was found.
        outcome: What the check said of it, if that is known: of the written model, or of the best so far.
    """
    subject, lowering, settings = task.subject, task.lowering, task.settings
    nodes = kept_nodes(task, answer, answer.units)
    safe = answer.safe or Safe(answer.units, why="the search did not come to its end")
    task.result.extra |= {
        "keep_fp32": nodes,
        "minimal": kept_nodes(task, answer, answer.minimum.units),
        "minimal_proven": answer.minimum.proven,
        "validation": None if safe.validation is None else safe.validation.to_json(),
        "not_validated": safe.why,
        "advice": _advice(settings, nodes, len(lowering.units), grown=len(answer.units) > len(answer.minimum.units)),
        "suspects_lowered": lowered_suspects(subject, answer),
        "latency_ms": None,
        "precision": settings.low,
        "lowered": len(lowering.units) - len(nodes),
        "not_lowered": len(subject.network.nodes) - len(lowering.units),
        "measured_on": measured_on(task),
        "accuracy": [] if outcome is None else [comparison.to_json() for comparison in outcome.comparisons],
    }


def _advice(settings: PrecisionSettings, nodes: Sequence[Mapping[str, Any]], count: int, *, grown: bool) -> list[str]:
    """What else there is where most of the model stays in fp32, so that little is gained; none of it was tried."""
    if 2 * len(nodes) <= count:
        return []
    ways = []
    if grown and not settings.validation_data:
        ways.append("your own samples, which may need less than those that were made up (--validation-data)")
    if settings.precision == "fp16" and any("65504" in node["reason"] for node in nodes):
        ways.append("bf16, which has the range of fp32, and fewer digits (--bf16)")
        ways.append("another form of what overflows (bisect-trt workaround)")
    return ways


def tell_answer(task: Task) -> None:
    """Say what to keep, why, and how accurate the rest is."""
    settings, result, console = task.settings, task.result, task.console
    nodes, lowered = len(result.extra["keep_fp32"]), result.extra["lowered"]
    proof = f" ({_proof(result, result.minimality)})" if nodes == len(result.extra["minimal"]) else ""
    name = recommended(result.extra["uses"]) or settings.output
    free = "free to run in" if settings.by_layer else "in"  # a target that lowers layers itself runs what it likes
    task.tell_not_run()
    console.answer(f"{name}: {_nodes(nodes)} in fp32, {lowered} {free} {settings.low}{proof}.")
    written = task.lowering.writes_model(settings.output)
    if written and (beside := said_beside(settings.output)) is not None:
        console.answer(f"  {beside}")
    tell_safe(result, console, result.minimality)
    if result.extra["advice"]:
        said = "; ".join(result.extra["advice"])
        console.answer(f"  most of it stays in fp32, so little is gained; not tried: {said}")
    tell_details(result, console)
    task.tell_why()


def tell_unwritten(task: Task, error: BisectError) -> None:
    """Say what is to be kept where the model with it cannot be written."""
    nodes = task.result.extra["keep_fp32"]
    task.console.answer(f"{_nodes(len(nodes))} in fp32 would mend it: {error}")
    tell_nodes(nodes, task.console)


def tell_safe(result: Result, console: Console, minimality: str) -> None:
    """Say how what is recommended does on fresh samples, and how much less is enough for the samples that were given.

    That is minimal as ``minimality`` says: the result's is another answer's where this one is a step of `diagnose`.
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
        console.answer(f"  the minimal set: {what} ({_proof(result, minimality)}): {_names(extra['minimal'])}")


def _proof(result: Result, minimality: str) -> str:
    """How sure the minimal set is, and of what."""
    by_regions = minimality == "1-minimal" and result.extra.get("regions")
    return f"{minimality} by regions" if by_regions else minimality


def _names(nodes: Sequence[Mapping[str, Any]]) -> str:
    named = [f"{node['op']} '{node['name'] or node['outputs'][0]}'" for node in nodes[:_SHOWN_SUSPECTS]]
    return ", ".join(named) + (", ..." if len(nodes) > _SHOWN_SUSPECTS else "")


def tell_details(result: Result, console: Console) -> None:
    """Say which nodes are kept and which suspects are not, and what was measured of the rest."""
    tell_nodes(result.extra["keep_fp32"], console)
    tell_lowered(result, console)
    tell_accuracy(result, console)
    latency = result.extra["latency_ms"] or {}
    times = [f"{name} {value:.3f} ms" for name, value in latency.items() if value is not None]
    if times:
        console.answer(f"  one run takes (median, copies included): {', '.join(times)}")
    for line in describe_fp32(result.extra["ran_fp32"]) if result.extra.get("ran_fp32") else ():
        console.answer(f"  {line}")
    if result.extra.get("ran_like"):
        console.answer(f"  {result.extra['ran_like']}")
    tell_uses(result.extra.get("uses", []), console)
    tell_said(result.extra.get("said", []), console)


def tell_accuracy(result: Result, console: Console) -> None:
    """Say how far each output is off, and on what that was measured."""
    for output in result.extra["accuracy"][:_SHOWN]:
        comparison = TensorComparison.from_json(output)
        console.answer(f"  accuracy: '{comparison.name}': {comparison.describe()}")
    console.answer(f"  measured on {result.extra['measured_on']}")


def tell_nodes(nodes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """List the nodes to keep, with the reason of each."""

    def line(node: Mapping[str, Any]) -> str:
        return f"  {node['op']} '{node['name'] or node['outputs'][0]}'{in_module(node)}: {node['reason']}"

    console.answer_first(nodes, _SHOWN, line, IN_JSON)


def tell_lowered(result: Result, console: Console) -> None:
    """Name the strongest suspects that stay lowered: other inputs may need them too."""
    for node in result.extra["suspects_lowered"][:_SHOWN_LOWERED]:
        name = f"{node['op']} '{node['name'] or node['outputs'][0]}'"
        console.answer(f"  also suspicious, left in {result.extra['precision']}: {name} ({node['reason']})")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


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
