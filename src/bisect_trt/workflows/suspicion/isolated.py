"""Each node's own error in low precision: what it makes of the reference's values, and of nobody else's errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx

from bisect_trt.graph.lower_common import subgraphs
from bisect_trt.graph.lower_roundtrip import EXACT_OPS
from bisect_trt.graph.values import from_info, value_info
from bisect_trt.probing.worker import WorkerDied
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.tensors.npz import save_npz
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion.facts import Facts
from bisect_trt.workflows.suspicion.finding import BREAKS, MAY, Finding, within

NEW_INF = "new Inf"
_SLICE_BYTES = 256 << 20
"""Of activations in memory at a time."""
_NOTABLE = 0.1
"""Of the tolerance. Rounding alone takes about 0.02 of it."""


def own_errors(facts: Facts) -> dict[int, Finding]:
    """The nodes whose own result is notably off, by number.

    Every node reads the reference's values as graph inputs, so one run tells of many nodes, and an error stays where it is
    made. Weights pass as they are; nodes that only move values, and those with bodies, are left out.
    """
    found: dict[int, Finding] = {}
    for nodes in _slices(facts):
        for name, comparison in _compare(facts, nodes).items():
            index = facts.network.producer[name]
            finding = _judge(facts, index, comparison)
            if finding is not None and (index not in found or found[index].score < finding.score):
                found[index] = finding
    return found


def _judge(facts: Facts, index: int, comparison: TensorComparison) -> Finding | None:
    who, precision = facts.who(index), facts.precision
    if comparison.kind is ComparisonKind.NAN:
        # Where another rule knows why, that one is told first.
        return Finding(BREAKS, "new NaN", f"{who} makes new NaN in {precision} of the reference's own values")
    if comparison.kind is ComparisonKind.INF:
        return Finding(BREAKS, NEW_INF, f"{who} makes new Inf in {precision} of the reference's own values")
    if not comparison.atol or comparison.mean_abs is None:
        return None
    # The automatic absolute tolerance is a fixed share of the root mean square, so this needs no unit.
    share = comparison.mean_abs / comparison.atol
    if not comparison.passed:
        reason = f"{who} alone is off by {comparison.severity:.3g} times the tolerance in {precision}"
        return Finding(within(MAY + 0.1, comparison.severity), "own error", reason)
    if share < _NOTABLE:
        return None
    reason = f"{who} alone is off by {share:.0%} of the tolerance on average in {precision}"
    return Finding(MAY * min(share, 0.9), "own error", reason)


def _slices(facts: Facts) -> Iterator[list[int]]:
    """The nodes that can be run alone, so many at a time that their inputs fit into memory."""
    subject = facts.subject
    chosen: list[int] = []
    size = 0
    for index in facts.nodes:
        unit = subject.network.rank[index]
        alone = subject.units.count(subject.units.with_weights([unit])) == 1
        made = [name for name in facts.makes(index) if name in subject.reference.infos]
        node = facts.node(index)
        if not alone or not made or node.op_type in EXACT_OPS or any(subgraphs(node)):
            continue
        needed = sum(_bytes(subject, name) for name in (*subject.network.reads[index], *made))
        if chosen and size + needed > _SLICE_BYTES:
            yield chosen
            chosen, size = [], 0
        chosen.append(index)
        size += needed
    if chosen:
        yield chosen


def _bytes(subject: Subject, name: str) -> int:
    info = subject.reference.infos.get(name)
    size = 0 if info is None else info.dtype.itemsize
    for dim in (info.shape if info is not None else None) or ():
        size *= int(dim or 0)
    return size


def _compare(facts: Facts, nodes: Sequence[int]) -> dict[str, TensorComparison]:
    """Run some nodes, each on the reference's values, and compare what they make with it."""
    subject = facts.subject
    wanted = [name for index in nodes for name in facts.makes(index) if name in subject.reference.infos]
    model, fed = isolated_model(facts, nodes, wanted)
    path, inputs = subject.workspace.scratch("isolated.onnx"), subject.workspace.scratch("isolated.npz")
    path.write_bytes(model.SerializeToString())
    known = subject.reference.select(list(fed.values()))
    save_npz(inputs, {given: known[name] for given, name in fed.items()})
    target = TargetSettings(fp16=facts.precision == "fp16", bf16=facts.precision == "bf16", optimize=False)
    request: dict[str, Any] = {"op": "compare", "model": str(path), "inputs": str(inputs), "names": wanted}
    tolerance = ToleranceOptions(precision=Precision(facts.precision), nonfinite_equal=True)
    request |= {"golden": str(subject.reference.store), "target": target.to_json(), "tolerance": tolerance.to_json()}
    try:
        reply = subject.workers.ask(request)
    except WorkerDied:
        return {}
    finally:
        path.unlink()
        inputs.unlink()
    comparisons = [TensorComparison.from_json(entry) for entry in reply.get("comparisons", ())]
    return {comparison.name: comparison for comparison in comparisons}


def isolated_model(facts: Facts, nodes: Sequence[int], wanted: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A model in which no node reads what another makes.

    Args:
        facts: The model.
        nodes: Which of its nodes.
        wanted: The tensors that become outputs.

    Returns:
        The model, and for each of its inputs the tensor whose value it is fed.
    """
    subject, network = facts.subject, facts.network
    weights = subject.units.to_nodes(subject.units.with_weights(network.rank[index] for index in nodes)) - set(nodes)
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    graph = model.graph
    for field in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer, graph.sparse_initializer):
        del field[:]
    taken = network.producer.keys() | network.initializers.keys()
    names: dict[str, str] = {}
    order = sorted([*nodes, *weights], key=lambda index: network.rank[index])
    for index in order:
        node = graph.node.add()
        node.CopyFrom(network.nodes[index])
        for position, name in enumerate(node.input):
            if name and not facts.is_weight(name):
                names.setdefault(name, _fresh(name, taken))
                node.input[position] = names[name]
    read = {name for index in order for name in network.reads[index]}
    graph.initializer.extend(tensor for name, tensor in network.initializers.items() if name in read)
    graph.sparse_initializer.extend(t for name, t in network.sparse_initializers.items() if name in read)
    for name, given in names.items():
        graph.input.append(from_info(subject.infos[name]))
        graph.input[-1].name = given
    graph.output.extend(value_info(name, subject.infos, network.declared) for name in wanted)
    return model, {given: name for name, given in names.items()}


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_reference"
    return name
