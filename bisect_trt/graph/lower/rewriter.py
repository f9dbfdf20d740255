"""A model that is written anew node by node: fresh names, Casts and rounded constants."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.graph.lower.round import lower_tensor
from bisect_trt.graph.lower.types import (
    CONSTANT_OPS,
    DEFAULT_DOMAINS,
    FIRST_IR_WITH_FREE_INITIALIZERS,
    FIRST_OPSET,
    LOW_NAMES,
    check_opset,
)
from bisect_trt.graph.network import bodies

_OLDEST_CUSTOM_OPSET = 9


class Rewriter:
    """A model while its nodes are written anew, one after the other, in topological order.

    Attributes:
        model: The copy that is being written. Its graph's nodes are those appended so far.
        source_nodes: The original's nodes.
        low: The element type that it is lowered to.
    """

    def __init__(self, model: ModelProto, low: int = TensorProto.FLOAT16, *, store_weights: bool = True) -> None:
        """Begin with no nodes.

        Args:
            model: The original, which is not changed.
            low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
            store_weights: Whether rounded weights and constants are stored; if not, they pass a Cast.

        Raises:
            UsageError: The opset has no Cast to ``low``.
        """
        self.low = low
        opset = check_opset(model, low)
        self.source_nodes: list[NodeProto] = list(model.graph.node)
        self.model = ModelProto()
        self.model.CopyFrom(model)
        if opset is None:  # custom operators only; the Casts need a version of their own
            self.model.opset_import.append(helper.make_opsetid("", max(_OLDEST_CUSTOM_OPSET, FIRST_OPSET[low])))
        del self.model.graph.node[:]
        self._names = mentioned_names(model.graph)
        listed = {value.name for value in model.graph.input}
        self._weights = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            # A weight that is an input too can be overridden; one in another file is better not read.
            if store_weights
            and tensor.name not in listed
            and tensor.data_location != TensorProto.EXTERNAL
            and model.ir_version >= FIRST_IR_WITH_FREE_INITIALIZERS
        }
        self._constants = {
            node.output[0]: node
            for node in self.source_nodes
            if store_weights
            and node.op_type in CONSTANT_OPS
            and node.domain in DEFAULT_DOMAINS
            and _constant_value(node) is not None
        }
        self._replaced: set[str] = set()

    def fresh(self, stem: str) -> str:
        """Returns a tensor name that nothing has yet."""
        name, number = stem, 1
        while name in self._names:
            number += 1
            name = f"{stem}_{number}"
        self._names.add(name)
        return name

    def fresh_low(self, name: str) -> str:
        """Returns a name for a tensor's value in the low precision."""
        return self.fresh(f"{name}_{LOW_NAMES[self.low]}")

    def append(self, node: NodeProto) -> None:
        """Writes a node."""
        self.model.graph.node.append(node)

    def cast(self, source: str, target: str, to: int) -> None:
        """Writes a Cast of one tensor into another; without a name, since a node of the model may be named like a tensor."""
        self.append(helper.make_node("Cast", [source], [target], to=to))

    def round_trip(self, source: str, target: str) -> None:
        """Writes a Cast to the low precision and one back."""
        low = self.fresh_low(target)
        self.cast(source, low, self.low)
        self.cast(low, target, TensorProto.FLOAT)

    def copy(self, name: str, *, back: bool) -> str:
        """Writes the low-precision value of an fp32 tensor that no lowered node produces.

        Weights and constants are rounded here and now where they can be; other tensors pass Casts.

        Args:
            name: The fp32 tensor. It keeps its value.
            back: Whether the result is to be fp32 again (with rounded values) or of the low precision.

        Returns:
            The new tensor's name.
        """
        target = self.fresh(f"{name}_rounded") if back else self.fresh_low(name)
        if name in self._weights:
            self.model.graph.initializer.append(lower_tensor(self._weights[name], target, self.low, back=back))
        elif name in self._constants:
            node = self._constants[name]
            value = _constant_value(node)
            assert value is not None  # __init__ left those out
            low = lower_tensor(value, value.name, self.low, back=back)
            self.append(helper.make_node(node.op_type, node.input, [target], value=low))
        elif back:
            self.round_trip(name, target)
            return target
        else:
            self.cast(name, target, self.low)
            return target
        self._replaced.add(name)
        return target

    def finish(self) -> ModelProto:
        """Drops the weights and constants that only their copies' readers read, and returns the model."""
        graph = self.model.graph
        used = {value.name for value in graph.output}
        for node in graph.node:
            used.update(node.input)
            used |= captured_names(node)
        unused = self._replaced - used
        _retain(graph.initializer, [item for item in graph.initializer if item.name not in unused])
        _retain(graph.node, [node for node in graph.node if not unused.intersection(node.output)])
        names = mentioned_names(graph)
        _retain(graph.value_info, [value for value in graph.value_info if value.name in names])
        return self.model


def captured_names(node: NodeProto) -> set[str]:
    """Returns the names that a node's bodies may capture from outside; their own are among them."""
    return {name for body in bodies(node) for name in mentioned_names(body)}


def mentioned_names(graph: GraphProto) -> set[str]:
    """Returns every tensor name in a graph and in the bodies within it."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        names.update(node.input, node.output)
        for body in bodies(node):
            names |= mentioned_names(body)
    return names - {""}


def _constant_value(node: NodeProto) -> TensorProto | None:
    """Returns the float32 value of a Constant, or the fill of a ConstantOfShape; None for any other type."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    value: TensorProto | None = None
    if "value" in attributes:
        value = attributes["value"].t
    elif node.op_type == "ConstantOfShape":
        value = numpy_helper.from_array(np.zeros(1, np.float32))
    elif "value_float" in attributes:
        value = numpy_helper.from_array(np.array(attributes["value_float"].f, np.float32))
    elif "value_floats" in attributes:
        value = numpy_helper.from_array(np.array(attributes["value_floats"].floats, np.float32))
    return value if value is not None and value.data_type == TensorProto.FLOAT else None


def _retain(field: object, items: Collection[object]) -> None:
    """Keeps only ``items`` in a repeated protobuf field."""
    if len(items) != len(field):  # type: ignore[arg-type]
        kept = list(items)
        del field[:]  # type: ignore[attr-defined]
        field.extend(kept)  # type: ignore[attr-defined]
