"""Lowering to fp16 or bf16 by real nodes of that type, as a GPU runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from bisect_trt.graph.lower.plan import READS_ANY_TYPE, plan_slots
from bisect_trt.graph.lower.rewriter import Rewriter, captured_names
from bisect_trt.graph.lower.types import tensor_dtypes


def lower_fp16(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
    low: int = TensorProto.FLOAT16,
    *,
    store_weights: bool = True,
) -> ModelProto:
    """Turns every node that can be into fp16 (or bf16), with Casts at the boundaries alone.

    Graph inputs and outputs keep their names and types. An inner tensor that a lowered node writes goes by a new name;
    its old one stands for its fp32 value and exists where fp32 nodes, bodies of control flow or graph outputs read it.
    The type of each new tensor is declared. Control flow, model-local functions, custom operators and what their
    schema does not allow in the low precision stay in fp32.

    Args:
        model: The model, opset 6 or later (13 for bf16), nodes in topological order; it is not changed. External data
            may be unloaded: such weights pass a Cast.
        keep: Nodes to leave in fp32, each given by its first output tensor. Names of no node are ignored.
        dtypes: ``TensorProto.DataType`` of tensors whose type ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        store_weights: Whether weights and constants are stored in the low precision; if not, they pass a Cast.

    Returns:
        The lowered model.

    Raises:
        UsageError: The opset is too old.
    """
    work = _Lowered(model, low, store_weights=store_weights)
    types = tensor_dtypes(model, dtypes)
    for node, slots in zip(work.source_nodes, plan_slots(model, keep, types, opaque=False, low=low), strict=True):
        new = NodeProto()
        new.CopyFrom(node)
        for position, name in enumerate(node.input):
            if position in slots.inputs:
                new.input[position] = work.half(name)
            elif node.op_type in READS_ANY_TYPE:
                new.input[position] = work.either(name)
            else:
                work.ensure_full(name)
        for name in sorted(captured_names(node)):
            work.ensure_full(name)
        for position in slots.outputs:
            new.output[position] = work.produce(node.output[position])
        if node.op_type == "Cast" and slots.outputs:
            next(attribute for attribute in new.attribute if attribute.name == "to").i = low
        work.append(new)
    for value in model.graph.output:
        work.ensure_full(value.name)
    return work.finish()


class _Lowered(Rewriter):
    """A rewriter that knows in which precisions each tensor is at hand."""

    def __init__(self, model: ModelProto, low: int, *, store_weights: bool) -> None:
        super().__init__(model, low, store_weights=store_weights)
        self._declared = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
        self._half: dict[str, str] = {}
        self._half_only: set[str] = set()

    def produce(self, name: str) -> str:
        """Returns the name under which a lowered node writes a tensor."""
        new = self._half[name] = self.fresh_low(name)
        self._half_only.add(name)
        declaration = self.model.graph.value_info.add()
        declaration.CopyFrom(self._declared.get(name) or ValueInfoProto())
        declaration.name = new
        declaration.type.tensor_type.elem_type = self.low
        return new

    def half(self, name: str) -> str:
        """Returns a tensor's name in the low precision, and writes it first where needed."""
        if name not in self._half:
            self._half[name] = self.copy(name, back=False)
        return self._half[name]

    def either(self, name: str) -> str:
        """Returns a tensor's name in the precision it is at hand in."""
        return self._half[name] if name in self._half_only else name

    def ensure_full(self, name: str) -> None:
        """Writes a tensor's fp32 value, under its own name, unless it is there."""
        if name in self._half_only:
            self.cast(self._half[name], name, TensorProto.FLOAT)
            self._half_only.remove(name)
