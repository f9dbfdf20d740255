"""Take out of a model what can be computed beforehand, what nothing reads, and what says where it comes from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.cut import PRODUCER
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, add_initializers, attribute, clone, held, inner_nodes, keep_only
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.info import is_extension

_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_SHARE_A_BYTE = frozenset({"int4", "uint4", "float4_e2m1fn", "int2", "uint2"})


@dataclass(frozen=True)
class Removed:
    """What a clean-up took away: how many of each."""

    nodes: int = 0
    weights: int = 0
    declarations: int = 0


class Folding:
    """Finds the nodes of a network that can be replaced by the values that they make.

    Nodes that make a graph output stay, because not every runtime takes an output that nothing computes; so do those of
    quantization: folded, a quantized weight would be an fp32 one.

    Attributes:
        network: The model.
        computable: Nodes that depend on no input and on nothing that quantizes.
        kept: Nodes that stay all the same.
    """

    def __init__(self, network: Network) -> None:
        """Find out what could be folded."""
        self.network = network
        self.computable: set[int] = set()
        for index in network.order:
            quantizes = network.nodes[index].op_type in _QUANTIZING
            if network.constant[index] and not quantizes and self.computable.issuperset(network.parents(index)):
                self.computable.add(index)
        outputs = set(network.outputs)
        self.kept = {index for index in self.computable if not outputs.isdisjoint(network.made(index))}

    def keep(self, name: str) -> None:
        """Leave the node that makes a tensor where it is; what it reads can still be stored."""
        self.kept.add(self.network.producer[name])

    def stored(self) -> list[str]:
        """The tensors whose values have to be stored for all foldable nodes to go, in topological order."""
        network, gone = self.network, self.computable - self.kept
        return [
            name
            for index in network.order
            if index in gone
            for name in network.made(index)
            if any(reader not in gone for reader in network.consumers.get(name, ()))
        ]

    def known_bytes(self, name: str) -> int | None:
        """How large a tensor is, as far as shape inference tells."""
        info = self.network.infos.get(name)
        return None if info is None else info.nbytes

    def apply(self, values: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
        """The model with these values in place of all foldable nodes; the original is not changed."""
        return _replace(self.network, self.computable - self.kept, values)


def fold_shapes(network: Network) -> onnx.ModelProto | None:
    """The model with the shapes that inference finds stored in place of ``Shape`` and ``Size``; ``None`` without any."""
    values: dict[str, onnx.TensorProto] = {}
    for node in network.nodes:
        if node.op_type not in ("Shape", "Size") or node.domain not in DEFAULT_DOMAINS:
            continue
        if not (node.input and node.output):
            continue
        info = network.infos.get(node.input[0])
        name = node.output[0]
        if info is not None and info.is_static and name not in network.outputs:
            values[name] = numpy_helper.from_array(
                _shape_value(node, [int(dim or 0) for dim in info.shape or ()]), name
            )
    if not values:
        return None
    return _replace(network, {network.producer[name] for name in values}, values)


def _shape_value(node: onnx.NodeProto, shape: list[int]) -> NDArray[np.int64]:
    """What the node makes of a tensor of this shape; ``start`` and ``end`` are there since opset 15."""
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    return np.array(shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))], np.int64)


def _replace(network: Network, gone: Collection[int], values: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
    """The model without some nodes, and with some tensors as initializers."""
    model = clone(network.proto)
    keep_only(model.graph.node, [node for index, node in enumerate(network.nodes) if index not in gone])
    add_initializers(model, values.values())
    return model


def constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor that a ``Constant`` holds; ``None`` for another node, or one that holds it in another form."""
    tensor = None if attribute(node, "value") is None else held(node)
    if tensor is None:
        return None
    named = clone(tensor)
    named.name = node.output[0]
    return named


def to_tensor(name: str, value: NDArray[Any]) -> onnx.TensorProto | None:
    """An initializer; ``None`` for elements that share a byte, which those of arrays do not."""
    if not is_extension(value.dtype):
        return numpy_helper.from_array(value, name)
    if value.dtype.name in _SHARE_A_BYTE:
        return None
    raw = np.ascontiguousarray(value).tobytes()
    return onnx.TensorProto(name=name, data_type=element_type(value.dtype), dims=value.shape, raw_data=raw)


def remove_unread(model: onnx.ModelProto) -> Removed:
    """Take away nodes that no output depends on, weights that nothing reads, and declarations of what is not there.

    The graph's inputs stay: they are what a caller has to give.

    Args:
        model: Changed in place.
    """
    network, graph = Network(model), model.graph
    before = len(graph.node), len(graph.value_info)
    live = network.leading_to(network.producer[name] for name in network.outputs if name in network.producer)
    read = network.returned.union(*(network.reads[index] for index in live))
    idle = {*network.initializers, *network.sparse_initializers} - read
    made = {name for index in live for name in network.made(index)}
    keep_only(graph.node, [node for index, node in enumerate(network.nodes) if index in live])
    keep_only(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in idle])
    keep_only(
        graph.sparse_initializer, [tensor for tensor in graph.sparse_initializer if tensor.values.name not in idle]
    )
    keep_only(graph.input, [value for value in graph.input if value.name not in idle])
    keep_only(graph.value_info, [value for value in graph.value_info if value.name in made])
    return Removed(before[0] - len(live), len(idle), before[1] - len(graph.value_info))


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Put the nodes into topological order, if they are not; says whether that was so.

    Args:
        model: Changed in place.
    """
    network = Network(model)
    if network.is_sorted:
        return False
    keep_only(model.graph.node, [network.nodes[index] for index in network.order])
    return True


_SPOKEN = ("doc_string", "metadata_props")
"""Exporters put stack traces and paths of source files here."""
_INDICES = ("BOOL", "INT32", "INT64", "UINT32", "UINT64")
_RANDOM = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT16", "UINT16")


def strip(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model without its prose: documentation, metadata, producer, domain, names of graphs, functions nobody calls.

    What runs is the same.

    Args:
        proto: The model; it is not changed.
    """
    model = clone(proto)
    for field in ("producer_version", "domain", "model_version"):
        model.ClearField(field)
    model.producer_name = PRODUCER
    model.graph.name = "reduced"
    called, functions = set[tuple[str, str]](), {(each.domain, each.name): each for each in model.functions}
    waiting = list(inner_nodes(model.graph.node))
    while waiting:
        node = waiting.pop()
        key = (node.domain, node.op_type)
        if key in functions and key not in called:
            called.add(key)
            waiting += inner_nodes(functions[key].node)
    keep_only(model.functions, [function for key, function in functions.items() if key in called])
    for message in _messages(model):
        for name in _SPOKEN:
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
    return model


def _messages(message: Message) -> Iterator[Message]:
    """A message and all inside it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _messages(inner)


@dataclass(frozen=True)
class Anonymous:
    """A model with other names and other weights.

    Attributes:
        proto: The model.
        names: The new name of each tensor, by its old one.
        kept: New names of the weights that could not be replaced: they lie in a file of their own, or are of a type of
            8 bits or fewer that NumPy does not have.
    """

    proto: onnx.ModelProto
    names: dict[str, str]
    kept: tuple[str, ...]

    def rename(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Tensors by their new names."""
        return {self.names[name]: value for name, value in values.items()}


def anonymise(proto: onnx.ModelProto, seed: int = 1) -> Anonymous:
    """Rename tensors (``t0``, ``t1``, ...) and nodes (``n0``, ...), and replace weights by random ones of the same range.

    Single numbers, such as an epsilon, stay, and so do booleans and whole numbers of 32 and 64 bits, which are shapes,
    axes and indices as often as not, and Inf and NaN at their places.

    Args:
        proto: The model; it is not changed.
        seed: Of the random values.
    """
    model = clone(proto)
    names: dict[str, str] = {"": ""}
    generator = np.random.default_rng(seed)
    nodes = 0
    for message in list(_messages(model)):
        if isinstance(message, onnx.NodeProto):
            message.name, nodes = f"n{nodes}", nodes + 1
            for attribute in message.attribute:
                if message.op_type == "Constant" and len(attribute.floats) > 1:
                    attribute.floats[:] = _like(np.array(attribute.floats, np.float32), generator).tolist()
        if isinstance(message, onnx.NodeProto | onnx.FunctionProto):
            for field in (message.input, message.output):
                field[:] = [_renamed(name, names) for name in field]
        elif isinstance(message, TensorProto):
            _randomise(message, generator)
        if isinstance(message, TensorProto | onnx.ValueInfoProto):
            message.name = _renamed(message.name, names)
        elif isinstance(message, onnx.TensorShapeProto.Dimension) and message.dim_param:
            message.dim_param = _renamed(message.dim_param, names)
    del names[""]
    kept = [m.name for m in _messages(model) if isinstance(m, TensorProto) and _is_weight(m) and not _replaced(m)]
    return Anonymous(model, names, tuple(kept))


def _renamed(name: str, names: dict[str, str]) -> str:
    return names.setdefault(name, f"t{len(names) - 1}")


def _is_weight(tensor: TensorProto) -> bool:
    return _type_name(tensor) not in _INDICES and np.prod(tensor.dims) > 1


def _replaced(tensor: TensorProto) -> bool:
    return _type_name(tensor) in _RANDOM and tensor.data_location != TensorProto.EXTERNAL


def _type_name(tensor: TensorProto) -> str:
    return str(TensorProto.DataType.Name(tensor.data_type))


def _randomise(tensor: TensorProto, generator: np.random.Generator) -> None:
    """Replace the values of a weight, if that can be done."""
    if not (_is_weight(tensor) and _replaced(tensor)):
        return
    drawn = _like(numpy_helper.to_array(tensor), generator)
    if tensor.data_type == TensorProto.BFLOAT16:  # the upper half of a float32
        halves = (drawn.astype("<f4").view("<u4") >> 16).astype("<u2")
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, halves.tobytes(), raw=True))
    else:
        tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))


def _like(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """Random values in the range of the finite ones, both ends included; Inf and NaN stay."""
    wide = values.astype(np.float64)
    places = np.flatnonzero(np.isfinite(wide))
    if not places.size:
        return values
    finite = wide.ravel()[places]
    low, high = finite.min(), finite.max()
    drawn = wide.ravel().copy()
    drawn[places] = low + (high - low) * generator.random(places.size)
    drawn[places[0]], drawn[places[-1]] = low, high  # an overflow hangs on the largest as often as not
    whole = np.rint(drawn) if values.dtype.kind in "iu" else drawn
    return whole.reshape(values.shape).astype(values.dtype)
