"""The data and geometry of the report's charts: paths, bars and cells that the templates turn into SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bisect_trt.report.text import Json, number, plural, shorten

WIDTH, HEIGHT = 1000, 300
_LOWEST, _HIGHEST = -6, 12
"""Powers of ten; values outside are drawn at the edge."""
_NAME_LENGTH = 120
_BAR, _BAR_HEIGHT = 12, 72
"""Pixels a probe, and of the tallest bar."""
_FEWEST_BARS, _MOST_BARS = 8, 400


@dataclass(frozen=True)
class Chart:
    """A drawing as wide as the page.

    Attributes:
        label: Description for screen readers.
        caption: Text below the drawing.
        paths: CSS class and ``d`` attribute of each path, in drawing order; a path may be empty.
        shade: Height of the shaded part at the top; 0 without one.
    """

    label: str
    caption: str
    paths: list[tuple[str, str]]
    shade: float = 0.0
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale from ratios of error to tolerance to coordinates.

    Attributes:
        low: The power of ten at the lower edge.
        high: The power of ten at the upper edge, or below the band of infinite values.
        band: The height of that band; 0 without one.
        total: How many positions there are from left to right.
    """

    low: int
    high: int
    band: float
    total: int

    @classmethod
    def of(cls, ratios: Sequence[float], total: int) -> Scale:
        """Return a scale that holds the threshold 1 and all ratios."""
        finite = [math.log10(ratio) for ratio in ratios if 0 < ratio < math.inf]
        low = max(min([-1, *map(math.floor, finite)]), _LOWEST)
        high = min(max([1, *map(math.ceil, finite)]), _HIGHEST)
        return cls(low, high, 0.0 if all(ratio < math.inf for ratio in ratios) else 44.0, total)

    def x(self, place: int) -> float:
        """Return the horizontal coordinate of a position."""
        return WIDTH * (place + 0.5) / self.total

    def y(self, ratio: float) -> float:
        """Return the vertical coordinate of a ratio; infinity lies in the middle of its band."""
        if not ratio < math.inf:
            return self.band / 2
        power = math.log10(ratio) if ratio > 0 else self.low
        share = (min(max(power, self.low), self.high) - self.low) / (self.high - self.low)
        return HEIGHT - share * (HEIGHT - self.band)


def _line(points: Sequence[tuple[float, float] | None]) -> str:
    """Return the path through the points, with a gap at each ``None``."""
    path, pen = "", "M"
    for point in points:
        path += "" if point is None else f"{pen}{point[0]:.1f} {point[1]:.1f}"
        pen = "M" if point is None else "L"
    return path


@dataclass(frozen=True)
class Curve:
    """The error along the network.

    Attributes:
        chart: The lines; the first unmatched tensor is marked.
        ticks: Position in percent from the top, mantissa and exponent (``None`` for a plain number) of each label.
        tolerance: Position of the tolerance, in percent from the top.
        isolated: Whether errors of layers that ran alone are drawn too.
        data: What the page's script says of each point: x, y, name, error, and the node's number in the graph.
    """

    chart: Chart
    ticks: list[tuple[float, str, int | None]]
    tolerance: float
    isolated: bool
    data: list[list[Any]]


def curve_chart(curve: Json, nodes: Sequence[Json]) -> Curve:
    """Return the chart of the largest error of each tensor, in units of its tolerance, in topological order."""
    points = curve["points"]
    ratios = [_ratio(point["ratio"]) for point in points]
    own = [None if point.get("own") is None else _ratio(point["own"]) for point in points]
    scale = Scale.of([*ratios, *(ratio for ratio in own if ratio is not None)], curve["total"])
    places = [(scale.x(point["place"]), scale.y(ratio)) for point, ratio in zip(points, ratios, strict=True)]
    wrong = [place for place, point in zip(places, points, strict=True) if not point["passed"]]
    alone = sum(ratio > 1 for ratio in own if ratio is not None)
    label = f"Error of {plural(len(points), 'tensor')} relative to the tolerance; {len(wrong)} do not match"
    threshold = scale.y(1.0)
    paths = [
        ("threshold", f"M0 {threshold:.1f}H{WIDTH}"),
        ("line", _line(places)),
        (
            "line own",
            _line([None if each is None else (x, scale.y(each)) for (x, _), each in zip(places, own, strict=True)]),
        ),
        ("dots", "".join(f"M{x:.1f} {y:.1f}h0" for x, y in wrong)),
        ("first", f"M{wrong[0][0]:.1f} 0V{HEIGHT}" if wrong else ""),
    ]
    makers = {name: int(node["id"]) for node in nodes for name in node["outputs"]}
    data = [
        [
            round(x / WIDTH, 5),
            round(y / HEIGHT, 4),
            f"{point['op'] or ''} {shorten(point['name'], _NAME_LENGTH)}".strip(),
            f"largest error {number(point['error'], 3)}, {number(point['ratio'], 3)} of the tolerance"
            + (f"; alone {number(point['own'], 3)} of it" if each is not None else ""),
            makers.get(point["name"]),
        ]
        for point, (x, y), each in zip(points, places, own, strict=True)
    ]
    return Curve(
        Chart(label + (f", {alone} of them when their layer runs alone" if alone else ""), "", paths, threshold),
        _ticks(scale),
        100 * threshold / HEIGHT,
        any(each is not None for each in own),
        data,
    )


def _ratio(value: float | str) -> float:
    ratio = float(value)
    return math.inf if math.isnan(ratio) else ratio


def _ticks(scale: Scale) -> list[tuple[float, str, int | None]]:
    step = max(1, math.ceil((scale.high - scale.low) / 6))
    powers = [power for power in range(scale.high, scale.low - 1, -1) if power % step == 0]
    ticks: list[tuple[float, str, int | None]] = [
        (100 * scale.y(10.0**power) / HEIGHT, *((f"{10.0**power:g}", None) if abs(power) <= 3 else ("10", power)))
        for power in powers
    ]
    return ticks + ([(50 * scale.band / HEIGHT, "\u221e", None)] if scale.band else [])


def group_costs(groups: Sequence[Json]) -> Chart:
    """Return the errors of each quantized group, alone quantized and alone in floats, on a logarithmic scale."""
    alone, others = ([group.get(key) for group in groups] for key in ("error_alone_quantized", "error_alone_removed"))
    scale = Scale.of([float(value) for value in (*alone, *others) if value is not None], len(groups))
    bars = "".join(
        f"M{scale.x(place):.1f} {HEIGHT}V{scale.y(float(value)):.1f}"
        for place, value in enumerate(alone)
        if value is not None
    )
    line = _line([(scale.x(place), scale.y(float(value))) for place, value in enumerate(others) if value is not None])
    threshold = scale.y(1.0)
    return Chart(
        f"Error of each of {plural(len(groups), 'group')}, relative to the tolerance",
        "Bars: only this group quantized. Line: only this group in floats. The model fails in the shaded part.",
        [("threshold", f"M0 {threshold:.1f}H{WIDTH}"), ("line", bars), ("line own", line)],
        threshold,
    )


def metric_chart(metric: Json) -> Chart | None:
    """Return the metric after each sample with the reference and the bound; ``None`` for fewer than two points."""
    curve = metric.get("curve") or []
    if len(curve) < 2:
        return None
    values = [float(point["candidate"]) for point in curve]
    reference, bound = (None if metric.get(key) is None else float(metric[key]) for key in ("reference", "bound"))
    finite = [each for each in (*values, reference, bound) if each is not None and math.isfinite(each)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    span, last, edge = (high - low) or 1.0, max(curve[-1]["samples"], 1), 12

    def y(value: float) -> float:
        return HEIGHT - edge - (min(max(value, low), high) - low) / span * (HEIGHT - 2 * edge)

    def across(value: float | None) -> str:
        return "" if value is None or not math.isfinite(value) else f"M0 {y(value):.1f}H{WIDTH}"

    places = [(WIDTH * point["samples"] / last, y(value)) for point, value in zip(curve, values, strict=True)]
    return Chart(
        f"{metric['name']} after each of {plural(last, 'sample')}",
        f"{metric['name']} over the samples seen so far, from {low:.6g} to {high:.6g}; the horizontal lines are the "
        "reference and the bound.",
        [("threshold", across(bound)), ("line own", across(reference)), ("line", _line(places))],
    )


@dataclass(frozen=True)
class Bars:
    """A bar a probe: its units on a logarithmic scale, coloured by the verdict.

    Attributes:
        label: Description.
        bars: x, y, height and CSS class of each.
    """

    label: str
    bars: list[tuple[float, float, float, str]]
    width: int
    height: int = _BAR_HEIGHT
    bar_width: int = _BAR - 2


def probe_bars(probes: Sequence[Json]) -> Bars | None:
    """Return the bars of the probes; ``None`` where there are too few or too many to be of use."""
    most = max((probe["units"] for probe in probes), default=1)
    if not _FEWEST_BARS <= len(probes) <= _MOST_BARS or most < 2:
        return None
    bars = []
    for place, probe in enumerate(probes):
        high = max(_BAR_HEIGHT * math.log2(probe["units"] + 1) / math.log2(most + 1), 2)
        bars.append((float(place * _BAR), _BAR_HEIGHT - high, high, str(probe["verdict"]).lower()))
    least = min(probe["units"] for probe in probes)
    label = f"Units of {plural(len(probes), 'probe')} in order, from {most:,} down to {least:,}"
    return Bars(label, bars, _BAR * len(probes))


@dataclass(frozen=True)
class SizeMap:
    """A cell for each size that was tried.

    Attributes:
        label: Which dimension runs in which direction.
        cells: x, y, width, height, CSS class and title of each.
        columns: x and text of the labels below.
        rows: y and text of the labels at the left.
    """

    label: str
    cells: list[tuple[float, float, float, float, str, str]]
    columns: list[tuple[float, int]]
    rows: list[tuple[float, int]]
    width: int
    height: int


SIZE_VERDICTS = {"PASS": ("passes", "pass"), "FAIL": ("fails", "fail"), "UNRESOLVED": ("not known", "unresolved")}


def size_map(sweep: Json) -> SizeMap:
    """Return the map of a sweep over one or two dimensions; the first of two runs down."""
    width, cell, height, gap = 960, 18, 28, 60
    names = [each["name"] for each in sweep["dimensions"]]
    across, down = names[-1], names[0] if len(names) == 2 else None
    columns = sorted({entry["sizes"][across] for entry in sweep["map"]})
    rows = sorted({entry["sizes"][down] for entry in sweep["map"]}) if down is not None else []
    step = min(cell, (width - gap) / max(len(columns), 1))
    tall = cell if rows else height
    cells = []
    for entry in sweep["map"]:
        words, style = SIZE_VERDICTS[entry["verdict"]]
        row = rows.index(entry["sizes"][down]) if down is not None else 0
        sizes = ", ".join(f"{name} = {size}" for name, size in entry["sizes"].items())
        x = gap + columns.index(entry["sizes"][across]) * step
        cells.append((x, float(row * tall), step, float(tall), style, f"{sizes}: {words}"))
    each = max(int(40 / step), 1)
    places = sorted({*range(0, len(columns) - each + 1, each), *([len(columns) - 1] if columns else [])})
    return SizeMap(
        f"{down} down, {across} across" if down is not None else across,
        cells,
        [(gap + (place + 0.5) * step, columns[place]) for place in places],
        [(place * cell + 13.0, row) for place, row in enumerate(rows)],
        width,
        max(len(rows), 1) * tall,
    )


MOST_POINTS = 2000
_NO_NUMBER = ("nan", "inf", "shape", "dtype", "missing")
"""Kinds of mismatch that no tolerance would forgive."""


def error_curve(tensors: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> dict[str, Any]:
    """The error along the network.

    Args:
        tensors: Comparisons as the result has them, in topological order.
        most: How many points at most.

    Returns:
        ``points`` with ``place`` (of the tensor in that order), ``name``, ``op``, ``ratio`` (the error in units of the
        tolerance: over 1 does not pass) and ``error`` (the largest absolute one); ``total`` is how many tensors there
        were. Where each layer's own error is known, ``own`` is that in units of the tolerance, ``None`` of a tensor that
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
            **({"own": _plain(own[place])} if isolated else {}),
        }
        for place in places
    ]
    return {"points": points, "total": len(tensors)}


def downsample(values: Sequence[float], most: int, keep: Iterable[int] = ()) -> list[int]:
    """Places of a series that look like all of it.

    The series is split into windows of equal length; the smallest and the largest value of each stay (the idea of
    min-max decimation, as plots of time series use it), so no extreme is lost.

    Args:
        values: The series; Inf and NaN count as larger than all numbers.
        most: How many places at most; at least 2 for each that is kept whatever its value, and 2 more.
        keep: Places that stay whatever their value.

    Returns:
        Places in ascending order.
    """
    if len(values) <= most:
        return list(range(len(values)))
    chosen = set(keep)
    windows = (most - len(chosen)) // 2
    bounds = [len(values) * window // windows for window in range(windows + 1)]
    for start, stop in pairwise(bounds):
        places = sorted(range(start, stop), key=lambda place: _weight(values[place]))
        chosen.update((places[0], places[-1]))
    return sorted(chosen)


def _weight(value: float) -> float:
    return math.inf if math.isnan(value) else value


def tolerance_ratio(comparison: Mapping[str, Any]) -> float:
    """An error in units of the tolerance: at most 1 where the tensor passes, more where it does not.

    The element, or the statistic, that decides is within the absolute or the relative tolerance if it passes, so the
    smaller of the two ratios counts.
    """
    if comparison["kind"] in _NO_NUMBER:
        return math.inf
    atol, rtol = _float(comparison["atol"]), _float(comparison["rtol"])
    stat, worst = comparison["stat"], comparison["worst"]
    if stat == "elemwise" and worst is not None:
        absolute = _float(worst["error"])
        divisor = worst["reference"] if isinstance(worst["reference"], (int, float)) else _float(worst["reference"])
        relative = _over(absolute, abs(divisor))
    else:
        absolute, relative = (_float(comparison.get(f"{stat}_{kind}")) for kind in ("abs", "rel"))
    ratios = [ratio for ratio in (_over(absolute, atol), _over(relative, rtol)) if not math.isnan(ratio)]
    ratio = min(ratios, default=0.0 if comparison["passed"] else math.inf)
    return min(ratio, 1.0) if comparison["passed"] else max(ratio, math.nextafter(1, 2))


def _over(error: float, tolerance: float) -> float:
    if tolerance == 0:
        return 0.0 if error == 0 else math.inf
    return error / tolerance


def _float(value: Any) -> float:  # noqa: ANN401 - of JSON, where NaN and Inf are strings
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return math.nan


def _plain(value: float | None) -> float | str | None:
    return None if value is None else plain_number(value)


def plain_number(value: float) -> float | str:
    """A number as JSON has it: NaN and Inf as strings, the rest to seven digits."""
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)
