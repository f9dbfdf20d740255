"""``bisect-trt resume``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, fail, run_command_line
from bisect_trt.cli.runs import invocation, newest_run
from bisect_trt.errors import BisectError, UnavailableError
from bisect_trt.workflows.binding import Binding


@command
def resume_command(
    run: Annotated[
        Path | None,
        typer.Argument(help="The run's folder, under .bisect-trt; the newest if left out.", show_default=False),
    ] = None,
) -> None:
    """Go on with a run that was interrupted: by Ctrl-C, kill -9 or a reboot. Nothing known is probed again."""
    try:
        folder = newest_run() if run is None else run
        binding = Binding.read(folder)
        invocation.resumed = folder.absolute()
        try:
            os.chdir(binding.cwd)
        except OSError as error:
            raise UnavailableError(f"the run was started in {binding.cwd}, which is gone: {error.strerror}.") from error
    except BisectError as error:
        fail(error)
    invocation.argv = binding.argv
    run_command_line(binding.argv)
