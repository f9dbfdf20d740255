"""Equivalent forms of what runtimes get wrong: rules by name, each a pattern and its replacement; the cheapest form first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute
from bisect_trt.onnxlib.rewrites import Fragment, NetworkView, Rule
from bisect_trt.onnxlib.shapes import element_dtype

_FP16_MAX, _MASKED = 65504.0, 6e4
"""fp16's largest number, and what takes the place of a constant past it: room is left for what it is added to."""
_SMALLEST = 2.0**-14
"""fp16's smallest normal number: what is scaled to 1 by less could overflow on the way."""
_SINCE = 7
"""Before opset 7 shapes are not broadcast as they are in what the rules write."""
_SOFTMAX_SINCE = 13
"""Before opset 13 Softmax flattens its input."""
_SQUARE = "(Mul(v, v) | Pow(v, 2))"
_SUM = f"(ReduceMean({_SQUARE}) | ReduceSum({_SQUARE}) | ReduceSumSquare(v))"
_PLUS = f"Add(t := {_SUM}, k) | (t := {_SUM})"
_ROOT = f"Sqrt({_PLUS}) | Pow({_PLUS}, 0.5) | (t := ReduceL2(v))"
_NORM = f"Div(v := Sub(x, m := ReduceMean(x)), Sqrt(Add(t := ReduceMean({_SQUARE}), k) | (t := ReduceMean({_SQUARE}))))"


def _softmax(view: NetworkView, index: int) -> Fragment | None:
    """``exp(x) / sum(exp(x))`` as ``Softmax``, which takes the maximum out."""
    match = view.match(index, "Div(Exp(x), t := ReduceSum(Exp(x)))") if view.opset >= _SOFTMAX_SINCE else None
    axes = view.axes(match["t"]) if match else None
    if match is None or axes is None or len(axes) != 1:
        return None
    fragment = Fragment(view, index, match.nodes)
    fragment.op("Softmax", match["x"], last=True, axis=axes[0])
    return fragment


def _log_softmax(view: NetworkView, index: int) -> Fragment | None:
    """``log(softmax(x))`` as ``LogSoftmax``, which does not round to 0 on the way."""
    match = view.match(index, "Log(s := Softmax(x))") if view.opset >= _SOFTMAX_SINCE else None
    if match is None:
        return None
    fragment = Fragment(view, index, match.nodes)
    fragment.op("LogSoftmax", match["x"], last=True, axis=attribute(view.maker(match["s"]), "axis", -1))
    return fragment


def _log_sum_exp(view: NetworkView, index: int) -> Fragment | None:
    """``log(sum(exp(x)))``, spelled out or one operator, the maximum taken out: no exponential past 1."""
    match = view.match(index, "Log(t := ReduceSum(Exp(x))) | (t := ReduceLogSumExp(x))")
    axes = view.axes(match["t"], kept=False) if match else None
    if match is None or not axes or not view.is_float(match["x"]):
        return None
    kept = bool(attribute(view.maker(match["t"]), "keepdims", 1))
    fragment = Fragment(view, index, match.nodes)
    largest = fragment.reduce("ReduceMax", match["x"], axes)
    summed = fragment.reduce("ReduceSum", fragment.op("Exp", fragment.op("Sub", match["x"], largest)), axes)
    made = fragment.op("Add", fragment.op("Log", summed), largest, last=kept)
    if not kept and view.opset >= _SOFTMAX_SINCE:
        fragment.op("Squeeze", made, np.array(axes, np.int64), last=True)
    elif not kept:
        fragment.op("Squeeze", made, last=True, axes=axes)
    return fragment


def _softplus(view: NetworkView, index: int) -> Fragment | None:
    """``log(1 + exp(x))`` as ``Softplus``, which does not overflow."""
    match = view.match(index, "Log(Add(1, Exp(x)))")
    if match is None:
        return None
    fragment = Fragment(view, index, match.nodes)
    fragment.op("Softplus", match["x"], last=True)
    return fragment


def _mask(view: NetworkView, index: int) -> Fragment | None:
    """Constants past fp16's largest number, as they mask what a softmax reads, within it: -1e9 as -6e4.

    Where the difference of two masked values matters it is no equivalent; behind a softmax it makes none.
    """
    node = view.node(index)
    if node.op_type not in ("Add", "Sub", "Where", "Mul", "Clip", "Max", "Min", "Expand"):
        return None
    inputs: list[str | np.ndarray] = list(node.input)
    for place, name in enumerate(node.input):
        value = view.value(name) if name else None
        if value is not None and value.dtype == np.float32:
            past = np.isfinite(value) & (np.abs(value) > _FP16_MAX)
            if past.any():
                inputs[place] = np.where(past, np.sign(value) * np.float32(_MASKED), value).astype(np.float32)
    if all(isinstance(each, str) for each in inputs):
        return None
    fragment = Fragment(view, index)
    fragment.op(node.op_type, *inputs, last=True, like=node)
    return fragment


def _scaled_square(view: NetworkView, index: int) -> Fragment | None:
    """The root of a sum or mean of squares, of values divided by the largest of them: ``s * sqrt(mean((x/s)^2) + e/s^2)``.

    What is squared is at most 1 then, so nothing overflows where the root itself does not (as ``hypot`` is computed; J. Blue,
    "A portable Fortran program to find the Euclidean norm of a vector", 1978). Of ``ReduceL2`` too.
    """
    match = view.match(index, _ROOT)
    axes = view.axes(match["t"]) if match else None
    if match is None or axes is None or not view.is_float(match["v"]):
        return None
    small = view.scalar(match["k"]) if "k" in match.tensors else 0.0
    if small is None or not 0 <= small < 1:
        return None
    by = "ReduceMean" if view.makes(match["t"], "ReduceMean") is not None else "ReduceSum"
    fragment, value = Fragment(view, index, match.nodes), match["v"]
    floor = max(math.sqrt(small), _SMALLEST)
    largest = fragment.op("Max", fragment.reduce("ReduceMax", fragment.op("Abs", value), axes), floor)
    part = fragment.op("Div", value, largest)
    total = fragment.reduce(by, fragment.op("Mul", part, part), axes)
    if small:
        ratio = fragment.op("Div", math.sqrt(small), largest)
        total = fragment.op("Add", total, fragment.op("Mul", ratio, ratio))
    fragment.op("Mul", fragment.op("Sqrt", total), largest, last=True)
    return fragment


def _layer_norm(view: NetworkView, index: int) -> Fragment | None:
    """A ``LayerNormalization`` that is spelled out over the last axes, as the operator (opset 17 and later)."""
    match = view.match(index, _NORM) if view.opset >= 17 else None
    shape = view.shape(match["x"]) if match else None
    if match is None or shape is None or not view.is_float(match["x"]):
        return None
    rank, small = len(shape), view.scalar(match["k"]) if "k" in match.tensors else 0.0
    own, squared = view.axes(match["m"]), view.axes(match["t"])
    if own is None or squared is None or small is None:
        return None
    axes = sorted(axis % rank for axis in squared)
    if sorted(axis % rank for axis in own) != axes or axes != list(range(axes[0], rank)):
        return None
    fragment, ones = Fragment(view, index, match.nodes), np.ones(shape[axes[0] :], np.float32)
    fragment.op("LayerNormalization", match["x"], ones, last=True, axis=axes[0] - rank, epsilon=small)
    return fragment


def _mean_of_parts(view: NetworkView, index: int) -> Fragment | None:
    """A sum that is divided by a constant, or a mean, as the sum of what was divided before: no sum is past its mean."""
    match = view.match(index, "Div(t := ReduceSum(x), k) | Mul(t := ReduceSum(x), k) | (t := ReduceMean(x))")
    axes = view.axes(match["t"]) if match else None
    if match is None or axes is None or not view.is_float(match["x"]):
        return None
    if "k" in match.tensors:
        by = view.scalar(match["k"])
        if not by or len(view.shape(match["k"]) or ()) > 1:
            return None
        factor = by if view.node(index).op_type == "Mul" else 1 / by
    else:
        shape = view.shape(match["x"])
        count = math.prod(shape[axis] for axis in axes) if shape else 0
        if not count:
            return None
        factor = 1 / count
    if abs(factor) > 1:
        return None
    fragment = Fragment(view, index, match.nodes)
    fragment.reduce("ReduceSum", fragment.op("Mul", match["x"], float(factor)), axes, last=True)
    return fragment


def _redundant(view: NetworkView, index: int) -> Fragment | None:
    """A node that hands on what it is given is left out."""
    node, outputs = view.node(index), view.network.outputs
    if not node.input or not node.output or node.output[0] in outputs or not _does_nothing(view, node):
        return None
    if any(view.network.consumers.get(name) for name in node.output[1:]):
        return None
    fragment = Fragment(view, index)
    fragment.aliases[node.output[0]] = node.input[0]
    return fragment


def _does_nothing(view: NetworkView, node: onnx.NodeProto) -> bool:
    value, more = node.input[0], len(node.input) > 1
    if node.op_type == "Transpose":
        perm = attribute(node, "perm")
        return perm is not None and list(perm) == list(range(len(perm)))
    if node.op_type == "Cast":
        info = view.info(value)
        return info is not None and element_dtype(attribute(node, "to")) == info.dtype
    if node.op_type in ("Reshape", "Expand", "Flatten"):
        shape = view.shape(value)
        return shape is not None and shape == view.shape(node.output[0])
    if node.op_type == "Pad":
        pads = attribute(node, "pads") or (view.value(node.input[1]) if more else None)
        return pads is not None and not np.any(pads)
    return node.op_type == "Identity" or (node.op_type == "Dropout" and (len(node.input) < 3 or not node.input[2]))


def _gemm(view: NetworkView, index: int) -> Fragment | None:
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
    bias, scaled = node.input[2] if len(node.input) > 2 else "", alpha != 1
    product = fragment.op("MatMul", one, two, last=not bias and not scaled)
    if scaled:
        product = fragment.op("Mul", product, alpha, last=not bias)
    if bias:
        fragment.op("Add", product, bias if beta == 1 else fragment.op("Mul", bias, beta), last=True)
    return fragment


def _kernel_shape(view: NetworkView, index: int) -> Fragment | None:
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
    ones = [1] * (len(shape) - 2)
    given = {each.name for each in node.attribute}
    written = {"kernel_shape": list(shape[2:]), "dilations": ones, "strides": ones}
    fragment = Fragment(view, index)
    more = {name: value for name, value in written.items() if name not in given}
    fragment.op(node.op_type, *node.input, last=True, like=node, **more)
    return fragment


def _batch_norm(view: NetworkView, index: int) -> Fragment | None:
    """``BatchNormalization`` as a product and a sum, with constants that are computed here in float64."""
    node = view.node(index)
    shape = view.shape(node.input[0]) if node.op_type == "BatchNormalization" else None
    if shape is None or attribute(node, "training_mode", 0) or len(node.output) > 1 or not view.is_float(node.input[0]):
        return None
    known = [view.value(name) for name in node.input[1:5]]
    if any(value is None for value in known):
        return None
    scale, bias, mean, variance = (np.asarray(value, np.float64) for value in known)
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    along = [1, -1, *([1] * (len(shape) - 2))]
    fragment = Fragment(view, index)
    product = fragment.op("Mul", node.input[0], factor.reshape(along).astype(np.float32))
    fragment.op("Add", product, (bias - mean * factor).reshape(along).astype(np.float32), last=True)
    return fragment


def _power(view: NetworkView, index: int) -> Fragment | None:
    """``Pow`` by a small constant as products, a root or a reciprocal."""
    match = view.match(index, "Pow(x, k)")
    if match is None or not view.is_float(match["x"]):
        return None
    base, by, rank = match["x"], view.scalar(match["k"]), len(view.shape(match["x"]) or (0,) * 9)
    if len(view.shape(match["k"]) or ()) > rank:
        return None
    fragment = Fragment(view, index)
    if by in (2, 3):
        fragment.op("Mul", base if by == 2 else fragment.op("Mul", base, base), base, last=True)
    elif by == 0.5:
        fragment.op("Sqrt", base, last=True)
    elif by in (-0.5, -1):
        fragment.op("Reciprocal", fragment.op("Sqrt", base) if by == -0.5 else base, last=True)
    else:
        return None
    return fragment


def _spelled_norm(op: str, view: NetworkView, index: int) -> Fragment | None:
    """``LayerNormalization`` or ``InstanceNormalization`` (``op``) spelled out, centred before it is squared."""
    node = view.node(index)
    shape = view.shape(node.input[0]) if node.op_type == op and node.input else None
    if shape is None or not view.is_float(node.input[0]):
        return None
    if any(view.network.consumers.get(name) for name in node.output[1:]):
        return None
    fragment, rank, value = Fragment(view, index), len(shape), node.input[0]
    scale, bias = node.input[1], node.input[2] if len(node.input) > 2 else ""
    axes = list(range(attribute(node, "axis", -1) % rank - rank, 0))
    if node.op_type == "InstanceNormalization":
        axes = list(range(2, rank))
        target = np.array([1, -1, *([1] * len(axes))], np.int64)
        scale, bias = (fragment.op("Reshape", name, target) for name in (scale, bias))
    centred = fragment.op("Sub", value, fragment.reduce("ReduceMean", value, axes))
    variance = fragment.reduce("ReduceMean", fragment.op("Mul", centred, centred), axes)
    deviation = fragment.op("Sqrt", fragment.op("Add", variance, float(attribute(node, "epsilon", 1e-5))))
    scaled = fragment.op("Mul", fragment.op("Div", centred, deviation), scale, last=not bias)
    if bias:
        fragment.op("Add", scaled, bias, last=True)
    return fragment


def _spelled_softmax(view: NetworkView, index: int) -> Fragment | None:
    """``Softmax`` spelled out, the maximum taken out."""
    node = view.node(index)
    if node.op_type != "Softmax" or view.opset < _SOFTMAX_SINCE or not view.is_float(node.input[0]):
        return None
    fragment, axes = Fragment(view, index), [int(attribute(node, "axis", -1))]
    below = fragment.op("Sub", node.input[0], fragment.reduce("ReduceMax", node.input[0], axes))
    exponentials = fragment.op("Exp", below)
    fragment.op("Div", exponentials, fragment.reduce("ReduceSum", exponentials, axes), last=True)
    return fragment


@dataclass(frozen=True)
class Rewrite:
    """A rule.

    Attributes:
        what: What it does, in words.
        rule: The rule.
        ranges: Whether it keeps values within a precision's range, and not only avoids what a runtime gets wrong.
    """

    what: str
    rule: Rule
    ranges: bool = False


RULES: dict[str, Rewrite] = {
    "redundant": Rewrite("left out, for it does nothing", _redundant),
    "layer-norm": Rewrite("as LayerNormalization", _layer_norm, ranges=True),
    "softmax": Rewrite("as Softmax", _softmax, ranges=True),
    "log-softmax": Rewrite("as LogSoftmax", _log_softmax, ranges=True),
    "log-sum-exp": Rewrite("with its maximum taken out", _log_sum_exp, ranges=True),
    "softplus": Rewrite("as Softplus", _softplus, ranges=True),
    "mask": Rewrite("its constant within fp16's range", _mask, ranges=True),
    "mean-of-parts": Rewrite("divided before it is summed", _mean_of_parts, ranges=True),
    "scaled-square": Rewrite("scaled by its largest value before it is squared", _scaled_square, ranges=True),
    "power": Rewrite("as products or a root", _power),
    "gemm": Rewrite("as MatMul and Add", _gemm),
    "batch-norm": Rewrite("as Mul and Add", _batch_norm),
    "kernel-shape": Rewrite("with the shape of its kernel written out", _kernel_shape),
    "spelled-softmax": Rewrite("spelled out, its maximum taken out", _spelled_softmax),
    "spelled-layer-norm": Rewrite("spelled out", partial(_spelled_norm, "LayerNormalization")),
    "spelled-instance-norm": Rewrite("spelled out", partial(_spelled_norm, "InstanceNormalization")),
}


def matches(view: NetworkView, name: str) -> list[Fragment]:
    """Where a rule's pattern is found, in topological order; no two that overlap in what they redefine."""
    if view.opset < _SINCE:
        return []
    searched = (index for index in view.network.order if not view.network.constant[index])
    standard = (index for index in searched if view.node(index).domain in DEFAULT_DOMAINS)
    return [found for index in standard if (found := RULES[name].rule(view, index)) is not None]
