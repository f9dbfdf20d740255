"""``log``, ``report``, ``view`` and ``resume``: commands about an earlier run."""

from __future__ import annotations

import os
from pathlib import Path

from bisect_trt.commands.binding import RUN_FILE, Binding
from bisect_trt.commands.call import Call
from bisect_trt.commands.log import show_probe, show_run
from bisect_trt.commands.view import view as show
from bisect_trt.errors import UnavailableError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import Log, Report, Resume, View
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.report.console import Console
from bisect_trt.report.page import REPORT_FILE, write_report
from bisect_trt.report.result import RESULT_FILE, Result, read_result


def newest_run(file: str = RUN_FILE) -> Path:
    """The folder of the run that was started last from the working directory; says which it is.

    Raises:
        UnavailableError: There is none.
    """
    folders = [path.parent for path in Path(RUNS_FOLDER).glob(f"*/{file}")]
    if not folders:
        raise UnavailableError(f"no run lies under {RUNS_FOLDER} here; name the folder of the run that you mean.")
    newest = max(folders, key=lambda folder: ((folder / file).stat().st_mtime_ns, folder.name))
    Console().say(f"the newest run: {newest}")
    return newest


def log(call: Call) -> Result:
    """Show every probe of a run with its reason, or one in full.

    Raises:
        UnavailableError: There is no such run or probe.
    """
    own = call[Log]
    run, number = own.run, own.number
    if run is not None and number is None and str(run).isdecimal() and not run.exists():
        run, number = None, int(str(run))
    folder = newest_run() if run is None else run
    if number is None:
        show_run(folder, call.console)
    else:
        show_probe(folder, number, call.console)
    return call.result


def report(call: Call) -> Result:
    """Write the report.html of a run again, from its result.json alone.

    Raises:
        UnavailableError: There is no such run.
        UsageError: The page cannot be written.
    """
    own = call[Report]
    source = newest_run(RESULT_FILE) if own.run is None else own.run
    result = read_result(source)
    path = own.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    check_output(path, overwrite=True)
    write_report(result, path)
    call.console.answer(str(path))
    return call.result


def view(call: Call) -> Result:
    """Show runs in a browser.

    Raises:
        UnavailableError: There is no such run, or no port is free.
    """
    own = call[View]
    folder = newest_run() if own.run is None else own.run
    show(folder, call.console, own.port, browser=not own.no_browser)
    return call.result


def resume(call: Call) -> Result:
    """Go to the directory of a run that was interrupted; its command line is in ``words``, its folder in ``folder``.

    Raises:
        UnavailableError: There is no such run, or its directory is gone.
    """
    folder = call[Resume].run or newest_run()
    binding = Binding.read(folder)
    call.folder = folder.absolute()
    try:
        os.chdir(binding.cwd)
    except OSError as error:
        raise UnavailableError(f"the run was started in {binding.cwd}, which is gone: {error.strerror}.") from error
    call.words = binding.argv
    return call.result
