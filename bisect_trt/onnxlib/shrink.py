"""Make a small model smaller still: fewer outputs, constants for inputs, shorter axes, plain weights.

Axes that belong together are cut together: :func:`linked_axes` finds them by the operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute
from bisect_trt.onnxlib.shapes import element_type, forget_shapes, inferred_infos

Axis = tuple[str, int]
"""A tensor's name, and which of its axes."""
Shape = tuple[int, ...]
Pairs = Iterator[tuple[Axis, Axis]]


def linked_axes(network: Network) -> list[list[Axis]]:
    """The axes over 1 of all tensors of known shape, in groups that the operators link.

    Axes that only happen to have one size are in groups of their own; where an operator is not known here, those of one
    size of a node's tensors are taken for linked.

    Returns:
        Each group in the order in which the graph mentions its axes.
    """
    shapes = _shapes(network)
    group: dict[Axis, list[Axis]] = {
        (name, axis): [(name, axis)] for name, shape in shapes.items() for axis, size in enumerate(shape) if size > 1
    }
    for index in network.order:
        for one, other in _pairs(network.nodes[index], shapes):
            if one in group and other in group and group[one] is not group[other] and _same(one, other, shapes):
                joined = group[one] + group[other]
                group.update(dict.fromkeys(joined, joined))
    return list({id(axes): axes for axes in group.values()}.values())


def _shapes(network: Network) -> dict[str, Shape]:
    known = {name: info.shape for name, info in inferred_infos(network).items()}
    known |= {tensor.name: tuple(tensor.dims) for tensor in network.proto.graph.initializer}
    return {
        name: tuple(int(dim) for dim in shape if isinstance(dim, int))
        for name, shape in known.items()
        if shape is not None and all(isinstance(dim, int) for dim in shape)
    }


def _same(one: Axis, other: Axis, shapes: Mapping[str, Shape]) -> bool:
    return shapes[one[0]][one[1]] == shapes[other[0]][other[1]]


def _pairs(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    """What a node links; pairs may name axes of other sizes or that do not exist."""
    reads, makes = ([name for name in names if name] for names in (node.input, node.output))
    known = [name for name in (*reads, *makes) if name in shapes]
    if len(known) < len(reads) + len(makes) or node.domain not in DEFAULT_DOMAINS:
        yield from _by_size(known, shapes)
    elif node.op_type in _RULES:
        yield from _RULES[node.op_type](node, shapes)
    else:
        for made in makes:
            for read in reads:
                yield from _aligned(read, made, shapes)


def _aligned(one: str, other: str, shapes: Mapping[str, Shape]) -> Pairs:
    """Axes counted from the last, as broadcasting does; those of one size where that does not fit."""
    first, second = len(shapes[one]), len(shapes[other])
    fits = all(a == b or 1 in (a, b) for a, b in zip(shapes[one][::-1], shapes[other][::-1], strict=False))
    if fits and first <= second:
        yield from _zipped(one, range(first), other, range(second - first, second))
    else:
        yield from _by_size([one, other], shapes)


def _zipped(one: str, axes: Iterable[int], other: str, others: Iterable[int]) -> Pairs:
    return (((one, a), (other, b)) for a, b in zip(axes, others, strict=False))


def _by_size(names: Iterable[str], shapes: Mapping[str, Shape]) -> Pairs:
    first: dict[int, Axis] = {}
    for name in names:
        for axis, size in enumerate(shapes[name]):
            yield first.setdefault(size, (name, axis)), (name, axis)


def _matmul(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    left, right, made = node.input[0], node.input[1], node.output[0]
    a, b, c = len(shapes[left]), len(shapes[right]), len(shapes[made])
    if min(a, b) < 2:
        yield from _by_size([left, right, made], shapes)
        return
    yield (left, a - 1), (right, b - 2)
    yield (left, a - 2), (made, c - 2)
    yield (right, b - 1), (made, c - 1)
    for name, rank in ((left, a), (right, b)):
        yield from _zipped(name, range(rank - 3, -1, -1), made, range(c - 3, -1, -1))


def _gemm(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    left, right, made = node.input[0], node.input[1], node.output[0]
    turned, other = attribute(node, "transA", 0), attribute(node, "transB", 0)
    yield (left, turned), (made, 0)
    yield (right, 1 - other), (made, 1)
    yield (left, 1 - turned), (right, other)
    for name in node.input[2:]:
        yield from _aligned(name, made, shapes)


def _transpose(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    read, made = node.input[0], node.output[0]
    order = attribute(node, "perm") or range(len(shapes[read]) - 1, -1, -1)
    yield from _zipped(read, order, made, range(len(shapes[made])))


def _conv(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    read, weight, made = node.input[0], node.input[1], node.output[0]
    rank = len(shapes[read])
    yield from _zipped(read, (0, *range(2, rank)), made, (0, *range(2, rank)))
    if attribute(node, "group", 1) != 1:
        yield from _by_size(
            [read, weight, made, *node.input[2:]], {name: shapes[name][:2] for name in (*node.input, made)}
        )
        return
    into, out = (0, 1) if node.op_type == "ConvTranspose" else (1, 0)
    yield (read, 1), (weight, into)
    for name, axis in ((weight, out), *((bias, 0) for bias in node.input[2:])):
        yield (name, axis), (made, 1)


def _quantized(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    """``QuantizeLinear`` and its inverse, with scales for all, along an axis, or for blocks."""
    read, made = node.input[0], node.output[0]
    rank = len(shapes[read])
    yield from _zipped(read, range(rank), made, range(rank))
    for name in filter(None, node.input[1:]):
        if len(shapes[name]) == 1:
            yield (name, 0), (read, attribute(node, "axis", 1) % rank)
        else:
            yield from _zipped(name, range(rank), read, range(rank))


def _channels(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    """Normalisation with a scale for each channel."""
    read, made = node.input[0], node.output[0]
    yield from _zipped(read, range(len(shapes[read])), made, range(len(shapes[made])))
    for name in node.input[1:]:
        yield (name, 0), (read, 1)


def _joined(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    """``Concat`` and ``Split``: all axes but one."""
    names = [name for name in (*node.input, *node.output) if name]
    rank = len(shapes[node.output[0]])
    kept = [axis for axis in range(rank) if axis != attribute(node, "axis", 0) % rank]
    for name in names:
        if len(shapes[name]) == rank:  # not the sizes of a Split
            yield from _zipped(name, kept, node.output[0], kept)


def _gather(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    data, indices, made = node.input[0], node.input[1], node.output[0]
    axis, rank, more = attribute(node, "axis", 0) % len(shapes[data]), len(shapes[data]), len(shapes[indices])
    yield from _zipped(data, range(axis), made, range(axis))
    yield from _zipped(indices, range(more), made, range(axis, axis + more))
    yield from _zipped(data, range(axis + 1, rank), made, range(axis + more, rank - 1 + more))


def _reshaped(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Pairs:
    """The axes of one size from the front, and from the end."""
    read, made = node.input[0], node.output[0]
    for step in (1, -1):
        for a, b in zip(range(len(shapes[read]))[::step], range(len(shapes[made]))[::step], strict=False):
            if shapes[read][a] != shapes[made][b]:
                break
            yield (read, a), (made, b)


_RULES: dict[str, Callable[[onnx.NodeProto, Mapping[str, Shape]], Pairs]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Conv": _conv,
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _quantized,
    "ConvTranspose": _conv,
    "BatchNormalization": _channels,
    "InstanceNormalization": _channels,
    "Concat": _joined,
    "Split": _joined,
    "Gather": _gather,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Einsum": lambda node, shapes: _by_size([*node.input, *node.output], shapes),
}


def parameters_fit(network: Network) -> bool:
    """Whether each layer's parameters have the length that its channels ask for, as far as shapes are known.

    That is what ONNX's shape inference does not look at: biases of convolutions, the scales of normalisations, and those
    of quantization along an axis.
    """
    shapes = _shapes(network)
    return all(
        shapes.get(name, (length,)) in ((length,), *loose)
        for node in network.nodes
        if node.domain in DEFAULT_DOMAINS
        for name, length, loose in _parameters(node, shapes)
    )


def _parameters(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, int, tuple[Shape, ...]]]:
    """Each parameter of one axis: its name, how long it has to be, and the other shapes that it may have."""
    inputs = dict(enumerate(node.input))
    read, weight = (shapes.get(inputs.get(place, ""), ()) for place in (0, 1))
    if node.op_type in ("BatchNormalization", "InstanceNormalization") and len(read) > 1:
        yield from ((name, read[1], ()) for name in node.input[1:])
    elif node.op_type in ("Conv", "ConvTranspose") and len(weight) > 1:
        turned = node.op_type == "ConvTranspose"
        yield from (
            (name, weight[1] * attribute(node, "group", 1) if turned else weight[0], ()) for name in node.input[2:]
        )
    elif node.op_type == "QLinearConv" and len(filters := shapes.get(inputs.get(3, ""), ())) > 1:
        yield from ((name, filters[0], ((), (1,))) for name in node.input[4:6])
        yield from ((name, filters[0], ()) for name in node.input[8:])
    elif node.op_type in ("QuantizeLinear", "DequantizeLinear") and read and not attribute(node, "block_size", 0):
        axis = attribute(node, "axis", 1)
        if -len(read) <= axis < len(read):
            yield from ((name, read[axis], ((), (1,))) for name in node.input[1:])


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
