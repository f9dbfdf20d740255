"""Clean-ups of a model: folded constants, unread parts and documentation removed, anonymous names and weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from msgspec import Struct
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, version_converter

from bisect_trt.errors import UnsuitableModelError
from bisect_trt.onnxlib.cut import PRODUCER
from bisect_trt.onnxlib.load import needed_ir_version
from bisect_trt.onnxlib.lower import low_tensor
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    add_initializers,
    attribute,
    clone,
    drop,
    function_key,
    held,
    inner_nodes,
    keep_only,
)
from bisect_trt.tensors.files import Arrays, Values
from bisect_trt.tensors.info import TensorInfo

QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


class Folding:
    """The nodes of a network that can be replaced by their values (``gone``).

    Nodes that make a graph output stay, because not every runtime accepts an output that no node
    computes. Quantization stays: a folded quantized weight would be fp32.
    """

    def __init__(self, network: Network) -> None:
        """Find the nodes."""
        self.network = network
        computable: set[int] = set()
        for index in network.order:
            # A folded QuantizeLinear would hide the scale that is searched.
            quantizes = network.nodes[index].op_type in QUANTIZING
            if (
                network.constant[index]
                and not quantizes
                and computable.issuperset(network.parents(index))
            ):
                computable.add(index)
        self.gone = {
            index for index in computable if network.returned.isdisjoint(network.made(index))
        }

    def keep(self, name: str) -> None:
        """Keep the node that makes a tensor; its inputs can still be stored."""
        self.gone.discard(self.network.producer[name])

    def stored(self) -> list[str]:
        """Return the tensors to store in place of the nodes, in topological order."""
        network = self.network
        results = network.made_by(index for index in network.order if index in self.gone)
        return [
            name for name in results if not self.gone.issuperset(network.consumers.get(name, ()))
        ]

    def apply(self, values: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
        """Return the model with these values in place of the nodes."""
        return _replace(self.network, self.gone, values)


def fold_shapes(network: Network) -> onnx.ModelProto | None:
    """Return the model with inferred shapes stored in place of ``Shape`` and ``Size``; ``None`` without any."""
    values: dict[str, onnx.TensorProto] = {}
    for node in network.nodes:
        standard = node.op_type in ("Shape", "Size") and node.domain in DEFAULT_DOMAINS
        if not (standard and node.input and node.output) or node.output[0] in network.returned:
            continue
        info = network.infos.get(node.input[0])
        if info is not None and info.is_static:
            values[node.output[0]] = numpy_helper.from_array(
                shape_value(node, info), node.output[0]
            )
    return (
        _replace(network, {network.producer[name] for name in values}, values) if values else None
    )


def shape_value(node: onnx.NodeProto, info: TensorInfo) -> NDArray[np.int64]:
    """Return the output of a ``Shape`` (with ``start`` and ``end`` of opset 15) or ``Size`` of a tensor."""
    shape = info.sizes or ()
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    return np.array(
        shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))], np.int64
    )


def _replace(
    network: Network, gone: Collection[int], values: Mapping[str, onnx.TensorProto]
) -> onnx.ModelProto:
    """Return the model without some nodes, and with some tensors as initializers."""
    model = clone(network.proto)
    keep_only(
        model.graph.node, [node for index, node in enumerate(network.nodes) if index not in gone]
    )
    add_initializers(model, values.values())
    return model


def constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor that a ``Constant`` holds; ``None`` for another node."""
    if (tensor := held(node)) is None:
        return None
    named = clone(tensor)
    named.name = node.output[0]
    return named


def remove_unread(model: onnx.ModelProto) -> Counter[str]:
    """Remove nodes that no output depends on, unread weights, and declarations of missing tensors, in place; inputs stay.

    Returns:
        The numbers of removed ``nodes``, ``weights`` and ``declarations``.
    """
    network = Network(model)
    graph = model.graph
    before = len(graph.node), len(graph.value_info)
    live = network.leading_to(network.producers_of(network.outputs))
    read = network.returned.union(*(network.reads[index] for index in live))
    idle = set(network.initializers) - read
    results = set(network.made_by(live))
    keep_only(graph.node, [node for index, node in enumerate(network.nodes) if index in live])
    drop(graph.initializer, idle)
    drop(graph.input, idle)
    keep_only(graph.value_info, [value for value in graph.value_info if value.name in results])
    declarations = before[1] - len(graph.value_info)
    return Counter(nodes=before[0] - len(live), weights=len(idle), declarations=declarations)


def in_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model in another opset, by onnx.version_converter, with the IR version that it needs.

    Raises:
        UnsuitableModelError: The model has no such form.
    """
    try:
        converted = version_converter.convert_version(model, opset)
    except Exception as error:  # of C++, of several types
        reason = str(error).rpartition("failed: ")[2]
        raise UnsuitableModelError(
            f"onnx.version_converter does not convert the model to opset {opset}: {reason}."
        ) from error
    converted.ir_version = needed_ir_version(converted)
    return converted


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Put the nodes into topological order, in place; return whether they were not."""
    network = Network(model)
    if network.is_sorted:
        return False
    keep_only(model.graph.node, [network.nodes[index] for index in network.order])
    return True


_PROSE = ("doc_string", "metadata_props")
"""Fields for documentation; exporters write stack traces and paths of source files into them."""
_INDICES = ("BOOL", "INT32", "INT64", "UINT32", "UINT64")
_RANDOM = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT16", "UINT16")


def strip(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without documentation, metadata, producer, domain, name of the graph, and unused functions."""
    model = clone(proto)
    for name in ("producer_version", "domain", "model_version"):
        model.ClearField(name)
    model.producer_name = PRODUCER
    model.graph.name = "reduced"
    functions = {function_key(function): function for function in model.functions}
    called = set[tuple[str, str, str]]()
    # Functions may call functions, so those that are reached are searched too.
    waiting = list(inner_nodes(model.graph.node))
    while waiting:
        key = function_key(waiting.pop())
        if key in functions and key not in called:
            called.add(key)
            waiting += inner_nodes(functions[key].node)
    keep_only(model.functions, [function for key, function in functions.items() if key in called])
    for message in _messages(model):
        for name in _PROSE:
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
    return model


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and all messages inside it."""
    yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _messages(inner)


class Anonymous(Struct, frozen=True):
    """A model with other names and other weights; ``names`` has the new name of each tensor by its old one.

    The weights in ``kept`` were not replaced: external ones, and types of 8 bits or fewer that
    NumPy lacks.
    """

    proto: onnx.ModelProto
    names: dict[str, str]
    kept: tuple[str, ...]

    def rename(self, values: Values) -> Arrays:
        """Return tensors by their new names."""
        return {self.names[name]: value for name, value in values.items()}


def anonymise(proto: onnx.ModelProto) -> Anonymous:
    """Rename tensors (``t0``, ``t1``, ...) and nodes (``n0``, ...), and replace weights by random ones of the same range.

    Single numbers, such as an epsilon, stay; so do booleans and integers of 32 and 64 bits, which
    are often shapes, axes and indices, and Inf and NaN.
    """
    model = clone(proto)
    names: dict[str, str] = {"": ""}
    # A fixed seed: equal models become equal anonymous ones.
    generator = np.random.default_rng(1)
    nodes = count()
    unchanged = list[str]()

    def renamed(name: str) -> str:
        return names.setdefault(name, f"t{len(names) - 1}")

    for message in list(_messages(model)):
        if isinstance(message, onnx.NodeProto):
            message.name = f"n{next(nodes)}"
            for parameter in message.attribute if message.op_type == "Constant" else ():
                parameter.floats[:] = _like(
                    np.array(parameter.floats, np.float32), generator
                ).tolist()
        if isinstance(message, onnx.NodeProto | onnx.FunctionProto):
            for ends in (message.input, message.output):
                ends[:] = map(renamed, list(ends))
        elif isinstance(message, onnx.TensorShapeProto.Dimension) and message.dim_param:
            message.dim_param = renamed(message.dim_param)
        elif isinstance(message, TensorProto | onnx.ValueInfoProto):
            message.name = renamed(message.name)
        if isinstance(message, TensorProto) and not _randomise(message, generator):
            unchanged.append(message.name)
    del names[""]
    return Anonymous(model, names, tuple(unchanged))


def _randomise(tensor: TensorProto, generator: np.random.Generator) -> bool:
    """Replace the values of a weight; return whether none is left that could identify the model."""
    kind = str(TensorProto.DataType.Name(tensor.data_type))
    # Indices and shapes decide what a model computes, and say nothing about its weights.
    if kind in _INDICES or math.prod(tensor.dims) <= 1:
        return True
    if kind not in _RANDOM or tensor.data_location == TensorProto.EXTERNAL:
        return False
    drawn = _like(numpy_helper.to_array(tensor), generator)
    if tensor.data_type == TensorProto.BFLOAT16:
        tensor.CopyFrom(low_tensor(drawn.astype(np.float32), tensor.name, TensorProto.BFLOAT16))
    else:
        tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))
    return True


def _like(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Return random values in the range of the finite ones, both ends included, with the same Inf and NaN."""
    wide = values.astype(np.float64)
    places = np.flatnonzero(np.isfinite(wide))
    if places.size < 2:
        return values
    finite = wide.ravel()[places]
    low = finite.min()
    high = finite.max()
    drawn = wide.ravel().copy()
    drawn[places] = low + (high - low) * generator.random(places.size)
    # An overflow often depends on the largest value, so both ends of the range stay.
    drawn[places[0]], drawn[places[-1]] = low, high
    rounded = np.rint(drawn) if values.dtype.kind in "iu" else drawn
    return rounded.reshape(values.shape).astype(values.dtype)
