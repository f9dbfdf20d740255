"""The same place in every block of a network: what is said of a node of one block may be said of these.

A network is mostly one block over and over, and which of them overflows depends on the input. Two ways to know that places
are the same: names, where they hold the block's number as exporters write it (``/blocks.6/norm1/Pow``,
``model.layers.11.mlp.up_proj/MatMul``, ``layer_3/attention/Softmax``); else structure, operators as far as a few edges away.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bisect_trt.graph.network import Network
from bisect_trt.search.oracle import Subset

_NUMBER = re.compile(r"(?<=[./_\-])\d+(?=[./_\-]|$)")
"""A block's number stands alone between separators; the ``1`` of ``norm1`` belongs to the name."""
_RADIUS = 4
"""Edges, in both directions, that places of the same structure agree in."""
_FEWEST_BLOCKS = 2


class Siblings:
    """The places of a network that are the same in each block."""

    def __init__(self, network: Network, units: Sequence[int]) -> None:
        """Find them.

        Args:
            network: The model.
            units: The units to look at, in topological order.
        """
        self._network = network
        nodes = {network.order[unit]: unit for unit in units}
        by_name: dict[tuple[str, str], list[int]] = defaultdict(list)
        unnamed: list[int] = []
        for index in nodes:
            pattern = self._pattern(index)
            if pattern is None:
                unnamed.append(index)
            else:
                by_name[pattern, network.nodes[index].op_type].append(index)
        by_structure: dict[int, list[int]] = defaultdict(list)
        labels = self._labels() if unnamed else []
        for index in unnamed:
            by_structure[labels[index]].append(index)
        self._of: dict[int, Subset] = {}
        for alike in (*by_name.values(), *by_structure.values()):
            if len(alike) >= _FEWEST_BLOCKS and self._apart(alike):
                group = frozenset(nodes[index] for index in alike)
                self._of |= dict.fromkeys(group, group)

    def of(self, units: Iterable[int]) -> Subset:
        """Some units with those in the same place of every other block."""
        chosen = frozenset(units)
        return chosen.union(*(self._of.get(unit, frozenset()) for unit in chosen))

    def _pattern(self, index: int) -> str | None:
        """A node's name without the number of its block; ``None`` if it holds none."""
        node = self._network.nodes[index]
        scope, separator, leaf = node.name.rpartition("/")
        if not separator:
            scope, separator, leaf = node.name.rpartition(".")
        if not _NUMBER.search(scope):
            return None
        return f"{_NUMBER.sub('#', scope)}{separator}{leaf}"

    def _apart(self, alike: Sequence[int]) -> bool:
        """Whether none reads another: in a chain of the same node nothing is a block."""
        found = set(alike)
        return all(found.isdisjoint(self._network.parents(index)) for index in alike)

    def _labels(self) -> list[int]:
        """A number for each node: the same for nodes whose surroundings have the same operators in the same places.

        B. Weisfeiler and A. Leman, "The reduction of a graph to canonical form", 1968, a few rounds of it.
        """
        network = self._network
        parents = [[] if network.constant[index] else self._sources(index) for index in range(len(network.nodes))]
        children: list[list[int]] = [[] for _ in network.nodes]
        for index, sources in enumerate(parents):
            for source in sources:
                if source >= 0:
                    children[source].append(index)
        names: dict[object, int] = {}
        labels = [names.setdefault((node.domain, node.op_type), len(names)) for node in network.nodes]
        for _ in range(_RADIUS):
            seen = [
                (
                    labels[index],
                    tuple(labels[source] if source >= 0 else source for source in parents[index]),
                    tuple(sorted(labels[child] for child in children[index])),
                )
                for index in range(len(network.nodes))
            ]
            numbers: dict[object, int] = {}
            labels = [numbers.setdefault(key, len(numbers)) for key in seen]
        return labels

    def _sources(self, index: int) -> list[int]:
        """Who makes what a node reads, in the order of its inputs: -1 for weights, -2 for graph inputs."""
        network = self._network
        found = []
        for name in network.reads[index]:
            maker = network.producer.get(name)
            if maker is None:
                found.append(-1 if network.is_weight(name) else -2)
            else:
                found.append(-1 if network.constant[maker] else maker)
        return found
