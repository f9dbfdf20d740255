"""Which pictures a comparison leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.pictures.canvas import open_pictures, require_matplotlib
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.error_curve import error_curve

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Pictures:
    """Folders for pictures; ``None`` where there are to be none.

    Attributes:
        heatmaps: Where the errors of each output are, in its last two axes.
        error_metrics: Errors over the magnitude of the reference.
        histograms: How values and errors are distributed.
        show_heatmaps: Whether to open the first of these.
        show_error_metrics: Whether to open the second.
    """

    heatmaps: Path | None = None
    error_metrics: Path | None = None
    histograms: Path | None = None
    show_heatmaps: bool = False
    show_error_metrics: bool = False

    def check(self) -> None:
        """Find out before anything else is done that none can be drawn.

        Raises:
            UnavailableError: matplotlib is not installed.
            UsageError: A folder is a file.
        """
        options = {
            "--save-heatmaps": self.heatmaps,
            "--save-error-metrics-plot": self.error_metrics,
            "--save-histograms": self.histograms,
        }
        for option, wanted in {
            "--show-heatmaps": self.show_heatmaps,
            "--show-error-metrics-plot": self.show_error_metrics,
        }.items():
            if wanted:
                require_matplotlib(option)
        for option, folder in options.items():
            if folder is not None:
                require_matplotlib(option)
                if folder.exists() and not folder.is_dir():
                    raise UsageError(f"{option} {folder} is a file; name a folder.")

    def draw(
        self,
        comparisons: Sequence[TensorComparison],
        samples: Sequence[tuple[Tensors, Tensors]],
        console: Console,
        result: Result,
    ) -> None:
        """Draw all that are wanted.

        Args:
            comparisons: What was compared.
            samples: The target's and the reference's outputs, of each input sample.
            console: Who is told.
            result: Gets their paths.

        Raises:
            UsageError: A picture cannot be written.
        """
        shown_only = Path(mkdtemp(prefix="bisect-trt-")) if self.show_heatmaps or self.show_error_metrics else None
        heatmaps = self.heatmaps or (shown_only if self.show_heatmaps else None)
        metrics = self.error_metrics or (shown_only if self.show_error_metrics else None)
        if not (heatmaps or metrics or self.histograms):
            return
        from bisect_trt.reporting.pictures import draw  # noqa: PLC0415 - matplotlib is an extra, and takes long to import

        paths: list[Path] = []
        shown: list[Path] = []
        for comparison in comparisons:
            targets, references = samples[(comparison.sample or 1) - 1]
            name = comparison.name
            target, reference = targets.get(name), references[name]
            if target is None or not draw.can_be_drawn(comparison, target, reference):
                console.say(f"  no picture of '{name}': there are no two tensors of numbers of one shape")
                continue
            if heatmaps is not None:
                drawn = draw.save_heatmaps(heatmaps, comparison, target, reference)
                paths += drawn
                shown += drawn if self.show_heatmaps else []
            if metrics is not None:
                paths.append(draw.save_error_metrics(metrics, comparison, target, reference))
                shown += paths[-1:] if self.show_error_metrics else []
            if self.histograms is not None:
                paths.append(draw.save_histograms(self.histograms, comparison, target, reference))
        console.say(f"  {len(paths)} pictures drawn")
        result.extra["pictures"] = [*result.extra.get("pictures", []), *map(str, paths)]
        open_pictures(shown, console)


def check_picture(path: Path, option: str) -> None:
    """Find out before anything else is done that a picture cannot be drawn.

    Raises:
        UnavailableError: matplotlib is not installed.
        UsageError: The file cannot be written, or its name says no format.
    """
    require_matplotlib(option)
    if path.suffix not in {".png", ".svg"}:
        raise UsageError(f"{option} {path}: that is no format for a picture; let its name end in .png or .svg.")
    check_output(path, overwrite=True)


def draw_error_curve(path: Path, target: str, result: Result) -> None:
    """Draw the error along the network from what a layerwise comparison found, or the metric.

    Raises:
        UsageError: The picture cannot be written.
    """
    from bisect_trt.reporting.pictures.draw import save_error_curve, save_metric_curve  # noqa: PLC0415 - as above

    title, metric = f"{target} against the reference", result.extra.get("metric")
    if metric is not None:
        save_metric_curve(path, title, metric)
    else:
        save_error_curve(path, title, error_curve(result.extra["tensors"]))
    result.artifacts["error_plot"] = str(path)
