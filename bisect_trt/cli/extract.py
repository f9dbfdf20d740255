"""``bisect-trt extract``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Data, General, Model
from bisect_trt.cli.runs import open_run
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.extract import ExtractSettings
from bisect_trt.workflows.sessions import Session


@command
def extract_command(
    model: Model,
    data: Data,
    general: General,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the piece goes.")],
    inputs: Annotated[
        list[str] | None, typer.Option(metavar="TENSOR", help="Where the piece starts; default the graph's inputs.")
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option(metavar="TENSOR", help="Where it ends; default the graph's outputs.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over files that exist.")] = False,
) -> None:
    """Cut a piece out of a model; with input values given, also write what the piece is really fed there."""

    def work(console: Console, result: Result) -> Result:
        with_inputs = bool(data.load_inputs or data.data_loader_script)
        settings = ExtractSettings(inputs or (), outputs or (), output, with_inputs)
        check_output(settings.output, overwrite=overwrite)
        if with_inputs:
            check_output(settings.values, overwrite=overwrite)
        workspace = open_run("extract", model, data.files(), weights=data.external_data_dir)
        return Session(data.settings(model), workspace, console, result).extract(settings)

    finish(work, "extract", general)
