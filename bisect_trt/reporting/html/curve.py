"""The error along the network, on a logarithmic scale, against the tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_trt.reporting.html.markup import Json, Markup, number, plural, script_data, shorten, tag

_WIDTH, _HEIGHT = 1000, 300
_LOWEST, _HIGHEST = -6, 12
"""Powers of ten; what is beyond them is drawn at the edge."""
_NAME_LENGTH = 120


@dataclass(frozen=True)
class Scale:
    """From ratios of error to tolerance to places in the drawing.

    Attributes:
        low: The power of ten at the lower edge.
        high: The power of ten at the upper edge, or under the band for what is infinite.
        band: The height of that band; 0 without one.
        total: How many tensors there are from left to right.
    """

    low: int
    high: int
    band: float
    total: int

    @classmethod
    def of(cls, ratios: Sequence[float], total: int) -> Scale:
        """A scale that holds the threshold and all ratios."""
        finite = [math.log10(ratio) for ratio in ratios if 0 < ratio < math.inf]
        low = max(min([-1, *map(math.floor, finite)]), _LOWEST)
        high = min(max([1, *map(math.ceil, finite)]), _HIGHEST)
        return cls(low, high, 0.0 if all(ratio < math.inf for ratio in ratios) else 44.0, total)

    def x(self, place: int) -> float:
        """Of a tensor."""
        return _WIDTH * (place + 0.5) / self.total

    def y(self, ratio: float) -> float:
        """Of a ratio; Inf stands in the middle of its band."""
        if not ratio < math.inf:
            return self.band / 2
        power = math.log10(ratio) if ratio > 0 else self.low
        share = (min(max(power, self.low), self.high) - self.low) / (self.high - self.low)
        return _HEIGHT - share * (_HEIGHT - self.band)


def curve_section(curve: Json, nodes: Sequence[Json]) -> Markup:
    """The chart; moving over it, or the arrow keys, name the tensors."""
    points = curve["points"]
    ratios = [_ratio(point["ratio"]) for point in points]
    own = [None if point.get("own") is None else _ratio(point["own"]) for point in points]
    isolated = any(ratio is not None for ratio in own)
    scale = Scale.of([*ratios, *(ratio for ratio in own if ratio is not None)], curve["total"])
    drawn = len(points)
    some = "" if drawn == curve["total"] else f" {drawn:,} of them are drawn, the extremes among them."
    return tag(
        "section",
        tag("h2", "Error along the network"),
        tag(
            "p",
            f"The largest error of each of {plural(curve['total'], 'tensor')} in topological order, in units of its "
            f"tolerance: above the line it does not match.{some}",
            class_="quiet",
        ),
        tag(
            "ul",
            tag("li", tag("span", class_="stroke", aria_hidden="true"), "in the network"),
            tag("li", tag("span", class_="stroke own", aria_hidden="true"), "the layer alone, fed the reference's values"),
            class_="legend",
        )
        if isolated
        else None,
        tag(
            "figure",
            tag("div", _ticks(scale), _chart(points, ratios, own, scale), class_="plot", id="plot"),
            tag("figcaption", "Move over the curve, or choose it and use the arrow keys.", class_="live quiet readout",
                id="readout", aria_live="polite"),
        ),
        _data(points, ratios, own, scale, nodes),
        id="error",
    )  # fmt: skip


def _ratio(value: float | str) -> float:
    ratio = float(value)
    return math.inf if math.isnan(ratio) else ratio


def _ticks(scale: Scale) -> Markup:
    step = max(1, math.ceil((scale.high - scale.low) / 6))
    powers = [power for power in range(scale.high, scale.low - 1, -1) if power % step == 0]
    marks = [_tick(scale.y(10.0**power), _power(power)) for power in powers]
    infinite = _tick(scale.band / 2, "\u221e") if scale.band else None
    tolerance = tag("b", "tolerance", style=f"top:{100 * scale.y(1.0) / _HEIGHT:.2f}%")
    return tag("div", *marks, infinite, tolerance, class_="ticks", aria_hidden="true")


def _power(power: int) -> list[str | Markup]:
    return [f"{10.0**power:g}"] if abs(power) <= 3 else ["10", tag("sup", power)]


def _tick(y: float, label: str | list[str | Markup]) -> Markup:
    return tag("span", label, style=f"top:{100 * y / _HEIGHT:.2f}%")


def _chart(points: Sequence[Json], ratios: Sequence[float], own: Sequence[float | None], scale: Scale) -> Markup:
    places = [(scale.x(point["place"]), scale.y(ratio)) for point, ratio in zip(points, ratios, strict=True)]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for (x, y), point in zip(places, points, strict=True) if not point["passed"])
    first = next((place for place, point in zip(places, points, strict=True) if not point["passed"]), None)
    threshold = scale.y(1.0)
    wrong = sum(not point["passed"] for point in points)
    alone = sum(ratio > 1 for ratio in own if ratio is not None)
    label = f"Error of {plural(len(points), 'tensor')} relative to the tolerance; {wrong} do not match"
    label += f", {alone} of them by themselves" if alone else ""
    return tag(
        "svg",
        tag("rect", x=0, y=0, width=_WIDTH, height=threshold, class_="over"),
        tag("path", d=f"M0 {threshold:.1f}H{_WIDTH}", class_="threshold"),
        tag("path", d=line, class_="line"),
        _own_line(points, own, scale),
        tag("path", d=dots, class_="dots") if dots else None,
        tag("path", d=f"M{first[0]:.1f} 0V{_HEIGHT}", class_="first") if first else None,
        tag("path", d="", class_="cursor"),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        tabindex=0,
        aria_label=label,
    )


def _own_line(points: Sequence[Json], own: Sequence[float | None], scale: Scale) -> Markup | None:
    """The second line, with gaps where nothing is known."""
    path, pen = "", "M"
    for point, ratio in zip(points, own, strict=True):
        path += "" if ratio is None else f"{pen}{scale.x(point['place']):.1f} {scale.y(ratio):.1f}"
        pen = "M" if ratio is None else "L"
    return tag("path", d=path, class_="line own") if path else None


def _data(
    points: Sequence[Json],
    ratios: Sequence[float],
    own: Sequence[float | None],
    scale: Scale,
    nodes: Sequence[Json],
) -> Markup:
    """What the script says of each point: place in the drawing, words, and the node in the graph if it is drawn."""
    makers: Mapping[str, int] = {name: int(node["id"]) for node in nodes for name in node["outputs"]}
    entries = [
        [
            round(scale.x(point["place"]) / _WIDTH, 5),
            round(scale.y(ratio) / _HEIGHT, 4),
            f"{point['op'] or ''} {shorten(point['name'], _NAME_LENGTH)}".strip(),
            f"largest error {number(point['error'], 3)}, {number(point['ratio'], 3)} of the tolerance"
            + (f"; alone {number(point['own'], 3)} of it" if alone is not None else ""),
            makers.get(point["name"]),
        ]
        for point, ratio, alone in zip(points, ratios, own, strict=True)
    ]
    return tag("script", script_data(entries), type="application/json", id="points")
