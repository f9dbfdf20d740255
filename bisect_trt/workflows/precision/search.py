"""The search for the fewest nodes to keep in fp32, and what has to be so before it begins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Search, Subset, Verdict, about_units
from bisect_trt.workflows.engine_layers import fused_regions
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion import Suspect, suspect


def find_suspects(task: Task) -> list[Suspect]:
    """What the reference run says against units that may be lowered, most suspicious first."""
    if task.settings.calibrated:  # what is known of fp16 and bf16 says nothing of ranges that were measured
        return []
    units = frozenset(task.lowering.units)
    return [entry for entry in suspect(task.subject, task.settings.precision) if entry.unit in units]


def search_keep(task: Task, suspects: Sequence[Suspect], most: int | None = None) -> Minimum:
    """The fewest units to keep.

    Args:
        task: The search.
        suspects: What to try to keep first, most suspicious first.
        most: Of how many sets of units the search may ask, if that is limited; the answer is then the best so far.

    Raises:
        DoesNotReproduce: The model fails in fp32 too, or passes lowered.
        BudgetSpent: No more probes may be made.
    """
    units = task.lowering.units
    everything, nothing = frozenset(units), frozenset[int]()
    ranking = [entry.unit for entry in suspects]
    fused = _fused(task)
    groups = [*fused, *groups_of(task.subject, everything.difference(*fused))]

    def story(oracle: Oracle) -> Minimum | Subset:
        """The answer, or the set of units about which the check did not say what it should have."""
        ask = about_units(oracle)
        if ask(everything) is not Verdict.PASS:
            return everything
        if ask(nothing) is not Verdict.FAIL:
            return nothing
        minimum = find_keep(units, ask, suspects=ranking, groups=groups, most=most)
        return confirm_enough(minimum, oracle, task.prober.runner.flakiness) if task.prober.measured else minimum

    answer = task.prober.search(Search(Verdict.PASS, story), task.lowering.candidate)
    if isinstance(answer, Minimum):
        return answer
    raise refusal(task, answer)


def _fused(task: Task) -> list[Subset]:
    """The regions that the target fuses with everything lowered, if that was built and says so; told to the user."""
    lowering = task.lowering
    outcome = task.prober.ledger.outcome(lowering.candidate(frozenset()).key) if task.settings.by_layer else None
    if outcome is None:
        return []
    regions, inside = fused_regions(task.subject.network, frozenset(lowering.units), outcome.layers)
    if regions:
        told = (
            "1 region that the engine fuses is"
            if len(regions) == 1
            else f"{len(regions)} regions that the engine fuses are"
        )
        task.console.say(f"  {told} asked about as a whole first")
    if inside:
        task.console.say(
            f"  {inside} nodes are in regions too large to ask about as a whole, so patterns of the graph are"
        )
    return regions


def groups_of(subject: Subject, units: Subset) -> list[Subset]:
    """Patterns that are lowered or kept as a whole first; no unit is in two, and none is alone."""
    groups: list[Subset] = []
    left = set(units)
    for unit in sorted(units):
        if unit in left:
            group = subject.patterns.around(unit) & left
            left -= group | {unit}
            if len(group) > 1:
                groups.append(group)
    return groups


def refusal(task: Task, asked: Subset) -> DoesNotReproduce:
    """Why precision is not what is wrong with the model.

    Args:
        task: The search.
        asked: All units, if they did not pass in fp32; none, if they did not fail lowered.
    """
    prober, lowering = task.prober, task.lowering
    key = lowering.candidate(asked).key
    record = next(record for record in prober.ledger.records if record.key == key)
    count = len(lowering.units)
    if record.verdict is Verdict.UNRESOLVED:
        how = "in fp32" if asked else "lowered"
        return DoesNotReproduce(
            f"the check cannot judge the model with all {count} nodes {how}: {record.reason}. So nothing can be learned "
            "from it; mend the check first."
        )
    if asked and record.said:
        return DoesNotReproduce(
            f'the check fails with all {count} nodes in fp32 too: {record.reason}. It said: "{record.said}". So precision '
            "is not the reason, or the check itself is broken: "
            f"`bisect-trt log {shlex.quote(str(prober.runner.folder))} {record.number}` shows what it printed."
        )
    if asked:
        return DoesNotReproduce(
            f"the check fails with all {count} nodes in fp32 too: {record.reason}. So precision is not the reason, or not "
            "the only one; `bisect-trt diagnose` or `reduce` without low precision finds what fails there."
        )
    return DoesNotReproduce(
        f"the check passes with all {count} nodes lowered: {record.reason}. So precision is not the reason for a failure "
        "seen elsewhere, and no node has to stay in fp32; try real input data (--load-inputs) or a tighter tolerance."
    )
