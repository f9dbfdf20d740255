"""The graphs inside a node as models: branches of an If, bodies of Loop and Scan, local functions.

A body becomes a model of its own: its inputs are the tensors that it captures, and for one
iteration of a Loop or Scan the iteration's number and carried values. The names of tensors are the
file's, except in functions, which ONNX inlines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from msgspec import Struct
from onnx import helper

from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.functions import inlined, is_call
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    add_initializers,
    attribute,
    bodies,
    clone,
    defined_names,
    drop,
    first_output,
    free_name,
    function_key,
    inner_nodes,
    keep_only,
    mentioned_names,
    reads,
)
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.files import Arrays, Values

_LOOP_FIRST = 2
"""The number of inputs of a Loop, and of its body, before the carried values."""


def has_body(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Return whether a node is an If, a Loop, a Scan or a call of one of the model's functions."""
    if node.domain in DEFAULT_DOMAINS and node.op_type in ("If", "Loop", "Scan"):
        return any(bodies(node))
    return is_call(model, node)


class Body(Struct, frozen=True):
    """The model of a body.

    Attributes:
        model: The model.
        values: The values of its inputs.
        sources: The nodes as the file has them, by the first output of the model's node, where
            they differ.
    """

    model: onnx.ModelProto
    values: Arrays
    sources: Mapping[str, onnx.NodeProto] = {}


class Outer(Struct, frozen=True):
    """A model in which one node has a body; the others only make weights.

    Attributes:
        model: The model.
        place: The node's place in it.
        values: The values of the model's inputs, and of other tensors that the node reads directly.
        sources: The nodes of the file, by the first output of what functions around were inlined to.
    """

    model: onnx.ModelProto
    place: int
    values: Values
    sources: Mapping[str, onnx.NodeProto] = {}

    @property
    def node(self) -> onnx.NodeProto:
        """The node."""
        node: onnx.NodeProto = self.model.graph.node[self.place]
        return node

    @property
    def iterates(self) -> bool:
        """Whether the body runs several times."""
        return self.node.op_type in ("Loop", "Scan") and not is_call(self.model, self.node)

    @property
    def carried(self) -> range:
        """The node's inputs that one iteration hands on to the next."""
        if self.node.op_type == "Loop":
            return range(_LOOP_FIRST, len(self.node.input))
        return range(len(self.node.input) - int(attribute(self.node, "num_scan_inputs", 0)))

    def branches(self, *, condition_known: bool) -> list[str]:
        """Return the branches of an If that may run: the one that its condition takes, both where that is not known."""
        condition = self.values.get(self.node.input[0])
        if condition is None or not condition_known:
            return ["then_branch", "else_branch"]
        return ["then_branch" if condition.any() else "else_branch"]

    def branch(self, name: str) -> Body | None:
        """Return a branch of an If as a model."""
        return self._opened(attribute(self.node, name), {})

    def inlined(self) -> Body | None:
        """Return the model with the function in the place of its call; ``None`` if it cannot be inlined."""
        key = function_key(self.node)
        function = next(
            candidate for candidate in self.model.functions if function_key(candidate) == key
        )
        model = inlined(self.model, [key[:2]])
        if key in map(function_key, model.graph.node):
            return None
        added = inner_nodes(model.graph.node[self.place : self.place + len(function.node)])
        pairs = zip(added, inner_nodes(function.node), strict=False)
        sources = {
            first_output(new): self.sources.get(first_output(old), old) for new, old in pairs
        }
        return _pruned(model, self.values, {**self.sources, **sources})

    def iteration(self, number: int, state: Sequence[np.ndarray]) -> Body | None:
        """Return one iteration of a Loop or Scan as a model.

        Args:
            number: The iteration, from 1.
            state: The carried values before it.
        """
        body: onnx.GraphProto = attribute(self.node, "body")
        if self.node.op_type == "Loop":
            values = [np.array(number - 1, np.int64), np.array(True), *state]
        else:
            slices = [
                np.take(values_of_input, self._position(place, number), axis)
                for place, axis, values_of_input in self._scanned()
            ]
            values = [*state, *slices]
        fed = dict(zip((value.name for value in body.input), values, strict=False))
        for value in body.input[:_LOOP_FIRST] if self.node.op_type == "Loop" else ():
            # Exporters declare the number and the condition with rank 0 or 1.
            rank = len(value.type.tensor_type.shape.dim)
            fed[value.name] = fed[value.name].reshape((1,) * rank)
        return self._opened(body, fed)

    def counter(self) -> tuple[onnx.ModelProto, str]:
        """Return the model of a Loop with another output, the number of each iteration, and that output's name."""
        model = clone(self.model)
        node = model.graph.node[self.place]
        names = mentioned_names(model.graph)
        name = free_name("iteration_numbers", names)
        body: onnx.GraphProto = attribute(node, "body")
        inner = free_name("iteration_number", {*names, name})
        body.node.append(helper.make_node("Identity", [body.input[0].name], [inner]))
        body.output.append(helper.make_tensor_value_info(inner, onnx.TensorProto.INT64, None))
        while len(node.output) < len(body.output) - 2:
            node.output.append(free_name("unread", {*names, name, *node.output}))
        node.output.append(name)
        keep_only(model.graph.output, [onnx.ValueInfoProto(name=name)])
        return model, name

    def scan_length(self) -> int:
        """Return the number of iterations of a Scan."""
        return min((values.shape[axis] for _, axis, values in self._scanned()), default=0)

    def limited(self, count: int) -> tuple[onnx.ModelProto, Arrays, list[str]]:
        """Return the model with only the first iterations of its Loop or Scan.

        It returns the carried values after them too, where they are tensors.

        Args:
            count: The number of iterations.

        Returns:
            The model, the values of its inputs, and the names of the carried values.
        """
        model = clone(self.model)
        values = dict(self.values)
        graph, node = model.graph, model.graph.node[self.place]
        returned = attribute(node, "body").output
        names = mentioned_names(graph)
        for place, value in self._bounding_inputs(count):
            name = free_name(f"first_iterations_{place}", names)
            node.input[place] = name
            values[name] = np.ascontiguousarray(value).reshape(value.shape)
            graph.input.append(
                helper.make_tensor_value_info(name, element_type(value.dtype), value.shape)
            )
        outputs = {value.name for value in graph.output}
        # A loop's condition is no output of the node.
        returned = returned[node.op_type == "Loop" :]
        for place, value in zip(range(len(self.carried)), returned, strict=False):
            name = node.output[place] or free_name("unread", {*names, *node.output})
            node.output[place] = name
            if name not in outputs and value.type.HasField("tensor_type"):
                graph.output.append(onnx.ValueInfoProto(name=name, type=value.type))
        # A scanned output has another size in the body.
        for value in graph.output:
            value.type.tensor_type.ClearField("shape") if value.HasField("type") else None
        drop(graph.value_info, node.output)
        read = {name for reader in graph.node for name in reads(reader)}
        keep_only(graph.input, [value for value in graph.input if value.name in read])
        inputs = {value.name: values[value.name] for value in graph.input if value.name in values}
        return model, inputs, node.output[: len(self.carried)]

    def _bounding_inputs(self, count: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the inputs of the node that end it after some iterations, by their places."""
        if self.node.op_type == "Loop":
            yield 0, np.array(count, np.int64)
            return
        length = self.scan_length()
        for place, axis, value in self._scanned():
            first = length - count if self._reversed(place) else 0
            yield place, np.take(value, range(first, first + count), axis)

    def _scanned(self) -> list[tuple[int, int, np.ndarray]]:
        """Return the scanned inputs of a Scan: place among the node's inputs, axis, values."""
        first = len(self.carried)
        axes = attribute(self.node, "scan_input_axes", [])
        return [
            (place, axes[place - first] if axes else 0, self.values[name])
            for place, name in enumerate(self.node.input)
            if place >= first
        ]

    def _reversed(self, place: int) -> bool:
        directions = attribute(self.node, "scan_input_directions", [])
        return bool(directions and directions[place - len(self.carried)])

    def _position(self, place: int, number: int) -> int:
        """Return the index of an iteration's slice of a scanned input."""
        return self.scan_length() - number if self._reversed(place) else number - 1

    def _opened(self, body: onnx.GraphProto, fed: Values) -> Body | None:
        """Return the model with a body in the place of the node."""
        model = clone(self.model)
        graph = model.graph
        # Names of the body hide those around it.
        local = defined_names(body)
        del graph.node[self.place]
        for entries in (graph.input, graph.initializer, graph.value_info):
            drop(entries, local)
        graph.node.extend(body.node)
        add_initializers(model, body.initializer)
        graph.value_info.extend(body.value_info)
        for name, value in fed.items():
            graph.input.append(
                helper.make_tensor_value_info(name, element_type(value.dtype), value.shape)
            )
        # A body may return what it reads; that is no result of a node.
        computed = {name for node in body.node for name in node.output}
        outputs = {value.name: value for value in body.output if value.name in computed}
        keep_only(graph.output, outputs.values())
        return _pruned(model, {**self.values, **fed}, self.sources)


def _pruned(
    model: onnx.ModelProto, values: Values, sources: Mapping[str, onnx.NodeProto]
) -> Body | None:
    """Return a model without what its outputs do not need; ``None`` without outputs, or if an input has no value."""
    if not model.graph.output:
        return None
    network = Network(model)
    piece = between(network, (), network.outputs)
    # A captured tensor without a value would leave the model without an input.
    if not all(name in values for name in piece.inputs):
        return None
    pruned = splice(network, piece, {}, nothing_stored).proto
    return Body(pruned, {name: values[name] for name in piece.inputs}, sources)
