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

from bisect_trt.errors import OutputFileError, PackageError
from bisect_trt.options.shared import Plots
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import Array, to_float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAME_LENGTH = 100
_EPSILON = 2.0**-52
_KINDS = ("absolute", "relative")

Tensors = Mapping[str, Array]


def check_plots(options: Plots) -> None:
    """Check that the plots can be drawn, before anything else is done.

    Raises:
        UnavailableError: matplotlib is not installed.
        UsageError: A folder is a file.
    """
    for entry in (option for option in fields(options) if getattr(options, option.name)):
        flag = f"--{entry.name.replace('_', '-')}"
        value = getattr(options, entry.name)
        # Found, not imported: that takes a second, and the run may end without a plot.
        if find_spec("matplotlib") is None:
            raise PackageError(
                f"{flag} needs matplotlib, which is not installed; run: pip install matplotlib"
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
        options: Where which plots go.
        comparisons: The comparisons of the outputs, of all samples.
        samples: The outputs of the target and of the reference, by sample.
        console: Warns of an output that cannot be drawn.
        result: The result that gets the paths.

    Raises:
        UsageError: A plot cannot be written.
    """
    plots = (
        (options.save_heatmaps, _heatmap, "heatmap"),
        (options.save_error_metrics_plot, _scatter, "metrics"),
    )
    requested = [(folder, draw, name) for folder, draw, name in plots if folder is not None]
    paths: list[Path] = []
    for comparison in comparisons if requested else ():
        targets, references = samples[(comparison.sample or 1) - 1]
        target = targets.get(comparison.name)
        reference = references[comparison.name]
        # A picture of two shapes would compare unrelated elements.
        alike = target is not None and target.shape == reference.shape and reference.size > 0
        kinds = "" if target is None else target.dtype.kind + reference.dtype.kind
        if target is None or not alike or set(kinds) & set("cU"):
            console.say(
                f"  no plot of '{comparison.name}': its two values are not real numbers of one shape"
            )
            continue
        for folder, draw, name in requested:
            paths.append(folder / file_name(comparison.name, comparison.sample, name))
            draw_figure(paths[-1], comparison, target, reference, draw)
    if requested:
        console.say(f"  {len(paths)} plots drawn")
        result.pictures = list(map(str, paths))


def draw_figure(
    path: Path,
    comparison: TensorComparison,
    target: Array,
    reference: Array,
    draw: Any,  # noqa: ANN401 - a function of this module
) -> None:
    """Draw the absolute and the relative error of a tensor beside each other.

    Args:
        path: The PNG.
        comparison: The comparison of the tensor.
        target: The target's values.
        reference: The reference's values, of the same shape.
        draw: Draws the errors of one kind onto an axis.

    Raises:
        UsageError: The file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    with np.errstate(all="ignore"):
        expected = to_float(reference)
        absolute = np.abs(to_float(target) - expected)
        relative = absolute / np.maximum(np.abs(expected), _EPSILON)
    # Pyplot's figures would stay alive.
    figure = Figure(figsize=(12, 6), dpi=110, layout="constrained")
    # A dollar sign begins a formula.
    title = f"{comparison.name}, shape {list(reference.shape)}".replace("$", r"\$")
    figure.suptitle(title, fontsize=9)
    axes = figure.subplots(1, 2)
    for axis, kind, errors in zip(axes, _KINDS, (absolute, relative), strict=True):
        axis.set_title(f"{kind} error", fontsize=9)
        draw(
            axis,
            errors,
            np.abs(expected),
            comparison.atol if kind == "absolute" else comparison.rtol,
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise OutputFileError(
            f"the plot {path} cannot be written: {error.strerror}; name another place."
        ) from error


def _heatmap(axes: Axes, errors: Array, _: Array, __: float | None) -> None:
    """Draw the errors over the last two axes; of the other axes the largest error is shown, NaN and Inf in red."""
    from matplotlib import colormaps  # noqa: PLC0415 - as above

    image = errors.reshape((-1, *((1, 1, *errors.shape)[-2:]))).max(axis=0)
    colours = colormaps["viridis"].with_extremes(bad="red")
    axes.set_axis_off()
    drawn = axes.imshow(
        np.ma.masked_invalid(image), cmap=colours, interpolation="nearest", aspect="auto"
    )
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8)


def _scatter(axes: Axes, errors: Array, magnitude: Array, tolerance: float | None) -> None:
    """Draw the error of each element over the magnitude of the reference, and the tolerance."""
    finite = np.isfinite(errors) & np.isfinite(magnitude)
    axes.plot(magnitude[finite], errors[finite], ".", markersize=2, rasterized=True)
    if tolerance is not None and 0 < tolerance < np.inf:
        axes.axhline(tolerance, color="red", linewidth=1, label=f"tolerance {tolerance:.3g}")
        axes.legend(fontsize=7)
    # Zero, which a logarithmic scale has no place for, stands at the lower end, where the scale is
    # linear.
    for scale, values in ((axes.set_xscale, magnitude[finite]), (axes.set_yscale, errors[finite])):
        scale("symlog", linthresh=float(values.min(where=values > 0, initial=1.0)))
    axes.set_xlabel("magnitude of the reference")
    axes.grid(alpha=0.3)


def file_name(tensor: str, sample: int | None, kind: str) -> str:
    """Return the name of a plot's file; different for different tensors.

    Args:
        tensor: The name of the tensor, which is untrusted text.
        sample: The number of the sample, from 1; ``None`` where there is one.
        kind: ``heatmap`` or ``metrics``.
    """
    plain = re.sub(r"[^\w.-]+", "_", tensor)[:_NAME_LENGTH].strip("_.") or "tensor"
    if plain != tensor:
        plain += f"-{zlib.crc32(tensor.encode(errors='replace')):08x}"
    return f"{plain}{'' if sample is None else f'-sample{sample}'}.{kind}.png"
