"""Rewrites of what squares: scaled so that no square leaves the range of fp16, or as the operator that it spells out."""

from __future__ import annotations

import math

import numpy as np

from bisect_trt.graph.nodes import attribute
from bisect_trt.graph.rewrites.view import Fragment, View

_SMALLEST = 2.0**-14
"""fp16's smallest normal number: what is scaled to 1 by less could overflow on the way."""


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


def _squared(view: View, name: str) -> tuple[str, int] | None:
    """What a tensor is the square of, and the node that squares it."""
    index = view.makes(name, "Mul", "Pow")
    if index is None:
        return None
    node = view.node(index)
    if node.op_type == "Mul":
        return (node.input[0], index) if node.input[0] == node.input[1] else None
    return (node.input[0], index) if view.scalar(node.input[1]) == 2 else None


def _squares(view: View, name: str) -> tuple[str, str, list[int], list[int]] | None:
    """Of a sum or mean of squares: what is squared, by what it is reduced, over which axes, and the nodes."""
    index = view.makes(name, "ReduceMean", "ReduceSum", "ReduceSumSquare")
    if index is None:
        return None
    node = view.node(index)
    axes = view.axes(node)
    if axes is None or not attribute(node, "keepdims", 1):
        return None
    if node.op_type == "ReduceSumSquare":
        return node.input[0], "ReduceSum", axes, [index]
    squared = _squared(view, node.input[0])
    return None if squared is None else (squared[0], node.op_type, axes, [index, squared[1]])


def _plus(view: View, name: str) -> tuple[str, float, list[int]]:
    """A tensor as another one and a small constant that is added."""
    index = view.makes(name, "Add")
    if index is not None:
        for value, other in (view.node(index).input, reversed(view.node(index).input)):
            constant = view.scalar(other)
            if constant is not None and 0 <= constant < 1:
                return value, constant, [index]
    return name, 0.0, []


def scaled_square(view: View, index: int) -> Fragment | None:
    """The root of a sum or mean of squares, of values divided by the largest of them: ``s * sqrt(mean((x/s)^2) + e/s^2)``.

    What is squared is at most 1 then, so nothing overflows where the root itself does not (as ``hypot`` is computed; J. Blue,
    "A portable Fortran program to find the Euclidean norm of a vector", 1978). Of ``ReduceL2`` too.
    """
    node = view.node(index)
    if node.op_type == "ReduceL2":
        axes = view.axes(node)
        if axes is None or not attribute(node, "keepdims", 1) or not view.is_float(node.input[0]):
            return None
        value, by, small = node.input[0], "ReduceSum", 0.0
        nodes: list[int] = []
    elif node.op_type == "Sqrt" or (node.op_type == "Pow" and view.scalar(node.input[1]) == 0.5):
        rest, small, added = _plus(view, node.input[0])
        found = _squares(view, rest)
        if found is None or not view.is_float(found[0]):
            return None
        value, by, axes, nodes = found
        nodes = [*nodes, *added]
    else:
        return None
    fragment = Fragment(view, index, frozenset(nodes))
    floor = max(math.sqrt(small), _SMALLEST)
    largest = fragment.op("Max", fragment.reduce("ReduceMax", fragment.op("Abs", value), axes), floor)
    part = fragment.op("Div", value, largest)
    total = fragment.reduce(by, fragment.op("Mul", part, part), axes)
    if small:
        ratio = fragment.op("Div", np.array(math.sqrt(small), np.float32), largest)
        total = fragment.op("Add", total, fragment.op("Mul", ratio, ratio))
    fragment.op("Mul", fragment.op("Sqrt", total), largest, to=node.output[0])
    return fragment


def layer_norm(view: View, index: int) -> Fragment | None:
    """A ``LayerNormalization`` that is spelled out over the last axes, as the operator (opset 17 and later)."""
    node = view.node(index)
    if view.opset < 17 or node.op_type != "Div":
        return None
    difference, root = view.makes(node.input[0], "Sub"), view.makes(node.input[1], "Sqrt")
    if difference is None or root is None:
        return None
    rest, small, added = _plus(view, view.node(root).input[0])
    found = _squares(view, rest)
    value, centre = view.node(difference).input
    mean = view.makes(centre, "ReduceMean")
    shape = view.shape(value)
    if found is None or mean is None or shape is None or not view.is_float(value):
        return None
    if found[0] != node.input[0] or found[1] != "ReduceMean" or view.node(mean).input[0] != value:
        return None
    rank, own = len(shape), view.axes(view.node(mean))
    axes = sorted(axis % rank for axis in found[2])
    if own is None or sorted(axis % rank for axis in own) != axes or axes != list(range(axes[0], rank)):
        return None
    fragment = Fragment(view, index, frozenset([difference, root, mean, *added, *found[3]]))
    ones = np.ones(shape[axes[0] :], np.float32)
    fragment.op("LayerNormalization", value, ones, to=node.output[0], axis=axes[0] - rank, epsilon=small)
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


def mean_of_parts(view: View, index: int) -> Fragment | None:  # noqa: PLR0911 - one a form that is none
    """A sum that is divided by a constant, or a mean, as the sum of what was divided before: no sum is past its mean."""
    node = view.node(index)
    if node.op_type == "Div":
        count, total = view.scalar(node.input[1]), view.makes(node.input[0], "ReduceSum")
        if total is None or not count or abs(count) < 1 or len(view.shape(node.input[1]) or ()) > 1:
            return None
        inner, factor, nodes = view.node(total), 1 / count, [total]
    elif node.op_type == "Mul":
        parts = [(view.makes(a, "ReduceSum"), view.scalar(b)) for a, b in (node.input, reversed(node.input))]
        known = [(total, by) for total, by in parts if total is not None and by is not None and 0 < abs(by) < 1]
        if not known:
            return None
        total, factor = known[0]
        inner, nodes = view.node(total), [total]
    elif node.op_type == "ReduceMean":
        shape, axes = view.shape(node.input[0]), view.axes(node)
        if shape is None or axes is None:
            return None
        count = math.prod(shape[axis] for axis in axes)
        if not count:
            return None
        inner, factor, nodes = node, 1 / count, []
    else:
        return None
    over = view.axes(inner)
    if over is None or not attribute(inner, "keepdims", 1) or not view.is_float(inner.input[0]):
        return None
    fragment = Fragment(view, index, frozenset(nodes))
    fragment.reduce("ReduceSum", fragment.op("Mul", inner.input[0], float(factor)), over, to=node.output[0])
    return fragment
