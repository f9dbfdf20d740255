"""``bisect-trt layerwise``."""

from __future__ import annotations

from bisect_trt.cli.sessions import open_target_session
from bisect_trt.options.compare import Compare
from bisect_trt.options.given import Given
from bisect_trt.options.searches import Layerwise
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.workflows.from_options import tolerance_options
from bisect_trt.workflows.layerwise.layerwise import LayerwiseSettings
from bisect_trt.workflows.pictures import check_picture, draw_error_curve


def layerwise(given: Given, console: Console, result: Result) -> Result:
    """Compare every tensor on the target with the reference's."""
    own = given[Layerwise]
    if own.save_error_plot is not None:
        check_picture(own.save_error_plot, "--save-error-plot")
    runtime = given[Target].required()
    settings = LayerwiseSettings(runtime, tolerance_options(given[Compare], runtime), own.timeout, own.isolate)
    open_target_session(own.model, given, console, result, annotation=own.annotate).layerwise(settings)
    if own.save_error_plot is not None:
        draw_error_curve(own.save_error_plot, runtime.describe(), result)
    return result
