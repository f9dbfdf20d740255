"""``bisect-trt sanitize``."""

from __future__ import annotations

from bisect_trt.cli.sessions import open_session
from bisect_trt.graph.save import check_output
from bisect_trt.options.commands import Sanitize
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.sanitize.sanitize import SanitizeSettings


def sanitize(given: Given, console: Console, result: Result) -> Result:
    """Fold constants and clean a model up."""
    own = given[Sanitize]
    settings = SanitizeSettings(
        own.output,
        own.override_input_shapes,
        own.fold_constants,
        own.fold_size_threshold,
        own.shape_inference,
        own.cleanup,
        own.toposort,
        own.timeout,
    )
    check_output(own.output, overwrite=own.overwrite)
    session = open_session(own.model, given, console, result, input_shapes=own.override_input_shapes)
    return session.sanitize(settings)
