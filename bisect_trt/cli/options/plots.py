"""Pictures of the errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.workflows.pictures import Pictures


@dataclass
class Plots:
    """Pictures of the errors, drawn with matplotlib (extra: plots)."""

    save_heatmaps: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the errors of each output are.")] = (
        None
    )
    show_heatmaps: Annotated[bool, typer.Option("--show-heatmaps", help="Open these pictures, saved or not.")] = False
    save_error_metrics_plot: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Errors over the magnitude of the reference.")
    ] = None
    show_error_metrics_plot: Annotated[
        bool, typer.Option("--show-error-metrics-plot", help="Open these pictures, saved or not.")
    ] = False
    save_histograms: Annotated[
        Path | None, typer.Option(metavar="DIR", help="How values and errors are distributed.")
    ] = None

    def settings(self) -> Pictures:
        """As plain data.

        Raises:
            UnavailableError: matplotlib is not installed.
            UsageError: A folder is a file.
        """
        pictures = Pictures(
            self.save_heatmaps,
            self.save_error_metrics_plot,
            self.save_histograms,
            self.show_heatmaps,
            self.show_error_metrics_plot,
        )
        pictures.check()
        return pictures
