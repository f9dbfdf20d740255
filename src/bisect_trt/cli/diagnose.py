"""``bisect-trt diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Compare, Data, General, Model, Search, seconds
from bisect_trt.cli.runs import invocation, open_run
from bisect_trt.cli.target import Target
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.checks import make_prober
from bisect_trt.workflows.diagnose import DiagnoseSettings, diagnose
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.reproducer import check_folder
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.subject import Subject


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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a reproducer that exists.")] = False,
) -> None:
    """Find out why the target is wrong, by itself, and leave a reproducer. This is the one to start with."""

    def work(console: Console, result: Result) -> Result:
        if annotation is not None:
            check_annotated(annotation, model)
        runtime = target.required()
        compare.require_numbers()
        checks = CheckSettings(target=runtime, tolerance=compare.settings(runtime), timeout=timeout)
        settings = DiagnoseSettings(checks, search.settings(), output or Path(f"{model.stem}-reproducer"))
        workspace = open_run("diagnose", model, [*data.files(), *compare.files()])
        with Subject(data.settings(model), workspace, console, fresh_process=target.fresh_process) as subject:
            check_folder(settings.output, overwrite=overwrite or invocation.resumed is not None)
            prober = make_prober(checks, search.settings(), subject, console)
            known = recorded(subject, result, console, prober=prober, target=runtime, annotation=annotation)
            try:
                with known:
                    return diagnose(subject, prober, settings, console, result)
            finally:
                prober.ledger.close()

    finish(work, "diagnose", general)
