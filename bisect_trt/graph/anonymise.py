"""Take out of a model what says where it comes from, before it leaves in a bug report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.graph.surgeon import PRODUCER

_SPOKEN = ("doc_string", "metadata_props")
"""Exporters put stack traces and paths of source files here."""
_INDICES = (TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
_RANDOM = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
)


def strip(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model without its prose: documentation, metadata, producer, domain, names of graphs, functions nobody calls.

    What runs is the same.

    Args:
        proto: The model; it is not changed.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for field in ("producer_version", "domain", "model_version"):
        model.ClearField(field)
    model.producer_name = PRODUCER
    model.graph.name = "reduced"
    called = _called(model)
    kept = [function for function in model.functions if (function.domain, function.name) in called]
    del model.functions[:]
    model.functions.extend(kept)
    for message in _messages(model):
        for name in _SPOKEN:
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
    return model


def _called(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """The functions that the graph calls, directly or through others."""
    functions = {(function.domain, function.name): function for function in model.functions}
    called: set[tuple[str, str]] = set()
    waiting: list[Message] = [model.graph]
    while waiting:
        for message in _messages(waiting.pop()):
            if isinstance(message, onnx.NodeProto) and (key := (message.domain, message.op_type)) in functions:
                if key not in called:
                    waiting.append(functions[key])
                called.add(key)
    return called


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
    model = onnx.ModelProto()
    model.CopyFrom(proto)
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
    return tensor.data_type not in _INDICES and np.prod(tensor.dims) > 1


def _replaced(tensor: TensorProto) -> bool:
    return tensor.data_type in _RANDOM and tensor.data_location != TensorProto.EXTERNAL


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
