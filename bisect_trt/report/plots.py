"""Plots of output errors with matplotlib: heatmaps, and errors over the magnitude of the reference."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import OutputFileError, PackageError
from bisect_trt.options.shared import Plots
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PIXELS = 256
"""Along each side of a heatmap; larger ones show the largest error of each block."""
MOST_POINTS = 20_000
_NAME_LENGTH = 100
_EPSILON = 2.0**-52
_BLUE, _RED = "#2a6fbb", "#c8372d"

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def check_plots(options: Plots) -> None:
    """Check that the plots can be drawn, before anything else is done.

    Raises:
        UnavailableError: matplotlib is not installed.
        UsageError: A folder is a file.
    """
    for entry in (each for each in fields(options) if getattr(options, each.name)):
        flag, value = f"--{entry.name.replace('_', '-')}", getattr(options, entry.name)
        if find_spec("matplotlib") is None:
            raise PackageError(
                f"{flag} draws with matplotlib, which is not installed; run: pip install 'bisect-trt[plots]'"
            )
        if isinstance(value, Path) and value.exists() and not value.is_dir():
            raise OutputFileError(f"{flag} {value} is a file; name a folder.")


def draw_plots(
    options: Plots,
    comparisons: Sequence[TensorComparison],
    samples: Sequence[tuple[Tensors, Tensors]],
    console: Console,
    result: Result,
) -> None:
    """Draw the plots of the outputs, and add their paths to the result.

    Args:
        options: Which plots.
        comparisons: The compared outputs.
        samples: The target's and the reference's outputs of each input sample.
        console: Prints what was drawn.
        result: Receives the paths.

    Raises:
        UsageError: A plot cannot be written.
    """
    asked = ((options.save_heatmaps, save_heatmaps), (options.save_error_metrics_plot, save_error_metrics))
    wanted = [(folder, save) for folder, save in asked if folder is not None]
    if not wanted:
        return
    paths: list[Path] = []
    for comparison in comparisons:
        targets, references = samples[(comparison.sample or 1) - 1]
        target, reference = targets.get(comparison.name), references[comparison.name]
        if target is None or not can_be_drawn(target, reference):
            console.say(f"  no plot of '{comparison.name}': its two values are not numbers of one shape")
            continue
        for folder, save in wanted:
            paths += save(folder, comparison, target, reference)
    console.say(f"  {len(paths)} plots drawn")
    result.extra["pictures"] = list(map(str, paths))


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
        title = f"{kind} error of {comparison.name}, shape {list(errors.shape)}\nred: NaN or Inf; black: close to 0"
        figure = _figure(title, 8, 7)
        axes = figure.subplots()
        axes.set_axis_off()
        colours = colormaps["viridis"].with_extremes(bad=_RED, under="black")
        values = np.ma.masked_invalid(image)
        drawn = axes.imshow(values, cmap=colours, norm=norm, interpolation="nearest", aspect="auto")
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
    hidden = int(np.count_nonzero(~np.isfinite(absolute)))
    note = f"; {hidden} NaN or Inf are not shown" if hidden else ""
    figure = _figure(f"errors of {comparison.name} ({len(chosen)} of {absolute.size} elements{note})", 9, 4.5)
    kinds = (("absolute", absolute, comparison.atol), ("relative", relative, comparison.rtol))
    for axes, (kind, errors, tolerance) in zip(figure.subplots(1, 2), kinds, strict=True):
        known = chosen[np.isfinite(errors[chosen]) & np.isfinite(magnitude[chosen])]
        axes.scatter(magnitude[known], errors[known], s=3, alpha=0.4, color=_BLUE, linewidths=0)
        if tolerance is not None and 0 < tolerance < np.inf:
            axes.axhline(tolerance, color=_RED, linewidth=1, label=f"tolerance {tolerance:.3g}")
            axes.legend(fontsize=7)
        # Zero, which a logarithmic scale has no place for, stands at the lower end, where the scale is linear.
        for scale, values in ((axes.set_xscale, magnitude[known]), (axes.set_yscale, errors[known])):
            scale("symlog", linthresh=float(values.min(where=values > 0, initial=1.0)))
        axes.set_xlabel("magnitude of the reference")
        axes.set_ylabel(f"{kind} error")
        axes.grid(alpha=0.3)
    return [_save(figure, folder / file_name(comparison.name, comparison.sample, "errors"))]


def sample_points(errors: Array) -> Array:
    """Return the positions of at most ``MOST_POINTS`` elements: half of them the largest errors, the others evenly spread."""
    if errors.size <= MOST_POINTS:
        return np.arange(errors.size)
    half = MOST_POINTS // 2
    largest = np.argpartition(np.nan_to_num(errors, nan=-1.0, posinf=-1.0), -half)[-half:]
    return np.union1d(largest, np.linspace(0, errors.size - 1, half).astype(int))


def file_name(tensor: str, sample: int | None, kind: str) -> str:
    """Return the name of a plot's file; different for different tensors."""
    plain = re.sub(r"[^\w.-]+", "_", tensor)[:_NAME_LENGTH].strip("_.") or "tensor"
    if plain != tensor:
        plain += f"-{zlib.crc32(tensor.encode(errors='replace')):08x}"
    return f"{plain}{'' if sample is None else f'-sample{sample}'}.{kind}.png"


def _figure(title: str, width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches; pyplot's figures would stay alive."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    figure.suptitle(title.replace("$", r"\$"), fontsize=9)  # a dollar sign would begin a formula
    return figure


def _save(figure: Figure, path: Path) -> Path:
    """Write a figure.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise OutputFileError(f"the plot {path} cannot be written: {error.strerror}; name another place.") from error
    return path
