"""``bisect-trt extract``."""

from __future__ import annotations

from bisect_trt.cli.runs import open_run
from bisect_trt.graph.save import check_output
from bisect_trt.options.commands import Extract
from bisect_trt.options.data import Data
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.extract import ExtractSettings, extract_model
from bisect_trt.workflows.from_options import data_files, model_settings
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.subject import Subject


def extract(given: Given, console: Console, result: Result) -> Result:
    """Cut a piece out of a model."""
    own, data = given[Extract], given[Data]
    with_inputs = bool(data.load_inputs or data.data_loader_script)
    settings = ExtractSettings(tuple(own.inputs), tuple(own.outputs), own.output, with_inputs)
    check_output(settings.output, overwrite=own.overwrite)
    if with_inputs:
        check_output(settings.values, overwrite=own.overwrite)
    fed = model_settings(own.model, data)
    workspace = open_run("extract", own.model, data_files(data), weights=data.external_data_dir)
    with Subject(fed, workspace, console) as subject, recorded(subject, result, console):
        return extract_model(subject, settings, console, result)
