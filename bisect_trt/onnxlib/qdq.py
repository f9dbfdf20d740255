"""Where a model is quantized: its QuantizeLinear/DequantizeLinear pairs, and their groups around operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx
from onnx import TensorProto

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import all_nodes, attribute, bodies, held, inner_nodes, label

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_DOMAINS = ("", "ai.onnx", "com.microsoft")
"""ONNX Runtime has the same two operators in a domain of its own, for types that older operator sets lack."""
MOVES = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Split", "Dropout", "Cast"}
)
"""What only moves values on to whoever computes with them."""
SAME_SCALE = MOVES | {
    "MaxPool",
    "Concat",
    "Gather",
    "Pad",
    "Resize",
    "Tile",
    "Expand",
    "DepthToSpace",
    "SpaceToDepth",
}
"""What makes no new values, so that quantizers give its ends one scale."""
_INTEGER_MOVES = SAME_SCALE - {"Cast"}
TYPES = {
    "int8": ("int8", "uint8", "int16", "uint16"),
    "fp8": ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz"),
    "int4": ("int4", "uint4", "int2", "uint2", "float4e2m1"),
}
"""Quantized types, by the option that they are asked for by."""
Kind = Literal["activation", "weight", "bias"]


@dataclass(frozen=True)
class Pair:
    """A tensor that is quantized: its QuantizeLinear and DequantizeLinear nodes, by their numbers.

    Attributes:
        tensor: The float tensor that is quantized; for a weight that is stored quantized, the stored tensor.
        kind: What it is.
        quantize: The nodes that quantize it; none for a weight that is stored quantized.
        dequantize: The nodes that make floats of it again.
        scale: The scale's tensor, of the first of these nodes.
        zero_point: The zero point's tensor; ``None`` for 0.
        element: ONNX's element type of the quantized values.
        axis: Along which each slice has a scale of its own; of no meaning for one scale.
        block: How many elements along it share one; 0 for a whole slice.
        clip: The least and the largest value that it lets through, where it is an activation function too: Relu, or Clip.
    """

    tensor: str
    kind: Kind
    quantize: tuple[int, ...]
    dequantize: tuple[int, ...]
    scale: str
    zero_point: str | None
    element: int
    axis: int = 1
    block: int = 0
    clip: tuple[float, float | None] | None = None

    @property
    def nodes(self) -> tuple[int, ...]:
        """All of its nodes."""
        return (*self.quantize, *self.dequantize)

    @property
    def type_name(self) -> str:
        """The quantized type, as ``int8``."""
        return str(TensorProto.DataType.Name(self.element)).lower()


@dataclass(frozen=True)
class Group:
    """Pairs that are removed together: those around an operator, and around others that share one with it.

    Attributes:
        name: Its operator; without one, its first tensor.
        pairs: In the order of the file.
        operators: Who computes with what they make, by number, those that multiply first.
    """

    name: str
    pairs: tuple[Pair, ...]
    operators: tuple[int, ...]

    @property
    def rung(self) -> str:
        """What its quantized types are asked for by."""
        found = next((pair.type_name for pair in self.pairs if pair.kind != "bias"), "")
        return next((bits for bits, names in TYPES.items() if found in names), "int8")

    @property
    def types(self) -> frozenset[int]:
        """The quantized types in it, without those of biases, which are sums of products."""
        return frozenset(pair.element for pair in self.pairs if pair.kind != "bias")


@dataclass(frozen=True)
class Quantized:
    """All of it.

    Attributes:
        groups: In topological order.
        left: Nodes that quantize or dequantize, or whose bodies or functions do, and are in no pair, with the reason of each.
    """

    groups: tuple[Group, ...]
    left: Mapping[int, str] = field(default_factory=dict)


def is_quantize(node: onnx.NodeProto) -> bool:
    """Whether a node is a QuantizeLinear."""
    return node.op_type == QUANTIZE and node.domain in _DOMAINS


def is_dequantize(node: onnx.NodeProto) -> bool:
    """Whether a node is a DequantizeLinear."""
    return node.op_type == DEQUANTIZE and node.domain in _DOMAINS


def _is_end(node: onnx.NodeProto) -> bool:
    return is_quantize(node) or is_dequantize(node)


def has_quantized(model: onnx.ModelProto) -> bool:
    """Whether something quantizes or dequantizes, in a body or in a function too."""
    return any(map(_is_end, all_nodes(model)))


class _Sets(dict[int, int]):
    """Disjoint sets of numbers (union and find): by number, another of its set or itself."""

    def find(self, one: int) -> int:
        """The number that stands for its set."""
        parent = self.setdefault(one, one)
        if parent != one:
            parent = self[one] = self.find(parent)
        return parent

    def join(self, one: int, other: int) -> None:
        """Make one set of two."""
        first, second = sorted((self.find(one), self.find(other)))
        self[second] = first

    def members(self, numbers: Iterable[int]) -> list[list[int]]:
        """The sets, each in the order of the numbers."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for number in numbers:
            found[self.find(number)].append(number)
        return list(found.values())


class _Pairs:
    """Finds the pairs of a model's main graph.

    Attributes:
        left: Nodes that quantize or dequantize and are in no pair, with the reason of each.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.left: dict[int, str] = {}

    def pairs(self) -> list[Pair]:
        """The pairs: nodes that are connected by quantized tensors, through what only moves them."""
        network, sets = self._network, _Sets()
        whole: dict[int, str | None] = {}  # of a node, why its pair cannot be removed
        ends = [index for index in network.order if _is_end(network.nodes[index])]
        for index in ends:
            node = network.nodes[index]
            found, why = self._readers(node.output[0]) if is_quantize(node) else self._makers(node.input[0])
            whole[index] = why
            for other in found:
                sets.join(index, other)
        pairs = []
        for nodes in sets.members(ends):
            problem = next((why for index in nodes if (why := whole[index]) is not None), None)
            if problem is None and any(is_dequantize(network.nodes[index]) for index in nodes):
                pairs.append(self._pair(nodes))
            else:
                self.left |= dict.fromkeys(nodes, problem or "nobody dequantizes what it makes")
        return pairs

    def _readers(self, name: str) -> tuple[list[int], str | None]:
        """The nodes that dequantize a quantized tensor, and why they and it are no pair, if so."""
        network, found, why = self._network, [], None
        if name in network.outputs:
            why = f"the quantized tensor '{name}' is an output of the model"
        for index in network.consumers.get(name, ()):
            node = network.nodes[index]
            if is_dequantize(node) and node.input[0] == name:
                found.append(index)
            elif node.op_type in _INTEGER_MOVES and name in node.input[: 1 if node.op_type != "Concat" else None]:
                more = [self._readers(made) for made in network.made(index)]
                found += [each for readers, _ in more for each in readers]
                why = why or next((other for _, other in more if other), None)
            else:
                why = why or f"{network.describe(index)} computes with the quantized values"
        return found, why

    def _makers(self, name: str) -> tuple[list[int], str | None]:
        """The nodes that quantize what is dequantized, none for a stored tensor; and why they are no pair, if so."""
        network = self._network
        maker = network.producer.get(name)
        if maker is None:
            stored = name in network.initializers
            return [], None if stored else f"'{name}' is quantized before it comes into the model"
        node = network.nodes[maker]
        if is_quantize(node):
            return [maker], None
        if network.constant[maker]:
            return [], None
        if node.op_type in _INTEGER_MOVES:
            some = node.input if node.op_type == "Concat" else node.input[:1]
            more = [self._makers(each) for each in some]
            stored = any(not makers and why is None for makers, why in more)
            what = f"{network.describe(maker)} takes it from what is stored quantized" if stored else None
            return [each for makers, _ in more for each in makers], next((why for _, why in more if why), what)
        return [], f"{network.describe(maker)} computes quantized values"

    def _pair(self, nodes: Sequence[int]) -> Pair:
        network = self._network
        quantize = tuple(index for index in nodes if is_quantize(network.nodes[index]))
        dequantize = tuple(index for index in nodes if is_dequantize(network.nodes[index]))
        node = network.nodes[(quantize or dequantize)[0]]
        scale, zero = node.input[1], node.input[2] if len(node.input) > 2 and node.input[2] else None
        element = self._element(node, zero)
        tensor = node.input[0]
        constant = not quantize or network.is_weight(tensor)
        kind: Kind = "bias" if element == TensorProto.INT32 else "weight" if constant else "activation"
        axis, block = attribute(node, "axis", 1), attribute(node, "block_size", 0)
        return Pair(tensor, kind, quantize, dequantize, scale, zero, element, axis, block)

    def _element(self, node: onnx.NodeProto, zero: str | None) -> int:
        """The quantized type: the zero point's, else as the attribute says, else as stored."""
        told = int(attribute(node, "output_dtype", 0))
        if is_quantize(node):
            return self._type_of(zero) or told or TensorProto.UINT8
        return self._type_of(node.input[0]) or self._type_of(zero) or TensorProto.UINT8

    def _type_of(self, name: str | None) -> int:
        network = self._network
        if name is None:
            return 0
        if name in network.initializers:
            return int(network.initializers[name].data_type)
        maker = network.producer.get(name)
        if maker is not None and (tensor := held(network.nodes[maker])) is not None:
            return int(tensor.data_type)
        return network.element_types.get(name, 0)


_COMPUTES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention", "LSTM", "GRU")
HUB = 4
"""What more operators read (an attention mask of all layers) belongs to none of them."""


def find_quantized(network: Network) -> Quantized:
    """The pairs of a model's main graph, and their groups."""
    finder = _Pairs(network)
    pairs = finder.pairs()
    functions: set[tuple[str, str]] = set()

    def inside(nodes: Iterable[onnx.NodeProto]) -> bool:
        return any(_is_end(node) or (node.domain, node.op_type) in functions for node in inner_nodes(nodes))

    while more := {(each.domain, each.name) for each in network.proto.functions if inside(each.node)} - functions:
        functions |= more
    for index, node in enumerate(network.nodes):
        if (node.domain, node.op_type) in functions:
            finder.left[index] = (
                f"{network.describe(index)} has them in its function, which is not looked into; put the functions' nodes in "
                "their calls' places (onnx.inliner.inline_local_functions) and give that model"
            )
        elif any(inside(body.node) for body in bodies(node)):
            finder.left[index] = f"{network.describe(index)} has them in its body, which is not looked into"
    return Quantized(tuple(_Grouping(network).groups(pairs)), finder.left)


class _Grouping:
    def __init__(self, network: Network) -> None:
        self._network = network

    def groups(self, pairs: Sequence[Pair]) -> Iterator[Group]:
        """All of them, each named after the operator that computes with it."""
        network = self._network
        computing = [self._computing(pair) for pair in pairs]
        for places in self._joined(pairs, computing).members(range(len(pairs))):
            operators = {each for place in places for each in computing[place]}
            ranked = sorted(operators, key=lambda i: (network.nodes[i].op_type not in _COMPUTES, network.rank[i]))
            hub = len(places) == 1 and len(operators) > HUB
            name = label(network.nodes[ranked[0]]) if ranked and not hub else pairs[places[0]].tensor
            yield Group(name, tuple(pairs[place] for place in places), tuple(ranked))

    def _joined(self, pairs: Sequence[Pair], computing: Sequence[Sequence[int]]) -> _Sets:
        """Which pairs are in one group."""
        sets = _Sets()
        quantizing = {index: place for place, pair in enumerate(pairs) for index in pair.quantize}
        readers: defaultdict[int, list[int]] = defaultdict(list)
        for place, operators in enumerate(computing):
            for operator in operators if len(operators) <= HUB else ():
                readers[operator].append(place)
        for places in readers.values():
            for place in places[1:]:
                sets.join(places[0], place)
        stored: dict[tuple[str, str], int] = {}
        for place, pair in enumerate(pairs):
            if not pair.quantize:  # a weight that is dequantized for each of its readers
                sets.join(stored.setdefault((pair.tensor, pair.scale), place), place)
            for other in self._alike(pair, pairs, quantizing, computing[place]):
                sets.join(place, other)
            if not computing[place]:
                self._join_maker(pair, place, readers, sets)
        return sets

    def _computing(self, pair: Pair) -> tuple[int, ...]:
        """The nodes that compute with what a pair makes, past what only moves it on."""
        network, found = self._network, set[int]()
        waiting = [name for index in pair.dequantize for name in network.made(index)]
        while waiting:
            for index in network.consumers.get(waiting.pop(), ()):
                node = network.nodes[index]
                if _is_end(node):
                    continue
                made = network.made(index)
                again = any(is_quantize(network.nodes[r]) for name in made for r in network.consumers.get(name, ()))
                if node.op_type in MOVES and not again and not set(made) & set(network.outputs):
                    waiting += made
                else:
                    found.add(index)
        return tuple(sorted(found))

    def _alike(
        self, pair: Pair, pairs: Sequence[Pair], quantizing: Mapping[int, int], operators: Sequence[int]
    ) -> Iterator[int]:
        """Pairs of the same values, by the same scale: quantized again, or moved in between."""
        network = self._network
        tensors = [pair.tensor]
        tensors += [name for i in operators if network.nodes[i].op_type in SAME_SCALE for name in network.made(i)]
        for name in tensors:
            for index in network.consumers.get(name, ()):
                other = quantizing.get(index)
                if other is not None and pairs[other].scale == pair.scale:
                    yield other

    def _join_maker(self, pair: Pair, place: int, readers: Mapping[int, Sequence[int]], sets: _Sets) -> None:
        """Join a pair that no node computes with, such as an output's, to those of the node that computes it."""
        waiting, seen = [pair.tensor], set[str]()
        while waiting:
            name = waiting.pop()
            maker = self._network.producer.get(name)
            if name in seen or maker is None:
                continue
            seen.add(name)
            if readers.get(maker):
                sets.join(readers[maker][0], place)
                return
            node = self._network.nodes[maker]
            if not _is_end(node):
                waiting += node.input[:1]
