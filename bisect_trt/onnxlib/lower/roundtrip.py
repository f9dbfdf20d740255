"""Lowering to fp16 or bf16 by round trips: fp32 nodes, between which every value is rounded.

ONNX Runtime's CPU provider runs an fp16 node for which it has no kernel in fp32, and drops the Casts between two such
nodes, so a model of real fp16 nodes rounds and overflows less there than on a GPU. A Cast to fp16 and back to fp32 of an
fp32 node's tensors it does carry out, at every optimisation level. For bf16 nodes it has no kernels at all; Casts it has.
So a model of mixed precision is emulated as well: what is computed on a CPU is what the other computes on a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from bisect_trt.onnxlib.lower.plan import plan_slots, tensor_dtypes
from bisect_trt.onnxlib.lower.rewriter import Rewriter, widen_tensor
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS

EXACT_OPS = frozenset({
    "Abs", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Neg", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
"""Operators that give values of the low precision for such values: they move or choose them, or change signs."""


def lower_roundtrip(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
    low: int = TensorProto.FLOAT16,
    *,
    arithmetic: bool = False,
) -> ModelProto:
    """Rounds every fp32 tensor that a node reads or writes, leaving all nodes in fp32.

    Names and types of tensors stay what they were. The name of a tensor that a lowered node writes now stands for the
    rounded value; graph inputs, weights and what kept nodes write keep their full value under their name, and a
    rounded copy is shared by the lowered nodes that read them. Bodies of control flow, model-local functions and custom
    operators are rounded at their boundary only.

    Args:
        model: The model, opset 6 or later (13 for bf16); it is not changed. External data may be unloaded: such
            weights are rounded by Casts.
        keep: Nodes that neither read nor write rounded copies, each given by its first output tensor. What a
            lowered node wrote reaches them rounded. Names of no node are ignored.
        dtypes: ``TensorProto.DataType`` of tensors whose type ONNX cannot infer.
        low: What to round to, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        arithmetic: Whether fp16 is rounded to by arithmetic in fp32, for a runtime that drops Casts to it and back.

    Returns:
        The lowered model.

    Raises:
        UsageError: The opset is too old.
    """
    work = Rewriter(model, low, arithmetic=arithmetic)
    types = tensor_dtypes(model, dtypes)
    rounded: set[str] = set()
    copies: dict[str, str] = {}
    plan = plan_slots(model, keep, types, opaque=True, low=low)
    for node, slots in zip(work.source_nodes, plan, strict=True):
        new = NodeProto()
        new.CopyFrom(node)
        for position in sorted(slots.inputs):
            name = node.input[position]
            if name not in rounded:
                if name not in copies:
                    copies[name] = work.copy(name, back=True)
                new.input[position] = copies[name]
        raw: dict[str, str] = {}
        if not (node.op_type in EXACT_OPS and node.domain in DEFAULT_DOMAINS):
            raw = {name: work.fresh(f"{name}_raw") for name in (node.output[i] for i in sorted(slots.outputs))}
            for position in slots.outputs:
                new.output[position] = raw[node.output[position]]
        work.append(new)
        for name, source in raw.items():
            work.round_trip(source, name)
        rounded.update(node.output[position] for position in slots.outputs)
    return work.finish()


def emulate(model: ModelProto, low: int = TensorProto.FLOAT16, *, arithmetic: bool = False) -> ModelProto:
    """Turns each low-precision node into an fp32 one whose results are rounded by round trips.

    ``lower_roundtrip`` says why: ONNX Runtime's CPU provider would compute such nodes in fp32, or not at all. All
    names but those of weights stay, and stand for fp32 tensors of the same values; graph inputs and outputs become fp32
    too, rounded inside.

    Args:
        model: What ``lower_fp16`` made (or a model that declares the types of its low-precision tensors as that does),
            nodes in topological order; it is not changed. Bodies of control flow hold no low precision.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        arithmetic: As for :func:`lower_roundtrip`.

    Returns:
        A model whose only low-precision tensors are weights and those within round trips.
    """
    work = Rewriter(model, low, arithmetic=arithmetic)
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
        if work.arithmetic:
            work.round_trip(new.input[0], node.output[0])
            return
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
