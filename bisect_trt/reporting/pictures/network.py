"""The error along the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_trt.reporting.pictures.canvas import BAD, GOOD, MARK, new_figure, plain, save_figure


def save_error_curve(path: Path, title: str, curve: Mapping[str, Any]) -> None:
    """Draw what :func:`bisect_trt.workflows.error_curve.error_curve` gave.

    Args:
        path: The picture, ``.png`` or ``.svg``.
        title: What was compared.
        curve: The points: place, name, whether it passed, error in units of the tolerance.

    Raises:
        UsageError: The picture cannot be written.
    """
    points = curve["points"]
    ratios = [float(point["ratio"]) for point in points]
    known = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    low, high = min(known, default=0.1) / 2, max([*known, 1.0]) * 4
    figure = new_figure(10, 4.5)
    axes = figure.subplots()
    # NaN and Inf stand above all others, no error below.
    heights = [high if not math.isfinite(ratio) else max(ratio, low) for ratio in ratios]
    places = [point["place"] for point in points]
    axes.plot(places, heights, color=MARK, linewidth=0.8, zorder=1)
    for passed, colour, label in ((True, GOOD, "within tolerance"), (False, BAD, "not within tolerance")):
        of_kind = [index for index, point in enumerate(points) if bool(point["passed"]) is passed]
        xs, ys = [places[index] for index in of_kind], [heights[index] for index in of_kind]
        axes.scatter(xs, ys, s=12, color=colour, label=label, zorder=2)
    axes.axhline(1.0, color=BAD, linewidth=1, linestyle="--")
    first = next((index for index, point in enumerate(points) if not point["passed"]), None)
    if first is not None:
        at = (places[first], heights[first])
        axes.annotate(plain(str(points[first]["name"])), at, xytext=(6, 8), textcoords="offset points", fontsize=7)
    axes.set_yscale("log")
    axes.set_xlabel(f"tensor, in topological order (of {curve['total']})")
    axes.set_ylabel("largest error / tolerance")
    axes.set_title(plain(title), fontsize=9)
    axes.legend(fontsize=7)
    axes.grid(color=MARK, alpha=0.3)
    save_figure(figure, path)
