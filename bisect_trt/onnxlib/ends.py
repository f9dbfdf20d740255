"""Inputs and outputs of a lowered model in the low precision too."""

from __future__ import annotations

from collections.abc import Container, Sequence

from onnx import ModelProto, NodeProto, TensorProto, helper

from bisect_trt.onnxlib.cleanup import remove_unread
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    attribute,
    clone,
    free_name,
    keep_only,
    mentioned_names,
    rename_reads,
)


def narrow_ends(model: ModelProto) -> ModelProto:
    """Return a model that was lowered to fp16, nodes in topological order, with its fp32 inputs and outputs in fp16 too."""
    types = Network(model).element_types
    narrowed = clone(model)
    graph = narrowed.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    ends = [
        value
        for value in (*inputs, *graph.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    ]
    used = mentioned_names(graph)
    wide: dict[str, str] = {}
    for value in ends:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
        wide.setdefault(value.name, free_name(f"{value.name}_fp32", used))
        used.add(wide[value.name])
    fed = [value.name for value in inputs if value.name in wide]
    nodes = [helper.make_node("Cast", [name], [wide[name]], to=TensorProto.FLOAT) for name in fed]
    for node in graph.node:
        nodes.append(rename_reads(node, wide))
        nodes[-1].output[:] = [wide.get(name, name) for name in node.output]
    nodes += [
        helper.make_node("Cast", [wide[name]], [name], to=TensorProto.FLOAT16)
        for name in wide
        if name not in fed
    ]
    # A Cast up behind a new Cast down is the identity, and would be two kernels more.
    lowered = (name for name in types if types[name] == TensorProto.FLOAT16)
    _drop_round_trips(nodes, {*fed, *lowered})
    keep_only(graph.node, nodes)
    remove_unread(narrowed)
    return narrowed


def _drop_round_trips(nodes: Sequence[NodeProto], narrow: Container[str]) -> None:
    """Write an Identity for each Cast to fp32 and back, which changes no value; ``narrow`` are the tensors of low precision."""
    widened = {
        node.output[0]: node.input[0]
        for node in nodes
        if node.op_type == "Cast" and attribute(node, "to") == TensorProto.FLOAT
    }
    for node in nodes:
        if node.op_type == "Cast" and attribute(node, "to") == TensorProto.FLOAT16:
            source = widened.get(node.input[0], "")
            if source in narrow:
                node.CopyFrom(helper.make_node("Identity", [source], node.output))
