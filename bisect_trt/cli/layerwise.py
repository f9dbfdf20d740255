"""``bisect-trt layerwise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Compare, Data, General, Model, Target, seconds
from bisect_trt.cli.sessions import open_session
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.layerwise.layerwise import LayerwiseSettings
from bisect_trt.workflows.pictures import check_picture, draw_error_curve


@command
def layerwise_command(
    model: Model,
    target: Target,
    compare: Compare,
    data: Data,
    general: General,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time the target may take.", callback=seconds)
    ] = None,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Show each layer's own error too: fed the reference's values.")
    ] = False,
    save_error_plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the error along the network, .png or .svg (extra: plots).")
    ] = None,
    annotation: Annotation = None,
) -> None:
    """Compare every tensor on the target with the reference's, and name the first that goes wrong."""

    def work(console: Console, result: Result) -> Result:
        if annotation is not None:
            check_annotated(annotation, model)
        if save_error_plot is not None:
            check_picture(save_error_plot, "--save-error-plot")
        runtime = target.required()
        session = open_session(model, target, compare, data, console, result, annotation)
        session.layerwise(LayerwiseSettings(runtime, compare.settings(runtime), timeout, isolate))
        if save_error_plot is not None:
            draw_error_curve(save_error_plot, runtime.describe(), result)
        return result

    finish(work, "layerwise", general)
