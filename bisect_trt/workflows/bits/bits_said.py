"""What a search for quantized groups puts into the result: the answer, the table of groups, what kernels do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import label
from bisect_trt.graph.qdq import Group, Pair
from bisect_trt.probing.outcome import Outcome
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.workflows.bits.case import Case
from bisect_trt.workflows.bits.ladder import Ladder
from bisect_trt.workflows.bits.misfit import Misfit
from bisect_trt.workflows.bits.refit import Refit
from bisect_trt.workflows.bits.sensitivity import Errors, Sensitivity
from bisect_trt.workflows.bits.yardstick import tolerance_is_own
from bisect_trt.workflows.precision.delivery import latencies
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.precision.telling import kept_nodes, measured_on, samples_seen
from bisect_trt.workflows.precision.validation import Validation

SHOWN, SHOWN_GROUPS = 5, 20


@dataclass(frozen=True)
class Told:
    """What a search ended with.

    Attributes:
        minimum: The fewest groups, and whether that is proven.
        kept: What is recommended.
        ranking: The groups that were suspected, the worst first.
        case: What it was about.
        sensitivity: What each group costs; ``None`` if that was not measured.
        errors: Who measures that.
        validation: How what is recommended did on fresh samples; ``None`` if it was held against none.
        why: Why not, then.
        refit: What came of other scales; ``None`` if none were tried.
        ladder: The rungs above; ``None`` where none were asked for.
    """

    minimum: Minimum
    kept: Subset
    ranking: Sequence[int]
    case: Case
    sensitivity: Sensitivity | None
    errors: Errors | None
    validation: Validation | None
    why: str | None
    refit: Refit | None
    ladder: Ladder | None = None


def reason(misfits: Sequence[Misfit]) -> tuple[str, str]:
    """The rule and the sentence of what is worst about a group; empty if nothing is."""
    for each in sorted(misfits, key=lambda each: -each.bits_lost):
        for rule, sentence in each.problems:
            return rule, f"'{each.pair.tensor}': {sentence}"
    return "", ""


def fill_in_looked_at(task: Task, case: Case, ranking: Sequence[int]) -> None:
    """Put what a look at the scales showed into the result; there it stays if nothing is searched, or to no end."""
    told = Told(Minimum(frozenset(), proven=False), frozenset(), ranking, case, None, None, None, None, None)
    groups = [describe_group(task, told, unit) for unit in task.lowering.units]
    task.result.extra |= {"groups": groups, "suspects_lowered": [_kept_entry(groups[unit]) for unit in ranking]}


def fill_in_bits(task: Task, told: Told, outcome: Outcome | None) -> None:
    """Put an answer into the result."""
    case, settings = told.case, task.settings
    groups = [describe_group(task, told, unit) for unit in task.lowering.units]
    for unit, (rule, sentence) in task.broken_without(told.minimum).items():
        groups[unit] |= {"rule": rule, "reason": sentence}
    kernels = _kernels(task, told)
    yardstick = case.yardstick
    own = settings.tolerance
    task.result.extra |= {
        "keep_fp32": [_kept_entry(groups[unit]) for unit in sorted(told.kept)],
        "minimal": [_kept_entry(groups[unit]) for unit in sorted(told.minimum.units)],
        "groups": groups,
        "precision": "/".join(settings.bits),
        "lowered": len(task.lowering.units) - len(told.kept),
        "not_lowered": len(case.quantized.left),
        "suspects_lowered": [_kept_entry(groups[unit]) for unit in told.ranking if unit not in told.kept],
        "validation": None if told.validation is None else told.validation.to_json(),
        "not_validated": told.why,
        "measured_on": _measured_on(task),
        "accuracy": [] if outcome is None else [comparison.to_json() for comparison in outcome.comparisons],
        "reference": str(settings.float_model) if settings.float_model is not None else "the model without Q/DQ",
        "error_all_quantized": None if told.sensitivity is None else _finite(told.sensitivity.everything),
        "tolerance": None
        if yardstick is None or own is None
        else {
            "outputs": {name: yardstick.allowed(name) for name in yardstick.errors},
            "fitted_error": dict(yardstick.errors),
            "mean_size": dict(yardstick.sizes),
            "samples": yardstick.samples,
            "used": tolerance_is_own(own),
        },
        "kernels": kernels,
        "refit": _refit(told),
    }
    if told.ladder is not None:
        _fill_in_ladder(task, told, told.ladder)
    timed = settings.target is not None and settings.target.target.capabilities.timed
    if timed or (told.ladder is not None and settings.measures_latency):
        task.result.extra["latency_ms"] = latencies(task, told.kept, told.minimum.units)
    described = [node for unit in sorted(told.kept) for node in groups[unit]["operators"]]
    task.result.culprits = described
    if told.refit is not None and told.refit.path is not None:
        task.result.artifacts["refitted"] = str(told.refit.path)


def _fill_in_ladder(task: Task, told: Told, ladder: Ladder) -> None:
    """What is on which rung; ``keep_fp32`` and ``minimal`` are the nodes on the last one."""
    extra, climb, groups = task.result.extra, ladder.climb, ladder.groups
    for group in extra["groups"]:
        group["rung"] = ladder.rung_of(task, told.case, group["id"])
        group["kept"] = group["id"] in groups
    extra["ladder"] = ladder.to_json(task, told.case, told.minimum)
    if climb is not None:
        extra["measured_on"] = measured_on(climb.task)
        extra["keep_fp32"] = kept_nodes(climb.task, climb.answer, climb.answer.units)
        extra["minimal"] = kept_nodes(climb.task, climb.answer, climb.answer.minimum.units)


def describe_group(task: Task, told: Told, unit: int) -> dict[str, Any]:
    """A group for the result."""
    network, group, misfits = task.subject.network, told.case.lowering.groups[unit], told.case.misfits[unit]
    sensitivity = told.sensitivity
    rule, sentence = reason(misfits)
    ladder = told.ladder
    if not rule and ladder is not None and ladder.raised is not None and unit in ladder.raised.units:
        rule, sentence = "slower", f"it passes in {group.rung}, and the model is slower with it there"
    tensors = [_tensor(network, each) for each in misfits]
    named = {pair.scale: None for pair in group.pairs}
    zeros = {pair.zero_point: None for pair in group.pairs if pair.zero_point is not None}
    return {
        "id": unit,
        "name": group.name,
        "operators": task.subject.describe_nodes(group.operators),
        "nodes": [label(network.nodes[index]) for pair in group.pairs for index in pair.nodes],
        "tensors": tensors,
        "scales": list(named),
        "zero_points": list(zeros),
        "kept": unit in told.kept,
        "minimal": unit in told.minimum.units,
        "suspected": unit in told.ranking,
        "bits_lost": round(max((each.bits_lost for each in misfits), default=0.0), 3),
        "error_alone_removed": None if sensitivity is None else _finite(sensitivity.removed[unit]),
        "error_alone_quantized": None if sensitivity is None else _finite(sensitivity.quantized[unit]),
        "rule": rule or None,
        "reason": sentence or None,
        "reasons": [
            {"tensor": each.pair.tensor, "scale": each.pair.scale, "rule": found, "sentence": said}
            for each in misfits
            for found, said in each.problems
        ],
    }


def _tensor(network: Network, misfit: Misfit) -> dict[str, Any]:
    pair = misfit.pair
    return {
        "tensor": pair.tensor,
        "kind": pair.kind,
        "type": pair.type_name,
        "granularity": _granularity(misfit),
        "axis": None if misfit.scale is None or misfit.scale.size == 1 else pair.axis,
        "block_size": pair.block or None,
        "scale": pair.scale,
        "scale_value": _values(misfit.scale),
        "zero_point": pair.zero_point,
        "zero_point_value": _values(misfit.zero),
        "fitted_scale": _values(misfit.fitted_scale),
        "fitted_zero_point": _values(misfit.fitted_zero),
        "quantize": [label(network.nodes[index]) for index in pair.quantize],
        "dequantize": [label(network.nodes[index]) for index in pair.dequantize],
        "seen": None if misfit.fitted_scale is None else [misfit.low, misfit.high],
        "clipped": round(misfit.clipped, 6),
        "bits_lost": round(misfit.bits_lost, 3),
        "snr_db": misfit.snr_db,
        "fitted_snr_db": misfit.fitted_db,
        "bad": misfit.bad,
        "problems": [{"rule": rule, "sentence": sentence} for rule, sentence in misfit.problems],
    }


def _granularity(misfit: Misfit) -> str:
    if misfit.scale is None:
        return "dynamic"
    if misfit.pair.block:
        return "blocked"
    return "per-tensor" if misfit.scale.size == 1 else "per-channel"


_MOST_VALUES = 4096


def _values(values: Any) -> float | list[float] | None:  # noqa: ANN401 - an array or nothing
    if values is None:
        return None
    flat = [float(each) if math.isfinite(each) else None for each in np.asarray(values, np.float64).reshape(-1)]
    return flat[0] if len(flat) == 1 else flat[:_MOST_VALUES]  # type: ignore[return-value]  # what is not finite is null


def _kept_entry(group: dict[str, Any]) -> dict[str, Any]:
    """A group as nodes to keep are given: its operator, and what it is known by."""
    first = group["operators"][0] if group["operators"] else {"name": group["name"], "op": "", "outputs": []}
    bad = [tensor for tensor in group["tensors"] if tensor["bad"]]
    return {
        **first,
        "group": group["id"],
        "operators": [node["name"] or next(iter(node["outputs"]), "") for node in group["operators"]],
        "nodes": group["nodes"],
        "scales": group["scales"],
        "zero_points": group["zero_points"],
        "tensors": [tensor["tensor"] for tensor in group["tensors"]],
        "bad_scales": list(dict.fromkeys(tensor["scale"] for tensor in bad)),
        "rule": group["rule"] or ("needed" if group["minimal"] else "safe"),
        "reason": group["reason"]
        or ("needed: without it the check fails" if group["minimal"] else "kept for what fresh samples showed"),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


def _measured_on(task: Task) -> str:
    settings, samples = task.settings, samples_seen(task)
    if settings.target is None:
        return "the check"
    seen = "1 input sample" if samples == 1 else f"{samples} input samples"
    return f"{settings.target.describe()}, on {seen}"


def _kernels(task: Task, told: Told) -> dict[str, Any] | None:
    """Whether it is the scales at all: what the quantized model is off by where Q/DQ is computed in floats, as it is written."""
    errors, target = told.errors, task.settings.target
    if errors is None or target is None:
        return None
    network = task.subject.network
    found = told.sensitivity.everything if told.sensitivity is not None else errors.of(network.proto)
    if found is None or not found <= 1 or task.not_run is not None:
        return {"error_as_written": _finite(found), "to_blame": False, "sentence": None}
    sentence = (
        "with graph optimisations off, where Q/DQ is computed in floats as it is written, the quantized model passes: what fails "
        f"is how {target.describe()} computes with integers"
    )
    if _saturates(told.case.lowering.groups, told.kept) and _without_vnni() and target.runtime == "onnxrt":
        sentence += (
            "; this CPU has no VNNI, so that its products of uint8 and int8 saturate at 16 bits: quantize with "
            "reduce_range=True, or activations as int8"
        )
    return {"error_as_written": _finite(found), "to_blame": True, "sentence": sentence}


def _saturates(groups: Sequence[Group], kept: Subset) -> bool:
    """Whether uint8 is multiplied by int8 somewhere."""

    def has(pairs: Sequence[Pair], kind: str, name: str) -> bool:
        return any(pair.kind == kind and pair.type_name == name for pair in pairs)

    return any(
        has(groups[unit].pairs, "activation", "uint8") and has(groups[unit].pairs, "weight", "int8") for unit in kept
    )


def _without_vnni() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - Linux on x86 only
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return bool(flags) and "vnni" not in flags


def _refit(told: Told) -> dict[str, Any] | None:
    """Other scales, for the result."""
    refit = told.refit
    if refit is None:
        return None
    return {
        "passed": refit.passed,
        "reason": refit.reason,
        "file": None if refit.path is None else str(refit.path),
        "scales": [
            {
                "tensor": each.pair.tensor,
                "scale": each.pair.scale,
                "from": _values(each.scale),
                "to": _values(each.fitted_scale),
                "zero_point": each.pair.zero_point,
                "zero_point_from": _values(each.zero),
                "zero_point_to": _values(each.fitted_zero),
            }
            for each in refit.misfits
        ],
    }
