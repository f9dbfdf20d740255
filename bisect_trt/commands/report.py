"""``report``: writes the report of a run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bisect_trt.errors import OutputFileError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import Report
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, read_result
from bisect_trt.session.binding import newest_run

if TYPE_CHECKING:
    from bisect_trt.session.call import Call


def run(call: Call) -> Result:
    """Write the report.html of a run again, from its result.json alone."""
    options = call[Report]
    source = newest_run(RESULT_FILE) if options.run is None else options.run
    result = read_result(source)
    path = options.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    if options.output is None and path.is_symlink():
        # A link would be written through, and the folder may be a stranger's.
        raise OutputFileError(
            f"{path} is a symbolic link, and its target would be overwritten; name a file with -o."
        )
    if options.output is None and path.exists() and not path.is_file():
        raise OutputFileError(
            f"{path} is no regular file, and writing to it may wait for ever; name a file with -o."
        )
    check_output(path, overwrite=True)
    from bisect_trt.report.page import write_report  # noqa: PLC0415 - every command imports this module, and few Jinja2

    write_report(result, path)
    call.console.answer(str(path))
    return call.result
