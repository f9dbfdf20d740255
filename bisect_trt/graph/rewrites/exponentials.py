"""Rewrites of exponentials and masks: the operator in place of what spells it out, and constants within fp16's range."""

from __future__ import annotations

import numpy as np

from bisect_trt.graph.nodes import attribute
from bisect_trt.graph.rewrites.view import Fragment, View

MASKED = 6e4
"""In place of a constant past fp16's largest number, 65504: room is left for what it is added to."""
_FP16_MAX = 65504.0
_SINCE = 13
"""Before opset 13 Softmax flattens what it is given."""


def softmax(view: View, index: int) -> Fragment | None:
    """``exp(x) / sum(exp(x))`` as ``Softmax``, which takes the maximum out."""
    node = view.node(index)
    if node.op_type != "Div" or view.opset < _SINCE:
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


def spelled_softmax(view: View, index: int) -> Fragment | None:
    """``Softmax`` spelled out, the maximum taken out."""
    node = view.node(index)
    if node.op_type != "Softmax" or view.opset < _SINCE or not view.is_float(node.input[0]):
        return None
    fragment = Fragment(view, index)
    axes = [int(attribute(node, "axis", -1))]
    below = fragment.op("Sub", node.input[0], fragment.reduce("ReduceMax", node.input[0], axes))
    exponentials = fragment.op("Exp", below)
    fragment.op("Div", exponentials, fragment.reduce("ReduceSum", exponentials, axes), to=node.output[0])
    return fragment


def log_softmax(view: View, index: int) -> Fragment | None:
    """``log(softmax(x))`` as ``LogSoftmax``, which does not round to 0 on the way."""
    node = view.node(index)
    inner = view.makes(node.input[0], "Softmax") if node.op_type == "Log" and view.opset >= _SINCE else None
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
        over = (np.array(axes, np.int64),) if view.opset >= _SINCE else ()
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
