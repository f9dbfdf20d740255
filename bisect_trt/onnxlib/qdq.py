"""QuantizeLinear/DequantizeLinear pairs of a model, their groups around operators, and the removal of pairs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import onnx
from msgspec import Struct
from onnx import TensorProto, helper

from bisect_trt.aliases import Fields, Sizes
from bisect_trt.onnxlib.cleanup import remove_unread
from bisect_trt.onnxlib.functions import inline_functions, opened
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    all_nodes,
    attribute,
    clone,
    containing,
    drop,
    is_dequantize,
    is_end,
    is_quantize,
    keep_only,
    label,
    last_alias,
    rename_reads,
)

MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Identity",
        "Slice",
        "Split",
        "Dropout",
        "Cast",
    }
)
"""Operators that only move values."""
SAME_SCALE = MOVES | {
    *(
        "MaxPool",
        "Concat",
        "ScatterElements",
        "ScatterND",
        "Gather",
        "Pad",
        "Resize",
        "Tile",
        "Expand",
        "DepthToSpace",
        "SpaceToDepth",
    )
}
"""Operators that make no new values, so that quantizers give their inputs and outputs one scale."""
_INTEGER_MOVES = SAME_SCALE - {"Cast"}
TYPES = {
    "int8": ("int8", "uint8", "int16", "uint16"),
    "fp8": ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz"),
    "int4": ("int4", "uint4", "int2", "uint2", "float4e2m1"),
}
"""Quantized types, by their option."""
Kind = Literal["activation", "weight", "bias"]


class Pair(Struct, frozen=True):
    """The QuantizeLinear and DequantizeLinear nodes of a quantized tensor, by number.

    Attributes:
        tensor: The float tensor; for a weight that is stored quantized, the stored tensor.
        kind: The kind of tensor.
        quantize: The QuantizeLinear nodes; none for a weight that is stored quantized.
        dequantize: The DequantizeLinear nodes.
        scale: The scale's tensor, of the first of these nodes.
        zero_point: The zero point's tensor; ``None`` for 0.
        element: ONNX's element type of the quantized values.
        axis: The axis of the scales, if there are several.
        block: The number of elements along it with one scale; 0 for a whole slice.
        clip: The largest value, for a pair that is an activation function too: 6 of Relu6, Inf of
            Relu.
    """

    tensor: str
    kind: Kind
    quantize: Sizes
    dequantize: Sizes
    scale: str
    zero_point: str | None
    element: int
    axis: int = 1
    block: int = 0
    clip: float | None = None

    @property
    def nodes(self) -> Sizes:
        """All of its nodes."""
        return (*self.quantize, *self.dequantize)

    @property
    def type_name(self) -> str:
        """The quantized type, as ``int8``."""
        return str(TensorProto.DataType.Name(self.element)).lower()


class Group(Struct, frozen=True):
    """Pairs that are removed together: those around an operator, and around operators with a common pair.

    Its name is the operator's, or without one the first tensor's. The operators compute with the
    pairs' outputs, multiplications first.
    """

    name: str
    pairs: tuple[Pair, ...]
    operators: Sizes

    @property
    def rung(self) -> str:
        """The option of its quantized types."""
        type_name = next((pair.type_name for pair in self.pairs if pair.kind != "bias"), "")
        return next((bits for bits, names in TYPES.items() if type_name in names), "int8")


class Quantized(Struct, frozen=True):
    """The quantized parts of a model: groups in topological order.

    Other nodes that quantize or dequantize, also in a body or function, are in ``left``, with the
    reason.
    """

    groups: tuple[Group, ...]
    left: Mapping[int, str] = {}


def has_quantized(model: onnx.ModelProto) -> bool:
    """Return whether any node quantizes or dequantizes, also in bodies and functions."""
    return any(map(is_end, all_nodes(model)))


def _components(items: Sequence[int], links: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the connected components of a graph, each in the order of its items."""
    part = {item: [item] for item in items}
    for first, partner in links:
        # Union by size: each item moves at most log2(n) times.
        small, large = sorted((part[first], part[partner]), key=len)
        if small is not large:
            large += small
            part |= dict.fromkeys(small, large)
    place = {item: at for at, item in enumerate(items)}
    for component in {id(members): members for members in part.values()}.values():
        yield sorted(component, key=place.__getitem__)


def _find_pairs(network: Network, unpaired: dict[int, str]) -> list[Pair]:
    """Return the pairs of a main graph: nodes connected by quantized tensors, through nodes that move values.

    Other nodes that quantize or dequantize go to ``unpaired``, with the reason.
    """
    ends = [index for index in network.order if is_end(network.nodes[index])]
    problems: dict[int, str | None] = {}
    links: list[tuple[int, int]] = []
    for index in ends:
        node = network.nodes[index]
        makes = is_quantize(node)
        partners, problems[index] = (
            _readers(network, node.output[0]) if makes else _makers(network, node.input[0])
        )
        # Fan-out makes several dequantizers of one tensor: they share one scale and are one pair.
        links += [(index, partner) for partner in partners]
    pairs = []
    for nodes in _components(ends, links):
        problem = next((reason for index in nodes if (reason := problems[index]) is not None), None)
        if problem is None and any(is_dequantize(network.nodes[index]) for index in nodes):
            pairs.append(_pair(network, nodes))
        else:
            unpaired |= dict.fromkeys(nodes, problem or "nothing dequantizes its output")
    return pairs


def _readers(network: Network, name: str) -> tuple[list[int], str | None]:
    """Return the nodes that dequantize a quantized tensor, and the reason if these are no pair."""
    dequantizing: list[int] = []
    problem = (
        f"the quantized tensor '{name}' is an output of the model"
        if name in network.returned
        else None
    )
    for index in network.consumers.get(name, ()):
        node = network.nodes[index]
        if is_dequantize(node) and node.input[0] == name:
            dequantizing.append(index)
        # Exporters leave Reshape and Transpose between the ends; integers pass through unchanged.
        elif node.op_type in _INTEGER_MOVES and name in _moved_inputs(node):
            for readers, reader_problem in (
                _readers(network, output) for output in network.made(index)
            ):
                dequantizing = dequantizing + readers
                problem = problem or reader_problem
        else:
            problem = problem or f"{network.describe(index)} computes with the quantized values"
    return dequantizing, problem


def _moved_inputs(node: onnx.NodeProto) -> Sequence[str]:
    """Return the inputs with the values that a node moves."""
    if node.op_type.startswith("Scatter"):
        return list(node.input[::2])
    return list(node.input) if node.op_type == "Concat" else list(node.input[:1])


def _makers(network: Network, name: str) -> tuple[list[int], str | None]:
    """Return the nodes that quantize a dequantized tensor, none for a stored one; and the reason if these are no pair."""
    maker = network.producer.get(name)
    if maker is None:
        return (
            [],
            None if name in network.initializers else f"'{name}' is a quantized input of the model",
        )
    node = network.nodes[maker]
    if is_quantize(node):
        return [maker], None
    if network.constant[maker]:
        return [], None
    if node.op_type not in _INTEGER_MOVES:
        return [], f"{network.describe(maker)} computes quantized values"
    sources = [_makers(network, tensor) for tensor in _moved_inputs(node)]
    # A move of weights and activations has no scale of its own that could be taken out.
    stored = any(not makers and problem is None for makers, problem in sources)
    mixed = f"{network.describe(maker)} moves it from a quantized weight" if stored else None
    return [index for makers, _ in sources for index in makers], next(
        (problem for _, problem in sources if problem), mixed
    )


def _pair(network: Network, nodes: Sequence[int]) -> Pair:
    quantize = tuple(index for index in nodes if is_quantize(network.nodes[index]))
    dequantize = tuple(index for index in nodes if is_dequantize(network.nodes[index]))
    # Of a cache, what is added to it tells more than what it begins with.
    node = network.nodes[(quantize or dequantize)[-1]]
    tensor = node.input[0]
    scale = node.input[1]
    zero = node.input[2] if len(node.input) > 2 and node.input[2] else None
    zero_type = _type_of(network, zero)
    types = (
        (zero_type, int(attribute(node, "output_dtype", 0)))
        if quantize
        else (_type_of(network, tensor), zero_type)
    )
    # Without a zero point ONNX quantizes to uint8.
    element = next(filter(None, types), TensorProto.UINT8)
    constant = not quantize or network.is_weight(tensor)
    kind: Kind = "bias" if element == TensorProto.INT32 else "weight" if constant else "activation"
    axis = attribute(node, "axis", 1)
    block = attribute(node, "block_size", 0)
    return Pair(tensor, kind, quantize, dequantize, scale, zero, element, axis, block)


def _type_of(network: Network, name: str | None) -> int:
    tensor = None if name is None else network.stored(name)
    return network.element_types.get(name or "", 0) if tensor is None else int(tensor.data_type)


def make_ends_float(model: onnx.ModelProto) -> None:
    """Make a model take and return floats where it takes and returns quantized values, so that the pairs of a cache are whole."""
    network = Network(model)
    graph = model.graph
    renamed: dict[str, str] = {}
    ends: list[onnx.NodeProto] = []
    for value in (*graph.input, *graph.output):
        name = value.name
        for index in (_readers(network, name)[0] + _makers(network, name)[0])[:1]:
            node = clone(network.nodes[index])
            value.type.tensor_type.elem_type = _type_of(network, node.input[1])
            node.name = f"{name}/quantized"
            renamed[name] = node.name
            taken = name in network.inputs
            node.op_type = "QuantizeLinear" if taken else "DequantizeLinear"
            (node.input if taken else node.output)[0] = name
            (node.output if taken else node.input)[0] = node.name
            drop(node.attribute, {"saturate", "output_dtype"})
            ends.append(node)
    nodes = [rename_reads(node, renamed) for node in graph.node]
    for node in nodes:
        node.output[:] = [renamed.get(name, name) for name in node.output]
    keep_only(graph.node, [*nodes, *ends])
    keep_only(graph.node, [graph.node[index] for index in Network(model).order])


_COMPUTES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention", "LSTM", "GRU")
HUB = 4
"""A tensor with more readers (an attention mask of all layers) belongs to none of them."""


def find_quantized(network: Network) -> Quantized:
    """Return the pairs of a model in groups, with the numbers of :attr:`~bisect_trt.onnxlib.network.Network.flat`."""
    network = network.flat
    unpaired: dict[int, str] = {}
    pairs = _find_pairs(network, unpaired)
    inside = containing(network.proto, is_end)
    for index, node in enumerate(network.nodes):
        if not is_end(node) and inside([node]):
            unpaired[index] = (
                f"{network.describe(index)} has Q/DQ nodes inside, which are not searched: its function cannot be inlined, or "
                "two bodies have a tensor of one name"
            )
    return Quantized(tuple(_groups(network, pairs)), unpaired)


def _groups(network: Network, pairs: Sequence[Pair]) -> Iterator[Group]:
    """Yield the groups, each named after its operator."""
    computing = [_computing(network, pair) for pair in pairs]
    for places in _components(range(len(pairs)), _group_links(network, pairs, computing)):
        operators = {operator for place in places for operator in computing[place]}
        # The multiplication names the group: users look for the Conv, not for the Add behind it.
        ranked = sorted(
            operators, key=lambda i: (network.nodes[i].op_type not in _COMPUTES, network.rank[i])
        )
        hub = len(places) == 1 and len(operators) > HUB
        name = label(network.nodes[ranked[0]]) if ranked and not hub else pairs[places[0]].tensor
        yield Group(name, tuple(pairs[place] for place in places), tuple(ranked))


def _group_links(
    network: Network, pairs: Sequence[Pair], computing: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield two pairs of one group each, by their places."""
    quantizing = {index: place for place, pair in enumerate(pairs) for index in pair.quantize}
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for place, operators in enumerate(computing):
        for operator in operators if len(operators) <= HUB else ():
            readers[operator].append(place)
    for places in readers.values():
        yield from ((places[0], place) for place in places[1:])
    stored: dict[tuple[str, str], int] = {}
    for place, pair in enumerate(pairs):
        # A weight that is dequantized for each of its readers.
        if not pair.quantize:
            yield stored.setdefault((pair.tensor, pair.scale), place), place
        for index in _receiving(network, pair, computing[place]):
            requantizing = quantizing.get(index)
            if requantizing is not None and pairs[requantizing].scale == pair.scale:
                yield place, requantizing
        if (
            not computing[place]
            and (maker := _computed_by(network, pair.tensor, readers)) is not None
        ):
            yield readers[maker][0], place


def _computing(network: Network, pair: Pair) -> Sizes:
    """Return the nodes that compute with a pair's outputs, past nodes that move values."""
    operators = set[int]()
    waiting = network.made_by(pair.dequantize)
    while waiting:
        for index in network.consumers.get(waiting.pop(), ()):
            node = network.nodes[index]
            outputs = network.made(index)
            if is_end(node):
                continue
            # A move between two pairs is a group of its own.
            again = any(is_quantize(network.nodes[r]) for r in network.readers_of(outputs))
            if node.op_type in MOVES and not again and network.returned.isdisjoint(outputs):
                waiting += outputs
            else:
                operators.add(index)
    return tuple(sorted(operators))


def _receiving(network: Network, pair: Pair, readers: Sequence[int]) -> list[int]:
    """Return the nodes that read a pair's values as they are, or moved by its readers."""
    moving = [index for index in readers if network.nodes[index].op_type in SAME_SCALE]
    names = (pair.tensor, *network.made_by(moving))
    return network.readers_of(names)


def _computed_by(network: Network, tensor: str, readers: Mapping[int, Sequence[int]]) -> int | None:
    """Return the nearest node before a tensor that computes with a pair's output."""
    while (maker := network.producer.get(tensor)) is not None and not readers.get(maker):
        node = network.nodes[maker]
        tensor = "" if is_end(node) or not node.input else node.input[0]
    return maker


Stored = Mapping[str, TensorProto]
"""Initializers by name."""


def unquantize(network: Network, pairs: Iterable[Pair], weights: Stored) -> onnx.ModelProto:
    """Return the model without some of its pairs and what only they read; other names do not change.

    Args:
        network: The quantized model. Its functions are inlined.
        pairs: The pairs to remove.
        weights: Float values of the weights that are stored quantized, by the name of the
            dequantized tensor.
    """
    model = clone(inline_functions(network.proto, ()))
    network = network.flat
    graphs = [model.graph, *(body for _, _, body in opened(model))]
    gone: set[int] = set()
    instead: dict[str, str] = {}
    passed: dict[int, Pair] = {}
    retyped: set[str] = set()
    for pair in pairs:
        gone.update(pair.nodes)
        for index in pair.quantize:
            node = network.nodes[index]
            instead[node.output[0]] = node.input[0]
            retyped.update(_moved_on(network, node.output[0]))
        for index in pair.dequantize if pair.quantize else ():
            node = network.nodes[index]
            if _needs_node(network, pair, node):
                passed[index] = pair
            else:
                instead[node.output[0]] = node.input[0]
    # Pairs in a row form chains of aliases; readers get the tensor at the start of the chain.
    final = {name: last_alias(instead, name) for name in instead}
    retyped.update(network.nodes[index].output[0] for index in gone.difference(passed))
    start = len(network.nodes)
    # The innermost first: a renamed node is a copy, with its bodies as they are then.
    for graph in reversed(graphs):
        start -= len(graph.node)
        numbered = [*enumerate(graph.node, start)]
        graph.initializer.extend(
            weights[node.output[0]]
            for index, node in numbered
            if index in gone and node.output[0] in weights
        )
        nodes = (
            _passed_on(network, passed[index], last_alias(instead, node.input[0]), node.output[0])
            if index in passed
            else [rename_reads(node, final)]
            for index, node in numbered
            if index in passed or index not in gone
        )
        keep_only(graph.node, chain.from_iterable(nodes))
        drop(graph.value_info, retyped)
    remove_unread(model)
    return model


def _moved_on(network: Network, name: str) -> list[str]:
    """Return a quantized tensor and the moved ones behind it, which become floats."""
    readers = [
        index
        for index in network.consumers.get(name, ())
        if not is_dequantize(network.nodes[index])
    ]
    return [
        name,
        *(
            moved
            for index in readers
            for output in network.made(index)
            for moved in _moved_on(network, output)
        ),
    ]


def _needs_node(network: Network, pair: Pair, node: onnx.NodeProto) -> bool:
    """Return whether a node takes the place of a pair: an output keeps its name, a tensor its type and its bounds."""
    ends = (network.nodes[pair.quantize[0]].input[0], node.output[0])
    types = {network.element_types[name] for name in ends if name in network.element_types}
    return node.output[0] in network.returned or pair.clip is not None or len(types) > 1


def _passed_on(network: Network, pair: Pair, name: str, to: str) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in place of a pair: its activation function, Cast or Identity."""
    before, after = (network.element_types.get(tensor, 0) for tensor in (name, to))
    steps: list[tuple[str, list[str], Fields]] = []
    if pair.clip is not None:
        steps.append(("Relu", [], {}))
        if math.isfinite(pair.clip):
            bound = f"{to}/bound"
            value = helper.make_tensor("value", before or TensorProto.FLOAT, [], [pair.clip])
            yield helper.make_node("Constant", [], [bound], name=bound, value=value)
            # Min is the same in all operator sets; Clip is not.
            steps.append(("Min", [bound], {}))
    if before and after and before != after:
        steps.append(("Cast", [], {"to": after}))
    if not steps and name != to:
        steps.append(("Identity", [], {}))
    for place, (op, bounds, attributes) in enumerate(steps, 1):
        output = to if place == len(steps) else f"{to}/{op}_output"
        yield helper.make_node(op, [name, *bounds], [output], name=f"{to}/{op}", **attributes)
        name = output
