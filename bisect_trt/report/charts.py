"""Data and geometry of the report's charts: the error along the network, the graph around a culprit.

The templates turn the paths and positions into SVG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bisect_trt.report.text import Json, number, plural, shorten
from bisect_trt.tensors.comparison import tolerance_ratio

WIDTH, HEIGHT = 1000, 300
_LOWEST, _HIGHEST, _BAND = -6, 12, 44.0
"""Powers of ten, beyond which values are drawn at the edge; height of the band of infinite values."""
_NAME_LENGTH = 120
MOST_POINTS = 2000
Point = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A drawing as wide as the page.

    Attributes:
        label: Description for screen readers.
        paths: CSS class and ``d`` attribute of each path, in drawing order; a path may be empty.
        shade: Height of the shaded part at the top; 0 without one.
        ticks: Position in percent from the top, mantissa and exponent (``None`` for a plain number) of each label.
        isolated: Whether errors of layers that ran alone are drawn too.
        data: For the page's script: x, y, name, error, and number of the node in the graph of each point.
    """

    label: str
    paths: list[tuple[str, str]]
    shade: float = 0.0
    ticks: Sequence[tuple[float, str, int | None]] = ()
    isolated: bool = False
    data: Sequence[list[Any]] = ()
    width: int = WIDTH
    height: int = HEIGHT


def _line(points: Sequence[Point | None]) -> str:
    """Return the path through the points, with a gap at each ``None``."""
    path, pen = "", "M"
    for point in points:
        path += "" if point is None else f"{pen}{point[0]:.1f} {point[1]:.1f}"
        pen = "M" if point is None else "L"
    return path


def curve_chart(curve: Json, nodes: Sequence[Json]) -> Chart:
    """Return the chart of the largest error of each tensor, in units of its tolerance, in topological order.

    The scale is logarithmic; infinite errors are in a band at the top.
    """
    points = curve["points"]
    ratios = [_ratio(point["ratio"]) for point in points]
    own = [None if point.get("own") is None else _ratio(point["own"]) for point in points]
    known = [*ratios, *(ratio for ratio in own if ratio is not None)]
    powers = [math.log10(ratio) for ratio in known if 0 < ratio < math.inf]
    low = max(min([-1, *map(math.floor, powers)]), _LOWEST)
    high = min(max([1, *map(math.ceil, powers)]), _HIGHEST)
    band = 0.0 if all(ratio < math.inf for ratio in known) else _BAND

    def y(ratio: float) -> float:
        if not ratio < math.inf:
            return band / 2
        power = math.log10(ratio) if ratio > 0 else low
        return HEIGHT - (min(max(power, low), high) - low) / (high - low) * (HEIGHT - band)

    xs = [WIDTH * (point["place"] + 0.5) / curve["total"] for point in points]
    places = list(zip(xs, map(y, ratios), strict=True))
    wrong = [place for place, point in zip(places, points, strict=True) if not point["passed"]]
    alone = sum(ratio > 1 for ratio in own if ratio is not None)
    label = f"Error of {plural(len(points), 'tensor')} relative to the tolerance; {len(wrong)} do not match"
    threshold = y(1.0)
    paths = [
        ("threshold", f"M0 {threshold:.1f}H{WIDTH}"),
        ("line", _line(places)),
        ("line own", _line([None if each is None else (x, y(each)) for x, each in zip(xs, own, strict=True)])),
        ("dots", "".join(f"M{x:.1f} {top:.1f}h0" for x, top in wrong)),
        ("first", f"M{wrong[0][0]:.1f} 0V{HEIGHT}" if wrong else ""),
    ]
    makers = {name: int(node["id"]) for node in nodes for name in node["outputs"]}
    step = max(1, math.ceil((high - low) / 6))
    ticks: list[tuple[float, str, int | None]] = [
        (100 * y(10.0**power) / HEIGHT, *((f"{10.0**power:g}", None) if abs(power) <= 3 else ("10", power)))
        for power in range(high, low - 1, -1)
        if power % step == 0
    ]
    return Chart(
        label + (f", {alone} of them when their layer runs alone" if alone else ""),
        paths,
        threshold,
        ticks + ([(50 * band / HEIGHT, "\u221e", None)] if band else []),
        any(each is not None for each in own),
        [
            [
                round(x / WIDTH, 5),
                round(top / HEIGHT, 4),
                f"{point['op'] or ''} {shorten(point['name'], _NAME_LENGTH)}".strip(),
                f"largest error {number(point['error'], 3)}, {number(point['ratio'], 3)} of the tolerance"
                + (f"; alone {number(point['own'], 3)}" if each is not None else ""),
                makers.get(point["name"]),
            ]
            for point, (x, top), each in zip(points, places, own, strict=True)
        ],
    )


def _ratio(value: float | str) -> float:
    ratio = float(value)
    return math.inf if math.isnan(ratio) else ratio


def error_curve(tensors: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> dict[str, Any]:
    """Return the error along the network.

    Args:
        tensors: Comparisons as the result has them, in topological order.
        most: Maximum number of points.

    Returns:
        ``total``, the number of tensors, and ``points`` with ``place`` (of the tensor in that order), ``name``, ``op``,
        ``passed``, ``ratio`` (the error in units of the tolerance: over 1 does not pass) and ``error`` (the largest absolute
        one). Where each layer's own error is known, ``own`` is that in units of the tolerance, ``None`` of a tensor that
        could not be computed alone. Numbers that JSON lacks are the strings ``inf`` and ``nan``.
    """
    ratios = [tolerance_ratio(tensor) for tensor in tensors]
    first_wrong = [place for place, tensor in enumerate(tensors) if not tensor["passed"]][:1]
    isolated = any("own" in tensor for tensor in tensors)
    own = [None if tensor.get("own") is None else tolerance_ratio(tensor["own"]) for tensor in tensors]
    if isolated and len(tensors) > most:
        alone = downsample([ratio or 0.0 for ratio in own], most // 2)
        places = sorted({*downsample(ratios, most // 2, first_wrong), *alone})
    else:
        places = downsample(ratios, most, first_wrong)
    points = [
        {
            "place": place,
            "name": tensors[place]["name"],
            "op": tensors[place].get("op"),
            "passed": tensors[place]["passed"],
            "ratio": plain_number(ratios[place]),
            "error": tensors[place]["max_abs"],
            **({"own": None if own[place] is None else plain_number(own[place] or 0.0)} if isolated else {}),
        }
        for place in places
    ]
    return {"points": points, "total": len(tensors)}


def downsample(values: Sequence[float], most: int, keep: Iterable[int] = ()) -> list[int]:
    """Return ascending places of a series that look like the whole series: min-max decimation, so that no extreme is lost.

    Args:
        values: The series; Inf and NaN count as larger than all numbers.
        most: How many places at most; at least 2 for each that is kept whatever its value, and 2 more.
        keep: Places that stay whatever their value.
    """
    if len(values) <= most:
        return list(range(len(values)))
    chosen = set(keep)
    windows = (most - len(chosen)) // 2
    bounds = [len(values) * window // windows for window in range(windows + 1)]
    for start, stop in pairwise(bounds):
        places = sorted(range(start, stop), key=lambda place: _ratio(values[place]))
        chosen.update((places[0], places[-1]))
    return sorted(chosen)


def plain_number(value: float) -> float | str:
    """Return a number for JSON: NaN and Inf as strings, others to seven digits."""
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)


NODE_WIDTH, NODE_HEIGHT = 168, 42
STUB = 20
"""Length in pixels of the line that represents a neighbour outside the drawing."""
_COLUMN, _THIN, _ROW, _MARGIN = 176, 60, 82, 24
"""Pixels: width of a node and of a passing edge with the gap, distance of layers, margin."""
_SWEEPS = 12
_MOST_HIDDEN = 3000
"""Hidden nodes in all; edges beyond that number, the longest, are drawn as straight lines."""
Edge = tuple[int, int]


@dataclass(frozen=True)
class Drawing:
    """A graph in pixels.

    Attributes:
        width: Of the whole drawing.
        height: Likewise.
        places: The centre of each node.
        paths: For each edge the ``d`` attribute of its SVG path.
    """

    width: int
    height: int
    places: dict[int, Point]
    paths: dict[Edge, str]


def draw_graph(nodes: Sequence[int], edges: Sequence[Edge]) -> Drawing:
    """Place the nodes of a graph without cycles, makers above readers.

    The steps follow Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures"
    (1981): layers by the longest path; a chain of hidden nodes for each edge that spans several layers; an order within each
    layer by the barycentre of the neighbours.

    Args:
        nodes: In topological order, not negative.
        edges: Maker and reader.
    """
    unique = list(dict.fromkeys(edges))
    row = _rows(nodes, unique)
    layers: list[list[int]] = [[] for _ in range(max(row.values(), default=-1) + 1)]
    for node in nodes:
        layers[row[node]].append(node)
    routes: dict[Edge, list[int]] = {}
    hidden = 0
    for maker, reader in sorted(unique, key=lambda edge: row[edge[1]] - row[edge[0]]):
        between = range(row[maker] + 1, row[reader])
        count = len(between) if hidden + len(between) <= _MOST_HIDDEN else 0
        route = [-1 - hidden - step for step in range(count)]
        hidden += count
        for each, place in zip(route, between, strict=False):
            layers[place].append(each)
        routes[maker, reader] = [maker, *route, reader]
    _order(layers, [link for route in routes.values() for link in pairwise(route)])
    widths = [sum(map(_width, layer)) for layer in layers]
    places: dict[int, Point] = {}
    for place, (layer, width) in enumerate(zip(layers, widths, strict=True)):
        x = _MARGIN + (max(widths) - width) / 2
        for node in layer:
            places[node] = x + _width(node) / 2, _MARGIN + STUB + NODE_HEIGHT / 2 + place * _ROW
            x += _width(node)
    height = round((len(layers) - 1) * _ROW + NODE_HEIGHT + 2 * (_MARGIN + STUB))
    paths = {edge: _path([places[node] for node in routes[edge]]) for edge in unique}
    seen = {node: places[node] for node in nodes}
    return Drawing(round(max(widths, default=0) + 2 * _MARGIN), height, seen, paths)


def _width(node: int) -> float:
    return _COLUMN if node >= 0 else _THIN


def _path(points: Sequence[Point]) -> str:
    """Return the curve from the lower edge of a node through points to the upper edge of another."""
    (x, y), last = points[0], len(points) - 1
    y += NODE_HEIGHT / 2
    path = f"M{x:.1f} {y:.1f}"
    for place, (to_x, centre) in enumerate(points[1:], 1):
        to_y = centre - (NODE_HEIGHT / 2 if place == last else 0)
        middle = (y + to_y) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return path


def _rows(nodes: Sequence[int], edges: Sequence[Edge]) -> dict[int, int]:
    """Return the layer of each node, by the longest path; what starts later is drawn right above its first reader."""
    makers: dict[int, list[int]] = {node: [] for node in nodes}
    readers: dict[int, list[int]] = {node: [] for node in nodes}
    for maker, reader in edges:
        makers[reader].append(maker)
        readers[maker].append(reader)
    row: dict[int, int] = {}
    for node in nodes:
        row[node] = max((row[maker] + 1 for maker in makers[node]), default=0)
    for node in reversed(nodes):
        if readers[node] and len(makers[node]) < len(readers[node]) + (not makers[node]):
            row[node] = min(row[reader] for reader in readers[node]) - 1
    return row


def _order(layers: list[list[int]], links: Sequence[Edge]) -> None:
    """Sweep down and up, sorting each layer by the mean position of the neighbours."""
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for maker, reader in links:
        below.setdefault(maker, []).append(reader)
        above.setdefault(reader, []).append(maker)
    place = {node: position for layer in layers for position, node in enumerate(layer)}

    def by(neighbours: Mapping[int, list[int]]) -> Callable[[int], float]:
        return lambda node: (
            sum(map(place.__getitem__, found)) / len(found) if (found := neighbours.get(node)) else place[node]
        )

    for sweep in range(_SWEEPS):
        for layer in reversed(layers) if sweep % 2 else layers:
            layer.sort(key=by(below if sweep % 2 else above))
            place.update((node, position) for position, node in enumerate(layer))
