"""``bisect-trt report``."""

from __future__ import annotations

from bisect_trt.cli.runs import newest_run
from bisect_trt.graph.save import check_output
from bisect_trt.options.commands import Report
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.html.page import REPORT_FILE, write_report
from bisect_trt.reporting.result import RESULT_FILE, read_result


def report(given: Given) -> None:
    """Make a run's report.html again, from its result.json and nothing else."""
    own = given[Report]
    source = newest_run(RESULT_FILE) if own.run is None else own.run
    result = read_result(source)
    path = own.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    check_output(path, overwrite=True)
    write_report(result, path)
    Console().answer(str(path))
