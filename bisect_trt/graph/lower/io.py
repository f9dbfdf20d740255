"""Graph inputs and outputs in the low precision."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from bisect_trt.graph.lower.rewriter import Rewriter, captured_names
from bisect_trt.graph.network import bodies


def lower_io(model: ModelProto, low: int = TensorProto.FLOAT16) -> ModelProto:
    """Turns the fp32 inputs and outputs of a lowered model into the low precision, under the names they have.

    The Casts that stood at the boundary are left out where nothing reads fp32 there, and turned round where something
    does. An input that is given back unchanged stays as it is, and so do weights.

    Args:
        model: What ``lower_fp16`` made; it is not changed.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.

    Returns:
        The model with other types at its ends.
    """
    work = Rewriter(model, low)
    graph = work.model.graph
    inputs, outputs = _float_ends(graph)
    renamed = {name: work.fresh(f"{name}_fp32") for name in sorted(inputs | outputs)}
    casts: list[NodeProto] = []  # at the boundary
    for node in work.source_nodes:
        source, target = (node.input[0], node.output[0]) if node.op_type == "Cast" else ("", "")
        if source in renamed and _to(node) == low:  # this is the input, or gives the output
            renamed[target] = source
            casts.append(node)
        elif target in outputs and _to(node) == TensorProto.FLOAT and _is_low(graph, source, low):
            renamed[source] = target
            casts.append(node)
    for value in (*graph.input, *graph.output):
        if value.name in inputs | outputs:
            value.type.tensor_type.elem_type = low
    kept = [node for node in work.source_nodes if all(node is not cast for cast in casts)]
    read = {name for node in kept for name in (*node.input, *captured_names(node))}
    for name in sorted(inputs & read):
        work.cast(name, renamed[name], TensorProto.FLOAT)
    for node in work.source_nodes:
        if any(node is cast for cast in casts):
            _cast_at_boundary(work, node, inputs, outputs, read, renamed)
        else:
            new = NodeProto()
            new.CopyFrom(node)
            _rename(new, renamed)
            work.append(new)
    made = {name for node in work.model.graph.node for name in node.output}
    for name in sorted(outputs - made):
        work.cast(renamed[name], name, low)
    declared = [value for value in graph.value_info if value.name not in renamed]
    del graph.value_info[:]
    graph.value_info.extend(declared)
    return work.model


def _float_ends(graph: GraphProto) -> tuple[set[str], set[str]]:
    """Names of the graph's fp32 inputs and outputs, without weights and what is both."""
    weights = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs, outputs = (
        {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
        for values in (graph.input, graph.output)
    )
    return inputs - outputs - weights, outputs - inputs - weights


def _to(node: NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)


def _is_low(graph: GraphProto, name: str, low: int) -> bool:
    return any(_element(value) == low for value in graph.value_info if value.name == name)


def _element(value: ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _cast_at_boundary(
    work: Rewriter, node: NodeProto, inputs: set[str], outputs: set[str], read: set[str], renamed: Mapping[str, str]
) -> None:
    """Writes what is left of a Cast of an input, or of one from or to an output."""
    source, target = node.input[0], node.output[0]
    if source in inputs:
        return  # readers of the Cast read the input itself
    if source in outputs:
        work.cast(renamed[source], source, work.low)
    elif target in read:  # the output itself is its low-precision source now
        work.cast(target, renamed[target], TensorProto.FLOAT)


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Renames the tensors of a node, those in its bodies too: ONNX gives no name twice in a graph and its bodies."""
    node.input[:] = [renamed.get(name, name) for name in node.input]
    node.output[:] = [renamed.get(name, name) for name in node.output]
    for body in bodies(node):
        for inner in body.node:
            _rename(inner, renamed)
        for value in body.output:
            value.name = renamed.get(value.name, value.name)
