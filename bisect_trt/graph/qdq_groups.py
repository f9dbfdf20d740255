"""Quantized pairs around one operator, and around those that share a pair with it: what goes back to floats together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import bodies, label
from bisect_trt.graph.qdq import (
    MOVES,
    SAME_SCALE,
    Group,
    Pair,
    PairFinder,
    Quantized,
    Sets,
    is_dequantize,
    is_inside,
    is_quantize,
    quantizing_functions,
)

_COMPUTES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention", "LSTM", "GRU")
HUB = 4
"""What more operators read (an attention mask of all layers) belongs to none of them."""


def find_quantized(network: Network) -> Quantized:
    """The pairs of a model's main graph, and their groups."""
    finder = PairFinder(network)
    pairs = finder.pairs()
    functions = quantizing_functions(network.proto)
    for index, node in enumerate(network.nodes):
        if (node.domain, node.op_type) in functions:
            finder.left[index] = (
                f"{network.describe(index)} has them in its function, which is not looked into; put the functions' nodes in "
                "their calls' places (onnx.inliner.inline_local_functions) and give that model"
            )
        elif any(is_inside(body.node, functions) for body in bodies(node)):
            finder.left[index] = f"{network.describe(index)} has them in its body, which is not looked into"
    return Quantized(tuple(_Grouping(network).groups(pairs)), finder.left)


class _Grouping:
    def __init__(self, network: Network) -> None:
        self._network = network

    def groups(self, pairs: Sequence[Pair]) -> Iterator[Group]:
        """All of them, each named after the operator that computes with it."""
        network = self._network
        computing = [self._computing(pair) for pair in pairs]
        sets = self._joined(pairs, computing)
        members: defaultdict[int, list[int]] = defaultdict(list)
        for place in range(len(pairs)):
            members[sets.find(place)].append(place)
        for places in members.values():
            operators = {each for place in places for each in computing[place]}
            ranked = sorted(operators, key=lambda i: (network.nodes[i].op_type not in _COMPUTES, network.rank[i]))
            hub = len(places) == 1 and len(operators) > HUB
            name = label(network.nodes[ranked[0]]) if ranked and not hub else pairs[places[0]].tensor
            yield Group(name, tuple(pairs[place] for place in places), tuple(ranked))

    def _joined(self, pairs: Sequence[Pair], computing: Sequence[Sequence[int]]) -> Sets:
        """Which pairs are in one group."""
        sets = Sets()
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
        """Who computes with what a pair makes, past what only moves it on."""
        network, found = self._network, set[int]()
        waiting = [name for index in pair.dequantize for name in network.made(index)]
        while waiting:
            for index in network.consumers.get(waiting.pop(), ()):
                node = network.nodes[index]
                if is_quantize(node) or is_dequantize(node):
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

    def _join_maker(self, pair: Pair, place: int, readers: Mapping[int, Sequence[int]], sets: Sets) -> None:
        """What nobody computes with, such as an output, belongs to who computes it."""
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
            if not is_quantize(node) and not is_dequantize(node):
                waiting += node.input[:1]
