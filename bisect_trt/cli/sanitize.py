"""``bisect-trt sanitize``."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.cli.runs import open_run
from bisect_trt.graph.save import check_output
from bisect_trt.options.commands import Sanitize
from bisect_trt.options.data import Data
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.from_options import data_files, model_settings
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.sanitize.sanitize import SanitizeSettings
from bisect_trt.workflows.sanitize.sanitize import sanitize as sanitize_model
from bisect_trt.workflows.subject import Subject


def sanitize(given: Given, console: Console, result: Result) -> Result:
    """Fold constants and clean a model up."""
    own, data = given[Sanitize], given[Data]
    settings = SanitizeSettings(
        own.output,
        own.override_input_shapes,
        own.fold_constants,
        own.fold_size_threshold,
        own.shape_inference,
        own.cleanup,
        own.toposort,
    )
    check_output(own.output, overwrite=own.overwrite)
    fed = model_settings(own.model, data)
    fed = replace(fed, input_shapes={**fed.input_shapes, **own.override_input_shapes})
    workspace = open_run("sanitize", own.model, data_files(data), weights=data.external_data_dir)
    with Subject(fed, workspace, console) as subject, recorded(subject, result, console):
        return sanitize_model(subject, settings, console, result)
