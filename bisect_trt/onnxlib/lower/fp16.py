"""Lowering to fp16 or bf16 by real nodes of that type, as a GPU runs them; so too the graph's inputs, outputs and weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from bisect_trt.onnxlib.lower.plan import READS_ANY_TYPE, plan_slots, tensor_dtypes
from bisect_trt.onnxlib.lower.rewriter import Rewriter, lower_tensor
from bisect_trt.onnxlib.nodes import attribute, bodies, captured_names


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
    return int(attribute(node, "to", 0))


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


def store_weights(model: ModelProto, folder: Path, low: int = TensorProto.FLOAT16) -> None:
    """Rounds the external weights that pass a Cast to the low precision, and stores them in the model instead.

    One weight is read at a time. Those that fp32 nodes read too stay as they are as well.

    Args:
        model: What ``lower_fp16`` made with external data unloaded; changed in place.
        folder: Where its external data lies.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    graph = model.graph
    listed = {value.name for value in graph.input}  # an input may be overridden
    weights = {t.name: t for t in graph.initializer if uses_external_data(t) and t.name not in listed}
    stored: set[str] = set()
    nodes = []
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in weights and node.attribute[0].i == low:
            tensor = TensorProto()
            tensor.CopyFrom(weights[node.input[0]])
            load_external_data_for_tensor(tensor, str(folder))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
            graph.initializer.append(lower_tensor(tensor, node.output[0], low, back=False))
            stored.add(node.input[0])
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    used.update(value.name for value in graph.output)
    for name in stored - used:
        graph.initializer.remove(weights[name])
