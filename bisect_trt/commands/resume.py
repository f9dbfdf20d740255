"""``resume``: goes on with a run that was interrupted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bisect_trt.errors import RunFolderError
from bisect_trt.options.commands import Resume
from bisect_trt.report.result import Result
from bisect_trt.session.binding import Binding, newest_run

if TYPE_CHECKING:
    from bisect_trt.session.call import Call


def run(call: Call) -> Result:
    """Change to the directory of an interrupted run; the call gets its command line as ``words`` and its ``folder``."""
    folder = call[Resume].run or newest_run()
    binding = Binding.read(folder)
    if binding.python:
        raise RunFolderError(
            f"{folder} was started from Python; to resume it, call the same function with run='{folder}'."
        )
    call.folder = folder.absolute()
    try:
        os.chdir(binding.cwd)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"the run was started in {binding.cwd}, which does not exist: {getattr(error, 'strerror', error)}."
        ) from error
    call.words = binding.argv
    return call.result
