"""The search among the nodes that are in floats, of a model of which some quantized groups were taken back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.probing.activations import Reference
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.runner import Check, Runner
from bisect_trt.probing.shelf import EngineShelf
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.bits.case import FEW, Case
from bisect_trt.workflows.bits.rungs import Assignment, quantized_nodes, weight_bytes
from bisect_trt.workflows.fit import lowers_by
from bisect_trt.workflows.precision.by_layer import LayerLowering
from bisect_trt.workflows.precision.delivery import latency_of
from bisect_trt.workflows.precision.lowering import CastLowering
from bisect_trt.workflows.precision.precision import lowering_but
from bisect_trt.workflows.precision.rounds import Fresh, Round
from bisect_trt.workflows.precision.safe import find_safe
from bisect_trt.workflows.precision.search import find_suspects, search_keep
from bisect_trt.workflows.precision.task import Low, Task
from bisect_trt.workflows.precision.telling import Answer, tell_suspects
from bisect_trt.workflows.precision.validation import hold_against
from bisect_trt.workflows.subject import Subject


@dataclass(frozen=True)
class Climb:
    """The rungs of a model of which some groups are in floats.

    Attributes:
        task: The search among the float nodes; its subject is that model.
        answer: The nodes in fp32, minimal and safe; the others of its units are in the half precision.
        groups: The groups in floats.
    """

    task: Task
    answer: Answer
    groups: Subset


def climbed(task: Task, case: Case, groups: Subset, half: Low, name: str) -> tuple[Climb, Assignment]:
    """Search the nodes that are in floats with these groups taken out.

    Raises:
        BudgetSpent: No more probes may be made.
        DoesNotReproduce: The model fails with all of them in fp32.
        UsageError: None of them can be lowered.
    """
    above = task_above(task, case, groups, half)
    suspects = find_suspects(above)
    tell_suspects(above.subject, suspects, above.console)
    if above.prober.probe(above.lowering.candidate(frozenset())).verdict is Verdict.PASS:
        minimum = Minimum(frozenset(), proven=True)
    else:
        minimum = search_keep(above, suspects)
        for step in minimum.steps:
            above.console.say(f"  {step}")
    safe = find_safe(above, minimum, suspects, fresh=_Passing(above))
    climb = Climb(above, Answer(minimum, suspects, safe), groups)
    cast = above.lowering.cast if isinstance(above.lowering, LayerLowering) else above.lowering
    assert isinstance(cast, CastLowering)
    units = climb.answer.units
    return climb, assignment_of(above, name, cast.lowered(units), above.lowering.candidate(units).key)


def assignment_of(task: Task, name: str, model: Any, key: str) -> Assignment:  # noqa: ANN401 - a model
    """What a candidate costs that was probed."""
    latency = latency_of(task.prober, key) if task.settings.measures_latency else None
    return Assignment(name, weight_bytes(model), latency)


def task_above(task: Task, case: Case, groups: Subset, half: Low, *, tried: bool = False) -> Task:
    """The search among the float nodes of the model with some groups taken out.

    Args:
        task: The search among groups.
        case: What it is about.
        groups: Those that are taken out.
        half: What the floats are lowered to.
        tried: Whether this is only to see what it costs.

    Raises:
        UsageError: Nothing in it can be lowered.
    """
    settings, target = task.settings, task.settings.target
    by_layer = False
    if target is not None and target.target.capabilities.lowers_layers:
        lowered = replace(target, fp16=half == "fp16", bf16=half == "bf16")
        by_layer = lowers_by(task.subject, lowered) == "layer"
        target = lowered if by_layer else target
    output = settings.output
    left = "-".join(settings.bits) if len(groups) < len(case.lowering.units) else "floats"
    name, workspace = f"{output.stem}-{left}.onnx", task.subject.workspace
    # An engine is built of it, and is of use with it.
    path = workspace.folder / name if by_layer and not tried else workspace.scratch("tried.onnx" if tried else name)
    case.lowering.write(groups, path)
    subject = task.subject.other(path, _values(task.subject, case))
    own = replace(settings, precision=half, target=target, bits=(), by_layer=by_layer, tolerance=None)
    lowering = lowering_but(subject, own, tuple(quantized_nodes(subject.network)))
    check = _checked(task.prober.runner.check, target, by_layer=by_layer)
    runner = Runner(check, subject.workspace, task.subject.reference)
    runner.flakiness = task.prober.runner.flakiness
    prober = Prober(runner, task.prober.ledger, task.prober.workers)
    prober.measured = task.prober.measured
    return Task(subject, task.console, task.result, prober, lowering, own)


def _checked(check: Check, target: TargetSettings | None, *, by_layer: bool) -> Check:
    """The same check, of a target that chooses precisions itself."""
    if target is None or not by_layer:
        return check
    if isinstance(check, MetricCheck):
        return replace(check, runs=replace(check.runs, target=target, shelf=EngineShelf()))
    return replace(check, target=target, shelf=EngineShelf()) if isinstance(check, BuiltinCheck) else check


def _values(subject: Subject, case: Case) -> Reference:
    """The values of the tensors of all models that groups are taken out of, which go by the names of the quantized one."""
    plain = case.plain
    if plain.truth is plain.network:
        return subject.reference
    first, *more = (
        Reference(plain.network, sample, subject.workspace, subject.models, 7001 + place, subject.swap_limit)
        for place, sample in enumerate(subject.samples)
    )
    for each in more:
        first.add(each)
    return first


class _Passing(Fresh):
    """Fresh samples on which the model passes with all floats in fp32: others say nothing of fp16."""

    few = FEW

    def round(self, number: int) -> Round | None:
        """Those of a round that do."""
        samples, task = super().round(number), self._task
        if samples is None or not isinstance(task.prober.runner.check, BuiltinCheck):
            return samples
        outcome = hold_against(task, frozenset(task.lowering.units), samples, f"{len(samples.files)} fresh samples")
        good = [place for place, error in enumerate(outcome.errors) if error <= 1]
        return samples.only(good) if good else None
