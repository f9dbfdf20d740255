"""Make a small model smaller still: fewer outputs, constants for inputs, shorter axes, plain weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bisect_trt.graph.axes import Axis, linked_axes, parameters_fit
from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import forget_shapes
from bisect_trt.graph.surgeon import between, nothing_stored, splice
from bisect_trt.graph.values import element_type

Arrays = Mapping[str, NDArray[Any]]
_PLAIN_BYTES = 64
"""A weight up to this size may be a shape, an axis or an epsilon: its value is left alone."""


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


def _copy(piece: Piece) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(piece.proto)
    return proto


def keep_outputs(piece: Piece, names: Collection[str]) -> Piece:
    """The same with only some of its outputs, and without the nodes and weights that only others needed."""
    network = Network(piece.proto)
    kept = between(network, (), [name for name in piece.outputs if name in names])
    inputs = {name: value for name, value in piece.inputs.items() if name in kept.inputs}
    return Piece(splice(network, kept, {}, nothing_stored).proto, inputs)


def store_inputs(piece: Piece, names: Collection[str]) -> Piece:
    """The same with some of its inputs stored as initializers."""
    proto = _copy(piece)
    rest = [value for value in proto.graph.input if value.name not in names]
    del proto.graph.input[:]
    proto.graph.input.extend(rest)
    for name in names:
        tensor = numpy_helper.from_array(np.ascontiguousarray(piece.inputs[name]), name)
        proto.graph.initializer.append(tensor)
        if proto.ir_version < 4:
            proto.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return Piece(proto, {name: value for name, value in piece.inputs.items() if name not in names})


def axis_sizes(piece: Piece) -> list[int]:
    """The different sizes over 1 of the axes of inputs and weights, the ones with most elements behind them first."""
    volume: Counter[int] = Counter()
    shapes = [value.shape for value in piece.inputs.values()]
    shapes += [tuple(t.dims) for t in piece.proto.graph.initializer if t.data_type in _FLOATS]
    for shape in shapes:
        for size in set(shape):
            volume[size] += int(np.prod(shape, dtype=np.int64))
    return [size for size, _ in volume.most_common() if size > 1]


def axis_groups(piece: Piece, size: int) -> list[list[Axis]]:
    """The axes of one size, in groups that the graph links; only groups with an axis of an input or a weight to cut."""
    weights = {t.name: tuple(t.dims) for t in piece.proto.graph.initializer if t.data_type in _FLOATS}
    shapes = weights | {name: value.shape for name, value in piece.inputs.items()}
    wanted = {(name, axis) for name, shape in shapes.items() for axis, each in enumerate(shape) if each == size}
    groups = [group for group in linked_axes(Network(piece.proto)) if not wanted.isdisjoint(group)]
    return groups + [[axis] for axis in sorted(wanted.difference(*groups))]


def cut_axes(piece: Piece, windows: Mapping[Axis, slice]) -> Piece:
    """The same with axes of its inputs and of its weights cut to windows.

    Axes that belong together have to be cut together: else the result is no consistent model, which :func:`is_sound` or
    the reference run finds out. Weights of 64-bit integers stay: they are shapes, axes and indices.

    Args:
        piece: The model.
        windows: What is left of axes; those of other tensors are not looked at.
    """
    proto = _copy(piece)
    inputs = {name: _cut(name, value, windows) for name, value in piece.inputs.items()}
    cut = {name for name, _ in windows}
    for tensor in proto.graph.initializer:
        if tensor.data_type in _CUT and tensor.name in cut:
            tensor.CopyFrom(
                numpy_helper.from_array(_cut(tensor.name, numpy_helper.to_array(tensor), windows), tensor.name)
            )
    shapes = {name: value.shape for name, value in inputs.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        kept = [
            dim.dim_param or size for dim, size in zip(dims, shapes[value.name], strict=True)
        ]  # what is free stays so
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, kept))
    forget_shapes(proto.graph)
    return Piece(proto, inputs)


def is_sound(proto: onnx.ModelProto) -> bool:
    """Whether a model passes ONNX's checker, with strict shape inference, and its layers' parameters have their lengths.

    The lengths are what neither finds out; a runtime may read past the end of a bias that is too short.
    """
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return parameters_fit(Network(proto))


def _cut(name: str, value: NDArray[Any], windows: Mapping[Axis, slice]) -> NDArray[Any]:
    return np.asarray(value[tuple(windows.get((name, axis), slice(None)) for axis in range(value.ndim))], order="C")


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
    proto = _copy(piece)
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            zeros = np.zeros_like(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    return Piece(proto, piece.inputs)


def with_output_shapes(piece: Piece, golden: Arrays) -> onnx.ModelProto:
    """The model with its outputs declared as they came out of a run, where its inputs have fixed shapes."""
    proto = _copy(piece)
    if is_dynamic(proto):
        return proto
    for value in proto.graph.output:
        if value.name in golden:
            array = golden[value.name]
            value.CopyFrom(helper.make_tensor_value_info(value.name, element_type(array.dtype), array.shape))
    return proto


def is_dynamic(proto: onnx.ModelProto) -> bool:
    """Whether a dimension of an input is free, so that those of outputs may be."""
    return any(dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim)


def input_order(piece: Piece) -> Sequence[str]:
    """Names of its inputs, in the graph's order."""
    return [value.name for value in piece.proto.graph.input if value.name in piece.inputs]


_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_CUT = (
    *_FLOATS,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT16,
    onnx.TensorProto.UINT16,
    onnx.TensorProto.INT32,
    onnx.TensorProto.BOOL,
)
"""Weights whose axes are cut with those that they are linked to: quantized ones, their biases, and masks too."""
