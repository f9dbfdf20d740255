"""The rungs above what is quantized: what went back to floats, and what never was quantized, in fp16 where that passes.

The search for groups has said which leave the quantized rung. The same search, of nodes now, says which of the floats have to
be in fp32 for the rest to be in fp16; each rung's answer is 1-minimal, the rungs below as they are. Of the assignments that
were seen to pass the cheapest is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Cost
from bisect_trt.probing.activations import Reference
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.prober import DoesNotReproduce, Prober
from bisect_trt.probing.runner import Check, Runner
from bisect_trt.probing.shelf import EngineShelf
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.bits.case import FEW, Case
from bisect_trt.workflows.bits.rungs import Assignment, node_rungs, outputs_of, quantized_nodes, weight_bytes
from bisect_trt.workflows.checks import lowers_by
from bisect_trt.workflows.precision.by_layer import LayerLowering
from bisect_trt.workflows.precision.delivery import latency_of
from bisect_trt.workflows.precision.lowering import CastLowering, known_types
from bisect_trt.workflows.precision.precision import lowering_but
from bisect_trt.workflows.precision.rounds import Fresh, Round
from bisect_trt.workflows.precision.safe import find_safe
from bisect_trt.workflows.precision.search import find_suspects, search_keep
from bisect_trt.workflows.precision.task import Low, Task
from bisect_trt.workflows.precision.telling import Answer, tell_suspects
from bisect_trt.workflows.precision.validation import hold_against
from bisect_trt.workflows.subject import Subject

_CHEAPER = 0.98
"""What is not faster by more than that is no faster: latencies vary by a percent."""


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


@dataclass(frozen=True)
class Ladder:
    """What came of it.

    Attributes:
        climb: The answer; ``None`` where all that is not quantized stays in fp32.
        by: By what assignments were compared.
        assignments: Those that were seen to pass, the answer first.
        why: Why there are no more, or why they were not compared as was asked, if so.
    """

    climb: Climb | None
    by: Cost
    assignments: tuple[Assignment, ...]
    why: str | None = None

    def to_json(self, task: Task, case: Case, groups: Subset, minimal: Minimum) -> dict[str, Any]:
        """For the result.

        Args:
            task: The search for groups.
            case: What it was about.
            groups: The groups in floats.
            minimal: The fewest of them.
        """
        network = case.lowering.floats(groups)
        low, climb = self._low(), self.climb
        quantized = quantized_nodes(network)
        on_rungs = node_rungs(network, quantized, low, task.settings.half, known_types(task.subject))
        rungs = [*task.settings.rungs]
        counts = {rung: sum(node["rung"] == rung for node in on_rungs) for rung in rungs}
        names = case.lowering.groups
        up: list[dict[str, Any]] = [
            {
                "from": "/".join(task.settings.bits),
                "to": rungs[-1] if climb is None else task.settings.half,
                "moved": [names[unit].name for unit in sorted(groups)],
                "minimal": [names[unit].name for unit in sorted(minimal.units)],
                "of": len(names),
                "minimality": "1-minimal" if minimal.proven else "unproven",
            }
        ]
        if climb is not None:
            described = climb.task.subject.describe_searched
            found = climb.answer.minimum
            up.append(
                {
                    "from": task.settings.half,
                    "to": rungs[-1],
                    "moved": [node["name"] or node["outputs"][0] for node in described(climb.answer.units)],
                    "minimal": [node["name"] or node["outputs"][0] for node in described(found.units)],
                    "of": len(climb.task.lowering.units),
                    "minimality": "1-minimal" if found.proven else "unproven",
                }
            )
        return {
            "rungs": rungs,
            "counts": counts,
            "steps": up,
            "nodes": on_rungs,
            "cost": {
                "by": self.by.value,
                "chosen": self.assignments[0].name,
                "assignments": [each.to_json() for each in self.assignments],
            },
            "why": self.why,
        }

    def _low(self) -> set[int]:
        """The nodes in the half precision, of the model of the climb."""
        if self.climb is None:
            return set()
        task = self.climb.task
        order = task.subject.network.order
        return {order[unit] for unit in task.lowering.units if unit not in self.climb.answer.units}

    def rung_of(self, task: Task, case: Case, unit: int, groups: Subset) -> str:
        """The rung of a group: fp32 if any of its operators is there."""
        group = case.lowering.groups[unit]
        if unit not in groups:
            return group.rung
        half = task.settings.half
        if self.climb is None or half is None:
            return "fp32"
        network = self.climb.task.subject.network
        low = outputs_of(network, self._low())
        own = outputs_of(task.subject.network, group.operators)
        return half if own and own <= low else "fp32"


def climb_ladder(task: Task, case: Case, kept: Subset) -> Ladder:
    """Find the rungs of what is not quantized.

    Args:
        task: The search for groups, at its end.
        case: What it was about.
        kept: The groups that are in floats.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    settings, lowering = task.settings, case.lowering
    by, why = settings.cost or (Cost.LATENCY if settings.measures_latency else Cost.BYTES), None
    if by is Cost.LATENCY and not settings.measures_latency:
        by, why = Cost.BYTES, _unmeasured(task)
        task.console.warn(why)
    plain = lowering.candidate(kept)
    low = "/".join(settings.bits)
    found: list[tuple[Climb | None, Assignment]] = [
        (None, _assignment(task, f"{low} and fp32", plain.proto, plain.key))
    ]
    half = settings.half
    if half is not None:
        task.console.step(f"Of what is not in {low}: what has to be in fp32 for the rest to be in {half}?")
        try:
            found.append(_climbed(task, case, kept, half, f"{low}, {half} and fp32"))
            if by is Cost.LATENCY and _worth_without(task, case, half, found[-1][1]):
                everything = frozenset(lowering.units)
                task.console.step(f"Is it faster with nothing in {low}?")
                found.append(_climbed(task, case, everything, half, f"{half} and fp32"))
        except (DoesNotReproduce, UsageError) as error:
            said = f"the floats stay in fp32: {error}" if len(found) == 1 else f"nothing else was tried: {error}"
            task.console.say(f"  {said}")
            why = why or said
    found.reverse()  # of equal cost, what has the most in cheap precisions
    best = _cheapest(found, by)
    ordered = [best, *(each for each in found if each is not best)]
    return Ladder(best[0], by, tuple(each for _, each in ordered), why)


def _unmeasured(task: Task) -> str:
    target = task.settings.target
    if target is None:
        return "--cost latency: a check of yours says good or bad, and how long that takes says nothing; bytes are compared"
    return (
        f"--cost latency: on {target.describe()} low precision is emulated, so that how long it takes says nothing; bytes are "
        "compared"
    )


def _cheapest(found: Sequence[tuple[Climb | None, Assignment]], by: Cost) -> tuple[Climb | None, Assignment]:
    """The cheapest; another one than the first has to be clearly so."""
    best = found[0]
    for each in found[1:]:
        if each[1].cost(by) < best[1].cost(by) * (_CHEAPER if by is Cost.LATENCY else 1):
            best = each
    return best


def _assignment(task: Task, name: str, model: Any, key: str) -> Assignment:  # noqa: ANN401 - a model
    latency = latency_of(task.prober, key) if task.settings.measures_latency else None
    return Assignment(name, weight_bytes(model), latency)


def _climbed(task: Task, case: Case, groups: Subset, half: Low, name: str) -> tuple[Climb, Assignment]:
    """Search the nodes that are in floats with these groups taken out."""
    above = _above(task, case, groups, half)
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
    return climb, _assignment(above, name, cast.lowered(units), above.lowering.candidate(units).key)


def _worth_without(task: Task, case: Case, half: Low, found: Assignment) -> bool:
    """Whether the model with nothing quantized could be faster: it is no faster than all of it in the half precision."""
    above = _above(task, case, frozenset(case.lowering.units), half)
    key = above.prober.probe(above.lowering.candidate(frozenset())).key
    latency = latency_of(above.prober, key)
    return latency is not None and found.latency is not None and latency < found.latency * _CHEAPER


def _above(task: Task, case: Case, groups: Subset, half: Low) -> Task:
    """The search among the float nodes of the model with some groups taken out.

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
    name = f"{output.stem}-{'-'.join(settings.bits) if len(groups) < len(case.lowering.units) else 'floats'}.onnx"
    workspace = task.subject.workspace
    path = (
        workspace.folder / name if by_layer else workspace.scratch(name)
    )  # an engine is built of it, and is of use with it
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
