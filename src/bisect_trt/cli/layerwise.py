"""``bisect-trt layerwise``."""

from __future__ import annotations

from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Compare, Data, General, Model, Target, seconds
from bisect_trt.cli.runs import open_run
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.layerwise import layerwise
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
) -> None:
    """Mark every tensor as an output, compare each, and name the first that goes wrong."""

    def work(console: Console, result: Result) -> Result:
        runtime = target.required()
        with Subject(data.settings(model), open_run("layerwise", model, data.files()), console) as subject:
            subject.record(result)
            return layerwise(subject, runtime, compare.settings(runtime), timeout, console, result)

    finish(work, "layerwise", general)
