"""Models lowered to fp16 or bf16 as a GPU computes in them: nodes, the graph's inputs and outputs, and stored weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from bisect_trt.onnxlib.external_data import load_inside
from bisect_trt.onnxlib.lower_plan import (
    CONSTANT_OPS,
    FIRST_OPSET,
    LOW_NAMES,
    READS_ANY_TYPE,
    check_opset,
    plan_slots,
    tensor_dtypes,
)
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    IR_WITHOUT_INITIALIZER_INPUTS,
    attribute,
    captured_names,
    clone,
    free_name,
    held,
    keep_only,
    mentioned_names,
)

_OLDEST_CUSTOM_OPSET = 9


def round_to_half(values: np.ndarray) -> np.ndarray:
    """Values rounded to fp16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Float32 values rounded to bfloat16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity.

    Returns:
        The upper 16 bits of each float32, as uint16: NumPy itself has no bfloat16.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Half of what is cut off, less one where the last bit that stays is 0; uint32 wraps for no number but NaN.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def lower_tensor(tensor: TensorProto, name: str, low: int) -> TensorProto:
    """A float32 tensor that is inside the model, rounded to fp16 or bf16, under another name."""
    values = numpy_helper.to_array(tensor)
    if low == TensorProto.FLOAT16:
        return numpy_helper.from_array(round_to_half(values), name)
    raw = round_to_bfloat16(values).astype("<u2").tobytes()
    return TensorProto(name=name, data_type=low, dims=values.shape, raw_data=raw)


class Rewriter:
    """A model that is written anew node by node.

    Attributes:
        model: What is written so far: all of the original but its nodes.
        source: The original's nodes.
        low: The low precision, an ONNX element type.
    """

    def __init__(self, model: ModelProto, low: int) -> None:
        self.low = low
        self.source: list[NodeProto] = list(model.graph.node)
        self.model = clone(model)
        del self.model.graph.node[:]
        self._names = mentioned_names(model.graph)

    def fresh(self, stem: str) -> str:
        """A tensor name that nothing has yet."""
        name = free_name(stem, self._names)
        self._names.add(name)
        return name

    def fresh_low(self, name: str) -> str:
        """A new name for a tensor's value in the low precision."""
        return self.fresh(f"{name}_{LOW_NAMES[self.low]}")

    def append(self, node: NodeProto) -> None:
        """Write a node."""
        self.model.graph.node.append(node)

    def cast(self, source: str, target: str, to: int) -> None:
        """Write a Cast of one tensor into another; without a name, since a node of the model may be named like a tensor."""
        self.append(helper.make_node("Cast", [source], [target], to=to))


def lower_fp16(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
    low: int = TensorProto.FLOAT16,
    *,
    store_weights: bool = True,
) -> ModelProto:
    """The model with every node that can be in fp16 (or bf16), and Casts at the boundaries alone.

    Graph inputs and outputs keep their names and types. An inner tensor that a lowered node writes goes by a new name;
    its old one stands for its fp32 value and exists where fp32 nodes, bodies of control flow or graph outputs read it.
    The type of each new tensor is declared. :func:`~bisect_trt.onnxlib.lower_plan.plan_slots` says what stays in fp32.

    Args:
        model: The model, opset 6 or later (13 for bf16), nodes in topological order; it is not changed. External data
            may be unloaded: such weights pass a Cast.
        keep: Nodes to leave in fp32, each given by its first output tensor. Names of no node are ignored.
        dtypes: ``TensorProto.DataType`` of tensors whose type ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        store_weights: Whether weights and constants are stored in the low precision; if not, they pass a Cast.

    Raises:
        UsageError: The opset is too old.
    """
    work = _Lowering(model, low, store_weights=store_weights)
    types = tensor_dtypes(model, dtypes)
    for node, slots in zip(work.source, plan_slots(model, keep, types, low), strict=True):
        new = clone(node)
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
            next(each for each in new.attribute if each.name == "to").i = low
        work.append(new)
    for value in model.graph.output:
        work.ensure_full(value.name)
    return work.finish()


class _Lowering(Rewriter):
    """A rewriter that knows in which precisions each tensor is at hand."""

    def __init__(self, model: ModelProto, low: int, *, store_weights: bool) -> None:
        super().__init__(model, low)
        if check_opset(model, low) is None:  # custom operators only; a Cast needs a version of its own
            version = max(_OLDEST_CUSTOM_OPSET, FIRST_OPSET[low])
            self.model.opset_import.append(helper.make_opsetid("", version))
        listed = {value.name for value in model.graph.input}
        self._weights = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            # A weight that is an input too can be overridden; one in another file is better not read.
            if store_weights
            and tensor.name not in listed
            and tensor.data_location != TensorProto.EXTERNAL
            and model.ir_version >= IR_WITHOUT_INITIALIZER_INPUTS
        }
        constants = (node for node in self.source if store_weights and node.op_type in CONSTANT_OPS)
        self._constants = {node.output[0]: node for node in constants if _constant_value(node) is not None}
        self._declared = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
        self._half: dict[str, str] = {}
        self._half_only: set[str] = set()
        self._replaced: set[str] = set()

    def produce(self, name: str) -> str:
        """The name under which a lowered node writes a tensor."""
        new = self._half[name] = self.fresh_low(name)
        self._half_only.add(name)
        declaration = self.model.graph.value_info.add()
        declaration.CopyFrom(self._declared.get(name) or ValueInfoProto())
        declaration.name = new
        declaration.type.tensor_type.elem_type = self.low
        return new

    def half(self, name: str) -> str:
        """A tensor's name in the low precision, which is written first where needed: stored if it is constant, else cast."""
        if name in self._half:
            return self._half[name]
        target = self._half[name] = self.fresh_low(name)
        if name in self._weights:
            self.model.graph.initializer.append(lower_tensor(self._weights[name], target, self.low))
        elif name in self._constants:
            node = self._constants[name]
            value = _constant_value(node)
            assert value is not None  # __init__ left those out
            low = lower_tensor(value, value.name, self.low)
            self.append(helper.make_node(node.op_type, node.input, [target], value=low))
        else:
            self.cast(name, target, self.low)
            return target
        self._replaced.add(name)
        return target

    def either(self, name: str) -> str:
        """A tensor's name in the precision it is at hand in."""
        return self._half[name] if name in self._half_only else name

    def ensure_full(self, name: str) -> None:
        """Write a tensor's fp32 value, under its own name, unless it is there."""
        if name in self._half_only:
            self.cast(self._half[name], name, TensorProto.FLOAT)
            self._half_only.remove(name)

    def finish(self) -> ModelProto:
        """The model, without the weights and constants that only the readers of their copies read."""
        graph = self.model.graph
        unused = self._replaced - _read(graph)
        keep_only(graph.initializer, [item for item in graph.initializer if item.name not in unused])
        keep_only(graph.node, [node for node in graph.node if not unused.intersection(node.output)])
        names = mentioned_names(graph)
        keep_only(graph.value_info, [value for value in graph.value_info if value.name in names])
        return self.model


def _read(graph: GraphProto) -> set[str]:
    """What the nodes of a graph read, bodies included, and what it returns."""
    read = {value.name for value in graph.output}
    return read.union(*({*node.input, *captured_names(node)} for node in graph.node))


def _constant_value(node: NodeProto) -> TensorProto | None:
    """The float32 value of a Constant, or the fill of a ConstantOfShape; ``None`` for any other type."""
    value: TensorProto | None = held(node)
    if node.op_type == "ConstantOfShape" and node.domain in DEFAULT_DOMAINS:
        value = attribute(node, "value", numpy_helper.from_array(np.zeros(1, np.float32)))
    return value if value is not None and value.data_type == TensorProto.FLOAT else None


def element_of(value: ValueInfoProto) -> int:
    """The element type that a declaration says; 0 for none."""
    return int(value.type.tensor_type.elem_type)


def store_weights(model: ModelProto, folder: Path, low: int = TensorProto.FLOAT16) -> None:
    """Store in the model, in the low precision, the external weights that pass a Cast to it.

    One weight is read at a time. Those that fp32 nodes read too stay as they are as well.

    Args:
        model: What :func:`lower_fp16` made with external data unloaded; changed in place.
        folder: Where its external data lies.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    graph = model.graph
    listed = {value.name for value in graph.input}  # an input may be overridden
    weights = {t.name: t for t in graph.initializer if uses_external_data(t) and t.name not in listed}
    stored, nodes = set[str](), []
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in weights and attribute(node, "to", 0) == low:
            tensor = clone(weights[node.input[0]])
            load_inside(tensor, folder)
            graph.initializer.append(lower_tensor(tensor, node.output[0], low))
            stored.add(node.input[0])
        else:
            nodes.append(node)
    keep_only(graph.node, nodes)
    for name in stored - _read(graph):
        graph.initializer.remove(weights[name])
