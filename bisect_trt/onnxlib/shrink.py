"""Make a small model smaller still: fewer outputs, constants for inputs, shorter axes, plain weights.

Axes that belong together are cut together: :func:`linked_axes` finds them by the operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, add_initializers, attribute, clone, keep_only
from bisect_trt.onnxlib.shapes import element_type, forget_shapes, inferred_infos

Axis = tuple[str, int]
"""A tensor's name, and which of its axes."""
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Labels = Sequence[Hashable]
"""Names of a tensor's axes, as in an equation of Einsum; ``None`` for one that is linked to no other."""
Equation = Iterable[tuple[str, Labels]]
"""Tensors with their labels: axes of the same label are linked."""


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
        for equation in _equations(network.nodes[index], shapes):
            first: dict[Hashable, Axis] = {}
            for axis, label in ((axis, label) for axis, label in _labelled(equation) if label is not None):
                one = first.setdefault(label, axis)
                same = one in group and axis in group and shapes[one[0]][one[1]] == shapes[axis[0]][axis[1]]
                if same and group[one] is not group[axis]:
                    joined = group[one] + group[axis]
                    group.update(dict.fromkeys(joined, joined))
    return list({id(axes): axes for axes in group.values()}.values())


def _labelled(equation: Equation) -> Iterator[tuple[Axis, Hashable]]:
    return (((name, axis), label) for name, labels in equation for axis, label in enumerate(labels))


def _shapes(network: Network) -> dict[str, Shape]:
    known = {name: info.shape for name, info in inferred_infos(network).items()}
    known |= {tensor.name: tuple(tensor.dims) for tensor in network.proto.graph.initializer}
    return {
        name: tuple(int(dim) for dim in shape if isinstance(dim, int))
        for name, shape in known.items()
        if shape is not None and all(isinstance(dim, int) for dim in shape)
    }


def _equations(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    """What a node links; labels may join axes of other sizes, which broadcast."""
    reads, makes = ([name for name in names if name] for names in (node.input, node.output))
    known = [name for name in (*reads, *makes) if name in shapes]
    if len(known) < len(reads) + len(makes) or node.domain not in DEFAULT_DOMAINS:
        yield _by_size(known, shapes)
    elif node.op_type in _RULES:
        yield from _RULES[node.op_type](node, shapes)
    else:
        yield from (_aligned(read, made, shapes) for made in makes for read in reads)


def _by_size(names: Iterable[str], shapes: Shapes) -> Equation:
    return [(name, shapes[name]) for name in names]


def _aligned(one: str, other: str, shapes: Shapes) -> Equation:
    """Axes counted from the last, as broadcasting does; those of one size where that does not fit."""
    first, second = shapes[one], shapes[other]
    fits = all(a == b or 1 in (a, b) for a, b in zip(first[::-1], second[::-1], strict=False))
    if not fits or len(first) > len(second):
        return _by_size([one, other], shapes)
    return [(name, range(-len(shapes[name]), 0)) for name in (one, other)]


def _matmul(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    made = node.output[0]
    if min(len(shapes[name]) for name in node.input) < 2:
        yield _by_size([*node.input, made], shapes)
        return
    names, ends = (*node.input, made), (("m", "k"), ("k", "n"), ("m", "n"))
    yield [(name, (*range(-len(shapes[name]), -2), *end)) for name, end in zip(names, ends, strict=True)]


def _gemm(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    left, right, made = node.input[0], node.input[1], node.output[0]
    first = "km" if attribute(node, "transA", 0) else "mk"
    second = "nk" if attribute(node, "transB", 0) else "kn"
    yield [(left, first), (right, second), (made, "mn")]
    yield from (_aligned(name, made, shapes) for name in node.input[2:])


def _transpose(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    axes = range(len(shapes[node.input[0]]))
    yield [(node.input[0], axes), (node.output[0], attribute(node, "perm") or axes[::-1])]


def _conv(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    value, weight, made = node.input[0], node.input[1], node.output[0]
    space = range(2, len(shapes[node.input[0]]))
    if attribute(node, "group", 1) != 1:
        yield [(value, ("n", None, *space)), (made, ("n", None, *space))]
        yield _by_size([value, weight, made, *node.input[2:]], {n: shapes[n][:2] for n in (*node.input, made) if n})
        return
    into_out = "io" if node.op_type == "ConvTranspose" else "oi"
    biases = [(bias, "o") for bias in node.input[2:]]
    yield [(value, ("n", "i", *space)), (weight, into_out), *biases, (made, ("n", "o", *space))]


def _quantized(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    """``QuantizeLinear`` and its inverse, with scales for all, along an axis, or for blocks."""
    axes = range(len(shapes[node.input[0]]))
    along = [attribute(node, "axis", 1) % max(1, len(axes))]
    scales = [(name, along if len(shapes[name]) == 1 else axes) for name in filter(None, node.input[1:])]
    yield [(node.input[0], axes), (node.output[0], axes), *scales]


def _channels(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    """Normalisation with a scale for each channel."""
    axes = range(len(shapes[node.input[0]]))
    yield [(node.input[0], axes), (node.output[0], axes), *((name, [1]) for name in node.input[1:])]


def _joined(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    """``Concat`` and ``Split``: all axes but one."""
    rank = len(shapes[node.input[0]])
    kept = [None if axis == attribute(node, "axis", 0) % rank else axis for axis in range(rank)]
    names = (name for name in (*node.input, *node.output) if name)
    yield [(name, kept) for name in names if len(shapes[name]) == rank]  # not the sizes of a Split


def _gather(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    data, indices = (shapes[name] for name in node.input)
    axis = attribute(node, "axis", 0) % len(data)
    before, after = range(axis), range(axis + 1, len(data))
    chosen = [f"i{place}" for place in range(len(indices))]
    yield [
        (node.input[0], (*before, None, *after)),
        (node.input[1], chosen),
        (node.output[0], (*before, *chosen, *after)),
    ]


def _reshaped(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    """The axes of one size from the front, and from the end."""
    before, after = shapes[node.input[0]], shapes[node.output[0]]
    for step in (1, -1):
        pairs = enumerate(zip(before[::step], after[::step], strict=False))
        count = next((place for place, (a, b) in pairs if a != b), min(len(before), len(after)))
        ends = ((node.input[0], len(before)), (node.output[0], len(after)))
        yield [(name, [at if at < count else None for at in range(rank)][::step]) for name, rank in ends]


def _einsum(node: onnx.NodeProto, shapes: Shapes) -> Iterator[Equation]:
    yield _by_size([*node.input, *node.output], shapes)


_RULES: dict[str, Callable[[onnx.NodeProto, Shapes], Iterator[Equation]]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Einsum": _einsum,
    "Gather": _gather,
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantized),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _channels),
    **dict.fromkeys(("Concat", "Split"), _joined),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
}
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


def parameters_fit(network: Network) -> bool:
    """Whether each layer's parameters have the length that its channels ask for, as far as shapes are known.

    That is what ONNX's shape inference does not look at: biases of convolutions, the scales of normalisations, and those
    of quantization along an axis.
    """
    shapes = _shapes(network)
    for node in network.nodes:
        made = shapes.get(node.output[0] if node.output else "", ())
        axis = attribute(node, "axis", 1) if "Linear" in node.op_type[-6:] else 1
        if node.domain not in DEFAULT_DOMAINS or not -len(made) <= axis < len(made) or attribute(node, "block_size", 0):
            continue
        for place in _PARAMETERS.get(node.op_type, ()):
            fitting = [(made[axis],), *([(), (1,)] if (node.op_type, place) in _ONE_FOR_ALL else [])]
            if shapes.get(dict(enumerate(node.input)).get(place, ""), fitting[0]) not in fitting:
                return False
    return True


Arrays = Mapping[str, NDArray[Any]]
_PLAIN_BYTES = 64
"""A weight up to this size may be a shape, an axis or an epsilon: its value is left alone."""
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_NARROW = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
    TensorProto.INT32,
    TensorProto.BOOL,
)
_CUT = (*_FLOATS, *_NARROW)
"""Weights whose axes are cut with those that they are linked to: quantized ones, their biases, and masks too."""


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
    proto = clone(piece.proto)
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
    proto = clone(piece.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            zeros = np.zeros_like(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    return Piece(proto, piece.inputs)


def with_output_shapes(piece: Piece, golden: Arrays) -> onnx.ModelProto:
    """The model with its outputs declared as they came out of a run, where its inputs have fixed shapes."""
    proto = clone(piece.proto)
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
