"""Rewrites that keep values within a precision's range: squares scaled, sums divided, exponentials without their maximum."""

from __future__ import annotations

import math

import numpy as np

from bisect_trt.onnxlib.nodes import attribute
from bisect_trt.onnxlib.rewrites.view import Fragment, View

MASKED = 6e4
"""In place of a constant past fp16's largest number, 65504: room is left for what it is added to."""
_FP16_MAX = 65504.0
_SMALLEST = 2.0**-14
"""fp16's smallest normal number: what is scaled to 1 by less could overflow on the way."""
SOFTMAX_SINCE = 13
"""Before opset 13 Softmax flattens its input."""


def softmax(view: View, index: int) -> Fragment | None:
    """``exp(x) / sum(exp(x))`` as ``Softmax``, which takes the maximum out."""
    node = view.node(index)
    if node.op_type != "Div" or view.opset < SOFTMAX_SINCE:
        return None
    top, total = view.makes(node.input[0], "Exp"), view.makes(node.input[1], "ReduceSum")
    if top is None or total is None or view.node(total).input[0] != node.input[0]:
        return None
    axes = view.axes(view.node(total))
    if axes is None or len(axes) != 1 or not attribute(view.node(total), "keepdims", 1):
        return None
    fragment = Fragment(view, index, frozenset([top, total]))
    fragment.op("Softmax", view.node(top).input[0], to=node.output[0], axis=axes[0])
    return fragment


def log_softmax(view: View, index: int) -> Fragment | None:
    """``log(softmax(x))`` as ``LogSoftmax``, which does not round to 0 on the way."""
    node = view.node(index)
    inner = view.makes(node.input[0], "Softmax") if node.op_type == "Log" and view.opset >= SOFTMAX_SINCE else None
    if inner is None:
        return None
    fragment = Fragment(view, index, frozenset([inner]))
    softmax_node = view.node(inner)
    axis = int(attribute(softmax_node, "axis", -1))
    fragment.op("LogSoftmax", softmax_node.input[0], to=node.output[0], axis=axis)
    return fragment


def log_sum_exp(view: View, index: int) -> Fragment | None:
    """``log(sum(exp(x)))``, spelled out or one operator, the maximum taken out: no exponential past 1."""
    node, matched = view.node(index), frozenset[int]()
    if node.op_type == "ReduceLogSumExp":
        total, x = node, node.input[0]
    elif node.op_type == "Log" and (inner := view.makes(node.input[0], "ReduceSum")) is not None:
        total, top = view.node(inner), view.makes(view.node(inner).input[0], "Exp")
        if top is None:
            return None
        matched, x = frozenset([inner, top]), view.node(top).input[0]
    else:
        return None
    axes = view.axes(total)
    if not axes or not view.is_float(x):
        return None
    kept = attribute(total, "keepdims", 1)
    fragment = Fragment(view, index, matched)
    largest = fragment.reduce("ReduceMax", x, axes)
    summed = fragment.reduce("ReduceSum", fragment.op("Exp", fragment.op("Sub", x, largest)), axes)
    made = fragment.op("Add", fragment.op("Log", summed), largest, to=node.output[0] if kept else None)
    if not kept:
        over = (np.array(axes, np.int64),) if view.opset >= SOFTMAX_SINCE else ()
        fragment.op("Squeeze", made, *over, to=node.output[0], **({} if over else {"axes": axes}))
    return fragment


def _one_plus(view: View, name: str) -> tuple[str, list[int]] | None:
    """The exponent of ``1 + exp(x)``, and its nodes."""
    added = view.makes(name, "Add")
    if added is None:
        return None
    for one, other in (view.node(added).input, reversed(view.node(added).input)):
        exponential = view.makes(other, "Exp")
        if view.scalar(one) == 1 and exponential is not None:
            return view.node(exponential).input[0], [added, exponential]
    return None


def softplus(view: View, index: int) -> Fragment | None:
    """``log(1 + exp(x))`` as ``Softplus``, which does not overflow."""
    node = view.node(index)
    inner = _one_plus(view, node.input[0]) if node.op_type == "Log" else None
    if inner is None:
        return None
    fragment = Fragment(view, index, frozenset(inner[1]))
    fragment.op("Softplus", inner[0], to=node.output[0])
    return fragment


def sigmoid(view: View, index: int) -> Fragment | None:
    """``1 / (1 + exp(-x))`` as ``Sigmoid``."""
    node = view.node(index)
    if node.op_type == "Reciprocal":
        below = node.input[0]
    elif node.op_type == "Div" and view.scalar(node.input[0]) == 1:
        below = node.input[1]
    else:
        return None
    inner = _one_plus(view, below)
    negative = None if inner is None else view.makes(inner[0], "Neg")
    if inner is None or negative is None:
        return None
    fragment = Fragment(view, index, frozenset([*inner[1], negative]))
    fragment.op("Sigmoid", view.node(negative).input[0], to=node.output[0])
    return fragment


_MASKING = ("Add", "Sub", "Where", "Mul", "Clip", "Max", "Min", "ConstantOfShape", "Expand")


def mask(view: View, index: int) -> Fragment | None:
    """Constants past fp16's largest number, as they mask what a softmax reads, within it: -1e9 as -6e4.

    Where the difference of two masked values matters it is no equivalent; behind a softmax it makes none.
    """
    node = view.node(index)
    if node.op_type not in _MASKING or node.op_type == "ConstantOfShape":
        return None
    changed: dict[int, np.ndarray] = {}
    for place, name in enumerate(node.input):
        value = view.value(name) if name else None
        if value is None or value.dtype != np.float32:
            continue
        past = np.isfinite(value) & (np.abs(value) > _FP16_MAX)
        if past.any():
            changed[place] = np.where(past, np.sign(value) * np.float32(MASKED), value).astype(np.float32)
    if not changed:
        return None
    fragment = Fragment(view, index)
    inputs = [changed.get(place, name) for place, name in enumerate(node.input)]
    attributes = {each.name: attribute(node, each.name) for each in node.attribute}
    fragment.op(node.op_type, *inputs, to=node.output[0], **attributes)
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
