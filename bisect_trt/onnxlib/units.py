"""The units of a search, and patterns of units that belong together.

A failure of a fused pattern needs all of its nodes, and finding them one by one costs a bisection
for each. So a pattern around a needed unit that does not fail alone is tried as one unit before its
parts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

from bisect_trt.aliases import Sizes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import is_dequantize
from bisect_trt.search.oracle import Subset
from bisect_trt.tensors.info import TensorInfo

LARGEST_PATTERN = 24
"""Units. A decomposed LayerNorm has 7 to 9, an attention core or a residual block of a ResNet about
12."""


STORED_LIMIT_BYTES = 1 << 20
"""The largest weight that is stored in place of the node that makes it; larger ones would make the
model larger."""


class NetworkUnits:
    """The units of a network: its nodes, numbered in topological order (unit ``u`` is node ``network.order[u]``).

    A search walks the units that depend on a graph input. The others only make weights: they follow
    the nodes that read them (:meth:`with_weights`) until the end, when each is replaced by its
    value if possible (:meth:`bare`). A quantized weight keeps its integers and its DequantizeLinear.

    A tensor of unknown value (ONNX Runtime has no kernel for a node before it) or a sequence cannot
    be fed to a model, so a set is always completed with the makers of such tensors.

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
            feedable: The tensors with known values.
            infos: Types and shapes of the weights that nodes make, where known.
            lost: Nodes that cannot be run; a weight that one makes cannot be stored.
        """
        self.network = network
        order = network.order
        constant = network.constant
        # The network's own numbers: another object for each takes 1.6 MB for 50,000.
        self.searched = [unit for unit in sorted(order) if not constant[order[unit]]]
        feedable = set(feedable) | set(network.inputs)
        # A runtime has another kernel for weights that are integers than for their values.
        quantized: set[int] = set()
        self._weights: list[Sizes] = []
        self._bare: list[Sizes] = []
        for index in order:
            makers = {
                name: network.producer[name]
                for name in network.reads[index]
                if name in network.producer
            }
            constants = {name: maker for name, maker in makers.items() if constant[maker]}
            needs = [
                m for name, m in makers.items() if name not in feedable and name not in constants
            ]
            if constant[index] and (
                is_dequantize(network.nodes[index]) or quantized.intersection(makers.values())
            ):
                quantized.add(index)
            heavy = [
                maker
                for name, maker in constants.items()
                if maker in lost or maker in quantized or not _light(infos.get(name))
            ]
            self._weights.append(self._units([*needs, *constants.values()]))
            self._bare.append(self._units([*needs, *heavy]))

    def __len__(self) -> int:
        """Return the number of searched units."""
        return len(self.searched)

    def independent(self, excluded: Subset, among: Sequence[int] | None = None) -> list[int]:
        """Return the searched units, or those ``among`` them, that can be cut without any of the taken ones."""
        return [
            unit
            for unit in among or self.searched
            if excluded.isdisjoint(self.with_weights({unit}))
        ]

    @cached_property
    def everything(self) -> frozenset[int]:
        """The searched units as one shared set: 200,000 units take 8 MB."""
        return frozenset(self.searched)

    def _units(self, nodes: Iterable[int]) -> Sizes:
        return tuple(dict.fromkeys(self.network.rank[index] for index in nodes))

    def with_weights(self, units: Iterable[int]) -> frozenset[int]:
        """Return the units with the makers of their weights and of inputs that cannot be fed."""
        return _close(units, self._weights)

    def bare(self, units: Iterable[int]) -> frozenset[int]:
        """Return the units with the makers of inputs that cannot be fed, and of weights that are quantized or too large."""
        return _close(units, self._bare)

    def pattern(self, unit: int) -> Subset:
        """Return the largest pattern around a unit up to the limit; the unit alone if there is none.

        It is a stretch of the searched units between two places of the order that fewer live
        tensors cross than any place between them, such as a residual branch, a decomposed norm,
        softmax or GELU.
        """
        widths = self._widths
        place = bisect_left(self.searched, unit)
        pattern = place, place + 1
        # Lower the threshold step by step: each stretch contains the one before.
        for width in range(max(widths[place : place + 2]), 0, -1):
            start = place
            stop = place + 1
            while start > 0 and widths[start] >= width:
                start -= 1
            while stop < len(self.searched) and widths[stop] >= width:
                stop += 1
            if stop - start > LARGEST_PATTERN:
                break
            pattern = start, stop
        return frozenset(self.searched[slice(*pattern)])

    @cached_property
    def _widths(self) -> array[int]:
        """The number of tensors that cross the place before each searched unit, and the end of the order.

        A tensor lives from its maker (or the start, for a graph input) to its last reader (or the
        end, for an output).
        """
        network = self.network
        end = len(self.searched)
        place = {network.order[unit]: index for index, unit in enumerate(self.searched)}
        inputs = set(network.inputs)
        steps = array("i", bytes(4 * (end + 2)))
        for name, readers in network.consumers.items():
            maker = network.producer.get(name)
            if name not in inputs if maker is None else maker not in place:
                continue
            # A difference array: +1 where a tensor begins to live, -1 after its end; its running
            # sum is the number of live tensors.
            born = 0 if maker is None else place[maker] + 1
            last = (
                end
                if name in network.returned
                else max(place.get(reader, -1) for reader in readers)
            )
            if last >= born:
                steps[born] += 1
                steps[last + 1] -= 1
        return array("i", accumulate(steps[: end + 1]))

    def leading_to(self, units: Iterable[int]) -> frozenset[int]:
        """Return the units with all units that they depend on, makers of weights too."""
        return frozenset(
            map(self.network.rank.__getitem__, self.network.leading_to(self.to_nodes(units)))
        )

    def led_to(self, starts: Collection[int]) -> frozenset[int]:
        """Return the units with all units that depend on them."""
        reached = set(starts)
        for unit in self.searched:
            if not reached.isdisjoint(self._units(self.network.parents(self.network.order[unit]))):
                reached.add(unit)
        return frozenset(reached)

    def to_nodes(self, units: Iterable[int]) -> frozenset[int]:
        """Return the node numbers of units."""
        return frozenset(self.network.order[unit] for unit in units)

    def count(self, units: Iterable[int]) -> int:
        """Return how many of the units depend on a graph input."""
        return sum(not self.network.constant[self.network.order[unit]] for unit in units)


def _light(info: TensorInfo | None) -> bool:
    return info is not None and info.nbytes is not None and info.nbytes <= STORED_LIMIT_BYTES


def _close(units: Iterable[int], edges: list[Sizes]) -> frozenset[int]:
    closed = set(units)
    pending = [*closed]
    while pending:
        needed = set(edges[pending.pop()]) - closed
        closed |= needed
        pending += needed
    return frozenset(closed)
