"""``bisect-trt doctor``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.doctor import doctor as look


def doctor(given: Given, console: Console, result: Result) -> Result:  # noqa: ARG001 - it has no options to look at
    """Print what is here, and what is missing for which target."""
    with TemporaryDirectory(prefix="bisect-trt-") as folder:
        return look(Path(folder), console, result)
