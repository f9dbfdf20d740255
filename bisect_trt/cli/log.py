"""``bisect-trt log``."""

from __future__ import annotations

from bisect_trt.cli.runs import newest_run
from bisect_trt.options.commands import Log
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.workflows.log import show_probe, show_run


def log(given: Given) -> None:
    """Show every probe of a run with its reason, or one in full."""
    own = given[Log]
    run, number = own.run, own.number
    if run is not None and number is None and str(run).isdecimal() and not run.exists():
        run, number = None, int(str(run))
    folder = newest_run() if run is None else run
    if number is None:
        show_run(folder, Console())
    else:
        show_probe(folder, number, Console())
