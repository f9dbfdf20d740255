"""Nodes that belong together: what a runtime fuses, or what somebody wrote as one module.

A failure of a fused pattern needs all of its nodes, and a search that finds them one by one pays a bisection for each. So
when a unit that is needed does not fail alone, the pattern around it is tried as one unit before its parts are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from bisect_trt.graph.network import Network
from bisect_trt.search.oracle import Subset

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
        self._scopes = [network.nodes[network.order[unit]].name.rpartition("/")[0] for unit in self._searched]
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
