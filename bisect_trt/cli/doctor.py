"""``bisect-trt doctor``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import General
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.doctor import doctor


@command
def doctor_command(
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what was found as JSON too.")] = None,
) -> None:
    """Print what is here (versions, providers, GPUs, driver, CUDA, TensorRT), and what is missing for which target."""

    def work(console: Console, result: Result) -> Result:
        with TemporaryDirectory(prefix="bisect-trt-") as folder:
            return doctor(Path(folder), console, result)

    finish(work, "doctor", General(json=json))
