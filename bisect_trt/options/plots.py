"""Pictures of the errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bisect_trt.options.spec import option


@dataclass
class Plots:
    """Pictures of the errors, drawn with matplotlib (extra: plots)."""

    save_heatmaps: Annotated[Path | None, option(metavar="DIR", help="Where the errors of each output are.")] = None
    show_heatmaps: Annotated[bool, option("--show-heatmaps", help="Open these pictures, saved or not.")] = False
    save_error_metrics_plot: Annotated[
        Path | None, option(metavar="DIR", help="Errors over the magnitude of the reference.")
    ] = None
    show_error_metrics_plot: Annotated[
        bool, option("--show-error-metrics-plot", help="Open these pictures, saved or not.")
    ] = False
    save_histograms: Annotated[Path | None, option(metavar="DIR", help="How values and errors are distributed.")] = None
