"""Lowering to fp16 by round trips: fp32 nodes, between which every value is rounded to fp16.

ONNX Runtime's CPU provider runs an fp16 node for which it has no kernel in fp32, and drops the Casts between two such
nodes, so a model of real fp16 nodes rounds and overflows less there than on a GPU. A Cast to fp16 and back to fp32 of an
fp32 node's tensors it does carry out, at every optimisation level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import ModelProto, NodeProto

from bisect_trt.graph.lower_common import DEFAULT_DOMAINS, Rewriter, tensor_dtypes
from bisect_trt.graph.lower_plan import plan_slots

_EXACT_OPS = frozenset({
    "Abs", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Neg", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
"""Operators whose outputs are fp16 values when their inputs are: they move or choose values, or change signs."""


def lower_roundtrip(
    model: ModelProto, keep: Collection[str] = (), dtypes: Mapping[str, int] | None = None
) -> ModelProto:
    """Rounds every fp32 tensor that a node reads or writes to fp16, leaving all nodes in fp32.

    Names and types of tensors stay what they were. The name of a tensor that a lowered node writes now stands for the
    rounded value; graph inputs, weights and what kept nodes write keep their full value under their name, and a
    rounded copy is shared by the lowered nodes that read them. Bodies of control flow, model-local functions and custom
    operators are rounded at their boundary only.

    Args:
        model: The model, opset 6 or later; it is not changed. External data may be unloaded: such weights are rounded
            by Casts.
        keep: Nodes that neither read nor write rounded copies, each given by its first output tensor. What a
            lowered node wrote reaches them rounded. Names of no node are ignored.
        dtypes: ``TensorProto.DataType`` of tensors whose type ONNX cannot infer.

    Returns:
        The lowered model.

    Raises:
        UsageError: The opset is older than 6.
    """
    work = Rewriter(model)
    types = tensor_dtypes(model, dtypes)
    rounded: set[str] = set()
    copies: dict[str, str] = {}
    for node, slots in zip(work.source_nodes, plan_slots(model, keep, types, opaque=True), strict=True):
        new = NodeProto()
        new.CopyFrom(node)
        for position in sorted(slots.inputs):
            name = node.input[position]
            if name not in rounded:
                if name not in copies:
                    copies[name] = work.copy(name, back=True)
                new.input[position] = copies[name]
        raw: dict[str, str] = {}
        if not (node.op_type in _EXACT_OPS and node.domain in DEFAULT_DOMAINS):
            raw = {name: work.fresh(f"{name}_raw") for name in (node.output[i] for i in sorted(slots.outputs))}
            for position in slots.outputs:
                new.output[position] = raw[node.output[position]]
        work.append(new)
        for name, source in raw.items():
            work.round_trip(source, name)
        rounded.update(node.output[position] for position in slots.outputs)
    return work.finish()
