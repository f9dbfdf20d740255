"""Nodes and graphs as ONNX's messages: walks through them, what they read and hold, and small edits in place."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import onnx
from google.protobuf.message import Message
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

DEFAULT_DOMAINS = ("", "ai.onnx")
"""Of ONNX's own operators."""
IR_WITHOUT_INITIALIZER_INPUTS = 4
"""Before IR version 4 every initializer has to be listed among the graph's inputs."""
_M = TypeVar("_M", bound=Message)
_HELD = {
    "value_float": onnx.AttributeProto.FLOAT,
    "value_floats": onnx.AttributeProto.FLOATS,
    "value_int": onnx.AttributeProto.INT,
    "value_ints": onnx.AttributeProto.INTS,
}
"""In what a Constant may hold numbers beside a tensor, since opset 12."""


def clone(message: _M) -> _M:
    """Return a copy of a message."""
    copy: _M = type(message)()
    copy.CopyFrom(message)
    return copy


def keep_only(field: Any, entries: Iterable[Any]) -> None:  # noqa: ANN401 - protobuf's containers have no common type
    """Make these the only entries of a repeated field; they may be entries of it."""
    kept = list(entries)
    if len(kept) != len(field) or any(one is not other for one, other in zip(kept, field, strict=True)):
        del field[:]
        field.extend(kept)


def add_initializers(model: onnx.ModelProto, tensors: Iterable[TensorProto]) -> None:
    """Store weights in a model; they become inputs too where the model's IR version asks for that."""
    for tensor in tensors:
        model.graph.initializer.append(tensor)
        if model.ir_version < IR_WITHOUT_INITIALIZER_INPUTS:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Return the graphs inside a node: branches of an If, bodies of Loop and Scan."""
    for each in node.attribute:
        if each.HasField("g"):
            yield each.g
        yield from each.graphs


def inner_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Return these nodes, and those of their bodies; without recursion, since bodies may be nested deep."""
    waiting = [iter(nodes)]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += [iter(body.node) for body in bodies(node)]


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Those of functions and bodies too."""
    yield from inner_nodes(model.graph.node)
    for function in model.functions:
        yield from inner_nodes(function.node)


def share_names(model: onnx.ModelProto) -> bool:
    """Return whether two nodes of the graph have one name, which ONNX Runtime refuses and TensorRT takes."""
    names = [node.name for node in model.graph.node if node.name]
    return len(set(names)) < len(names)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Return the tensors that a node consumes, those that its bodies take from outside included; no empty names."""
    yield from (name for name in node.input if name)
    for body in bodies(node):
        local = _own(body)
        for inner in body.node:
            yield from (name for name in reads(inner) if name not in local)
        yield from (value.name for value in body.output if value.name not in local)


def _own(body: onnx.GraphProto) -> set[str]:
    """What a body names itself."""
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {tensor.values.name for tensor in body.sparse_initializer}
    return own | {name for inner in body.node for name in inner.output}


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node's bodies may capture from outside; their own are among them."""
    return {name for body in bodies(node) for name in mentioned_names(body)}


def mentioned_names(graph: onnx.GraphProto) -> set[str]:
    """Return every tensor name in a graph and in the bodies within it."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        names.update(node.input, node.output, captured_names(node))
    return names - {""}


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy of a node that reads other tensors, in its bodies too."""
    new = clone(node)
    new.input[:] = [names.get(name, name) for name in node.input]
    for body in bodies(new):
        own = _own(body)
        outer = {name: other for name, other in names.items() if name not in own}
        keep_only(body.node, [rename_reads(inner, outer) for inner in body.node])
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return new


def last_alias(aliases: Mapping[str, str], name: str) -> str:
    """Return the end of a chain of aliases that begins with a name."""
    while name in aliases:
        name = aliases[name]
    return name


def free_name(stem: str, taken: Collection[str]) -> str:
    """Return a name that nothing has yet: the stem, with a number behind it where that takes one."""
    numbered = (f"{stem}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([stem], numbered) if name not in taken)


def label(node: onnx.NodeProto) -> str:
    """What a node goes by in messages: its name, or what it makes."""
    return node.name or next(filter(None, node.output), "?")


def first_output(node: onnx.NodeProto) -> str:
    """Return the name of a node's first output, which identifies it: ONNX lets node names be empty."""
    return next((name for name in node.output if name), "")


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:  # noqa: ANN401 - of many types
    """Return the value of an attribute; a string's is bytes. A value of another type than the default counts as none.

    In a function it may be the caller's, which is not known.
    """
    known = (each for each in node.attribute if each.name == name and each.type and not each.ref_attr_name)
    value = next(map(onnx.helper.get_attribute_value, known), default)
    return value if default is None or isinstance(value, type(default)) else default


def held(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """What a Constant holds; ``None`` for other nodes, and for text and sparse tensors."""
    if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS:
        return None
    for each in node.attribute:
        if each.name == "value" and each.HasField("t"):
            tensor: onnx.TensorProto = each.t
            return tensor
        if each.name in _HELD and each.type == _HELD[each.name] and not each.ref_attr_name:
            kind = np.float32 if "float" in each.name else np.int64
            return numpy_helper.from_array(np.array(onnx.helper.get_attribute_value(each), kind))
    return None


_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_TRAINING_MODE = 2
"""The input of Dropout that enables it, from opset 12 on; it is disabled by default."""


def drawing_nodes(model: onnx.ModelProto, values: Mapping[str, NDArray[Any]], *, unsure: bool) -> list[int]:
    """Return the numbers of the nodes that draw random numbers, in a body or in a function they call too.

    Args:
        model: The model.
        values: Known values of tensors, beside the model's own constants.
        unsure: The answer for a Dropout of unknown training mode.
    """
    drawing: set[tuple[str, str]] = set()
    flags = cache(partial(_flags, model))  # few models have a Dropout

    def draws(node: onnx.NodeProto) -> bool:
        return any(
            each.op_type in _RANDOM or (each.domain, each.op_type) in drawing or drops(each)
            for each in inner_nodes([node])
        )

    def drops(node: onnx.NodeProto) -> bool:
        if node.op_type != "Dropout" or len(node.input) <= _TRAINING_MODE or not node.input[_TRAINING_MODE]:
            return False
        name = node.input[_TRAINING_MODE]
        flag = values.get(name, flags().get(name))
        return unsure if flag is None or flag.size != 1 else bool(flag.reshape(-1)[0])

    while more := {(each.domain, each.name) for each in model.functions if any(map(draws, each.node))} - drawing:
        drawing |= more
    return [index for index, node in enumerate(model.graph.node) if draws(node)]


def _flags(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the constants of type bool that the model holds, by name."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer if not tensor.external_data}
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if (tensor := held(node)) is not None:
            stored |= dict.fromkeys(node.output, tensor)
    return {n: numpy_helper.to_array(tensor) for n, tensor in stored.items() if tensor.data_type == TensorProto.BOOL}
