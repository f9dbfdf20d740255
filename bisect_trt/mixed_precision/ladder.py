"""Ladders of precisions: what cannot stay quantized, and what never was, goes to fp16 where that passes, to fp32 else.

The search for groups finds which leave the quantized rung. The same search, of nodes, then finds
which of the floats have to be in fp32 for the rest to be in fp16; each rung's answer is 1-minimal
with the rungs below as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from msgspec import structs
from onnx import TensorProto

from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.answer import deliver, tell, write_answer
from bisect_trt.mixed_precision.curve import Fix
from bisect_trt.mixed_precision.groups import ALLOWED, GroupSpace
from bisect_trt.mixed_precision.lowering import make_lowering
from bisect_trt.mixed_precision.nodes import NodeSpace
from bisect_trt.mixed_precision.search import Task
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import containing, first_output, is_end, is_quantize
from bisect_trt.onnxlib.qdq import HUB, find_quantized
from bisect_trt.probe.check import Check
from bisect_trt.probe.engine_cache import EngineCache
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.mixed import ON_RUNGS
from bisect_trt.report.parts import Ladder, RungNode
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Subset
from bisect_trt.targets.base import TargetSettings

_EPILOGUES = (
    *("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
    *("Add", "Mul", "BatchNormalization"),
)
"""Operators that runtimes compute together with the operator before, where the result is quantized
again."""


def deliver_ladder(fix: Fix) -> Result:
    """Search the rungs above the first one, and deliver the answer of all.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    task = fix.task
    groups = fix.kept
    minimum = fix.minimum
    space = task.space
    settings = task.settings
    network = task.subject.network
    types = task.subject.element_types
    half = settings.half
    if not isinstance(space, GroupSpace):
        result = deliver(fix)
        low = {network.order[unit] for unit in task.lowering.main if unit not in groups}
        result.ladder = _ladder(task, node_rungs(network, {}, low, half, types))
        return result
    # Of what cannot be quantized, most may still be in half precision.
    upper, why = _climb(fix, space)
    floats = space.lowering.floats(groups)
    low = set[int]()
    if upper is not fix:
        order = upper.task.subject.network.order
        low = {order[unit] for unit in upper.task.lowering.main if unit not in upper.kept}
    ladder = structs.replace(
        _ladder(task, node_rungs(floats, quantized_nodes(floats), low, half, types)), why=why
    )
    nodes = write_answer(upper)
    result = task.result
    space.fill_in(result, groups, minimum.units)
    result.ladder = ladder
    result.precision = settings.low
    result.lowered = len(task.lowering.units) - len(groups)
    on_half = {first_output(floats.nodes[index]) for index in low}

    def rung(unit: int) -> str | None:
        outputs = {
            first_output(network.flat.nodes[index]) for index in space.groups[unit].operators
        }
        high = half if outputs and outputs <= on_half else "fp32"
        return high if unit in groups else space.groups[unit].rung

    rows = [structs.replace(row, rung=rung(row.id)) for row in result.groups or ()]
    result.groups = rows
    task.conclude(
        structs.replace(
            minimum, proven=minimum.proven and nodes.proven, remark=minimum.remark or nodes.remark
        )
    )
    task.result.culprits = space.culprits(minimum.units)
    counts = ", ".join(f"{count} in {rung}" for rung, count in ladder.counts.items())
    moved = [
        f"  '{each.name}' to {each.rung}: {each.reason or 'needed'}" for each in rows if each.kept
    ]
    head = ON_RUNGS.format(settings.output, counts, task.result.minimality)
    tell(task, head, *moved, why and f"  {why}")
    return task.result


def _ladder(task: Task, nodes: list[RungNode]) -> Ladder:
    rungs = tuple(task.settings.rungs)
    counts = {rung: sum(node.rung == rung for node in nodes) for rung in rungs}
    return Ladder(rungs=rungs, counts=counts, nodes=tuple(nodes))


def _climb(fix: Fix, space: GroupSpace) -> tuple[Fix, str | None]:
    """Search the nodes that are in floats with the groups of an answer taken out.

    Returns:
        The last search, and the reason why no nodes are lowered, if so.
    """
    task, half = fix.task, fix.task.settings.half
    if half is None:
        return fix, None
    task.console.step(
        f"Of what is not in {task.settings.low}: what has to be in fp32 for the rest to be in {half}?"
    )
    try:
        upper = Fix(_task_above(task, space, fix.kept))
        upper.search(nothing_may_pass=True)
    except (DoesNotReproduce, UsageError) as error:
        fix.keep(fix.kept, again=True)
        return fix, f"the floats stay in fp32: {error}"
    return upper, None


def _task_above(task: Task, space: GroupSpace, groups: Subset) -> Task:
    """The search among the float nodes of the model with some groups taken out.

    Raises:
        UsageError: Nothing in it can be lowered.
    """
    settings, target, half = task.settings, task.settings.target, task.settings.half
    # Without it there would be no rung between.
    assert half is not None
    by_layer = False
    if target is not None and target.target.compiles:
        lowered = replace(target, fp16=half == "fp16", bf16=half == "bf16")
        by_layer = task.subject.about(lowered) == "layer"
        target = lowered if by_layer else target
    workspace = task.subject.workspace
    name = f"{settings.output.stem}-{'-'.join(settings.bits)}.onnx"
    # An engine is of use with its model.
    path = workspace.folder / name if by_layer else workspace.scratch(name)
    space.lowering.write(groups, path)
    subject = task.subject.other(path, space.values)
    upper_settings = structs.replace(
        settings, precision=half, target=target, bits=(), by_layer=by_layer, tolerance=None
    )
    nodes = NodeSpace(
        subject,
        make_lowering(subject, upper_settings, tuple(quantized_nodes(subject.network))),
        upper_settings,
    )
    nodes.allowed = ALLOWED
    nodes.ways = space.ways
    prober = task.prober.beside(
        _checked(task.prober.check, target) if by_layer else task.prober.check
    )
    prober.measured = task.prober.measured
    return Task(subject, task.console, task.result, prober, nodes, upper_settings)


def _checked(check: Check, target: TargetSettings | None) -> Check:
    """Return the check with a target that chooses precisions itself."""
    assert target is not None, "it lowers layers"
    if not check.judges_runtime:
        # Its target builds engines already.
        return check
    return check.under(target=target, engine_cache=EngineCache())


def quantized_nodes(network: Network) -> dict[int, str]:
    """The nodes that are computed in quantized types, and their Q/DQ, each with its rung; the others are in floats.

    An operator that reads the output of Q/DQ is; operators after it, up to the next Q, are computed
    with it. A pair that more than a few operators read (the mask of all layers) does not show how
    these are computed.
    """
    quantized = find_quantized(network)
    inside = containing(network.proto, is_end)
    rungs = {index: "int8" for index, node in enumerate(network.nodes) if inside([node])}
    for group in quantized.groups:
        rungs |= {index: group.rung for pair in group.pairs for index in pair.nodes}
        # A group around many operators joins residual sums, of which most compute in floats.
        if len(group.pairs) > 1 or len(group.operators) <= HUB:
            for operator in group.operators:
                rungs |= dict.fromkeys((operator, *_epilogue(network.flat, operator)), group.rung)
    return rungs


def _epilogue(network: Network, index: int) -> list[int]:
    """The nodes from an operator to the Q that quantizes the result; none where there is none."""
    chain: list[int] = []
    while True:
        outputs = network.made(index)
        readers = network.readers_of(outputs)
        if any(is_quantize(network.nodes[reader]) for reader in readers):
            return chain
        if len(readers) != 1 or network.nodes[readers[0]].op_type not in _EPILOGUES:
            return []
        index = readers[0]
        inputs = [name for name in network.nodes[index].input if name and name not in outputs]
        # An input of the graph has no producer, and is as little constant as the operator itself.
        if not all(
            name in network.initializers or network.constant[network.producer.get(name, index)]
            for name in inputs
        ):
            return []
        chain.append(index)


def node_rungs(
    network: Network,
    quantized: Mapping[int, str],
    low: Collection[int],
    half: str | None,
    types: Mapping[str, int],
) -> list[RungNode]:
    """Every node that computes in floats or quantized types, with its rung, in topological order.

    Args:
        network: The model.
        quantized: The rung of each quantized node, by index.
        low: The indices of the nodes in ``half``.
        half: The float precision below fp32, if one is on the ladder.
        types: ONNX's element types of tensors by name.
    """
    nodes = []
    for index in network.order:
        node = network.nodes[index]
        if network.constant[index] or is_end(node):
            continue
        if any(types.get(name) == TensorProto.FLOAT for name in (*node.input, *node.output)):
            rung = quantized.get(index) or (half if index in low and half is not None else "fp32")
            nodes.append(RungNode(**structs.asdict(network.plain(index)), rung=rung))
    return nodes
