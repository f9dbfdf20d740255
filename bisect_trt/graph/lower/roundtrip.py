"""Lowering to fp16 or bf16 by round trips: fp32 nodes, between which every value is rounded.

ONNX Runtime's CPU provider runs an fp16 node for which it has no kernel in fp32, and drops the Casts between two such
nodes, so a model of real fp16 nodes rounds and overflows less there than on a GPU. A Cast to fp16 and back to fp32 of an
fp32 node's tensors it does carry out, at every optimisation level. For bf16 nodes it has no kernels at all; Casts it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import ModelProto, NodeProto, TensorProto

from bisect_trt.graph.lower.plan import plan_slots
from bisect_trt.graph.lower.rewriter import Rewriter
from bisect_trt.graph.lower.types import DEFAULT_DOMAINS, tensor_dtypes

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

    Returns:
        The lowered model.

    Raises:
        UsageError: The opset is too old.
    """
    work = Rewriter(model, low)
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
