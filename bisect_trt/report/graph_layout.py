"""The drawing of a small graph: positions of nodes and paths of edges, as data for the template.

The steps are those of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981):
layers by the longest path; a chain of hidden nodes for each edge that spans several layers; an order within each layer
by the barycentre of the neighbours; then positions as near to the neighbours' as the order allows, which is an isotonic
regression, solved by pooling adjacent violators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_SWEEPS = 12
_MOST_HIDDEN = 3000
"""Hidden nodes in all; edges beyond that number, the longest, are drawn as straight lines."""

Edge = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Places in units of a node's width and of a layer's height.

    Attributes:
        places: The centre of each node: x in node widths, y the number of its layer.
        routes: For each edge the points that it passes between its ends.
        width: In node widths.
        height: How many layers.
    """

    places: dict[int, tuple[float, float]]
    routes: dict[Edge, list[tuple[float, float]]]
    width: float
    height: int


@dataclass
class _Graph:
    """Nodes and their hidden helpers (with negative numbers), layer by layer."""

    layers: list[list[int]]
    above: dict[int, list[int]] = field(default_factory=dict)
    below: dict[int, list[int]] = field(default_factory=dict)

    def connect(self, maker: int, reader: int) -> None:
        self.below.setdefault(maker, []).append(reader)
        self.above.setdefault(reader, []).append(maker)


def lay_out(nodes: Sequence[int], edges: Sequence[Edge], *, thin: float = 0.3) -> Layout:
    """Place the nodes of a graph without cycles.

    Args:
        nodes: In topological order, not negative.
        edges: Maker and reader.
        thin: The width of the way that an edge takes between nodes, in node widths.
    """
    unique = list(dict.fromkeys(edges))
    layer = assign_layers(nodes, unique)
    height = max(layer.values(), default=-1) + 1
    graph = _Graph([[] for _ in range(height)])
    for node in nodes:
        graph.layers[layer[node]].append(node)
    routes = _add_hidden(graph, unique, layer)
    _order(graph)

    def width(node: int) -> float:
        return 1.0 if node >= 0 else thin

    x = _place(graph, width)
    left = min((x[node] - width(node) / 2 for node in x), default=0.0)
    right = max((x[node] + width(node) / 2 for node in x), default=0.0)
    rows = {node: row for row, members in enumerate(graph.layers) for node in members}
    points = {node: (x[node] - left, float(rows[node])) for node in x}
    return Layout(
        {node: points[node] for node in nodes},
        {edge: [points[hidden] for hidden in route] for edge, route in routes.items()},
        right - left,
        height,
    )


def assign_layers(nodes: Sequence[int], edges: Sequence[Edge]) -> dict[int, int]:
    """The longest path to each node; what starts later is drawn right above its first reader."""
    makers: dict[int, list[int]] = {node: [] for node in nodes}
    readers: dict[int, list[int]] = {node: [] for node in nodes}
    for maker, reader in edges:
        makers[reader].append(maker)
        readers[maker].append(reader)
    layer: dict[int, int] = {}
    for node in nodes:  # in order, as each needs those before it
        layer[node] = max((layer[maker] + 1 for maker in makers[node]), default=0)
    for node in reversed(nodes):
        if readers[node] and len(makers[node]) < len(readers[node]) + (not makers[node]):
            layer[node] = min(layer[reader] for reader in readers[node]) - 1
    return layer


def _add_hidden(graph: _Graph, edges: Sequence[Edge], layer: Mapping[int, int]) -> dict[Edge, list[int]]:
    routes: dict[Edge, list[int]] = {}
    fresh = -1
    for maker, reader in sorted(edges, key=lambda edge: layer[edge[1]] - layer[edge[0]]):
        between = range(layer[maker] + 1, layer[reader])
        route = list(range(fresh, fresh - len(between), -1)) if len(between) - fresh <= _MOST_HIDDEN else []
        fresh -= len(route)
        for hidden, row in zip(route, between, strict=False):
            graph.layers[row].append(hidden)
        routes[maker, reader] = route
        for one, other in zip([maker, *route], [*route, reader], strict=True):
            graph.connect(one, other)
    return routes


def _order(graph: _Graph) -> None:
    """Sweep down and up, sorting each layer by where the neighbours stand."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = graph.above if down else graph.below
        place = {node: i for members in graph.layers for i, node in enumerate(members)}
        for members in graph.layers if down else reversed(graph.layers):
            wanted = {node: _mean([place[n] for n in neighbours.get(node, ())], place[node]) for node in members}
            members.sort(key=lambda node: wanted[node])
            place.update((node, i) for i, node in enumerate(members))


def _place(graph: _Graph, width: Callable[[int], float]) -> dict[int, float]:
    x = {node: place * 1.0 for members in graph.layers for place, node in enumerate(members)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = graph.above if down else graph.below
        for members in graph.layers if down else reversed(graph.layers):
            wanted = [_mean([x[other] for other in neighbours.get(node, ())], x[node]) for node in members]
            x.update(zip(members, spread(wanted, [width(node) for node in members]), strict=True))
    return x


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def spread(wanted: Sequence[float], widths: Sequence[float], gap: float = 0.16) -> list[float]:
    """The places nearest to those wanted (least squares) at which things of these widths stand in order, apart.

    Pools adjacent violators: without the widths it is an isotonic regression.
    """
    offsets = [0.0]
    for one, other in pairwise(widths):
        offsets.append(offsets[-1] + (one + other) / 2 + gap)
    pools: list[tuple[float, int]] = []  # mean, and how many
    for value, offset in zip(wanted, offsets, strict=False):
        mean, count = value - offset, 1
        while pools and pools[-1][0] > mean:
            other_mean, other_count = pools.pop()
            mean = (mean * count + other_mean * other_count) / (count + other_count)
            count += other_count
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=False)]


NODE_WIDTH, NODE_HEIGHT = 168, 42
_COLUMN, _ROW = 176, 82
"""Distance between the centres of neighbours, in pixels."""
_MARGIN = 24
STUB = 20
"""Length in pixels of the line that stands for a neighbour outside the drawing."""


@dataclass(frozen=True)
class Drawing:
    """A layout in pixels.

    Attributes:
        width: Of the whole drawing.
        height: Likewise.
        places: The centre of each node.
        paths: For each edge the ``d`` attribute of its SVG path.
    """

    width: int
    height: int
    places: dict[int, tuple[float, float]]
    paths: dict[Edge, str]


def draw(nodes: Sequence[int], edges: Sequence[Edge]) -> Drawing:
    """Return positions and paths in pixels; see :func:`lay_out` for the arguments."""
    layout = lay_out(nodes, edges)

    def point(place: tuple[float, float]) -> tuple[float, float]:
        return _MARGIN + place[0] * _COLUMN, _MARGIN + STUB + NODE_HEIGHT / 2 + place[1] * _ROW

    places = {node: point(place) for node, place in layout.places.items()}
    paths = {}
    for maker, reader in dict.fromkeys(edges):
        x, y = places[maker]
        y += NODE_HEIGHT / 2
        path = f"M{x:.1f} {y:.1f}"
        end_x, end_y = places[reader]
        for to_x, to_y in [*map(point, layout.routes[maker, reader]), (end_x, end_y - NODE_HEIGHT / 2)]:
            middle = (y + to_y) / 2
            path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
            x, y = to_x, to_y
        paths[maker, reader] = path
    width = round(layout.width * _COLUMN + 2 * _MARGIN)
    height = round((layout.height - 1) * _ROW + NODE_HEIGHT + 2 * (_MARGIN + STUB))
    return Drawing(width, height, places, paths)
