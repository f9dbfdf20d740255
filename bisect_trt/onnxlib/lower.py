"""Models lowered to fp16 or bf16: nodes with Casts at the boundaries, and stored weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from bisect_trt.onnxlib.functions import inline_functions
from bisect_trt.onnxlib.load import read_weight
from bisect_trt.onnxlib.low_plan import (
    CONSTANT_OPS,
    FIRST_OPSET,
    LOW_NAMES,
    READS_ANY_TYPE,
    Planner,
    ShapeValues,
    Slots,
    check_opset,
)
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    IR_WITHOUT_INITIALIZER_INPUTS,
    Types,
    attribute,
    bodies,
    captured_names,
    clone,
    defined_names,
    drop,
    first_output,
    free_name,
    held,
    keep_only,
    mentioned_names,
)

_OLDEST_CUSTOM_OPSET = 9


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to bfloat16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity.

    The result has the upper 16 bits of each float32, as uint16: NumPy itself has no bfloat16.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Half of the lost bits, less one if the last kept bit is 0; uint32 wraps for NaN only.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def low_tensor(values: np.ndarray, name: str, low: int) -> TensorProto:
    """Return float32 values as a tensor, rounded to fp16 or bf16 as ONNX's Cast does.

    Args:
        values: float32 values of any shape.
        name: The name of the tensor.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    if low == TensorProto.FLOAT16:
        with np.errstate(over="ignore"):
            return numpy_helper.from_array(values.astype(np.float16), name)
    # TensorProto.raw_data is little-endian, whatever the machine.
    raw = round_to_bfloat16(values).astype("<u2").tobytes()
    return TensorProto(name=name, data_type=low, dims=values.shape, raw_data=raw)


class Rewriter:
    """A graph that is rewritten node by node from the original's ``source``; ``low`` is an ONNX element type."""

    def __init__(self, source: GraphProto, graph: GraphProto, names: set[str], low: int) -> None:
        """Take the nodes out of ``graph``, a copy of ``source``; ``names`` are the names of all tensors of the model."""
        self.low = low
        self.source = source
        self.graph = graph
        del self.graph.node[:]
        self.names = names

    def fresh(self, stem: str) -> str:
        """Return an unused tensor name."""
        name = free_name(stem, self.names)
        self.names.add(name)
        return name

    def fresh_low(self, name: str) -> str:
        """Return an unused name for a tensor's value in the low precision."""
        return self.fresh(f"{name}_{LOW_NAMES[self.low]}")

    def append(self, node: NodeProto) -> None:
        """Write a node."""
        self.graph.node.append(node)

    def cast(self, source: str, target: str, to: int) -> None:
        """Write a Cast; it has no name, since a node of the model may have a tensor's name.

        Args:
            source: The tensor to cast.
            target: The tensor to write.
            to: Its element type, as ONNX's number.
        """
        self.append(helper.make_node("Cast", [source], [target], to=to))


def lower_fp16(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Types | None = None,
    low: int = TensorProto.FLOAT16,
    weights: Path | None = None,
) -> ModelProto:
    """Return the model with each possible node in fp16 (or bf16), in bodies too, and Casts only at the boundaries.

    Inputs and outputs of the graph and of bodies keep their names and types. The output of a
    lowered node gets a new name and a declaration; the old name is its fp32 value, which exists if
    fp32 nodes or graph outputs read it. Where a body reads the low value of a tensor from outside,
    that is made outside. Functions are inlined. :class:`Planner` selects the nodes.

    Args:
        model: The model, opset 6 or later (13 for bf16), nodes in topological order. External data
            may be unloaded.
        keep: The nodes to keep in fp32, by address; see :class:`Planner`. A call of a function is
            kept as a whole.
        dtypes: ``TensorProto.DataType`` of tensors with a type that ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        weights: The folder with the external weights, to store them in the low precision; without
            it, they get a Cast.

    Raises:
        UsageError: The opset is too old.
    """
    opset = check_opset(model, low)
    model = inline_functions(model, keep)
    types = {**(dtypes or {}), **Network(model).element_types}
    lowered = clone(model)
    # Custom operators only; a Cast needs ONNX's own domain.
    if opset is None:
        version = max(_OLDEST_CUSTOM_OPSET, FIRST_OPSET[low])
        lowered.opset_import.append(helper.make_opsetid("", version))
    _Lowering((model.graph, lowered.graph), Planner(model, keep, low), weights).run(
        types, ShapeValues()
    )
    return lowered


class _Lowering(Rewriter):
    """A rewriter that tracks the available precisions of each tensor of one graph; ``outer`` is of the graph around."""

    def __init__(
        self,
        graphs: tuple[GraphProto, GraphProto],
        planner: Planner,
        weights: Path | None,
        outer: _Lowering | None = None,
    ) -> None:
        """Begin with one graph.

        Args:
            graphs: The original graph, and its copy in the lowered model.
            planner: Selects the nodes.
            weights: The folder with the external weights.
            outer: The rewriter of the graph around a body.
        """
        source, graph = graphs
        self._local = defined_names(source)
        super().__init__(
            source, graph, mentioned_names(source) if outer is None else outer.names, planner.low
        )
        self._planner = planner
        self._outer = outer
        # An input overrides the weight.
        listed = {value.name for value in graph.input}
        self._weights_folder = weights
        self._weights = {
            tensor.name: tensor
            for tensor in graph.initializer
            if tensor.name not in listed
            and (weights is not None or tensor.data_location != TensorProto.EXTERNAL)
            and planner.model.ir_version >= IR_WITHOUT_INITIALIZER_INPUTS
        }
        constants = (node for node in source.node if node.op_type in CONSTANT_OPS)
        values = ((node, _constant_value(node)) for node in constants)
        self._constants = {
            node.output[0]: (node, value) for node, value in values if value is not None
        }
        self._declared = {value.name: value for value in (*graph.value_info, *graph.output)}
        self._half: dict[str, str] = {}
        self._half_only: set[str] = set()
        self._replaced: set[str] = set()

    def run(self, dtypes: Types, sizes: ShapeValues, path: str = "") -> None:
        """Write all nodes.

        Args:
            dtypes: ``TensorProto.DataType`` by tensor.
            sizes: The values computed from shapes in the graphs around it; this graph's are added.
            path: The beginning of the addresses of its nodes.
        """
        slots_of_nodes = self._planner.plan(self.source, dtypes, sizes, path)
        for node, slots in zip(self.source.node, slots_of_nodes, strict=True):
            self._write(node, slots, dtypes, sizes, path)
        for value in self.graph.output:
            self.ensure_full(value.name)
        self._finish()

    def _write(
        self,
        node: NodeProto,
        slots: Slots,
        dtypes: Types,
        sizes: ShapeValues,
        path: str,
    ) -> None:
        new = clone(node)
        for position, name in enumerate(node.input):
            if position in slots.inputs:
                new.input[position] = self.half(name)
            elif node.op_type in READS_ANY_TYPE:
                new.input[position] = self.either(name)
            else:
                self.ensure_full(name)
        if self._planner.keeps(node, path):
            for name in sorted(captured_names(node)):
                self.ensure_full(name)
        for (body, inside), written in zip(
            self._planner.bodies_of(node, dtypes, path), bodies(new), strict=False
        ):
            work = _Lowering((body, written), self._planner, self._weights_folder, self)
            work.run(inside, sizes.inside(body), f"{path}{first_output(node)}/")
        for position in slots.outputs:
            # The old name is reserved for the fp32 value, which is written if something reads it.
            new.output[position] = self.produce(node.output[position])
        if node.op_type == "Cast" and slots.outputs:
            next(parameter for parameter in new.attribute if parameter.name == "to").i = self.low
        self.append(new)

    def produce(self, name: str) -> str:
        """Return the new name of a lowered node's output."""
        new = self._half[name] = self.fresh_low(name)
        self._half_only.add(name)
        declaration = self.graph.value_info.add()
        declaration.CopyFrom(self._declared.get(name) or ValueInfoProto())
        declaration.name = new
        declaration.type.tensor_type.elem_type = self.low
        return new

    def half(self, name: str) -> str:
        """Return a tensor's name in the low precision, after storing a constant or writing a Cast if needed."""
        if self._outer is not None and name not in self._local:
            return self._outer.half(name)
        if name in self._half:
            return self._half[name]
        # One low copy serves all readers.
        target = self._half[name] = self.fresh_low(name)
        if name in self._weights:
            values = read_weight(self._weights[name], self._weights_folder or Path())
            self.graph.initializer.append(low_tensor(values, target, self.low))
        elif name in self._constants:
            node, value = self._constants[name]
            stored = low_tensor(numpy_helper.to_array(value), value.name, self.low)
            self.append(helper.make_node(node.op_type, node.input, [target], value=stored))
        else:
            self.cast(name, target, self.low)
            return target
        self._replaced.add(name)
        return target

    def either(self, name: str) -> str:
        """Return a tensor's name in any available precision."""
        if self._outer is not None and name not in self._local:
            return self._outer.either(name)
        return self._half[name] if name in self._half_only else name

    def ensure_full(self, name: str) -> None:
        """Write a tensor's fp32 value, under its own name, if it is missing."""
        if self._outer is not None and name not in self._local:
            self._outer.ensure_full(name)
        elif name in self._half_only:
            self.cast(self._half[name], name, TensorProto.FLOAT)
            self._half_only.remove(name)

    def _finish(self) -> None:
        """Take out unread weights and constants."""
        graph = self.graph
        read = {value.name for value in graph.output}
        # Bodies read tensors of the graph around them without naming them as inputs.
        read = read.union(*({*node.input, *captured_names(node)} for node in graph.node))
        unused = self._replaced - read
        drop(graph.initializer, unused)
        keep_only(graph.node, [node for node in graph.node if not unused.intersection(node.output)])
        names = mentioned_names(graph)
        keep_only(graph.value_info, [value for value in graph.value_info if value.name in names])


def _constant_value(node: NodeProto) -> TensorProto | None:
    """Return the float32 value of a Constant, or the fill of a ConstantOfShape; ``None`` for any other type."""
    value: TensorProto | None = held(node)
    if node.op_type == "ConstantOfShape" and node.domain in DEFAULT_DOMAINS:
        value = attribute(node, "value", numpy_helper.from_array(np.zeros(1, np.float32)))
    return value if value is not None and value.data_type == TensorProto.FLOAT else None
