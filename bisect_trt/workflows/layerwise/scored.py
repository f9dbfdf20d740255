"""Where a metric falls: the target computes the first layers, the reference the rest, and the outputs are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Oracle, Search, Subset, Verdict, about_units
from bisect_trt.search.strategy import shortest_failing_prefix
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.scale import measure_whole
from bisect_trt.workflows.settings import SearchSettings


def layerwise_scored(investigation: Investigation) -> Result:
    """The command: say up to which layer the target may compute before the metric is past its bound.

    Raises:
        DoesNotReproduce: The whole model on the target is within the bound.
    """
    result, subject, console = investigation.result, investigation.subject, investigation.console
    console.step(f"How far may the target compute? ({len(subject.units)} units, the reference computes the rest)")
    investigation.probe_original(SearchSettings())
    unit, curve = find_drop(investigation)
    tell_drop(investigation, unit, curve)
    result.culprits = subject.describe_searched([unit])
    result.status, result.minimality = "found", "1-minimal"
    measure_whole(investigation, subject.original)
    result.extra["metric"]["layers"] = curve
    result.extra |= {"first_mismatch": None, "tensors": []}
    return result


def find_drop(investigation: Investigation) -> tuple[int, list[dict[str, Any]]]:
    """The last unit of the shortest prefix with which the metric is past its bound; that of the whole model is known to be.

    The prefixes are those of the topological order, which are nested; with one unit less the metric was seen to hold.

    Returns:
        The unit; and what was measured, the shortest prefix first: how many units, the last of them, the metric, whether it
        is within its bound, and the samples that it took.
    """
    subject, prober = investigation.subject, investigation.prober
    units, keys = subject.units, {len(subject.units.searched): subject.original.key}

    def build(chosen: Subset) -> Candidate:
        candidate = subject.cut(units.with_weights(chosen))
        keys[len(chosen)] = candidate.key
        return candidate

    def story(oracle: Oracle) -> int:
        return shortest_failing_prefix(units.searched, frozenset(), about_units(oracle))

    length = prober.search_from(subject.original, Search(Verdict.FAIL, story), build)
    asked, curve = {record.key for record in prober.ledger.records}, []
    for count, key in sorted(keys.items()):
        outcome = prober.ledger.outcome(key)
        if (
            key not in asked or outcome is None or outcome.metric is None
        ):  # what was probed ahead of time is another matter
            continue
        node = subject.describe_searched([units.searched[count - 1]])
        seen = {name: outcome.metric[name] for name in ("candidate", "passed", "samples")}
        curve.append({"units": count, "node": node[0] if node else None, **seen})
    return units.searched[length - 1], curve


def tell_drop(investigation: Investigation, unit: int, curve: Sequence[Mapping[str, Any]]) -> None:
    """Say what was measured, and where it falls."""
    subject, console, check = investigation.subject, investigation.console, investigation.prober.runner.check
    assert isinstance(check, MetricCheck)
    for entry in curve:
        word = "within " if entry["passed"] else "too bad"
        value = check.scale.metric.say(float(entry["candidate"]))
        node = entry["node"]
        name = "" if node is None else f", up to {node['op']} '{node['name'] or node['outputs'][0]}'"
        console.say(f"  {word} {check.scale.metric.name} {value} with {entry['units']} units on the target{name}")
    console.answer(
        f"{check.scale.metric.name} is past its bound once the target computes "
        f"{subject.network.describe(subject.network.order[unit])} with all before it; with one unit less it is not."
    )
