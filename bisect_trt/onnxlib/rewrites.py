"""Equivalent forms of a model: patterns of operators with their replacements, and fusion barriers.

All other nodes stay the original's own messages, which onnxscript's rewriter does not promise.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from string import ascii_lowercase
from typing import Any, Literal

import numpy as np
import onnx
from msgspec import Struct
from onnx import helper, numpy_helper

from bisect_trt.onnxlib.cleanup import remove_unread
from bisect_trt.onnxlib.low_plan import LOW_TYPES
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    add_initializers,
    attribute,
    clone,
    free_name,
    keep_only,
    opset_of,
    rename_reads,
)
from bisect_trt.tensors.info import Array, TensorInfo

_SMALL_BYTES = 1 << 20
"""The largest constant that a pattern reads, in bytes."""
_COMMUTE = ("Add", "Mul")


class Match(Struct, frozen=True):
    """A match of a pattern: the tensors of the pattern's names, and the numbers of the nodes."""

    tensors: Mapping[str, str] = {}
    nodes: frozenset[int] = frozenset()

    def __getitem__(self, name: str) -> str:
        return self.tensors[name]


class NetworkView:
    """A network with queries for patterns; ``opset`` is the version of the standard operators."""

    def __init__(self, network: Network) -> None:
        """Read the opset."""
        self.network = network
        self.opset = opset_of(network.proto) or 1

    def makes(self, name: str, *ops: str) -> int | None:
        """Return the node that makes a tensor, if it has one of these standard operators."""
        index = self.network.producer.get(name)
        if index is None:
            return None
        node = self.network.nodes[index]
        return index if node.op_type in ops and node.domain in DEFAULT_DOMAINS else None

    def match(self, index: int, pattern: str) -> Match | None:
        """Return the match of a pattern that ends in a node's first output, if there is one.

        Args:
            index: The node.
            pattern: An expression such as ``Div(1, Add(1, Exp(x)))``. A call matches an operator by
                its first inputs, in either order if it commutes. A number matches a constant
                scalar, ``k`` any constant scalar, another name any tensor, the same one throughout.
                ``t := Exp(x)`` names a tensor, and ``a | b`` matches either.
        """
        outputs = self.network.made(index)
        return next(self._found(_parsed(pattern), outputs[0], Match()), None) if outputs else None

    def _found(self, pattern: ast.expr, name: str, so_far: Match) -> Iterator[Match]:
        if isinstance(pattern, ast.Constant):
            if self.scalar(name) == pattern.value:
                yield so_far
        elif isinstance(pattern, ast.Name):
            consistent = so_far.tensors.get(pattern.id, name) == name
            if consistent and (pattern.id != "k" or self.scalar(name) is not None):
                yield Match({**so_far.tensors, pattern.id: name}, so_far.nodes)
        elif isinstance(pattern, ast.NamedExpr):
            for match in self._found(pattern.value, name, so_far):
                yield Match({**match.tensors, pattern.target.id: name}, match.nodes)
        elif isinstance(pattern, ast.BinOp):
            yield from self._found(pattern.left, name, so_far)
            yield from self._found(pattern.right, name, so_far)
        elif isinstance(pattern, ast.Call) and isinstance(pattern.func, ast.Name):
            yield from self._call(pattern.func.id, pattern.args, name, so_far)

    def _call(
        self, op: str, arguments: Sequence[ast.expr], name: str, so_far: Match
    ) -> Iterator[Match]:
        index = self.makes(name, op)
        if index is not None and len(inputs := list(self.network.nodes[index].input)) >= len(
            arguments
        ):
            with_it = Match(so_far.tensors, so_far.nodes | {index})
            for order in (inputs, inputs[::-1])[: 1 + (op in _COMMUTE)]:
                yield from self._all(arguments, order, with_it)

    def _all(
        self, patterns: Sequence[ast.expr], names: Sequence[str], so_far: Match
    ) -> Iterator[Match]:
        if not patterns:
            yield so_far
            return
        for match in self._found(patterns[0], names[0], so_far):
            yield from self._all(patterns[1:], names[1:], match)

    def value(self, name: str) -> Array | None:
        """Return the value of a small constant."""
        tensor = self.network.stored(name)
        if tensor is None and (index := self.makes(name, "Identity", "Cast")) is not None:
            node = self.network.nodes[index]
            value = self.value(node.input[0])
            if value is None or node.op_type == "Identity":
                return value
            to = attribute(node, "to")
            return (
                value.astype(helper.tensor_dtype_to_np_dtype(to))
                if to not in LOW_TYPES.values()
                else None
            )
        # Constants of patterns are scalars and axes; weights are never read here.
        if tensor is None or tensor.external_data or tensor.ByteSize() > _SMALL_BYTES:
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant of one number."""
        value = self.value(name)
        if value is None or value.size != 1 or value.dtype.kind not in "fiu":
            return None
        return float(value.item())

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor, if it is static."""
        info = self.network.infos.get(name)
        return None if info is None else info.sizes

    def is_float(self, name: str) -> bool:
        """Return whether a tensor is known to be float32."""
        info = self.network.infos.get(name)
        return info is not None and info.dtype == np.float32

    def axes(self, name: str) -> list[int] | None:
        """Return the axes of the reduction that makes a tensor; ``None`` if it names none, or drops the dimensions."""
        node = self.network.nodes[self.network.producer[name]]
        named = attribute(node, "axes")
        # Since opset 13 (ReduceSum) and 18 the axes are an input.
        if named is None and len(node.input) > 1 and node.input[1]:
            value = self.value(node.input[1])
            named = None if value is None else value.reshape(-1).tolist()
        if named is None or not attribute(node, "keepdims", 1):
            return None
        return [int(axis) for axis in named]


@cache
def _parsed(pattern: str) -> ast.expr:
    return ast.parse(pattern, mode="eval").body


class Fragment(Struct, dict=True):
    """Nodes and constants that replace a match, which ends at the node ``anchor``.

    What nothing reads any more of the matched nodes is removed.
    """

    view: NetworkView
    anchor: int
    matched: frozenset[int] = frozenset()
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def __post_init__(self) -> None:
        """Include the anchor in the match."""
        self.matched |= {self.anchor}
        self._stem = next(iter(self.view.network.made(self.anchor)))

    def op(
        self,
        op: str,
        *inputs: str | Array | float,
        last: bool = False,
        like: onnx.NodeProto | None = None,
        **attributes: Any,  # noqa: ANN401 - of many types
    ) -> str:
        """Add a standard operator and return the tensor that it makes, the result if it is the ``last``.

        Inputs are tensors by name, or constants; numbers are float32. An empty name omits an
        optional input. The attributes of the node ``like`` are further attributes.
        """
        stem = f"{self._stem}/rewritten_{len(self.nodes)}_{op}"
        output = self._stem if last else self._fresh(stem)
        names = [self._named(value) for value in inputs]
        node = helper.make_node(op, names, [output], name=self._fresh(f"{stem}/node"), **attributes)
        node.attribute.extend(
            parameter
            for parameter in (like.attribute if like else ())
            if parameter.name not in attributes
        )
        self.nodes.append(node)
        return output

    def reduce(self, op: str, value: str, axes: Sequence[int], *, last: bool = False) -> str:
        """Add a reduction that keeps the dimensions; the opset decides whether its axes are an attribute or an input."""
        if self.view.opset < (13 if op == "ReduceSum" else 18):
            return self.op(op, value, last=last, axes=list(axes), keepdims=1)
        return self.op(op, value, np.array(axes, np.int64), last=last, keepdims=1)

    def _named(self, value: str | Array | float) -> str:
        if isinstance(value, str):
            return value
        name = self._fresh(f"{self._stem}/rewritten_constant_{len(self.constants)}")
        array = np.asarray(value, np.float32) if isinstance(value, float | int) else value
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _fresh(self, name: str) -> str:
        return free_name(name, self.view.network.names)


def splice_in(view: NetworkView, fragments: Iterable[Fragment]) -> onnx.ModelProto:
    """Return the model with fragments in place of their matches, without what is not read then."""
    network = view.network
    chosen = {fragment.anchor: fragment for fragment in fragments}
    model = clone(network.proto)
    order = range(len(network.nodes)) if network.is_sorted else network.order
    nodes = (
        [network.nodes[index]] if index not in chosen else chosen[index].nodes for index in order
    )
    keep_only(model.graph.node, chain.from_iterable(nodes))
    add_initializers(
        model, (tensor for fragment in chosen.values() for tensor in fragment.constants)
    )
    remove_unread(model)
    return model


Barrier = Literal["Max", "Einsum", "output"]
"""The operator of a barrier. ONNX Runtime's TransposeOptimizer moves a Transpose through ``Max``,
and not through ``Einsum``."""


def can_bar(info: TensorInfo | None, opset: int, op: Barrier = "Max") -> bool:
    """Return whether a tensor of this type can have a barrier: not all runtimes have ``Max`` of 8- and 16-bit integers.

    Args:
        info: The type and shape of the tensor; ``None`` if unknown.
        opset: The operator set of the default domain.
        op: The operator that is the barrier; ``output`` marks a graph output.
    """
    kind, size = ("", 0) if info is None else (info.dtype.kind, info.dtype.itemsize)
    if op == "output":
        return info is not None
    if op == "Einsum":
        rank = len(info.shape) if info is not None and info.shape is not None else 0
        return 0 < rank <= len(ascii_lowercase) and opset >= 12 and kind in ("f", "i") and size >= 4
    return (kind == "f" and opset >= 8) or (kind in ("i", "u") and size >= 4 and opset >= 12)


def with_barriers(
    network: Network, names: Collection[str], ranks: Mapping[str, int] | None = None
) -> onnx.ModelProto:
    """Return the model with a barrier behind each of some tensors ``t``, which their readers read instead.

    The maximum of a value and itself, ``Max(t, t)``, is that value, NaN too, in any precision, and
    no runtime removes it. Names of tensors do not change.

    Args:
        network: The model.
        names: The tensors.
        ranks: Their numbers of dimensions, for barriers ``Einsum(t)`` that keep each dimension;
            ``None`` for ``Max(t, t)``.
    """
    barred = {name: free_name(f"{name}/barrier", network.names) for name in names}

    def barriers(outputs: Iterable[str]) -> Iterator[onnx.NodeProto]:
        for name in outputs:
            if name in barred and ranks is not None:
                indices = ascii_lowercase[: ranks[name]]
                equation = f"{indices}->{indices}"
                yield helper.make_node(
                    "Einsum", [name], [barred[name]], name=barred[name], equation=equation
                )
            elif name in barred:
                yield helper.make_node("Max", [name, name], [barred[name]], name=barred[name])

    model = clone(network.proto)
    graph = model.graph
    del graph.node[:]
    graph.node.extend(barriers(network.inputs))
    # The file's order is kept where it is valid: runtimes break ties by it.
    for index in range(len(network.nodes)) if network.is_sorted else network.order:
        node = network.nodes[index]
        graph.node.append(
            rename_reads(node, barred) if barred.keys() & set(network.reads[index]) else node
        )
        graph.node.extend(barriers(network.made(index)))
    return model


_FP16_MAX = 65504.0
_MASKED = 6e4
"""fp16's largest number, and the replacement of a larger constant, with room for an added value."""
_SMALLEST = 2.0**-14
"""fp16's smallest normal number: values scaled to 1 by less could overflow."""
_NORMS = ("LayerNormalization", "InstanceNormalization", "BatchNormalization")
_BROADCAST_SINCE = 7
"""The first opset with NumPy's broadcasting, which the rules need."""
_SQUARE = "(Mul(v, v) | Pow(v, 2))"
_SUM = f"(ReduceMean({_SQUARE}) | ReduceSum({_SQUARE}) | ReduceSumSquare(v))"
_PLUS = f"Add(t := {_SUM}, k) | (t := {_SUM})"
_ROOT = f"Sqrt({_PLUS}) | Pow({_PLUS}, 0.5) | (t := ReduceL2(v))"
_NORM = f"Div(v := Sub(x, m := ReduceMean(x)), Sqrt(Add(t := ReduceMean({_SQUARE}), k) | (t := ReduceMean({_SQUARE}))))"


def _mask(view: NetworkView, index: int) -> Fragment | None:
    """Replace constants past fp16's largest number: -1e9 becomes -6e4.

    The result is the same behind a softmax, where such constants mask values.
    """
    node = view.network.nodes[index]
    if node.op_type not in ("Add", "Sub", "Where", "Mul", "Clip", "Max", "Min", "Expand"):
        return None
    inputs: list[str | Array] = list(node.input)
    for place, name in enumerate(node.input):
        value = view.value(name) if name else None
        if value is not None and value.dtype == np.float32:
            past = np.isfinite(value) & (np.abs(value) > _FP16_MAX)
            if past.any():
                inputs[place] = np.where(past, np.sign(value) * np.float32(_MASKED), value).astype(
                    np.float32
                )
    if all(isinstance(value, str) for value in inputs):
        return None
    fragment = Fragment(view, index)
    fragment.op(node.op_type, *inputs, last=True, like=node)
    return fragment


def _scaled_square(view: NetworkView, index: int) -> Fragment | None:
    """Scale values before a root of a sum or mean of squares: ``s * sqrt(mean((x/s)^2) + e/s^2)``; ``ReduceL2`` too.

    Each square is at most 1, so nothing overflows where the root itself does not (as in ``hypot``;
    J. Blue, "A portable Fortran program to find the Euclidean norm of a vector", 1978).
    """
    match = view.match(index, _ROOT)
    axes = view.axes(match["t"]) if match else None
    if match is None or axes is None or not view.is_float(match["v"]):
        return None
    small = view.scalar(match["k"]) if "k" in match.tensors else 0.0
    if small is None or not 0 <= small < 1:
        return None
    by = "ReduceMean" if view.makes(match["t"], "ReduceMean") is not None else "ReduceSum"
    fragment = Fragment(view, index, match.nodes)
    value = match["v"]
    # Rows of zeros must not divide by zero.
    floor = max(math.sqrt(small), _SMALLEST)
    largest = fragment.op(
        "Max", fragment.reduce("ReduceMax", fragment.op("Abs", value), axes), floor
    )
    part = fragment.op("Div", value, largest)
    total = fragment.reduce(by, fragment.op("Mul", part, part), axes)
    if small:
        ratio = fragment.op("Div", math.sqrt(small), largest)
        total = fragment.op("Add", total, fragment.op("Mul", ratio, ratio))
    fragment.op("Mul", fragment.op("Sqrt", total), largest, last=True)
    return fragment


def _layer_norm(view: NetworkView, index: int) -> Fragment | None:
    """Replace a layer normalization over the last axes by the operator (opset 17 and later)."""
    match = view.match(index, _NORM) if view.opset >= 17 else None
    shape = view.shape(match["x"]) if match else None
    if match is None or shape is None or not view.is_float(match["x"]):
        return None
    rank = len(shape)
    small = view.scalar(match["k"]) if "k" in match.tensors else 0.0
    averaged = view.axes(match["m"])
    squared = view.axes(match["t"])
    if averaged is None or squared is None or small is None:
        return None
    axes = sorted(axis % rank for axis in squared)
    # LayerNormalization takes all axes from one on.
    if sorted(axis % rank for axis in averaged) != axes or axes != list(range(axes[0], rank)):
        return None
    fragment = Fragment(view, index, match.nodes)
    ones = np.ones(shape[axes[0] :], np.float32)
    fragment.op(
        "LayerNormalization", match["x"], ones, last=True, axis=axes[0] - rank, epsilon=small
    )
    return fragment


def _mean_of_parts(view: NetworkView, index: int) -> Fragment | None:
    """Divide values before a sum, in a mean or a sum that is divided by a constant, so that no sum exceeds the mean."""
    match = view.match(
        index, "Div(t := ReduceSum(x), k) | Mul(t := ReduceSum(x), k) | (t := ReduceMean(x))"
    )
    axes = view.axes(match["t"]) if match else None
    if match is None or axes is None or not view.is_float(match["x"]):
        return None
    if "k" in match.tensors:
        by = view.scalar(match["k"])
        if not by or len(view.shape(match["k"]) or ()) > 1:
            return None
        factor = by if view.network.nodes[index].op_type == "Mul" else 1 / by
    else:
        shape = view.shape(match["x"])
        count = math.prod(shape[axis] for axis in axes) if shape else 0
        factor = 1 / count if count else math.inf
    # A factor above 1 would enlarge each part, and overflow earlier.
    if abs(factor) > 1:
        return None
    fragment = Fragment(view, index, match.nodes)
    fragment.reduce("ReduceSum", fragment.op("Mul", match["x"], float(factor)), axes, last=True)
    return fragment


def _power(view: NetworkView, index: int) -> Fragment | None:
    """Replace a power by a constant by products or roots, which no pattern for ``Pow`` matches."""
    match = view.match(index, "Pow(x, k)")
    if match is None or not view.is_float(match["x"]) or len(view.shape(match["k"]) or ()) > 1:
        return None
    fragment = Fragment(view, index)
    base = match["x"]
    by = view.scalar(match["k"])
    if by == 2:
        fragment.op("Mul", base, base, last=True)
    elif by == 3:
        fragment.op("Mul", fragment.op("Mul", base, base), base, last=True)
    elif by == 0.5:
        fragment.op("Sqrt", base, last=True)
    elif by == -0.5:
        fragment.op("Reciprocal", fragment.op("Sqrt", base), last=True)
    elif by == -1:
        fragment.op("Reciprocal", base, last=True)
    else:
        return None
    return fragment


def _norm_in_parts(view: NetworkView, index: int) -> Fragment | None:
    """Replace a norm of layers, instances or batches by others that compute the same."""
    node = view.network.nodes[index]
    shape = view.shape(node.input[0]) if node.input else None
    if node.op_type not in _NORMS or shape is None or not view.is_float(node.input[0]):
        return None
    if attribute(node, "training_mode", 0) or any(
        view.network.consumers.get(name) or name in view.network.returned
        for name in node.output[1:]
        if name
    ):
        # The mean and the deviation are read too.
        return None
    fragment = Fragment(view, index)
    rank = len(shape)
    of_layer = node.op_type == "LayerNormalization"
    # (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e): the mean is subtracted before it is squared.
    axes = range(attribute(node, "axis", -1) % rank if of_layer else 2, rank)
    value = node.input[0]
    by_channel = np.array([-1, *[1] * (rank - 2)], np.int64)
    parameters = [
        name if of_layer else fragment.op("Reshape", name, by_channel)
        for name in filter(None, node.input[1:])
    ]
    scale, *bias = parameters[:2]
    # A norm of batches reads both.
    mean, *stored = parameters[2:] or [fragment.reduce("ReduceMean", value, axes)]
    centred = fragment.op("Sub", value, mean)
    variance, *_ = stored or [
        fragment.reduce("ReduceMean", fragment.op("Mul", centred, centred), axes)
    ]
    shifted = fragment.op("Add", variance, float(attribute(node, "epsilon", 1e-5)))
    normed = fragment.op("Div", centred, fragment.op("Sqrt", shifted))
    scaled = fragment.op("Mul", normed, scale, last=not bias)
    if bias:
        fragment.op("Add", scaled, *bias, last=True)
    return fragment


Rule = Callable[[NetworkView, int], Fragment | None]
RULES: dict[str, tuple[str, Rule]] = {
    "layer-norm": ("as LayerNormalization", _layer_norm),
    "mask": ("with its constant within fp16's range", _mask),
    "mean-of-parts": ("divided before it is summed", _mean_of_parts),
    "scaled-square": (
        "with their input scaled by its largest value before the square",
        _scaled_square,
    ),
}
"""The change in words, and the function that returns the replacement of a match that ends at a
node; the cheapest form first."""
ALL_RULES: dict[str, tuple[str, Rule]] = {
    **RULES,
    "norm-in-parts": ("in the operators that they are made of", _norm_in_parts),
    "power": ("as products or roots", _power),
}
"""Those above, which keep values in the range of fp16, and those that only have other operators."""


def matches(view: NetworkView, name: str) -> list[Fragment]:
    """Return the replacements of a rule, in topological order; no two define the same tensor."""
    if view.opset < _BROADCAST_SINCE:
        return []
    network = view.network
    searched = (index for index in network.order if not network.constant[index])
    standard = (index for index in searched if network.nodes[index].domain in DEFAULT_DOMAINS)
    _, rule = ALL_RULES[name]
    return [fragment for index in standard if (fragment := rule(view, index)) is not None]


def disjoint(matched: Mapping[str, Sequence[Fragment]]) -> dict[str, list[Fragment]]:
    """Return the replacements of each rule without those that share a node with an earlier one, and no rule without any."""
    replaced: set[int] = set()
    selected: dict[str, list[Fragment]] = {}
    for name, fragments in matched.items():
        for fragment in fragments:
            if replaced.isdisjoint(fragment.matched):
                replaced |= fragment.matched
                selected.setdefault(name, []).append(fragment)
    return selected
