"""The model that computes on a CPU what a mixed-precision one computes on a GPU."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from bisect_trt.graph.lower.rewriter import Rewriter
from bisect_trt.graph.lower.round import widen_tensor
from bisect_trt.graph.lower.roundtrip import EXACT_OPS
from bisect_trt.graph.lower.types import DEFAULT_DOMAINS


def emulate(model: ModelProto, low: int = TensorProto.FLOAT16) -> ModelProto:
    """Turns each low-precision node into an fp32 one whose results are rounded by round trips.

    ``lower_roundtrip`` says why: ONNX Runtime's CPU provider would compute such nodes in fp32, or not at all. All
    names but those of weights stay, and stand for fp32 tensors of the same values; graph inputs and outputs become fp32
    too, rounded inside.

    Args:
        model: What ``lower_fp16`` made (or a model that declares the types of its low-precision tensors as that does),
            nodes in topological order; it is not changed. Bodies of control flow hold no low precision.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.

    Returns:
        A model whose only low-precision tensors are weights and those within round trips.
    """
    work = Rewriter(model, low)
    graph = work.model.graph
    lowered = {value.name for value in (*graph.value_info, *graph.output) if _element(value) == low}
    renamed = _widen_weights(work, graph, low)
    for value in graph.input:
        if _element(value) == low:
            renamed[value.name] = work.fresh(f"{value.name}_rounded")
            work.round_trip(value.name, renamed[value.name])
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _element(value) == low:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in work.source_nodes:
        _emulate_node(work, node, lowered, renamed)
    return work.model


def _element(value: ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _widen_weights(work: Rewriter, graph: GraphProto, low: int) -> dict[str, str]:
    """Casts low-precision weights to fp32; stored as such they could be past the 2 GiB of a protobuf message.

    Returns:
        The names that the fp32 tensors go by.
    """
    weights = [tensor.name for tensor in graph.initializer if tensor.data_type == low]
    renamed = {name: work.fresh(f"{name}_fp32") for name in weights}
    for name, new in renamed.items():
        work.cast(name, new, TensorProto.FLOAT)
    return renamed


def _emulate_node(work: Rewriter, node: NodeProto, lowered: set[str], renamed: dict[str, str]) -> None:
    new = NodeProto()
    new.CopyFrom(node)
    for position, name in enumerate(node.input):
        new.input[position] = renamed.get(name, name)
    for attribute in new.attribute:
        if attribute.HasField("t") and attribute.t.data_type == work.low:
            attribute.t.CopyFrom(widen_tensor(attribute.t, attribute.t.name))
    if node.op_type == "Cast" and any(a.name == "to" and a.i == work.low for a in node.attribute):
        new.output[0] = work.fresh_low(node.output[0])
        work.append(new)
        work.cast(new.output[0], node.output[0], TensorProto.FLOAT)
        return
    raw: dict[str, str] = {}
    if not (node.op_type in EXACT_OPS and node.domain in DEFAULT_DOMAINS):
        raw = {name: work.fresh(f"{name}_raw") for name in node.output if name in lowered}
        new.output[:] = [raw.get(name, name) for name in node.output]
    work.append(new)
    for name, source in raw.items():
        work.round_trip(source, name)
