"""``bisect-trt layerwise``."""

from __future__ import annotations

from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Compare, Data, General, Model, seconds
from bisect_trt.cli.runs import open_run
from bisect_trt.cli.target import Target
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.layerwise import layerwise
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.subject import Subject


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
    annotation: Annotation = None,
) -> None:
    """Mark every tensor as an output, compare each, and name the first that goes wrong."""

    def work(console: Console, result: Result) -> Result:
        if annotation is not None:
            check_annotated(annotation, model)
        runtime = target.required()
        workspace = open_run("layerwise", model, [*data.files(), *compare.files()])
        with (
            Subject(data.settings(model), workspace, console) as subject,
            recorded(subject, result, console, target=runtime, annotation=annotation),
        ):
            return layerwise(subject, runtime, compare.settings(runtime), timeout, console, result)

    finish(work, "layerwise", general)
