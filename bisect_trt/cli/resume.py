"""``bisect-trt resume``."""

from __future__ import annotations

import os

from bisect_trt.cli.invocation import invocation
from bisect_trt.cli.main import run_command_line
from bisect_trt.cli.runs import newest_run
from bisect_trt.errors import UnavailableError
from bisect_trt.options.commands import Resume
from bisect_trt.options.given import Given
from bisect_trt.workflows.binding import Binding


def resume(given: Given) -> None:
    """Go on with a run that was interrupted."""
    folder = given[Resume].run or newest_run()
    binding = Binding.read(folder)
    invocation.resumed = folder.absolute()
    try:
        os.chdir(binding.cwd)
    except OSError as error:
        raise UnavailableError(f"the run was started in {binding.cwd}, which is gone: {error.strerror}.") from error
    invocation.argv = binding.argv
    run_command_line(binding.argv)
