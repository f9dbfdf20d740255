"""Groups that pass in 8 bits and are slower there: they go up, as far as whole models were measured to be faster for it."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.graph.lower import first_output
from bisect_trt.probing.candidate import Candidate
from bisect_trt.search.cheaper import find_cheaper
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.workflows.bits.case import Case
from bisect_trt.workflows.bits.climb import Climb, task_above
from bisect_trt.workflows.bits.rungs import outputs_of
from bisect_trt.workflows.precision.task import Task

_MOST, _MOST_COSTLY = 24, 10
"""Models that are measured; of those that take minutes to build fewer."""
_AGAIN = 3
"""How often one model is measured, to see how far measurements of the same are apart."""
_LEAST = 0.02
"""The share by which one has to be faster in any case."""


@dataclass(frozen=True)
class Raised:
    """What came of it.

    Attributes:
        units: The groups that go up though they pass.
        noise: How far measurements of the same model were apart, as a share.
        measured: How many models were.
        complete: Whether each group was tried alone.
    """

    units: Subset
    noise: float
    measured: int
    complete: bool

    def describe(self, names: list[str], low: str) -> str:
        """A sentence without its end."""
        seen = f"{self.measured} models measured, each within {self.noise:.1%} of itself"
        each = "" if self.complete else "; not each group was tried alone"
        if not names:
            return f"no group is faster out of {low} ({seen}{each})"
        those = f"{', '.join(names)} ({seen}{each})"
        if len(names) == 1:
            return f"1 group passes in {low} and makes the model slower there, so it went up: {those}"
        return f"{len(names)} groups pass in {low} and make the model slower there, so they went up: {those}"


def raise_slower(task: Task, case: Case, climb: Climb | None, groups: Subset) -> Raised | None:
    """Measure the model with some more groups taken out of what is quantized.

    Args:
        task: The search for groups.
        case: What it was about.
        climb: The rungs of the floats; ``None`` where all of them are in fp32.
        groups: The groups that are in floats already.

    Returns:
        ``None`` where nothing is left quantized, or it cannot be measured.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    left = [unit for unit in case.lowering.units if unit not in groups]

    def latency_of(more: Subset, *, again: bool = False) -> float | None:
        owner, candidate = _candidate(task, case, climb, groups | more)
        record = owner.prober.probe(candidate, again=again)
        return owner.outcome(record).latency_ms if record.verdict is Verdict.PASS else None

    def several(more: Subset) -> list[float]:
        return [each for _ in range(_AGAIN) if (each := latency_of(more, again=True)) is not None]

    before = several(frozenset())
    if not left or not before:
        return None
    target = task.settings.target
    most = _MOST_COSTLY if target is not None and target.target.capabilities.costly else _MOST
    noise = (max(before) - min(before)) / min(before)
    found = find_cheaper(left, latency_of, sorted(before)[len(before) // 2], max(noise, _LEAST), most)
    if found.units:  # one measurement of many was the least: is it so again, beside the other?
        after, before = several(found.units), several(frozenset())
        noise = max([noise, *((max(each) - min(each)) / min(each) for each in (after, before) if each)])
        if len(after) < _AGAIN or len(before) < _AGAIN or max(after) >= min(before) * (1 - _LEAST):
            return Raised(frozenset(), noise, found.asked + 2, found.complete)
    return Raised(found.units, noise, found.asked + 1 + bool(found.units), found.complete)


def _candidate(task: Task, case: Case, climb: Climb | None, groups: Subset) -> tuple[Task, Candidate]:
    """The model with these groups in floats, and those on the rungs that they are on."""
    half = task.settings.half
    if climb is None or half is None:
        return task, case.lowering.candidate(groups)
    above = task_above(task, case, groups, half, tried=True)
    known = climb.task.subject.network
    full = outputs_of(known, {known.order[unit] for unit in climb.answer.units})
    network = above.subject.network
    kept = frozenset(u for u in above.lowering.units if first_output(network.nodes[network.order[u]]) in full)
    return above, above.lowering.candidate(kept)
