"""The units of a search, patterns of units that belong together, and the neighbourhood of nodes.

A failure of a fused pattern needs all of its nodes, and a search that finds them one by one pays a bisection for each. So
when a needed unit does not fail alone, the pattern around it is tried as one unit before its parts are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from sys import intern

from bisect_trt.onnxlib.network import Network
from bisect_trt.search.oracle import Subset
from bisect_trt.tensors.info import TensorInfo

LARGEST_PATTERN = 24
"""Units. A decomposed LayerNorm has 7 to 9, an attention core or a residual block of a ResNet about 12."""


class Patterns:
    """The patterns of a network, as windows of its searched units.

    Two kinds of window count. A module scope: neighbours with a common prefix of their names, up to a slash
    (``/blocks.6/norm1/Pow``, as PyTorch's exporter names nodes). And a region with a narrow entry and a narrow exit:
    neighbours between two places of the order that fewer live tensors cross than any place between them, which is what a
    residual branch, a decomposed norm, softmax or GELU looks like whatever its names and operators.
    """

    def __init__(self, network: Network, searched: Sequence[int]) -> None:
        """``searched`` are the units of a search, in topological order."""
        self._searched = list(searched)
        self._scopes = [intern(network.nodes[network.order[unit]].name.rpartition("/")[0]) for unit in self._searched]
        self._widths = _crossing_widths(network, self._searched)

    def around(self, unit: int) -> Subset:
        """Return the largest pattern around a unit that is not too large; the unit alone if there is none."""
        place = bisect_left(self._searched, unit)
        windows = [*self._scope_windows(place), *self._narrow_windows(place)]
        fitting = [(start, stop) for start, stop in windows if 1 < stop - start <= LARGEST_PATTERN]
        start, stop = max(fitting, key=lambda window: window[1] - window[0], default=(place, place + 1))
        return frozenset(self._searched[start:stop])

    def _scope_windows(self, place: int) -> Iterator[tuple[int, int]]:
        """Yield the neighbours in the same module, in the module around that, and so on."""
        scope = self._scopes[place]
        while scope:
            inside = [name == scope or name.startswith(scope + "/") for name in self._scopes]
            yield _stretch(place, [one and other for one, other in pairwise([False, *inside])])
            scope = scope.rpartition("/")[0]

    def _narrow_windows(self, place: int) -> Iterator[tuple[int, int]]:
        """Yield the stretches around a place between places that fewer and fewer tensors cross."""
        for width in range(max(self._widths[place], self._widths[place + 1]), 0, -1):
            start, stop = _stretch(place, [crossing >= width for crossing in self._widths[:-1]])
            if stop - start > LARGEST_PATTERN:
                break
            yield start, stop


def _stretch(place: int, joined: Sequence[bool]) -> tuple[int, int]:
    """Return the window around a place in which each unit is ``joined`` to the one before it."""
    start, stop = place, place + 1
    while start > 0 and joined[start]:
        start -= 1
    while stop < len(joined) and joined[stop]:
        stop += 1
    return start, stop


def _crossing_widths(network: Network, searched: Sequence[int]) -> list[int]:
    """Return how many tensors cross the place before each unit, and the end of the order.

    A tensor crosses the places from its maker (or the start, for a graph input) to its last reader (or the end, for an output).

    Args:
        network: The model.
        searched: Its units that depend on a graph input, in topological order.
    """
    place = {network.order[unit]: index for index, unit in enumerate(searched)}
    end, inputs = len(searched), set(network.inputs)
    steps = [0] * (end + 2)
    for name, readers in network.consumers.items():
        maker = network.producer.get(name)
        if name not in inputs if maker is None else maker not in place:
            continue
        born = 0 if maker is None else place[maker] + 1
        last = end if name in network.returned else max(place.get(reader, -1) for reader in readers)
        if last >= born:
            steps[born] += 1
            steps[last + 1] -= 1
    return list(accumulate(steps[: end + 1]))


STORED_LIMIT_BYTES = 1 << 20
"""A larger weight keeps the node that makes it: storing it would make the model larger, not smaller."""


class NetworkUnits:
    """The units of a network: its nodes, numbered in topological order (unit ``u`` is node ``network.order[u]``).

    A search walks the units that depend on a graph input. The others only make weights: they come along with the nodes
    that read them (:meth:`with_weights`) until the end, when each is tried on its own (:meth:`bare`), left out by storing its
    value as an initializer.

    A tensor of unknown value (ONNX Runtime has no kernel for something before it) or that is no plain tensor (a
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
            feedable: The tensors with known values.
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

    def __len__(self) -> int:
        """Return how many units a search walks."""
        return len(self.searched)

    @cached_property
    def everything(self) -> frozenset[int]:
        """All units that a search walks; one set for all callers, for 200,000 units take 8 MB."""
        return frozenset(self.searched)

    def _units(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.network.rank[index] for index in nodes))

    def with_weights(self, units: Iterable[int]) -> frozenset[int]:
        """Return the units with every node that makes a weight for them, and all that they cannot be cut from."""
        return _close(units, self._weights)

    def bare(self, units: Iterable[int]) -> frozenset[int]:
        """Return the units without the nodes that make weights for them, unless a weight cannot be stored."""
        return _close(units, self._bare)

    def leading_to(self, units: Iterable[int]) -> frozenset[int]:
        """Return the units with all that they depend on, makers of weights too."""
        network = self.network
        return _close(units, [self._units(network.parents(index)) for index in network.order])

    def led_to(self, starts: Collection[int]) -> frozenset[int]:
        """Return the units with all that depends on them."""
        reached = set(starts)
        for unit in self.searched:
            if not reached.isdisjoint(self._units(self.network.parents(self.network.order[unit]))):
                reached.add(unit)
        return frozenset(reached)

    def to_nodes(self, units: Iterable[int]) -> frozenset[int]:
        """Node numbers."""
        return frozenset(self.network.order[unit] for unit in units)

    def count(self, units: Iterable[int]) -> int:
        """Return how many of the units depend on a graph input."""
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
    # Sets of probes are kept: 100,000 units take 4 MB, so an equal set is not made twice.
    return given if len(closed) == len(given) else frozenset(closed)


HUB_READERS = 12
"""Of a tensor with more readers (a mask, say) only the nearest readers are followed."""


def neighbourhood(network: Network, centre: Iterable[int], most: int) -> list[int]:
    """Return the nodes nearest to some, breadth first with and against the edges.

    Nodes that only make weights are left out, unless they are in the centre.

    Args:
        network: The model.
        centre: Node numbers, the most important first.
        most: The most nodes to return.

    Returns:
        Node numbers, the nearest first, beginning with the centre.
    """
    found = dict.fromkeys(centre)
    pending = deque(found)
    while pending and len(found) < most:
        node = pending.popleft()
        near = network.parents(node)
        for name in network.made(node):
            readers = sorted(
                network.consumers.get(name, ()), key=lambda reader: abs(network.rank[reader] - network.rank[node])
            )
            near += readers[:HUB_READERS]
        new = [other for other in dict.fromkeys(near) if other not in found and not network.constant[other]]
        found |= dict.fromkeys(new)
        pending += new
    return list(found)[:most]
