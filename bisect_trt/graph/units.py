"""What a search keeps or drops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache

from bisect_trt.graph.network import Network
from bisect_trt.tensors.info import TensorInfo

_REMEMBERED = 200_000
"""How many units all remembered sets of :meth:`Units.with_weights` may hold together, about 10 MB."""
STORED_LIMIT_BYTES = 1 << 20
"""A weight whose value is larger keeps the node that makes it: storing it would make the model larger, not smaller."""


class Units:
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
    if info is None or not info.is_static or info.shape is None:
        return False
    size = info.dtype.itemsize
    for dim in info.shape:
        size *= int(dim or 0)
    return size <= STORED_LIMIT_BYTES


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
