"""Pictures: where a tensor's errors are, how they go with its values, how they are distributed, and along the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.reporting.pictures.canvas import BAD, GOOD, MARK, file_name, new_figure, plain, save_figure
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string

MOST_IMAGES = 48
MOST_PIXELS = 256
"""Along each side of an image; larger ones show the largest error of each block, so that none gets lost."""
MOST_POINTS = 20_000
_EPSILON = 2.0**-52
_BINS = 80

Array = NDArray[Any]


def can_be_drawn(comparison: TensorComparison, target: Array | None, reference: Array) -> bool:
    """Whether there are two tensors of numbers of one shape, with something in them."""
    return (
        comparison.target_shape is not None
        and target is not None
        and target.shape == reference.shape
        and reference.size > 0
        and not is_string(reference.dtype)
        and not is_string(target.dtype)
    )


def errors_of(target: Array, reference: Array) -> tuple[Array, Array]:
    """Absolute and relative errors in float64."""
    wide: type[Any] = np.complex128 if "c" in (target.dtype.kind, reference.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        ours, theirs = reference.astype(wide), target.astype(wide)
        absolute = np.abs(theirs - ours)
        magnitude = np.abs(ours)
        return absolute, absolute / np.where(magnitude == 0, _EPSILON, magnitude)


def save_heatmaps(folder: Path, comparison: TensorComparison, target: Array, reference: Array) -> list[Path]:
    """Two pictures, of the absolute and of the relative errors; the last two axes are an image, the others count them.

    Raises:
        UsageError: A picture cannot be written.
    """
    paths = []
    for kind, errors in zip(("absolute", "relative"), errors_of(target, reference), strict=True):
        path = folder / file_name(comparison.name, comparison.sample, kind)
        _save_heatmap(path, f"{kind} error of {comparison.name}", errors)
        paths.append(path)
    return paths


def _save_heatmap(path: Path, title: str, errors: Array) -> None:
    from matplotlib import colormaps  # noqa: PLC0415 - an extra
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415 - as above
    from matplotlib.colors import LogNorm, Normalize  # noqa: PLC0415 - as above

    images = errors.reshape((-1, *((1, 1, *errors.shape)[-2:])))
    shown = [shrink_image(image) for image in images[:MOST_IMAGES]]
    finite = np.concatenate([image[np.isfinite(image)] for image in shown] or [np.zeros(1)])
    largest = float(finite.max(initial=0.0))
    smallest = float(finite[finite > 0].min(initial=largest))
    # On a logarithmic scale, or the largest error hides all others.
    low = max(smallest, largest * 1e-6)
    norm: Any = LogNorm(low, largest) if smallest < largest else Normalize(0, largest or 1)
    if smallest < largest:  # a logarithm would make of 0 what it makes of NaN
        shown = [np.where(image < low, low / 2, image) for image in shown]
    colours = colormaps["viridis"].with_extremes(bad=BAD, under="black")
    mosaic = _mosaic([colours(norm(np.ma.masked_invalid(image))) for image in shown])
    figure = new_figure(8, 7)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.imshow(mosaic, interpolation="nearest", aspect="auto")
    more = f", first {len(shown)} of {len(images)} images" if len(images) > len(shown) else ""
    figure.suptitle(
        f"{plain(title)}, shape {list(errors.shape)}{more}\nred: NaN or Inf; black: next to none", fontsize=9
    )
    figure.colorbar(ScalarMappable(norm, colours), ax=axes, shrink=0.8)
    save_figure(figure, path)


def _mosaic(images: list[Array]) -> Array:
    """Pictures of one size side by side, row by row, with white between them: one picture, drawn at once."""
    columns = math.ceil(math.sqrt(len(images)))
    height, width, channels = images[0].shape
    gap = max(1, max(height, width) // 32)
    rows = math.ceil(len(images) / columns)
    mosaic = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, channels))
    for place, image in enumerate(images):
        top, left = (place // columns) * (height + gap), (place % columns) * (width + gap)
        mosaic[top : top + height, left : left + width] = image
    return mosaic


def shrink_image(image: Array) -> Array:
    """An image of at most ``MOST_PIXELS`` each way: of every block its largest error, NaN before all others."""
    for axis in (0, 1):
        size = image.shape[axis]
        if size > MOST_PIXELS:
            starts = np.linspace(0, size, MOST_PIXELS, endpoint=False).astype(int)
            image = np.maximum.reduceat(image, starts, axis=axis)
    return image


def save_error_metrics(folder: Path, comparison: TensorComparison, target: Array, reference: Array) -> Path:
    """The absolute and the relative error of each element over the magnitude of the reference.

    Raises:
        UsageError: The picture cannot be written.
    """
    absolute, relative = (errors.ravel() for errors in errors_of(target, reference))
    magnitude = np.abs(reference.ravel().astype(absolute.dtype if reference.dtype.kind != "c" else reference.dtype))
    chosen = sample_points(absolute)
    figure = new_figure(9, 4.5)
    for axes, kind, errors, tolerance in zip(
        figure.subplots(1, 2),
        ("absolute", "relative"),
        (absolute, relative),
        (comparison.atol, comparison.rtol),
        strict=True,
    ):
        known = chosen[np.isfinite(errors[chosen]) & np.isfinite(magnitude[chosen])]
        # What is 0 has no place on a logarithmic scale; it stands at its lower end.
        xs, ys = (np.maximum(values[known], _least(values[known]) / 2) for values in (magnitude, errors))
        axes.scatter(xs, ys, s=3, alpha=0.4, color=GOOD, linewidths=0)
        if tolerance is not None and math.isfinite(tolerance) and tolerance > 0:
            axes.axhline(tolerance, color=BAD, linewidth=1, label=f"tolerance {tolerance:.3g}")
            axes.legend(fontsize=7)
        if known.size:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_xlabel("magnitude of the reference")
        axes.set_ylabel(f"{kind} error")
        axes.grid(color=MARK, alpha=0.3)
    left_out = int(np.count_nonzero(~np.isfinite(absolute)))
    note = f"; {left_out} NaN or Inf are not shown" if left_out else ""
    figure.suptitle(f"errors of {plain(comparison.name)} ({len(chosen)} of {absolute.size} elements{note})", fontsize=9)
    path = folder / file_name(comparison.name, comparison.sample, "errors")
    save_figure(figure, path)
    return path


def sample_points(errors: Array) -> Array:
    """The places of at most ``MOST_POINTS`` elements: half of them the largest errors, the others evenly spread."""
    if errors.size <= MOST_POINTS:
        return np.arange(errors.size)
    half = MOST_POINTS // 2
    largest = np.argpartition(np.nan_to_num(errors, nan=-1.0, posinf=-1.0), -half)[-half:]
    return np.union1d(largest, np.linspace(0, errors.size - 1, half).astype(int))


def save_histograms(folder: Path, comparison: TensorComparison, target: Array, reference: Array) -> Path:
    """How the values of both sides and the errors are distributed.

    Raises:
        UsageError: The picture cannot be written.
    """
    absolute, _ = errors_of(target, reference)
    figure = new_figure(9, 4)
    values, errors = figure.subplots(1, 2)
    sides = [np.abs(side) if side.dtype.kind == "c" else side for side in (reference, target)]
    finite = [side.ravel().astype(np.float64) for side in sides]
    finite = [side[np.isfinite(side)] for side in finite]
    both = np.concatenate(finite)
    edges = np.histogram_bin_edges(both, _BINS) if both.size else np.array([0.0, 1.0])
    values.hist(finite[0], bins=edges, label="reference", color=MARK, alpha=0.5)
    values.hist(finite[1], bins=edges, label="target", color=GOOD, histtype="step")
    if both.size:
        values.set_yscale("log")
    values.set_xlabel("value")
    values.set_ylabel("elements")
    values.legend(fontsize=7)
    known = absolute[np.isfinite(absolute)]
    positive = known[known > 0]
    if positive.size:
        low, high = float(positive.min()), float(positive.max())
        errors.hist(positive, bins=np.geomspace(low, max(high, low * 1.01), _BINS), color=GOOD, log=True)
        errors.set_xscale("log")
    errors.set_xlabel(f"absolute error; {known.size - positive.size} elements have none")
    for axes in (values, errors):
        axes.grid(color=MARK, alpha=0.3)
    figure.suptitle(f"{plain(comparison.name)}, {absolute.size - known.size} NaN or Inf not shown", fontsize=9)
    path = folder / file_name(comparison.name, comparison.sample, "histogram")
    save_figure(figure, path)
    return path


def _least(values: Array) -> float:
    """The smallest positive value; 1 where there is none."""
    positive = values[values > 0]
    return float(positive.min()) if positive.size else 1.0


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


def save_metric_curve(path: Path, title: str, metric: Mapping[str, Any]) -> None:
    """Draw a metric by how many units the target computes, the reference the rest.

    Args:
        path: The picture, ``.png`` or ``.svg``.
        title: What was compared.
        metric: ``metric`` of the result: ``name``, ``bound``, and ``layers`` with ``units``, ``candidate`` and ``passed``.

    Raises:
        UsageError: The picture cannot be written.
    """
    points = [point for point in metric["layers"] if math.isfinite(float(point["candidate"]))]
    figure = new_figure(10, 4.5)
    axes = figure.subplots()
    places, heights = [point["units"] for point in points], [float(point["candidate"]) for point in points]
    axes.plot(places, heights, color=MARK, linewidth=0.8, zorder=1)
    for passed, colour, label in ((True, GOOD, "within its bound"), (False, BAD, "past its bound")):
        of_kind = [index for index, point in enumerate(points) if bool(point["passed"]) is passed]
        xs, ys = [places[index] for index in of_kind], [heights[index] for index in of_kind]
        axes.scatter(xs, ys, s=12, color=colour, label=label, zorder=2)
    if metric["bound"] is not None:
        axes.axhline(float(metric["bound"]), color=BAD, linewidth=1, linestyle="--")
    first = next((index for index, point in enumerate(points) if not point["passed"] and point["node"]), None)
    if first is not None:
        node = points[first]["node"]
        name, at = str(node["name"] or node["outputs"][0]), (places[first], heights[first])
        axes.annotate(plain(name), at, xytext=(6, 8), textcoords="offset points", fontsize=7)
    axes.set_xlabel("units that the target computes")
    axes.set_ylabel(plain(str(metric["name"])))
    axes.set_title(plain(title), fontsize=9)
    axes.legend(fontsize=7)
    axes.grid(color=MARK, alpha=0.3)
    save_figure(figure, path)
