"""Make a small model smaller still: fewer outputs, constants for inputs, shorter axes, plain weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, add_initializers, attribute, clone, keep_only
from bisect_trt.onnxlib.shapes import element_type, forget_shapes

Axis = tuple[str, int]
"""A tensor's name, and which of its axes."""
Arrays = Mapping[str, NDArray[Any]]
_PLAIN_BYTES = 64
"""A weight up to this size may be a shape, an axis or an epsilon: its value is left alone."""
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
_UNCUT = {TensorProto.INT64, TensorProto.STRING}
"""Types of weights whose axes stay: they are shapes, axes and indices."""
_PARAMETERS = {
    **dict.fromkeys(("Conv", "ConvTranspose"), (2,)),
    "BatchNormalization": (1, 2, 3, 4),
    "InstanceNormalization": (1, 2),
    "QLinearConv": (4, 5, 8),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
}
"""Inputs of one axis that have to be as long as the channels of what is made."""
_QUANTIZING = {("QuantizeLinear", 1), ("QuantizeLinear", 2), ("DequantizeLinear", 1), ("DequantizeLinear", 2)}
_ONE_FOR_ALL = _QUANTIZING | {("QLinearConv", 4), ("QLinearConv", 5)}
"""Those that may be one number instead."""


@dataclass(frozen=True)
class Piece:
    """A model and what to feed it.

    Attributes:
        proto: The model; treat it as read-only.
        inputs: Values of its inputs, by name, in the graph's order.
    """

    proto: onnx.ModelProto
    inputs: Arrays

    @property
    def outputs(self) -> list[str]:
        """Names of its outputs."""
        return [value.name for value in self.proto.graph.output]

    @property
    def elements(self) -> int:
        """How many numbers its inputs and weights have."""
        weights = sum(int(np.prod(tensor.dims, dtype=np.int64)) for tensor in self.proto.graph.initializer)
        return weights + sum(value.size for value in self.inputs.values())


def keep_outputs(piece: Piece, names: Collection[str]) -> Piece:
    """The same with only some of its outputs, and without the nodes and weights that only others needed."""
    network = Network(piece.proto)
    kept = between(network, (), [name for name in piece.outputs if name in names])
    inputs = {name: value for name, value in piece.inputs.items() if name in kept.inputs}
    return Piece(splice(network, kept, {}, nothing_stored).proto, inputs)


def store_inputs(piece: Piece, names: Collection[str]) -> Piece:
    """The same with some of its inputs stored as initializers."""
    proto = clone(piece.proto)
    keep_only(proto.graph.input, [value for value in proto.graph.input if value.name not in names])
    add_initializers(proto, (numpy_helper.from_array(np.ascontiguousarray(piece.inputs[n]), n) for n in names))
    return Piece(proto, {name: value for name, value in piece.inputs.items() if name not in names})


def plain_weights(piece: Piece) -> list[str]:
    """The weights whose values may not matter: floating-point ones that are not tiny nor already all zero."""
    return [
        tensor.name
        for tensor in piece.proto.graph.initializer
        if tensor.data_type in _FLOATS
        and np.prod(tensor.dims, dtype=np.int64) * 4 > _PLAIN_BYTES
        and numpy_helper.to_array(tensor).any()
    ]


def zero_weights(piece: Piece, names: Collection[str]) -> Piece:
    """The same with some weights all zero."""
    proto = clone(piece.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            zeros = np.zeros_like(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    return Piece(proto, piece.inputs)


def axes_by_size(piece: Piece) -> dict[int, list[Axis]]:
    """The axes over 1 of inputs and weights by their size, the sizes with most elements behind them first."""
    volume: Counter[int] = Counter()
    axes: dict[int, list[Axis]] = {}
    shapes = {name: (value.shape, True) for name, value in piece.inputs.items()}
    for tensor in piece.proto.graph.initializer:
        if tensor.data_type not in _UNCUT:
            shapes[tensor.name] = tuple(tensor.dims), tensor.data_type in _FLOATS
    for name, (shape, counts) in shapes.items():
        for axis, size in enumerate(shape):
            axes.setdefault(size, []).append((name, axis))
        for size in set(shape) if counts else ():
            volume[size] += int(np.prod(shape, dtype=np.int64))
    return {size: axes[size] for size, _ in volume.most_common() if size > 1}


def cut_axes(piece: Piece, windows: Mapping[Axis, slice]) -> Piece:
    """The same with axes of its inputs and of its weights cut to windows.

    Axes that belong together have to be cut together: else the result is no consistent model, which :func:`is_sound` or
    the reference run finds out.
    """

    def cut(name: str, value: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(value[tuple(windows.get((name, axis), slice(None)) for axis in range(value.ndim))], order="C")

    proto = clone(piece.proto)
    inputs = {name: cut(name, value) for name, value in piece.inputs.items()}
    named = {name for name, _ in windows}
    for tensor in proto.graph.initializer:
        if tensor.name in named:
            shorter = cut(tensor.name, numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(shorter, tensor.name))
    shapes = {name: value.shape for name, value in inputs.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        sizes = zip(dims, shapes[value.name], strict=True)
        kept = [dim.dim_param or size for dim, size in sizes]  # what is free stays so
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, kept))
    forget_shapes(proto.graph)
    return Piece(proto, inputs)


def with_output_shapes(piece: Piece, golden: Arrays) -> onnx.ModelProto:
    """The model with its outputs declared as they came out of a run, where its inputs have fixed shapes."""
    proto = clone(piece.proto)
    if any(dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim):
        return proto
    for value in proto.graph.output:
        if value.name in golden:
            array = golden[value.name]
            value.CopyFrom(helper.make_tensor_value_info(value.name, element_type(array.dtype), array.shape))
    return proto


def is_sound(proto: onnx.ModelProto) -> bool:
    """Whether a model passes ONNX's checker, with strict shape inference, and its layers' parameters have their lengths."""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return _parameters_fit(Network(proto))


def _parameters_fit(network: Network) -> bool:
    """Whether each layer's parameters have the length that its channels ask for, as far as shapes are known.

    ONNX's shape inference does not look at them, and a runtime may read past the end of a bias that is too short.
    """
    infos = {name: info.shape for name, info in network.infos.items() if info.is_static}
    infos |= {tensor.name: tuple(tensor.dims) for tensor in network.proto.graph.initializer}
    for node in network.nodes:
        made = infos.get(node.output[0] if node.output else "") or ()
        axis = attribute(node, "axis", 1) if "Linear" in node.op_type[-6:] else 1
        if node.domain not in DEFAULT_DOMAINS or not -len(made) <= axis < len(made) or attribute(node, "block_size", 0):
            continue
        for place in _PARAMETERS.get(node.op_type, ()):
            fitting = [(made[axis],), *([(), (1,)] if (node.op_type, place) in _ONE_FOR_ALL else [])]
            if infos.get(dict(enumerate(node.input)).get(place, ""), fitting[0]) not in fitting:
                return False
    return True
