"""``bisect-trt reduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Check, Compare, Data, General, Model, Search, Target
from bisect_trt.cli.runs import invocation
from bisect_trt.cli.sessions import open_search
from bisect_trt.errors import UsageError
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.search.strategy import Mode
from bisect_trt.workflows.reduce import check_outputs
from bisect_trt.workflows.settings import ReduceSettings


@command
def reduce_command(
    model: Model,
    check: Check,
    target: Target,
    compare: Compare,
    data: Data,
    search: Search,
    general: General,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the smallest failing model goes.")
    ],
    min_good: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the largest passing model next to it goes.")
    ] = None,
    reduce_inputs: Annotated[
        bool, typer.Option("--reduce-inputs/--no-reduce-inputs", help="Whether the start of the graph may move.")
    ] = True,
    reduce_outputs: Annotated[
        bool, typer.Option("--reduce-outputs/--no-reduce-outputs", help="Whether the end of the graph may move.")
    ] = True,
    mode: Annotated[Mode, typer.Option(help="How to search.")] = Mode.AUTO,
    annotation: Annotation = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over files that exist.")] = False,
) -> None:
    """Find the smallest model that still fails, with your own check, a built-in comparison, or by asking you."""

    def work(console: Console, result: Result) -> Result:
        if annotation is not None:
            check_annotated(annotation, model)
        if not (reduce_inputs or reduce_outputs):
            raise UsageError("--no-reduce-inputs and --no-reduce-outputs together leave nothing to reduce; drop one.")
        settings = ReduceSettings(output, min_good, reduce_inputs, reduce_outputs, mode, overwrite)
        if invocation.resumed is None:
            check_outputs(settings)
        session, checks = open_search(
            model, check, target.settings(), target, compare, data, console, result, annotation
        )
        return session.reduce(settings, checks, search.settings())

    finish(work, "reduce", general)
