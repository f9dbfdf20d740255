"""Patterns of operators in a network, and copies of it with others in their place or with fusion barriers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bisect_trt.onnxlib.lower_plan import LOW_TYPES
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    add_initializers,
    attribute,
    clone,
    free_name,
    held,
    keep_only,
    reads,
    rename_reads,
)
from bisect_trt.tensors.info import TensorInfo

Array = NDArray[Any]
_SMALL_BYTES = 1 << 20
"""Of a constant that a pattern looks at; larger ones are weights."""
_COMMUTE = ("Add", "Mul")


@dataclass(frozen=True)
class Match:
    """Where a pattern was found.

    Attributes:
        tensors: The tensors that its names stand for.
        nodes: The nodes of it, by number.
    """

    tensors: Mapping[str, str] = field(default_factory=dict)
    nodes: frozenset[int] = frozenset()

    def __getitem__(self, name: str) -> str:
        return self.tensors[name]


class NetworkView:
    """A network as patterns see it.

    Attributes:
        network: The model.
        opset: Of the standard operators.
    """

    def __init__(self, network: Network) -> None:
        """Read the opset."""
        self.network = network
        self.opset = next((o.version for o in network.proto.opset_import if o.domain in DEFAULT_DOMAINS), 1)

    def node(self, index: int) -> onnx.NodeProto:
        """A node."""
        return self.network.nodes[index]

    def maker(self, name: str) -> onnx.NodeProto:
        """The node that makes a tensor of a match."""
        return self.node(self.network.producer[name])

    def makes(self, name: str, *ops: str) -> int | None:
        """The node that makes a tensor, if it is one of these standard operators."""
        index = self.network.producer.get(name)
        if index is None:
            return None
        node = self.node(index)
        return index if node.op_type in ops and node.domain in DEFAULT_DOMAINS else None

    def match(self, index: int, pattern: str) -> Match | None:
        """Where a pattern ends in a node's first output, if it does.

        Args:
            index: The node.
            pattern: An expression such as ``Div(1, Add(1, Exp(x)))``: a call is an operator with its first inputs, in either
                order if it commutes; a number, a constant scalar; a name, any tensor, the same wherever it stands, and ``k`` a
                constant scalar; ``t := Exp(x)`` names what is matched, and ``a | b`` takes either.
        """
        made = self.network.made(index)
        return next(self._found(_parsed(pattern), made[0], Match()), None) if made else None

    def _found(self, pattern: ast.expr, name: str, so_far: Match) -> Iterator[Match]:
        if isinstance(pattern, ast.Constant):
            if self.scalar(name) == pattern.value:
                yield so_far
        elif isinstance(pattern, ast.Name):
            known = so_far.tensors.get(pattern.id, name) == name
            if known and (pattern.id != "k" or self.scalar(name) is not None):
                yield Match({**so_far.tensors, pattern.id: name}, so_far.nodes)
        elif isinstance(pattern, ast.NamedExpr):
            for found in self._found(pattern.value, name, so_far):
                yield Match({**found.tensors, pattern.target.id: name}, found.nodes)
        elif isinstance(pattern, ast.BinOp):
            yield from self._found(pattern.left, name, so_far)
            yield from self._found(pattern.right, name, so_far)
        elif isinstance(pattern, ast.Call) and isinstance(pattern.func, ast.Name):
            yield from self._call(pattern.func.id, pattern.args, name, so_far)

    def _call(self, op: str, arguments: Sequence[ast.expr], name: str, so_far: Match) -> Iterator[Match]:
        index = self.makes(name, op)
        if index is not None and len(inputs := list(self.node(index).input)) >= len(arguments):
            with_it = Match(so_far.tensors, so_far.nodes | {index})
            for order in (inputs, inputs[::-1])[: 1 + (op in _COMMUTE)]:
                yield from self._all(arguments, order, with_it)

    def _all(self, patterns: Sequence[ast.expr], names: Sequence[str], so_far: Match) -> Iterator[Match]:
        if not patterns:
            yield so_far
            return
        for found in self._found(patterns[0], names[0], so_far):
            yield from self._all(patterns[1:], names[1:], found)

    def value(self, name: str) -> Array | None:
        """The value of a small constant."""
        tensor = self.network.initializers.get(name)
        if tensor is None:
            index = self.makes(name, "Constant", "Identity", "Cast")
            if index is None:
                return None
            node = self.node(index)
            if node.op_type != "Constant":
                value = self.value(node.input[0])
                if value is None or node.op_type == "Identity":
                    return value
                to = attribute(node, "to")
                return value.astype(helper.tensor_dtype_to_np_dtype(to)) if to not in LOW_TYPES.values() else None
            tensor = held(node)
        if tensor is None or tensor.external_data or tensor.ByteSize() > _SMALL_BYTES:
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def scalar(self, name: str) -> float | None:
        """The value of a constant that is one number."""
        value = self.value(name)
        known = value is not None and value.size == 1 and value.dtype.kind in "fiu"
        return float(value.reshape(-1)[0]) if known and value is not None else None

    def info(self, name: str) -> TensorInfo | None:
        """Type and shape of a tensor, as far as they are known."""
        return self.network.infos.get(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, if all of it is known."""
        info = self.info(name)
        if info is None or info.shape is None or not info.is_static:
            return None
        return tuple(int(dim or 0) for dim in info.shape)

    def is_float(self, name: str) -> bool:
        """Whether a tensor is known to be float32."""
        info = self.info(name)
        return info is not None and info.dtype == np.float32

    def axes(self, name: str, *, kept: bool = True) -> list[int] | None:
        """The axes that the reduction goes over which makes a tensor.

        Returns:
            The axes; ``None`` where they are all, or not constant, or not ``kept`` as dimensions of 1 where that is asked for.
        """
        node = self.maker(name)
        named = attribute(node, "axes")
        if named is None and len(node.input) > 1 and node.input[1]:
            value = self.value(node.input[1])
            named = None if value is None else value.reshape(-1).tolist()
        if named is None or (kept and not attribute(node, "keepdims", 1)):
            return None
        return [int(axis) for axis in named]


@cache
def _parsed(pattern: str) -> ast.expr:
    return ast.parse(pattern, mode="eval").body


@dataclass
class Fragment:
    """Nodes and constants that take the place of some nodes.

    Attributes:
        view: The graph.
        anchor: The node that makes the first of the results, behind which nothing of the pattern stands.
        matched: All nodes of the pattern; those whose results nothing reads any more go.
        aliases: Tensors that are read in place of others.
        nodes: The new nodes.
        constants: The new initializers.
    """

    view: NetworkView
    anchor: int
    matched: frozenset[int] = frozenset()
    aliases: dict[str, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Include the anchor in the pattern."""
        self.matched |= {self.anchor}
        self._stem = next(iter(self.view.network.made(self.anchor)))

    @property
    def made(self) -> str:
        """The result: what the anchor makes first."""
        return self._stem

    def op(
        self,
        op: str,
        *inputs: str | Array | float,
        last: bool = False,
        like: onnx.NodeProto | None = None,
        **attributes: Any,  # noqa: ANN401 - of many types
    ) -> str:
        """Add a node.

        Args:
            op: A standard operator.
            inputs: Tensors by name, or constants; numbers are float32. An empty name leaves an optional input out.
            last: Whether it makes the pattern's result.
            like: A node whose attributes it has too.
            attributes: Its own attributes.

        Returns:
            The tensor that it makes.
        """
        stem = f"{self._stem}/rewritten_{len(self.nodes)}_{op}"
        made = self._stem if last else self._fresh(stem)
        names = [self._named(each) for each in inputs]
        node = helper.make_node(op, names, [made], name=self._fresh(f"{stem}/node"), **attributes)
        node.attribute.extend(each for each in (like.attribute if like else ()) if each.name not in attributes)
        self.nodes.append(node)
        return made

    def reduce(self, op: str, value: str, axes: Sequence[int], *, last: bool = False) -> str:
        """Add a reduction that keeps the dimensions; its axes are an attribute or an input, as the opset has it."""
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


Rule = Callable[[NetworkView, int], "Fragment | None"]
"""Given a node at which its pattern may end: what takes the pattern's place."""


def splice_in(view: NetworkView, fragments: Iterable[Fragment]) -> onnx.ModelProto:
    """The model with fragments in the place of what they match; no two may redefine the same tensor.

    Messages of all other nodes are the original's own.
    """
    network, chosen = view.network, {fragment.anchor: fragment for fragment in fragments}
    aliases = {name: other for fragment in chosen.values() for name, other in fragment.aliases.items()}
    final = {name: _follow(aliases, name) for name in aliases}
    maybe = {index for fragment in chosen.values() for index in fragment.matched}
    nodes: list[onnx.NodeProto] = []
    read = set(network.outputs)
    for index in reversed(range(len(network.nodes)) if network.is_sorted else network.order):
        node = network.nodes[index]
        if index in chosen:
            new = chosen[index].nodes
        elif index in maybe and read.isdisjoint(node.output):
            continue
        else:
            new = [rename_reads(node, final) if final and final.keys() & reads(node) else node]
        for each in reversed(new):
            read.update(reads(each))
            nodes.append(each)
    model = clone(network.proto)
    graph = model.graph
    keep_only(graph.node, nodes[::-1])
    # What is listed as an input too would have to be fed if its value were gone.
    read.update(value.name for value in graph.input)
    keep_only(graph.initializer, [t for t in graph.initializer if t.name in read or t.name not in network.consumers])
    add_initializers(model, (tensor for fragment in chosen.values() for tensor in fragment.constants))
    made = {name for node in nodes for name in node.output}
    keep_only(graph.value_info, [value for value in graph.value_info if value.name in made])
    return model


def _follow(aliases: Mapping[str, str], name: str) -> str:
    while name in aliases:
        name = aliases[name]
    return name


_SINCE = {"f": 8, "i": 12, "u": 12}
"""From which opset on ``Max`` takes values of this kind, and as many as one likes."""


def can_bar(info: TensorInfo | None, opset: int) -> bool:
    """Whether there is a barrier for a tensor of this type: ``Max`` takes no integers under 32 bits everywhere."""
    if info is None or info.dtype.kind not in _SINCE or opset < _SINCE[info.dtype.kind]:
        return False
    return info.dtype.kind == "f" or info.dtype.itemsize >= 4


def with_barriers(network: Network, names: Collection[str]) -> onnx.ModelProto:
    """The model with a barrier behind each of some tensors: ``Max(t, t)``, which their readers read instead.

    Element by element the greater of a value and itself is that value, NaN too, in any precision, and no runtime looks
    through it. Names of the tensors stay, also where they are outputs.

    Args:
        network: The model; it is not changed.
        names: Inputs of the graph, or tensors that nodes make.
    """
    barred = {name: free_name(f"{name}/barrier", network.names) for name in names}

    def barriers(made: Iterable[str]) -> Iterator[onnx.NodeProto]:
        for name in made:
            if name in barred:
                yield helper.make_node("Max", [name, name], [barred[name]], name=barred[name])

    model = clone(network.proto)
    graph = model.graph
    del graph.node[:]
    graph.node.extend(barriers(network.inputs))
    for index in range(len(network.nodes)) if network.is_sorted else network.order:
        node = network.nodes[index]
        graph.node.append(rename_reads(node, barred) if barred.keys() & set(network.reads[index]) else node)
        graph.node.extend(barriers(network.made(index)))
    return model
