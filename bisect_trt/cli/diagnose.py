"""``bisect-trt diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Compare, Data, General, Model, Search, Target, seconds
from bisect_trt.cli.runs import invocation
from bisect_trt.cli.sessions import open_session
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.diagnose import DiagnoseSettings
from bisect_trt.workflows.reproducer import check_folder
from bisect_trt.workflows.settings import CheckSettings


@command
def diagnose_command(
    model: Model,
    target: Target,
    compare: Compare,
    data: Data,
    search: Search,
    general: General,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the reproducer; default MODEL-reproducer."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time one candidate may take.", callback=seconds)
    ] = None,
    annotation: Annotation = None,
    archive: Annotated[bool, typer.Option("--zip", help="Pack the reproducer into a .zip beside it too.")] = False,
    anonymise: Annotated[
        bool,
        typer.Option("--anonymise", help="Rename the reproducer's tensors and nodes, and replace its weights."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a reproducer that exists.")] = False,
) -> None:
    """Find out why the target is wrong, by itself, and leave a reproducer. This is the one to start with."""

    def work(console: Console, result: Result) -> Result:
        if annotation is not None:
            check_annotated(annotation, model)
        runtime = target.required()
        compare.require_numbers()
        checks = CheckSettings(target=runtime, tolerance=compare.settings(runtime), timeout=timeout)
        folder = output or Path(f"{model.stem}-reproducer")
        packed = (folder if folder.name else folder.resolve()).with_suffix(f"{folder.suffix}.zip") if archive else None
        settings = DiagnoseSettings(checks, search.settings(), folder, packed, anonymise)
        check_folder(settings.output, packed, overwrite=overwrite or invocation.resumed is not None)
        session = open_session(model, target, compare, data, console, result, annotation)
        return session.diagnose(settings)

    finish(work, "diagnose", general)
