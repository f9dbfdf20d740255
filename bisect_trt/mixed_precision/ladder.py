"""Ladders of precisions: what cannot stay quantized, and what never was, goes to fp16 where that passes, to fp32 else.

The search for groups says which leave the quantized rung. The same search, of nodes, then says which of the floats have to be
in fp32 for the rest to be in fp16; each rung's answer is 1-minimal with the rungs below as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import TensorProto

from bisect_trt.commands.preflight import lowers_by
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.answer import (
    deliver,
    tell_details,
    tell_safe,
    tell_suspects,
    write_answer,
)
from bisect_trt.mixed_precision.curve import PrecisionAnswer, Progress, find_answer
from bisect_trt.mixed_precision.groups import ALLOWED, GroupSpace
from bisect_trt.mixed_precision.lowering import known_types
from bisect_trt.mixed_precision.nodes import NodeSpace, make_lowering
from bisect_trt.mixed_precision.parameters import PrecisionSettings
from bisect_trt.mixed_precision.search import Task
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.qdq import HUB, find_quantized, is_dequantize, is_quantize
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck, EngineCache
from bisect_trt.probe.prober import Check, DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Subset
from bisect_trt.targets.settings import TargetSettings

_EPILOGUES = (
    *("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
    *("Add", "Mul", "BatchNormalization"),
)
"""Operators that runtimes compute together with the operator before, where the result is quantized again."""


def deliver_ladder(task: Task, answer: PrecisionAnswer, progress: Progress) -> Result:
    """Search the rungs above the first one, and deliver the answer of all.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    space, settings, network = task.space, task.settings, task.subject.network
    types = known_types(task.subject)
    if not isinstance(space, GroupSpace):
        result = deliver(task, answer)
        lowered = [network.order[unit] for unit in task.lowering.units if unit not in answer.units]
        result.extra["ladder"] = _ladder(settings.rungs, node_rungs(network, {}, lowered, settings.half, types))
        return result
    climbed, why = _climb(task, space, answer, progress)
    half, low = None if climbed is None else settings.half, set[int]()
    if climbed is not None:
        above, upper = climbed
        order = above.subject.network.order
        low = {order[unit] for unit in above.lowering.units if unit not in upper.units}
    floats = space.lowering.floats(answer.units)
    ladder = _ladder(settings.rungs, node_rungs(floats, quantized_nodes(floats), low, half, types))
    searches = [(task, answer)] if climbed is None else [(task, answer), climbed]
    ladder |= {"steps": _steps(settings, searches), "why": why}
    task.console.step("Written and read back: does it pass?")
    minimum = write_answer(*searches[-1])
    extra = task.result.extra
    extra |= space.extra(answer.units, answer.minimum.units) | {
        "ladder": ladder,
        "precision": settings.low,
        "lowered": len(task.lowering.units) - len(answer.units),
    }
    on_half = {first_output(floats.nodes[index]) for index in low}
    for group in extra["groups"]:
        outputs = {first_output(network.nodes[index]) for index in space.groups[group["id"]].operators}
        high = settings.half if outputs and outputs <= on_half else "fp32"
        group["rung"] = space.groups[group["id"]].rung if group["id"] not in answer.units else high
    if climbed is not None:
        groups, nodes = answer.minimum, minimum
        minimum = replace(groups, why=groups.why or nodes.why)
        if groups.proven and not nodes.proven:
            minimum = replace(groups, proven=False, why=nodes.why)
    task.conclude(minimum)
    task.result.culprits = space.culprits(answer.minimum.units)
    _tell(task, ladder)
    return task.result


def _ladder(rungs: Sequence[str], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    counts = {rung: sum(node["rung"] == rung for node in nodes) for rung in rungs}
    return {"rungs": [*rungs], "counts": counts, "nodes": nodes}


def _steps(settings: PrecisionSettings, searches: Sequence[tuple[Task, PrecisionAnswer]]) -> list[dict[str, Any]]:
    """For the result: the units that moved up from each rung."""
    ends = [settings.low, *([settings.half] if len(searches) > 1 else []), settings.rungs[-1]]
    return [
        {
            "from": start,
            "to": end,
            "moved": [task.space.name(unit) for unit in sorted(found.units)],
            "minimal": [task.space.name(unit) for unit in sorted(found.minimum.units)],
            "of": len(task.lowering.units),
            "minimality": "1-minimal" if found.minimum.proven else "unproven",
        }
        for start, end, (task, found) in zip(ends, ends[1:], searches, strict=False)
    ]


def _tell(task: Task, ladder: Mapping[str, Any]) -> None:
    """Say how much is on each rung, and what had to move up."""
    console, result = task.console, task.result
    counts = ", ".join(f"{count} in {rung}" for rung, count in ladder["counts"].items())
    task.tell_not_run()
    console.answer(f"{task.settings.output}: of its nodes {counts} ({result.minimality} on each rung).")
    for group in result.extra["groups"]:
        if group["kept"]:
            console.answer(f"  '{group['name']}' to {group['rung']}: {group['reason'] or 'needed'}")
    tell_safe(result, console, "1-minimal" if result.extra["minimal_proven"] else "unproven")
    tell_details(result, console)
    if ladder["why"]:
        console.answer(f"  {ladder['why']}")
    task.tell_why()


def _climb(
    task: Task, space: GroupSpace, answer: PrecisionAnswer, progress: Progress
) -> tuple[tuple[Task, PrecisionAnswer] | None, str | None]:
    """Search the nodes that are in floats with the groups of an answer taken out; with the reason where none are lowered."""
    half = task.settings.half
    if half is None:
        return None, None
    task.console.step(f"Of what is not in {task.settings.low}: what has to be in fp32 for the rest to be in {half}?")
    try:
        above = _task_above(task, space, answer.units)
        tell_suspects(above)
        return (above, find_answer(above, Progress(above), nothing_may_pass=True)), None
    except (DoesNotReproduce, UsageError) as error:
        why = f"the floats stay in fp32: {error}"
        task.console.say(f"  {why}")
        progress.rewrite(answer)
        return None, why


def _task_above(task: Task, space: GroupSpace, groups: Subset) -> Task:
    """The search among the float nodes of the model with some groups taken out.

    Raises:
        UsageError: Nothing in it can be lowered.
    """
    settings, target, half = task.settings, task.settings.target, task.settings.half
    assert half is not None  # or there would be no rung between
    by_layer = False
    if target is not None and target.target.capabilities.lowers_layers:
        lowered = replace(target, fp16=half == "fp16", bf16=half == "bf16")
        by_layer = lowers_by(task.subject, lowered) == "layer"
        target = lowered if by_layer else target
    workspace = task.subject.workspace
    name = f"{settings.output.stem}-{'-'.join(settings.bits)}.onnx"
    path = workspace.folder / name if by_layer else workspace.scratch(name)  # an engine is of use with its model
    space.lowering.write(groups, path)
    subject = task.subject.other(path, space.values())
    own = replace(settings, precision=half, target=target, bits=(), by_layer=by_layer, tolerance=None)
    nodes = NodeSpace(subject, make_lowering(subject, own, tuple(quantized_nodes(subject.network))), own)
    nodes.allowed, nodes.ways = ALLOWED, space.ways
    prober = task.prober.beside(_checked(task.prober.runner.check, target, by_layer=by_layer))
    prober.measured = task.prober.measured
    return Task(subject, task.console, task.result, prober, nodes, own)


def _checked(check: Check, target: TargetSettings | None, *, by_layer: bool) -> Check:
    """The same check, of a target that chooses precisions itself."""
    if target is None or not by_layer:
        return check
    if isinstance(check, MetricCheck):
        return replace(check, runs=replace(check.runs, target=target, engine_cache=EngineCache()))
    return replace(check, target=target, engine_cache=EngineCache()) if isinstance(check, BuiltinCheck) else check


def quantized_nodes(network: Network) -> dict[int, str]:
    """The nodes that are computed in quantized types, and their Q/DQ, each with its rung; the others are in floats.

    An operator that reads the output of Q/DQ is; operators after it, up to the next Q, are computed with it. A pair that more
    than a few operators read (the mask of all layers) says nothing of these.
    """
    quantized = find_quantized(network)
    found: dict[int, str] = dict.fromkeys(quantized.left, "int8")
    for group in quantized.groups:
        found |= {index: group.rung for pair in group.pairs for index in pair.nodes}
        if len(group.pairs) == 1 and len(group.operators) > HUB:
            continue
        for operator in group.operators:
            found |= dict.fromkeys((operator, *_epilogue(network, operator)), group.rung)
    return found


def _epilogue(network: Network, index: int) -> list[int]:
    """The nodes from an operator to the Q that quantizes the result; none where there is none."""
    chain: list[int] = []
    while True:
        made = network.made(index)
        readers = [reader for name in made for reader in network.consumers.get(name, ())]
        if any(is_quantize(network.nodes[reader]) for reader in readers):
            return chain
        if len(readers) != 1 or network.nodes[readers[0]].op_type not in _EPILOGUES:
            return []
        index = readers[0]
        others = [name for name in network.nodes[index].input if name and name not in made]
        if not all(name in network.initializers or _is_constant(network, name) for name in others):
            return []
        chain.append(index)


def _is_constant(network: Network, name: str) -> bool:
    maker = network.producer.get(name)
    return maker is not None and network.constant[maker]


def node_rungs(
    network: Network, quantized: Mapping[int, str], low: Collection[int], half: str | None, types: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Every node that computes in floats or quantized types, with its rung, in topological order.

    Args:
        network: The model without the groups that do not stay quantized.
        quantized: See :func:`quantized_nodes`.
        low: The nodes that run in ``half``.
        half: The rung between; ``None`` if there is none.
        types: ONNX's element type of each tensor.
    """
    nodes = []
    for index in network.order:
        node = network.nodes[index]
        if network.constant[index] or is_quantize(node) or is_dequantize(node):
            continue
        if any(types.get(name) == TensorProto.FLOAT for name in (*node.input, *node.output)):
            rung = quantized.get(index) or (half if index in low and half is not None else "fp32")
            nodes.append({**network.plain(index), "rung": rung})
    return nodes
