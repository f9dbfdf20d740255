"""``bisect-trt log``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, fail
from bisect_trt.cli.runs import newest_run
from bisect_trt.errors import BisectError
from bisect_trt.reporting.console import Console
from bisect_trt.workflows.log import show_probe, show_run


@command
def log_command(
    run: Annotated[
        Path | None,
        typer.Argument(help="The run's folder, under .bisect-trt; the newest if left out.", show_default=False),
    ] = None,
    number: Annotated[int | None, typer.Argument(help="One probe, in full.", show_default=False)] = None,
) -> None:
    """Show every probe of a run with its reason, or one with its candidate, its command and its output."""
    try:
        if run is not None and number is None and str(run).isdecimal() and not run.exists():
            run, number = None, int(str(run))
        folder = newest_run() if run is None else run
        if number is None:
            show_run(folder, Console())
        else:
            show_probe(folder, number, Console())
    except BisectError as error:
        fail(error)
