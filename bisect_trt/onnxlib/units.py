"""The units of a search, patterns of units that belong together, and the neighbourhood of nodes.

A failure of a fused pattern needs all of its nodes, and a search that finds them one by one pays a bisection for each. So
when a unit that is needed does not fail alone, the pattern around it is tried as one unit before its parts are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from sys import intern

import onnx

from bisect_trt.onnxlib.network import Network
from bisect_trt.search.oracle import Subset
from bisect_trt.tensors.info import TensorInfo

LARGEST_PATTERN = 24
"""Units. A decomposed LayerNorm has 7 to 9, an attention core or a residual block of a ResNet about 12."""


class Patterns:
    """The patterns of a network, as windows of its searched units.

    Two kinds of window count. A module scope: neighbours whose names begin alike, up to a slash
    (``/blocks.6/norm1/Pow``, as PyTorch's exporter names nodes). And a region with a narrow entry and a narrow exit:
    neighbours between two places of the order that fewer live tensors cross than any place between them, which is what a
    residual branch, a decomposed norm, softmax or GELU looks like whatever its names and operators.
    """

    def __init__(self, network: Network, searched: Sequence[int]) -> None:
        """``searched`` are the units of a search, in topological order."""
        self._searched = list(searched)
        self._scopes = [intern(network.nodes[network.order[unit]].name.rpartition("/")[0]) for unit in self._searched]
        self._widths = crossing_widths(network, self._searched)

    def around(self, unit: int) -> Subset:
        """The largest pattern around a unit that is not too large; the unit alone if there is none."""
        place = bisect_left(self._searched, unit)
        windows = [*self._scope_windows(place), *self._narrow_windows(place)]
        fitting = [(start, stop) for start, stop in windows if 1 < stop - start <= LARGEST_PATTERN]
        start, stop = max(fitting, key=lambda window: window[1] - window[0], default=(place, place + 1))
        return frozenset(self._searched[start:stop])

    def _scope_windows(self, place: int) -> list[tuple[int, int]]:
        """The neighbours in the same module, in the module around that, and so on."""
        windows = []
        scope = self._scopes[place]
        while scope:
            inside = [name == scope or name.startswith(scope + "/") for name in self._scopes]
            windows.append(_stretch(place, inside))
            scope = scope.rpartition("/")[0]
        return windows

    def _narrow_windows(self, place: int) -> list[tuple[int, int]]:
        """The stretches around a place that end where ever fewer tensors cross."""
        windows = []
        for width in range(max(self._widths[place], self._widths[place + 1]), 0, -1):
            start = place
            while start > 0 and self._widths[start] >= width:
                start -= 1
            stop = place + 1
            while stop < len(self._searched) and self._widths[stop] >= width:
                stop += 1
            if stop - start > LARGEST_PATTERN:
                break
            windows.append((start, stop))
        return windows


def _stretch(place: int, inside: Sequence[bool]) -> tuple[int, int]:
    start = place
    while start > 0 and inside[start - 1]:
        start -= 1
    stop = place + 1
    while stop < len(inside) and inside[stop]:
        stop += 1
    return start, stop


def crossing_widths(network: Network, searched: Sequence[int]) -> list[int]:
    """How many tensors cross each place of the order.

    Args:
        network: The model.
        searched: Its units that depend on a graph input, in topological order.

    Returns:
        One number for the place before each unit, and one for the end: the tensors that are made (or are graph inputs)
        before it and read, or returned, after it.
    """
    place = [-1] * len(network.nodes)
    for index, unit in enumerate(searched):
        place[network.order[unit]] = index
    end = len(searched)
    steps = [0] * (end + 2)
    returned = set(network.outputs)
    for name, readers in network.consumers.items():
        maker = network.producer.get(name)
        if maker is None and name not in network.inputs:
            continue
        if maker is not None and place[maker] < 0:
            continue
        born = 0 if maker is None else place[maker] + 1
        last = end if name in returned else max(place[reader] for reader in readers)
        if last >= born:
            steps[born] += 1
            steps[last + 1] -= 1
    widths = []
    width = 0
    for step in steps[: end + 1]:
        width += step
        widths.append(width)
    return widths


_REMEMBERED = 200_000
"""How many units all remembered sets of :meth:`Units.with_weights` may hold together, about 10 MB."""
STORED_LIMIT_BYTES = 1 << 20
"""A weight whose value is larger keeps the node that makes it: storing it would make the model larger, not smaller."""


class NetworkUnits:
    """The units of a network: its nodes, numbered in topological order (unit ``u`` is node ``network.order[u]``).

    A search walks the units that depend on a graph input. The others only make weights: they come along with whoever
    reads them (:meth:`with_weights`) until the end, when each is tried on its own (:meth:`bare`), left out by storing its
    value as an initializer.

    A tensor whose value is not known (ONNX Runtime has no kernel for something before it) or that is no plain tensor (a
    sequence) cannot be fed to a model, so a set is always completed with the makers of such tensors.

    Attributes:
        network: The model.
        searched: The units that depend on a graph input, in order.
    """

    def __init__(
        self,
        network: Network,
        feedable: Collection[str],
        infos: Mapping[str, TensorInfo],
        lost: Collection[int] = frozenset(),
    ) -> None:
        """Read the dependencies.

        Args:
            network: The model.
            feedable: The tensors whose values are known.
            infos: Types and shapes of the weights that nodes make, where known.
            lost: Nodes that cannot be run; a weight that one makes cannot be stored.
        """
        self.network = network
        order, constant = network.order, network.constant
        self.searched = [unit for unit, index in enumerate(order) if not constant[index]]
        feedable = set(feedable) | set(network.inputs)
        self._weights: list[tuple[int, ...]] = []
        self._bare: list[tuple[int, ...]] = []
        for index in order:
            makers = {name: network.producer[name] for name in network.reads[index] if name in network.producer}
            constants = {name: maker for name, maker in makers.items() if constant[maker]}
            needs = [m for name, m in makers.items() if name not in feedable and name not in constants]
            heavy = [m for name, m in constants.items() if m in lost or not _light(infos.get(name))]
            self._weights.append(self._units([*needs, *constants.values()]))
            self._bare.append(self._units([*needs, *heavy]))
        # A search that is run ahead on guessed verdicts asks for the same sets again and again; where nothing is added there
        # is nothing to remember.
        remembered = lru_cache(max(4, _REMEMBERED // max(1, len(order))))
        self._complete = remembered(self._with_weights) if any(self._weights) else self._with_weights

    def __len__(self) -> int:
        """How many units a search walks."""
        return len(self.searched)

    @cached_property
    def everything(self) -> frozenset[int]:
        """All units that a search walks; one set for all who ask, for of 200,000 units it takes 8 MB."""
        return frozenset(self.searched)

    def _units(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.network.rank[index] for index in nodes))

    def with_weights(self, units: Iterable[int]) -> frozenset[int]:
        """The units with every node that makes a weight for them, and all that they cannot be cut from."""
        return self._complete(frozenset(units))

    def _with_weights(self, units: frozenset[int]) -> frozenset[int]:
        return _close(units, self._weights)

    def bare(self, units: Iterable[int]) -> frozenset[int]:
        """The units without the nodes that make weights for them, unless a weight cannot be stored."""
        return _close(units, self._bare)

    def leading_to(self, units: Iterable[int]) -> frozenset[int]:
        """The units with all that they depend on, makers of weights too."""
        network = self.network
        return _close(units, [self._units(network.parents(index)) for index in network.order])

    def led_to(self, starts: Collection[int]) -> frozenset[int]:
        """The units with all that depends on them."""
        reached = set(starts)
        for unit in self.searched:
            if not reached.isdisjoint(self._units(self.network.parents(self.network.order[unit]))):
                reached.add(unit)
        return frozenset(reached)

    def to_nodes(self, units: Iterable[int]) -> frozenset[int]:
        """Node numbers."""
        return frozenset(self.network.order[unit] for unit in units)

    def count(self, units: Iterable[int]) -> int:
        """How many of the units depend on a graph input."""
        return sum(not self.network.constant[self.network.order[unit]] for unit in units)


def _light(info: TensorInfo | None) -> bool:
    return info is not None and info.nbytes is not None and info.nbytes <= STORED_LIMIT_BYTES


def _close(units: Iterable[int], edges: list[tuple[int, ...]]) -> frozenset[int]:
    given = frozenset(units)
    pending = [unit for unit in given if edges[unit]]
    if not pending:
        return given
    closed = set(given)
    while pending:
        for needed in edges[pending.pop()]:
            if needed not in closed:
                closed.add(needed)
                pending.append(needed)
    # Every set that was asked about is remembered: of 100,000 units it takes 4 MB, so it is not made twice.
    return given if len(closed) == len(given) else frozenset(closed)


HUB_READERS = 12
"""Of a tensor that more nodes read than this (a mask, say) only the nearest readers are followed."""
_ATTRIBUTE_LENGTH = 120
_SHOWN = 32
"""Values of a list."""
_LARGE = (
    onnx.AttributeProto.TENSOR,
    onnx.AttributeProto.TENSORS,
    onnx.AttributeProto.GRAPH,
    onnx.AttributeProto.GRAPHS,
    onnx.AttributeProto.SPARSE_TENSOR,
    onnx.AttributeProto.SPARSE_TENSORS,
)
"""Attributes whose values are no matter of a line."""


def neighbourhood(network: Network, centre: Iterable[int], most: int) -> list[int]:
    """The nodes nearest to some, breadth first with and against the edges.

    Nodes that only make weights are left out, unless they are asked for.

    Args:
        network: The model.
        centre: Node numbers, the most important first.
        most: How many nodes at most.

    Returns:
        Node numbers, the nearest first; the centre is the beginning of them.
    """
    found = dict.fromkeys(centre)
    pending = deque(found)
    while pending and len(found) < most:
        node = pending.popleft()
        for other in _neighbours(network, node):
            if other not in found and not network.constant[other]:
                found[other] = None
                pending.append(other)
    return list(found)[:most]


def _neighbours(network: Network, node: int) -> Iterator[int]:
    """What makes a node's inputs, then what reads its outputs."""
    yield from network.parents(node)
    for name in network.made(node):
        yield from _nearest(network, node, network.consumers.get(name, []))


def _nearest(network: Network, node: int, readers: Sequence[int]) -> Sequence[int]:
    if len(readers) <= HUB_READERS:
        return readers
    return sorted(readers, key=lambda reader: abs(network.rank[reader] - network.rank[node]))[:HUB_READERS]


def edges_between(network: Network, nodes: Iterable[int]) -> list[tuple[int, int, str]]:
    """The edges among some nodes: maker, reader, tensor; sorted by reader in topological order."""
    chosen = set(nodes)
    return [
        (network.producer[name], reader, name)
        for reader in sorted(chosen, key=lambda node: network.rank[node])
        for name in network.reads[reader]
        if network.producer.get(name) in chosen
    ]


def attribute_texts(node: onnx.NodeProto) -> dict[str, str]:
    """A node's attributes in short, by name: of tensors and graphs only that they are there."""
    return {attribute.name: _attribute_text(attribute) for attribute in node.attribute}


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    if attribute.type in _LARGE:
        return f"<{onnx.AttributeProto.AttributeType.Name(attribute.type).lower().replace('_', ' ')}>"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return _cut(_decoded(value[: _ATTRIBUTE_LENGTH + 1]))  # plugins keep megabytes of state in one
    if isinstance(value, (int, float)):
        return _number(value)
    texts = [_decoded(each) if isinstance(each, bytes) else _number(each) for each in value[:_SHOWN]]
    return f"[{_cut(', '.join(texts + ['...'] * (len(value) > _SHOWN)))}]"


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _number(value: object) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _ATTRIBUTE_LENGTH else f"{text[:_ATTRIBUTE_LENGTH]}..."
