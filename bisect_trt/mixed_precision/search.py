"""The search for the fewest units to keep, and what has to be so before it begins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from bisect_trt.commands.layer_report import engine_layers, fused_regions
from bisect_trt.mixed_precision.task import Task
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import DoesNotReproduce, Prober
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Verdict, about_units


def search_keep(task: Task, *, nothing_may_pass: bool = False) -> Minimum:
    """The fewest units to keep.

    Args:
        task: The search.
        nothing_may_pass: Whether it is an answer that none have to be kept.

    Raises:
        DoesNotReproduce: The model fails with all units kept too, or passes with none.
        BudgetSpent: No more probes may be made.
    """
    settings = task.settings
    fused = _fused(task)
    search = _Keep(task, nothing_may_pass=nothing_may_pass)
    if settings.divide_regions or task.prober.measured or settings.most is not None or not fused:
        return search.run([], fused)
    minimum = search.run(fused, [])
    inside = [region for region in fused if region <= minimum.units]
    if not minimum.proven or not inside:
        return minimum
    stuck = [region for region in inside if _tells_nothing_in_parts(task, minimum.units, region)]
    divided = [region for region in inside if region not in stuck]
    if divided:
        minimum = search.run(stuck, divided, minimum.units)
    task.result.extra["regions"] = [
        [node["name"] or node["outputs"][0] for node in task.space.describe(region)]
        for region in stuck
        if region <= minimum.units
    ]
    return minimum


class _Keep:
    """The search, with regions of units that are kept or lowered as one."""

    def __init__(self, task: Task, *, nothing_may_pass: bool) -> None:
        self._task = task
        self._nothing_may_pass = nothing_may_pass
        self._ranking = [each.unit for each in task.space.suspects]

    def run(self, wholes: Sequence[Subset], first: Sequence[Subset], within: Subset | None = None) -> Minimum:
        """The fewest to keep.

        Args:
            wholes: Units that are kept or lowered as one.
            first: Units that are lowered as one before each is tried alone, beside patterns of the graph.
            within: A set that is known to be enough; the answer is then a part of it.
        """
        return self._run(wholes, first, within, fails=False)

    def _run(self, wholes: Sequence[Subset], first: Sequence[Subset], within: Subset | None, *, fails: bool) -> Minimum:
        task = self._task
        units = [unit for unit in task.lowering.units if within is None or unit in within]
        everything, nothing = task.everything, frozenset[int]()
        whole = {unit: region for region in wholes for unit in region}
        stands = {unit: min(whole.get(unit, (unit,))) for unit in units}  # each whole goes by its first unit
        groups = [*first, *task.space.patterns(frozenset(units).difference(*wholes, *first))]

        def expanded(chosen: Subset) -> Subset:
            return frozenset().union(*(whole.get(unit, {unit}) for unit in chosen))

        def algorithm(oracle: Oracle) -> Minimum | Subset:
            """The answer, or the set of units with the unexpected verdict."""
            ask = about_units(oracle)
            if within is None and ask(everything) is not Verdict.PASS:
                return everything
            if within is None and not fails and (lowered := ask(nothing)) is not Verdict.FAIL:
                passes = self._nothing_may_pass and lowered is Verdict.PASS
                return Minimum(nothing, proven=True) if passes else nothing
            minimum = find_keep(
                [*dict.fromkeys(stands.values())],
                lambda chosen: ask(expanded(chosen)),
                suspects=[*dict.fromkeys(stands[unit] for unit in self._ranking if unit in stands)],
                groups=groups,
                most=task.settings.most,
            )
            minimum = replace(minimum, units=expanded(minimum.units))
            return confirm_enough(minimum, oracle, task.prober.runner.flakiness) if task.prober.measured else minimum

        answer = task.prober.search(algorithm, task.lowering.candidate)
        if isinstance(answer, Minimum):
            return answer
        outcome = task.prober.ledger.outcome(task.lowering.candidate(answer).key)
        if not answer and not fails and outcome is not None and outcome.ending in (Ending.BROKEN, Ending.MISMATCHED):
            # On a ladder, or after a diagnosis, the failure that was seen first may be another: refused, and not off.
            return self._run(wholes, first, within, fails=outcome.judge(None) is Verdict.FAIL)
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
    """The regions that the target fuses with everything lowered, if that was built and says so; said to the user."""
    if not task.settings.by_layer:
        return []
    for units in (task.everything, frozenset[int]()):  # the search asks about both first, and remembers
        record = task.prober.probe(task.lowering.candidate(units))
        if units and record.verdict is not Verdict.PASS:
            return []
    outcome = task.prober.ledger.outcome(record.key)
    if outcome is None:
        return []
    regions, inside = fused_regions(task.subject.network, task.everything, outcome.layers)
    if regions:
        are = "1 region that the engine fuses is"
        are = are if len(regions) == 1 else f"{len(regions)} regions that the engine fuses are"
        how = "" if task.settings.divide_regions else ", and not in parts where these tell nothing"
        task.console.say(f"  {are} asked about as a whole first{how}")
    if inside:
        task.console.say(
            f"  {inside} nodes are in regions too large to ask about as a whole, so patterns of the graph are"
        )
    return regions


def refusal(task: Task, asked: Subset) -> DoesNotReproduce:
    """The reason why precision is not what is wrong with the model.

    Args:
        task: The search.
        asked: All units, if they did not pass when kept; none, if they did not fail lowered.
    """
    prober, space = task.prober, task.space
    key = task.lowering.candidate(asked).key
    record = next(record for record in prober.ledger.records if record.key == key)
    count = space.count(len(task.lowering.units))
    if record.verdict is Verdict.UNRESOLVED:
        how = f"in {space.high}" if asked else space.state
        return DoesNotReproduce(
            f"the check cannot judge the model with all {count} {how}: {record.reason}. So nothing can be learned "
            "from it; mend the check first."
        )
    if asked and record.said:
        return DoesNotReproduce(
            f'the check fails with all {count} in {space.high} too: {record.reason}. It said: "{record.said}". So '
            f"{space.cause} is not the reason, or the check itself is broken: "
            f"`bisect-trt log {shlex.quote(str(prober.runner.folder))} {record.number}` shows what it printed."
        )
    if asked:
        return DoesNotReproduce(
            f"the check fails with all {count} in {space.high} too: {record.reason}. So {space.cause} is not the reason, or "
            "not the only one; `bisect-trt diagnose` or `reduce` without low precision finds what fails there."
        )
    return DoesNotReproduce(
        f"the check passes with all {count} {space.state}: {record.reason}. So {space.cause} is not the reason for a failure "
        f"seen elsewhere, and no {space.noun} has to stay in {space.high}; try {_untried(task)}"
    )


def _untried(task: Task) -> str:
    """What else may show a failure, the end of a sentence; what was given already is not advised."""
    data, settings = task.subject.settings.data, task.settings
    given = data.load_inputs or data.data_loader_script is not None
    ways = ["other samples of the deployment's inputs" if given else "real input data (--load-inputs)"]
    if settings.bits and settings.float_model is None:
        ways.append("the model before quantization (--reference),")
    return f"{', '.join(ways)} or a tighter tolerance."


def fastest(task: Task, minimum: Minimum) -> Minimum:
    """Among all sets of units that were seen to be enough, the one that runs fastest.

    Args:
        task: The search.
        minimum: The one with the fewest units, which stays the answer if nothing was measured or nothing is faster.
    """
    measured = {
        identity.units: latency
        for identity in task.prober.ledger.passed
        if identity.units < task.everything and (latency := latency_of(task.prober, identity.key)) is not None
    }
    best = min(measured, key=lambda units: (measured[units], len(units), sorted(units)), default=minimum.units)
    if best == minimum.units:
        return minimum
    why = f"the fastest of {len(measured)} sets that pass ({measured[best]:.3f} ms), not the one with the fewest nodes"
    return Minimum(best, proven=False, why=why, steps=minimum.steps)


def latency_of(prober: Prober, key: str) -> float | None:
    """Milliseconds of one run of a candidate, if that was measured."""
    outcome = prober.ledger.outcome(key)
    return None if outcome is None else outcome.latency_ms
