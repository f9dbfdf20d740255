"""``bisect-trt report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, fail
from bisect_trt.cli.runs import newest_run
from bisect_trt.errors import BisectError
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.html.page import REPORT_FILE, write_report
from bisect_trt.reporting.result import RESULT_FILE, read_result


@command
def report_command(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="The run's folder, under .bisect-trt, or a result.json; the newest run if left out.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where the page goes; default report.html beside the result."
        ),
    ] = None,
) -> None:
    """Make a run's report.html again, from its result.json and nothing else."""
    try:
        source = newest_run(RESULT_FILE) if run is None else run
        result = read_result(source)
        path = output or (source if source.is_dir() else source.parent) / REPORT_FILE
        check_output(path, overwrite=True)
        write_report(result, path)
    except BisectError as error:
        fail(error)
    Console().answer(str(path))
