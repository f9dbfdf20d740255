"""The search for the fewest nodes to keep in fp32, and what has to be so before it begins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from bisect_trt.probing.outcome import Ending
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Search, Subset, Verdict, about_units
from bisect_trt.workflows.engine_layers import engine_layers, fused_regions
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
    ranking, fused = [entry.unit for entry in suspects], _fused(task)
    if task.settings.divide_regions or task.prober.measured or most is not None or not fused:
        return _search(task, ranking, [], fused, most)
    minimum = _search(task, ranking, fused, [], most)
    inside = [region for region in fused if region <= minimum.units]
    if not minimum.proven or not inside:
        return minimum
    stuck = [region for region in inside if _tells_nothing_in_parts(task, minimum.units, region)]
    divided = [region for region in inside if region not in stuck]
    if divided:
        minimum = _search(task, ranking, stuck, divided, most, minimum.units)
    describe = task.subject.describe_searched
    task.result.extra["regions"] = [
        [node["name"] or node["outputs"][0] for node in describe(region)] for region in stuck if region <= minimum.units
    ]
    return minimum


def _search(
    task: Task,
    ranking: Sequence[int],
    wholes: Sequence[Subset],
    first: Sequence[Subset],
    most: int | None,
    within: Subset | None = None,
    *,
    fails: bool = False,
) -> Minimum:
    """The fewest to keep.

    Args:
        task: The search.
        ranking: What to try to keep first.
        wholes: Units that are kept or lowered as one.
        first: Units that are lowered as one before each is tried alone, beside patterns of the graph.
        most: Of how many sets may be asked.
        within: A set that is known to be enough, of which the answer is to be a part.
        fails: Whether it is known that the model does not pass with none of them kept.
    """
    units = [unit for unit in task.lowering.units if within is None or unit in within]
    everything, nothing = frozenset(task.lowering.units), frozenset[int]()
    whole = {unit: region for region in wholes for unit in region}
    stands = {unit: min(whole.get(unit, (unit,))) for unit in units}  # each whole goes by its first unit
    singles = frozenset(units).difference(*wholes, *first)
    groups = [*first, *groups_of(task.subject, singles)]

    def expanded(chosen: Subset) -> Subset:
        return frozenset().union(*(whole.get(unit, {unit}) for unit in chosen))

    def story(oracle: Oracle) -> Minimum | Subset:
        """The answer, or the set of units about which the check did not say what it should have."""
        ask = about_units(oracle)
        if within is None and ask(everything) is not Verdict.PASS:
            return everything
        if within is None and not fails and ask(nothing) is not Verdict.FAIL:
            return nothing
        minimum = find_keep(
            [*dict.fromkeys(stands.values())],
            lambda chosen: ask(expanded(chosen)),
            suspects=[*dict.fromkeys(stands[unit] for unit in ranking if unit in stands)],
            groups=groups,
            most=most,
        )
        minimum = replace(minimum, units=expanded(minimum.units))
        return confirm_enough(minimum, oracle, task.prober.runner.flakiness) if task.prober.measured else minimum

    answer = task.prober.search(Search(Verdict.PASS, story), task.lowering.candidate)
    if isinstance(answer, Minimum):
        return answer
    outcome = task.prober.ledger.outcome(task.lowering.candidate(answer).key)
    if not answer and not fails and outcome is not None and outcome.ending in (Ending.BROKEN, Ending.MISMATCHED):
        # On a ladder, or after a diagnosis, the failure that was seen first may be another: refused, and not off.
        return _search(task, ranking, wholes, first, most, fails=outcome.judge(None) is Verdict.FAIL)
    raise refusal(task, answer)


def _tells_nothing_in_parts(task: Task, enough: Subset, region: Subset) -> bool:
    """Whether a region is as wrong with either half of it in fp32, and the engine runs it as one layer all the same."""
    ordered, network = sorted(region), task.subject.network
    first = frozenset(ordered[: len(ordered) // 2])
    for half in (first, region - first):
        candidate = task.lowering.candidate(enough - half)
        if task.prober.probe(candidate).verdict is not Verdict.FAIL:
            return False
        outcome = task.prober.ledger.outcome(candidate.key)
        layers = engine_layers(network, () if outcome is None else outcome.layers)
        apart = {unit: layers.get(network.order[unit]) for unit in region}
        ours = {layer.name for unit in half if (layer := apart[unit]) is not None}
        if not any(layer is not None and layer.name in ours for unit, layer in apart.items() if unit not in half):
            return False
    return True


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
        how = "" if task.settings.divide_regions else ", and not in parts where these tell nothing"
        task.console.say(f"  {told} asked about as a whole first{how}")
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
        f"seen elsewhere, and no node has to stay in fp32; try {untried(task)}"
    )


def untried(task: Task, *others: str) -> str:
    """What else may show a failure, the end of a sentence; what was given already is not advised."""
    data = task.subject.settings.data
    given = data.load_inputs or data.data_loader_script is not None
    ways = ["other samples of the deployment's inputs" if given else "real input data (--load-inputs)", *others]
    return f"{', '.join(ways)}{',' if others else ''} or a tighter tolerance."
