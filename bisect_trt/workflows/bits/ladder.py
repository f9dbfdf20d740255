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
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.workflows.bits.case import Case
from bisect_trt.workflows.bits.climb import Climb, assignment_of, climbed, task_above
from bisect_trt.workflows.bits.raised import Raised, raise_slower
from bisect_trt.workflows.bits.rungs import Assignment, node_rungs, outputs_of, quantized_nodes
from bisect_trt.workflows.precision.delivery import latency_of
from bisect_trt.workflows.precision.lowering import known_types
from bisect_trt.workflows.precision.task import Low, Task

_CHEAPER = 0.98
"""What is not faster by more than that is no faster: latencies vary by a percent."""


_Found = tuple[Climb | None, Assignment, Subset]
"""A climb, what it costs, and the groups in floats."""


@dataclass(frozen=True)
class Ladder:
    """What came of it.

    Attributes:
        climb: The answer; ``None`` where all that is not quantized stays in fp32.
        by: By what assignments were compared.
        assignments: Those that were seen to pass, the answer first.
        groups: The groups in floats.
        why: Why there are no more, or why they were not compared as was asked, if so.
        raised: The groups among them that pass in 8 bits and are slower there; ``None`` if that was not measured.
    """

    climb: Climb | None
    by: Cost
    assignments: tuple[Assignment, ...]
    groups: Subset
    why: str | None = None
    raised: Raised | None = None

    def to_json(self, task: Task, case: Case, minimal: Minimum) -> dict[str, Any]:
        """For the result."""
        groups, raised = self.groups, self.raised
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
                "raised": [] if raised is None else [names[unit].name for unit in sorted(raised.units)],
                "measured": None if raised is None else raised.measured,
                "noise": None if raised is None else round(raised.noise, 4),
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

    def rung_of(self, task: Task, case: Case, unit: int) -> str:
        """The rung of a group: fp32 if any of its operators is there."""
        group = case.lowering.groups[unit]
        if unit not in self.groups:
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

    Raises:
        BudgetSpent: No more probes may be made.
    """
    settings, lowering = task.settings, case.lowering
    measured = settings.measures_latency and task.result.extra.get("emulated") is None
    by, why = settings.cost or (Cost.LATENCY if measured else Cost.BYTES), None
    if by is Cost.LATENCY and not measured:
        by, why = Cost.BYTES, _unmeasured(task)
        task.console.warn(why)
    plain = lowering.candidate(kept)
    low = "/".join(settings.bits)
    found: list[_Found] = [(None, assignment_of(task, f"{low} and fp32", plain.proto, plain.key), kept)]
    half, everything = settings.half, frozenset(lowering.units)
    raised: Raised | None = None
    try:
        if half is not None:
            task.console.step(f"Of what is not in {low}: what has to be in fp32 for the rest to be in {half}?")
            found.append((*climbed(task, case, kept, half, f"{low}, {half} and fp32"), kept))
            if by is Cost.LATENCY and _worth_without(task, case, half, found[-1][1]):
                task.console.step(f"Is it faster with nothing in {low}?")
                found.append((*climbed(task, case, everything, half, f"{half} and fp32"), everything))
        if by is Cost.LATENCY and kept < everything:
            task.console.step(f"Which groups are faster out of {low}?")
            raised = raise_slower(task, case, found[min(len(found), 2) - 1][0], kept)
        if raised is not None and raised.units:
            found.append(_with_raised(task, case, kept | raised.units, low))
    except (DoesNotReproduce, UsageError) as error:
        said = f"the floats stay in fp32: {error}" if len(found) == 1 else f"nothing else was tried: {error}"
        task.console.say(f"  {said}")
        why = why or said
    found.reverse()  # of equal cost, what has the most in cheap precisions
    best = _cheapest(found, by)
    ordered = [best, *(each for each in found if each is not best)]
    if raised is not None and not raised.units <= best[2] - kept:
        raised = replace(raised, units=frozenset())
    return Ladder(best[0], by, tuple(each for _, each, _ in ordered), best[2], why, raised)


def _with_raised(task: Task, case: Case, groups: Subset, low: str) -> _Found:
    """The assignment with some more groups in floats."""
    half = task.settings.half
    where = f"{low} where that is faster"
    if half is not None:
        return (*climbed(task, case, groups, half, f"{where}, {half} and fp32"), groups)
    plain = case.lowering.candidate(groups)
    return None, assignment_of(task, f"{where}, and fp32", plain.proto, plain.key), groups


def _unmeasured(task: Task) -> str:
    target = task.settings.target
    if target is None:
        return "--cost latency: a check of yours says good or bad, and how long that takes says nothing; bytes are compared"
    return (
        f"--cost latency: on {target.describe()} low precision is emulated, so that how long it takes says nothing; bytes are "
        "compared"
    )


def _cheapest(found: Sequence[_Found], by: Cost) -> _Found:
    """The cheapest; another one than the first has to be clearly so."""
    best = found[0]
    for each in found[1:]:
        if each[1].cost(by) < best[1].cost(by) * (_CHEAPER if by is Cost.LATENCY else 1):
            best = each
    return best


def _worth_without(task: Task, case: Case, half: Low, found: Assignment) -> bool:
    """Whether the model with nothing quantized could be faster: it is no faster than all of it in the half precision."""
    above = task_above(task, case, frozenset(case.lowering.units), half)
    key = above.prober.probe(above.lowering.candidate(frozenset())).key
    latency = latency_of(above.prober, key)
    return latency is not None and found.latency is not None and latency < found.latency * _CHEAPER
