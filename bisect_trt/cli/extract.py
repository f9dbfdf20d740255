"""``bisect-trt extract``."""

from __future__ import annotations

from bisect_trt.cli.sessions import open_session
from bisect_trt.graph.save import check_output
from bisect_trt.options.commands import Extract
from bisect_trt.options.data import Data
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.extract import ExtractSettings


def extract(given: Given, console: Console, result: Result) -> Result:
    """Cut a piece out of a model."""
    own, data = given[Extract], given[Data]
    with_inputs = bool(data.load_inputs or data.data_loader_script)
    settings = ExtractSettings(tuple(own.inputs), tuple(own.outputs), own.output, with_inputs, own.timeout)
    check_output(settings.output, overwrite=own.overwrite)
    if with_inputs:
        check_output(settings.values, overwrite=own.overwrite)
    return open_session(own.model, given, console, result).extract(settings)
