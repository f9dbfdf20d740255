"""How near a decision was: operators that turn numbers into an index, a bool or a step, and what it takes to turn it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Margin = tuple[Array, Array]
"""For each element that was decided otherwise: how far its numbers are from the decision's edge, and how large they are."""
_COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_STEPS = ("Floor", "Ceil", "Cast", "Sign", "QuantizeLinear", "Round", "NonZero", "Hardmax")
_CHOICES = ("ArgMax", "ArgMin", "TopK")
DECIDING = frozenset({*_COMPARED, *_STEPS, *_CHOICES, "NonMaxSuppression"})
"""Operators of which the least difference of what they read may make a wholly different result."""


@dataclass(frozen=True)
class Decision:
    """A node that decided, in two runs.

    Attributes:
        op: One of :data:`DECIDING`.
        attributes: The node's.
        inputs: What the node reads, float64 for numbers; its optional inputs may be ``None``.
        decided: What it made of them: the outputs of the one run.
        other: The outputs of the other run.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Array | None]
    decided: Sequence[Array]
    other: Sequence[Array]


def margin(decision: Decision) -> Margin | None:
    """How far from its edge each decision was that two runs took differently.

    Returns:
        The margins in the unit of what is read, 0 for a draw, and the size of the numbers; empty where nothing differs,
        ``None`` where that cannot be told.
    """
    pairs = zip(decision.decided, decision.other, strict=True)
    if decision.inputs[0] is None or any(one.shape != two.shape for one, two in pairs):
        return None if decision.op != "NonMaxSuppression" else _suppressed(decision)
    with np.errstate(all="ignore"):
        return _MEASURES[decision.op](decision)


def _compared(decision: Decision) -> Margin | None:
    read = (np.asarray(value, np.float64) for value in decision.inputs[:2] if value is not None)
    one, two = np.broadcast_arrays(*read)
    turned = decision.decided[0] != decision.other[0]
    return np.abs(one - two)[turned], np.maximum(np.abs(one), np.abs(two))[turned]


def _stepped(decision: Decision) -> Margin | None:
    op, inputs = decision.op, decision.inputs
    values = np.asarray(inputs[0], np.float64)
    turned, size = decision.decided[0] != decision.other[0], np.abs(values)
    if op in ("Floor", "Ceil", "Cast"):
        edge = np.abs(values - np.rint(values))
    elif op == "Round":
        edge = np.abs(np.abs(values - np.floor(values)) - 0.5)
    elif op == "Sign":
        edge = size
    elif op == "QuantizeLinear" and inputs[1] is not None:
        scale = np.asarray(inputs[1], np.float64)
        if scale.size > 1:
            axis = int(decision.attributes.get("axis", 1))
            scale = scale.reshape([-1 if place == axis % values.ndim else 1 for place in range(values.ndim)])
        steps = values / scale
        edge = np.abs(np.abs(steps - np.floor(steps)) - 0.5) * scale
    else:
        return None
    return edge[turned], size[turned]


def _chosen(decision: Decision) -> Margin | None:
    op, values = decision.op, np.asarray(decision.inputs[0], np.float64)
    axis = int(decision.attributes.get("axis", 0 if op != "TopK" else -1)) % values.ndim
    one, two = decision.decided[-1], decision.other[-1]  # the indices; TopK makes the values first
    if op != "TopK" and not decision.attributes.get("keepdims", 1):
        one, two = np.expand_dims(one, axis), np.expand_dims(two, axis)
    for indices in (one, two):
        if indices.size and not (indices.min() >= 0 and indices.max() < values.shape[axis]):
            return None
    mine, theirs = (np.take_along_axis(values, indices.astype(np.int64), axis) for indices in (one, two))
    turned = one != two
    return np.abs(mine - theirs)[turned], np.maximum(np.abs(mine), np.abs(theirs))[turned]


def _suppressed(decision: Decision) -> Margin | None:
    """Of boxes: the nearest that two scores of a class are, or that a score is to the threshold."""
    inputs = decision.inputs
    if len(inputs) < 2 or inputs[1] is None:
        return None
    scores = np.sort(np.asarray(inputs[1], np.float64), axis=-1)
    gaps = np.diff(scores, axis=-1).reshape(-1)
    if len(inputs) > 4 and inputs[4] is not None and inputs[4].size:
        gaps = np.concatenate([gaps, np.abs(scores - float(inputs[4].reshape(-1)[0])).reshape(-1)])
    if not gaps.size:
        return None
    return gaps.min(keepdims=True), np.abs(scores).max().reshape(1)


_MEASURES: dict[str, Callable[[Decision], Margin | None]] = {
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_STEPS, _stepped),
    **dict.fromkeys(_CHOICES, _chosen),
    "NonMaxSuppression": _suppressed,
}
