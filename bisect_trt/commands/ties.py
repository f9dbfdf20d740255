"""Ties: nodes that turn numbers into an index, a bool or a step, and whether rounding alone explains what they decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bisect_trt.onnxlib.nodes import attribute, clone
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.tolerance import Precision, automatic_tolerance

Values = Mapping[str, NDArray[Any]]
Computed = Values | str
"""The outputs of a model, or why there are none."""
Run = Callable[[onnx.ModelProto, Values], Computed]
DECIDING = frozenset({
    "ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual",
    "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Sign", "TopK",
})  # fmt: skip
"""Operators of which the least difference of what they read may make a wholly different result."""
UNITS = {Precision.TF32: 2.0**-10, Precision.FP16: 2.0**-10, Precision.BF16: 2.0**-7}
"""One unit in the last place, relative to the value."""
_CHOICES = ("ArgMax", "ArgMin", "TopK")
_INTEGERS = {kind for name, kind in onnx.TensorProto.DataType.items() if "INT" in name or name == "BOOL"}


def decides(node: onnx.NodeProto) -> bool:
    """Whether the least difference in a node's inputs may make a wholly different result."""
    return node.op_type in DECIDING and (node.op_type != "Cast" or attribute(node, "to") in _INTEGERS)


def mark_decisions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all that its deciding nodes read and make among its outputs; the same where there is nothing to add."""
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    made = {name for node in model.graph.node for name in node.output} - known
    deciding = [name for node in model.graph.node if decides(node) for name in (*node.input, *node.output)]
    added = list(dict.fromkeys(name for name in deciding if name in made))
    if not added:
        return model
    marked = clone(model)
    types = {value.name: value for value in model.graph.value_info}
    marked.graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added)
    return marked


def first_turned(model: onnx.ModelProto, reference: Values, target: Values) -> onnx.NodeProto | None:
    """The first node that decided otherwise on the target."""

    def turned(node: onnx.NodeProto) -> bool:
        names = [name for name in node.output if name in reference and name in target]
        return decides(node) and not all(np.array_equal(reference[name], target[name]) for name in names)

    return next(filter(turned, model.graph.node), None)


def is_tie(
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    inputs: Values,
    reference: Values,
    target: Values,
    precision: Precision,
    run: Run,
) -> bool:
    """Whether a node decides as it did on the target, where what it reads moves as far as the two sides are apart.

    A decision that rounding cannot have moved over its edge is wrong; of equals, either may be chosen.

    Args:
        node: It decided otherwise on the target.
        model: Has the node.
        inputs: The model's.
        reference: What the reference made of them.
        target: What the target made.
        precision: What the target rounds to.
        run: Runs a model on the reference.
    """
    names = [name for name in node.input if name]
    stored = {each.name: each for each in model.graph.initializer if each.name in names and not each.external_data}
    weights = {name: np.asarray(numpy_helper.to_array(tensor)) for name, tensor in stored.items()}
    known = {**reference, **inputs, **weights}
    if any(name not in known for name in names) or known[names[0]].dtype.kind != "f":
        return False
    fed = {name: known[name] for name in names}
    first, resolved = fed[names[0]], automatic_tolerance(fed[names[0]], precision)
    shown = {name: np.asarray(target.get(name, value)) for name, value in fed.items()}
    units = {name: UNITS.get(precision, 0.0) for name in names if name in inputs}
    moved = max(_apart(fed[name], target.get(name), units.get(name)) for name in names if name not in weights)
    slack = 2 * np.minimum(moved, resolved.atol + resolved.rtol * np.abs(first))
    ways = [{**fed, names[0]: (first + way * slack).astype(first.dtype)} for way in (0, -1, 1)]
    piece = _alone(node, model, fed, reference)
    made = [each for each in (run(piece, values) for values in (*ways, shown)) if not isinstance(each, str)]
    if node.op_type in _CHOICES:
        picks = node.output[-1]  # of TopK the values come first
        return any(_alike(node, first, slack, each[picks], target[picks]) for each in made)
    for name in filter(None, node.output):
        same = [each[name] == target[name] for each in made if each[name].shape == target[name].shape]
        if not same or not np.logical_or.reduce(same).all():
            return False
    return True


def _apart(one: NDArray[Any], other: NDArray[Any] | None, unit: float | None) -> float:
    """How far two roundings of a tensor are apart, of an input by its unit; infinitely where that is not known."""
    if one.dtype.kind != "f":
        return 0.0
    if unit is not None:
        return float(np.max(np.abs(one), initial=0.0)) * unit
    if other is None or other.shape != one.shape:
        return math.inf
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))[np.isfinite(one) | np.isfinite(other)]
    return float(np.max(apart, initial=0.0)) if np.isfinite(apart).all() else math.inf


def _alone(node: onnx.NodeProto, model: onnx.ModelProto, fed: Values, made: Values) -> onnx.ModelProto:
    """A model of one node."""
    info = helper.make_tensor_value_info
    inputs = [info(name, element_type(value.dtype), value.shape) for name, value in fed.items()]
    outputs = [info(name, element_type(made[name].dtype), [None] * made[name].ndim) for name in node.output if name]
    graph = helper.make_graph([node], "decision", inputs, outputs)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _alike(
    node: onnx.NodeProto, values: NDArray[Any], slack: NDArray[Any], right: NDArray[Any], chosen: NDArray[Any]
) -> bool:
    """Whether the values at the indices that are right, and at those that were chosen, are apart by rounding at most."""
    axis = attribute(node, "axis", -1 if node.op_type == "TopK" else 0) % values.ndim
    if node.op_type != "TopK" and not attribute(node, "keepdims", 1):
        right, chosen = np.expand_dims(right, axis), np.expand_dims(chosen, axis)
    if right.shape != chosen.shape or not ((chosen >= 0) & (chosen < values.shape[axis])).all():
        return False
    best, taken, most = (
        np.take_along_axis(each, index.astype(np.int64), axis)
        for each, index in ((values, right), (values, chosen), (slack, right))
    )
    return bool((np.abs(best - taken) <= most).all())
