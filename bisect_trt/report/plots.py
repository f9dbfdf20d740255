"""Plots with matplotlib: heatmaps and errors of outputs, the error along the network, a metric by units."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.shared import Plots
from bisect_trt.report.charts import error_curve
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOOD, BAD, LINE = "#2a6fbb", "#c8372d", "#8a8a8a"
MOST_PIXELS = 256
"""Along each side of a heatmap; larger ones show the largest error of each block."""
MOST_POINTS = 20_000
_NAME_LENGTH = 100
_EPSILON = 2.0**-52

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def require_matplotlib(option: str) -> None:
    """Check that plots can be drawn, before anything else is done.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UnavailableError(
            f"{option} draws with matplotlib, which is not installed; run: pip install 'bisect-trt[plots]'"
        )


def check_plots(options: Plots) -> None:
    """Check that the plots of the outputs can be drawn, before anything else is done.

    Raises:
        UnavailableError: matplotlib is not installed.
        UsageError: A folder is a file.
    """
    for entry in (each for each in fields(options) if getattr(options, each.name)):
        flag, value = f"--{entry.name.replace('_', '-')}", getattr(options, entry.name)
        require_matplotlib(flag)
        if isinstance(value, Path) and value.exists() and not value.is_dir():
            raise UsageError(f"{flag} {value} is a file; name a folder.")


def check_plot(path: Path, option: str) -> None:
    """Check that a plot can be drawn, before anything else is done.

    Raises:
        UnavailableError: matplotlib is not installed.
        UsageError: The file cannot be written, or its suffix is not supported.
    """
    require_matplotlib(option)
    if path.suffix not in {".png", ".svg"}:
        raise UsageError(f"{option} {path}: the format is not supported; use a name that ends in .png or .svg.")
    check_output(path, overwrite=True)


def draw_plots(
    options: Plots,
    comparisons: Sequence[TensorComparison],
    samples: Sequence[tuple[Tensors, Tensors]],
    console: Console,
    result: Result,
) -> None:
    """Draw the plots of the outputs, add their paths to the result, and open the folders that are to be shown.

    Args:
        options: Which plots.
        comparisons: The compared outputs.
        samples: The target's and the reference's outputs of each input sample.
        console: Prints what was drawn.
        result: Receives the paths.

    Raises:
        UsageError: A plot cannot be written.
    """
    asked = [
        (options.save_heatmaps, options.show_heatmaps, save_heatmaps),
        (options.save_error_metrics_plot, options.show_error_metrics_plot, save_error_metrics),
    ]
    wanted = [
        (folder or Path(mkdtemp(prefix="bisect-trt-")), show, save) for folder, show, save in asked if folder or show
    ]
    if not wanted:
        return
    paths: list[Path] = []
    for comparison in comparisons:
        targets, references = samples[(comparison.sample or 1) - 1]
        target, reference = targets.get(comparison.name), references[comparison.name]
        if target is None or not can_be_drawn(target, reference):
            console.say(f"  no plot of '{comparison.name}': its two values are not numbers of one shape")
            continue
        for folder, _, save in wanted:
            paths += save(folder, comparison, target, reference)
    console.say(f"  {len(paths)} plots drawn")
    result.extra["pictures"] = [*result.extra.get("pictures", []), *map(str, paths)]
    for folder in dict.fromkeys(folder for folder, show, _ in wanted if show):
        if not _opens(folder.absolute()):
            console.warn(f"there is no display; the plots are in {folder}")


def _opens(folder: Path) -> bool:
    """Return whether the system's viewer takes a folder; it hands the folder over and ends, the window stays open."""
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        return False
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    try:
        ended = subprocess.run([opener, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return ended.returncode == 0


def can_be_drawn(target: Array, reference: Array) -> bool:
    """Return whether both are numbers of one shape, and not empty."""
    strings = is_string(reference.dtype) or is_string(target.dtype)
    return target.shape == reference.shape and reference.size > 0 and not strings


def _errors(target: Array, reference: Array) -> tuple[Array, Array, Array]:
    """Return absolute errors, relative errors and magnitudes of the reference, in float64."""
    wide: type[Any] = np.complex128 if "c" in (target.dtype.kind, reference.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        expected = reference.astype(wide)
        absolute, magnitude = np.abs(target.astype(wide) - expected), np.abs(expected)
        return absolute, absolute / np.where(magnitude == 0, _EPSILON, magnitude), magnitude


def save_heatmaps(folder: Path, comparison: TensorComparison, target: Array, reference: Array) -> list[Path]:
    """Draw the absolute and the relative errors over the last two axes; of the other axes the largest error is shown.

    Raises:
        UsageError: A plot cannot be written.
    """
    from matplotlib import colormaps  # noqa: PLC0415 - an extra, and slow to import
    from matplotlib.colors import LogNorm, Normalize  # noqa: PLC0415 - as above

    paths = []
    for kind, errors in zip(("absolute", "relative"), _errors(target, reference), strict=False):
        image = shrink_image(errors.reshape((-1, *((1, 1, *errors.shape)[-2:]))).max(axis=0))
        finite = image[np.isfinite(image)]
        largest = float(finite.max(initial=0.0))
        smallest = max(float(finite[finite > 0].min(initial=largest)), largest * 1e-6)
        norm: Any = LogNorm(smallest, largest) if smallest < largest else Normalize(0, largest or 1)
        if smallest < largest:  # a logarithm would draw 0 as NaN
            image = np.where(image < smallest, smallest / 2, image)
        figure = _figure(8, 7)
        axes = figure.subplots()
        axes.set_axis_off()
        colours = colormaps["viridis"].with_extremes(bad=BAD, under="black")
        drawn = axes.imshow(
            np.ma.masked_invalid(image), cmap=colours, norm=norm, interpolation="nearest", aspect="auto"
        )
        title = f"{kind} error of {_plain(comparison.name)}, shape {list(errors.shape)}"
        figure.suptitle(f"{title}\nred: NaN or Inf; black: close to 0", fontsize=9)
        figure.colorbar(drawn, ax=axes, shrink=0.8)
        paths.append(_save(figure, folder / file_name(comparison.name, comparison.sample, kind)))
    return paths


def shrink_image(image: Array) -> Array:
    """Return an image of at most ``MOST_PIXELS`` each way: the largest error of each block, NaN before all others."""
    for axis in (0, 1):
        size = image.shape[axis]
        if size > MOST_PIXELS:
            starts = np.linspace(0, size, MOST_PIXELS, endpoint=False).astype(int)
            image = np.maximum.reduceat(image, starts, axis=axis)
    return image


def save_error_metrics(folder: Path, comparison: TensorComparison, target: Array, reference: Array) -> list[Path]:
    """Draw the absolute and the relative error of each element over the magnitude of the reference.

    Raises:
        UsageError: The plot cannot be written.
    """
    absolute, relative, magnitude = (values.ravel() for values in _errors(target, reference))
    chosen = sample_points(absolute)
    figure = _figure(9, 4.5)
    kinds = (("absolute", absolute, comparison.atol), ("relative", relative, comparison.rtol))
    for axes, (kind, errors, tolerance) in zip(figure.subplots(1, 2), kinds, strict=True):
        known = chosen[np.isfinite(errors[chosen]) & np.isfinite(magnitude[chosen])]
        # 0 has no place on a logarithmic scale; it stands at its lower end.
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
        axes.grid(color=LINE, alpha=0.3)
    hidden = int(np.count_nonzero(~np.isfinite(absolute)))
    note = f"; {hidden} NaN or Inf are not shown" if hidden else ""
    title = f"errors of {_plain(comparison.name)} ({len(chosen)} of {absolute.size} elements{note})"
    figure.suptitle(title, fontsize=9)
    return [_save(figure, folder / file_name(comparison.name, comparison.sample, "errors"))]


def sample_points(errors: Array) -> Array:
    """Return the positions of at most ``MOST_POINTS`` elements: half of them the largest errors, the others evenly spread."""
    if errors.size <= MOST_POINTS:
        return np.arange(errors.size)
    half = MOST_POINTS // 2
    largest = np.argpartition(np.nan_to_num(errors, nan=-1.0, posinf=-1.0), -half)[-half:]
    return np.union1d(largest, np.linspace(0, errors.size - 1, half).astype(int))


def _least(values: Array) -> float:
    """Return the smallest positive value; 1 where there is none."""
    return float(values.min(where=values > 0, initial=np.inf)) if (values > 0).any() else 1.0


def save_layer_curve(path: Path, target: str, result: Result) -> None:
    """Draw a layerwise comparison with its bound: the errors in units of their tolerances, or the metric by units.

    The units are those that the target computes, where the reference computes the others. NaN and Inf are drawn at the top.

    Raises:
        UsageError: The plot cannot be written.
    """
    metric = result.extra.get("metric")
    if metric is not None:
        entries = [each for each in metric["layers"] if math.isfinite(float(each["candidate"]))]
        places = [each["units"] for each in entries]
        values = [float(each["candidate"]) for each in entries]
        names = [each["node"] and (each["node"]["name"] or each["node"]["outputs"][0]) for each in entries]
        bound = None if metric["bound"] is None else float(metric["bound"])
        labels = "units that the target computes", str(metric["name"])
    else:
        curve = error_curve(result.extra["tensors"])
        entries, bound = curve["points"], 1.0
        places, names = ([each[key] for each in entries] for key in ("place", "name"))
        values = [float(each["ratio"]) for each in entries]
        labels = f"tensor, in topological order (of {curve['total']})", "largest error / tolerance"
    known = [value for value in values if math.isfinite(value) and (value > 0 or metric is not None)]
    low, high = min(known, default=0.1), max([*known, bound or 0.0])
    low, high = (low, high) if metric is not None else (low / 2, high * 4)
    heights = np.array([high if not math.isfinite(value) else max(value, low) for value in values])
    passed = np.array([bool(each["passed"]) for each in entries], bool)
    figure = _figure(10, 4.5)
    axes = figure.subplots()
    axes.plot(places, heights, color=LINE, linewidth=0.8, zorder=1)
    for chosen, colour, label in ((passed, GOOD, "within the bound"), (~passed, BAD, "past the bound")):
        axes.scatter(np.array(places)[chosen], heights[chosen], s=12, color=colour, label=label, zorder=2)
    if bound is not None:
        axes.axhline(bound, color=BAD, linewidth=1, linestyle="--")
    first = next((index for index, name in enumerate(names) if name and not passed[index]), None)
    if first is not None:
        at = (places[first], heights[first])
        axes.annotate(_plain(str(names[first])), at, xytext=(6, 8), textcoords="offset points", fontsize=7)
    axes.set_yscale("linear" if metric is not None else "log")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(_plain(labels[1]))
    axes.set_title(_plain(f"{target} against the reference"), fontsize=9)
    axes.legend(fontsize=7)
    axes.grid(color=LINE, alpha=0.3)
    _save(figure, path)
    result.artifacts["error_plot"] = str(path)


def file_name(tensor: str, sample: int | None, kind: str) -> str:
    """Return the name of a plot's file; different for different tensors."""
    plain = re.sub(r"[^\w.-]+", "_", tensor)[:_NAME_LENGTH].strip("_.") or "tensor"
    if plain != tensor:
        plain += f"-{zlib.crc32(tensor.encode(errors='replace')):08x}"
    return f"{plain}{'' if sample is None else f'-sample{sample}'}.{kind}.png"


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches; pyplot's figures would stay alive."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def _save(figure: Figure, path: Path) -> Path:
    """Write a figure, in the format of the file's suffix.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"the plot {path} cannot be written: {error.strerror}; name another place.") from error
    return path


def _plain(text: str) -> str:
    """Return text that matplotlib shows as it is: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
