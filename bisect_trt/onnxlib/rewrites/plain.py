"""Rewrites to plainer operators, and without those that do nothing: for what a runtime gets wrong as it fuses."""

from __future__ import annotations

import numpy as np

from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute
from bisect_trt.onnxlib.rewrites.ranges import SOFTMAX_SINCE
from bisect_trt.onnxlib.rewrites.view import Fragment, View
from bisect_trt.onnxlib.shapes import element_dtype


def redundant(view: View, index: int) -> Fragment | None:
    """A node that hands on what it is given is left out."""
    node = view.node(index)
    if not node.input or not node.output or node.output[0] in view.network.outputs or not _does_nothing(view, index):
        return None
    if len([name for name in node.output if name and view.readers(name)]) > 1:
        return None
    fragment = Fragment(view, index)
    fragment.aliases[node.output[0]] = node.input[0]
    return fragment


def _does_nothing(view: View, index: int) -> bool:  # noqa: PLR0911 - one an operator
    node = view.node(index)
    if node.domain not in DEFAULT_DOMAINS:
        return False
    op, value = node.op_type, node.input[0]
    if op == "Identity":
        return not view.network.constant[index]
    if op == "Transpose":
        perm = attribute(node, "perm")
        return perm is not None and list(perm) == list(range(len(perm)))
    if op == "Cast":
        info = view.info(value)
        return info is not None and element_dtype(attribute(node, "to")) == info.dtype
    if op == "Dropout":
        return len(node.input) < 3 or not node.input[2]
    if op in ("Reshape", "Expand", "Flatten"):
        shape = view.shape(value)
        return shape is not None and shape == view.shape(node.output[0])
    if op == "Pad":
        pads = attribute(node, "pads")
        known = view.value(node.input[1]) if pads is None and len(node.input) > 1 else pads
        return known is not None and not np.any(known)
    return False


def gemm(view: View, index: int) -> Fragment | None:
    """``Gemm`` as ``MatMul`` and ``Add``."""
    node = view.node(index)
    if node.op_type != "Gemm" or not view.is_float(node.input[0]):
        return None
    fragment = Fragment(view, index)
    one, two = (
        fragment.op("Transpose", name, perm=[1, 0]) if attribute(node, turned, 0) else name
        for name, turned in zip(node.input[:2], ("transA", "transB"), strict=True)
    )
    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    bias = node.input[2] if len(node.input) > 2 else ""
    scaled = alpha != 1
    product = fragment.op("MatMul", one, two, to=None if bias or scaled else node.output[0])
    if scaled:
        product = fragment.op("Mul", product, alpha, to=None if bias else node.output[0])
    if bias:
        fragment.op("Add", product, bias if beta == 1 else fragment.op("Mul", bias, beta), to=node.output[0])
    return fragment


def quotient(view: View, index: int) -> Fragment | None:
    """``(1 / z) * y`` as ``y / z``."""
    node = view.node(index)
    if node.op_type != "Mul":
        return None
    for part, other in (node.input, reversed(node.input)):
        inverse = view.makes(part, "Div", "Reciprocal")
        if inverse is None:
            continue
        below = view.node(inverse)
        if below.op_type == "Div" and (
            view.scalar(below.input[0]) != 1 or view.shape(below.input[0]) not in ((), (1,))
        ):
            continue
        if not view.is_float(below.input[-1]):
            continue
        fragment = Fragment(view, index, frozenset([inverse]))
        fragment.op("Div", other, below.input[-1], to=node.output[0])
        return fragment
    return None


def pad(view: View, index: int) -> Fragment | None:
    """``Pad`` with a constant as ``Concat``."""
    node = view.node(index)
    shape = view.shape(node.input[0]) if node.input else None
    if node.op_type != "Pad" or shape is None or not view.is_float(node.input[0]):
        return None
    if attribute(node, "mode", b"constant") != b"constant" or (len(node.input) > 3 and node.input[3]):
        return None
    named = attribute(node, "pads")
    pads = view.value(node.input[1]) if named is None and len(node.input) > 1 else named
    filled = view.scalar(node.input[2]) if len(node.input) > 2 and node.input[2] else attribute(node, "value", 0.0)
    if pads is None or filled is None:
        return None
    ends = np.asarray(pads, np.int64).reshape(2, -1)
    if ends.shape[1] != len(shape) or (ends < 0).any() or not ends.any():
        return None
    fragment = Fragment(view, index)
    value, sizes = node.input[0], list(shape)
    padded = [axis for axis in range(len(shape)) if ends[:, axis].any()]
    for axis in padded:
        sides: list[str | np.ndarray] = [value]
        for end, place in ((0, 0), (1, len(sides) + 1)):
            if ends[end, axis]:
                side = [*sizes[:axis], int(ends[end, axis]), *sizes[axis + 1 :]]
                sides.insert(place, np.full(side, filled, np.float32))
        sizes[axis] += int(ends[:, axis].sum())
        value = fragment.op("Concat", *sides, to=node.output[0] if axis == padded[-1] else None, axis=axis)
    return fragment


def kernel_shape(view: View, index: int) -> Fragment | None:
    """A convolution whose kernel's shape is inferred, with that and its other sizes written out.

    Parsers infer it of stored weights alone: onnx-tensorrt 8.6 (``convMultiInput``) of none that a node makes.
    """
    node = view.node(index)
    if node.op_type not in ("Conv", "ConvTranspose") or attribute(node, "kernel_shape") is not None:
        return None
    stored = view.network.initializers.get(node.input[1])
    shape = view.shape(node.input[1]) if stored is None else tuple(stored.dims)
    if shape is None or len(shape) < 3:
        return None
    count = len(shape) - 2
    written = {"kernel_shape": [*shape[2:]], "dilations": [1] * count, "strides": [1] * count}
    given = {each.name: attribute(node, each.name) for each in node.attribute}
    given = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
    fragment = Fragment(view, index)
    fragment.op(node.op_type, *node.input, to=node.output[0], **{**written, **given})
    return fragment


def batch_norm(view: View, index: int) -> Fragment | None:
    """``BatchNormalization`` as a product and a sum, with constants that are computed here in float64."""
    node = view.node(index)
    shape = view.shape(node.input[0]) if node.input else None
    if (
        node.op_type != "BatchNormalization"
        or shape is None
        or attribute(node, "training_mode", 0)
        or len(node.output) > 1
    ):
        return None
    known = [view.value(name) for name in node.input[1:5]]
    if not view.is_float(node.input[0]) or any(value is None for value in known):
        return None
    scale, bias, mean, variance = (np.asarray(value, np.float64) for value in known)
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    along = [1, -1, *([1] * (len(shape) - 2))]
    fragment = Fragment(view, index)
    product = fragment.op("Mul", node.input[0], factor.reshape(along).astype(np.float32))
    fragment.op("Add", product, (bias - mean * factor).reshape(along).astype(np.float32), to=node.output[0])
    return fragment


def power(view: View, index: int) -> Fragment | None:
    """``Pow`` by a small constant as products, a root or a reciprocal."""
    node = view.node(index)
    if node.op_type != "Pow" or not view.is_float(node.input[0]):
        return None
    by, made, base = view.scalar(node.input[1]), node.output[0], node.input[0]
    if view.value(node.input[1]) is not None and len(view.shape(node.input[1]) or ()) > len(
        view.shape(base) or (0,) * 9
    ):
        return None
    fragment = Fragment(view, index)
    if by == 2:
        fragment.op("Mul", base, base, to=made)
    elif by == 3:
        fragment.op("Mul", fragment.op("Mul", base, base), base, to=made)
    elif by == 0.5:
        fragment.op("Sqrt", base, to=made)
    elif by == -0.5:
        fragment.op("Reciprocal", fragment.op("Sqrt", base), to=made)
    elif by == -1:
        fragment.op("Reciprocal", base, to=made)
    else:
        return None
    return fragment


def spelled_layer_norm(view: View, index: int) -> Fragment | None:
    """``LayerNormalization`` spelled out."""
    node = view.node(index)
    shape = view.shape(node.input[0]) if node.input else None
    if node.op_type != "LayerNormalization" or shape is None or not view.is_float(node.input[0]):
        return None
    if any(name and view.readers(name) for name in node.output[1:]):
        return None
    rank = len(shape)
    axes = list(range(attribute(node, "axis", -1) % rank - rank, 0))
    fragment = Fragment(view, index)
    value = node.input[0]
    centred = fragment.op("Sub", value, fragment.reduce("ReduceMean", value, axes))
    variance = fragment.reduce("ReduceMean", fragment.op("Mul", centred, centred), axes)
    deviation = fragment.op("Sqrt", fragment.op("Add", variance, float(attribute(node, "epsilon", 1e-5))))
    last = len(node.input) < 3 or not node.input[2]
    normed = fragment.op("Div", centred, deviation)
    scaled = fragment.op("Mul", normed, node.input[1], to=node.output[0] if last else None)
    if not last:
        fragment.op("Add", scaled, node.input[2], to=node.output[0])
    return fragment


def spelled_instance_norm(view: View, index: int) -> Fragment | None:
    """``InstanceNormalization`` spelled out, centred before it is squared."""
    node = view.node(index)
    shape = view.shape(node.input[0]) if node.input else None
    if node.op_type != "InstanceNormalization" or shape is None or len(shape) < 3 or not view.is_float(node.input[0]):
        return None
    fragment = Fragment(view, index)
    axes, value = list(range(2, len(shape))), node.input[0]
    target = np.array([1, -1, *([1] * len(axes))], np.int64)
    scale, bias = (fragment.op("Reshape", name, target) for name in node.input[1:3])
    centred = fragment.op("Sub", value, fragment.reduce("ReduceMean", value, axes))
    variance = fragment.reduce("ReduceMean", fragment.op("Mul", centred, centred), axes)
    deviation = fragment.op("Sqrt", fragment.op("Add", variance, float(attribute(node, "epsilon", 1e-5))))
    fragment.op("Add", fragment.op("Mul", fragment.op("Div", centred, deviation), scale), bias, to=node.output[0])
    return fragment


def spelled_softmax(view: View, index: int) -> Fragment | None:
    """``Softmax`` spelled out, the maximum taken out."""
    node = view.node(index)
    if node.op_type != "Softmax" or view.opset < SOFTMAX_SINCE or not view.is_float(node.input[0]):
        return None
    fragment = Fragment(view, index)
    axes = [int(attribute(node, "axis", -1))]
    below = fragment.op("Sub", node.input[0], fragment.reduce("ReduceMax", node.input[0], axes))
    exponentials = fragment.op("Exp", below)
    fragment.op("Div", exponentials, fragment.reduce("ReduceSum", exponentials, axes), to=node.output[0])
    return fragment
