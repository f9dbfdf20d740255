"""``log``, ``report``, ``view`` and ``resume``: commands about an earlier run."""

from __future__ import annotations

import os
from pathlib import Path

from bisect_trt.commands.binding import RUN_FILE, Binding
from bisect_trt.commands.call import Call
from bisect_trt.commands.view import EarlierRun
from bisect_trt.commands.view import view as show
from bisect_trt.errors import RunFolderError, UnknownNameError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import LogOptions, Report, Resume, ViewOptions
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.report.console import Console
from bisect_trt.report.page import write_report
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, read_result


def newest_run(file: str = RUN_FILE) -> Path:
    """The folder of the run that was started last from the working directory; says which it is.

    Raises:
        UnavailableError: There is none.
    """
    folders = [path.parent for path in Path(RUNS_FOLDER).glob(f"*/{file}")]
    if not folders:
        raise RunFolderError(f"no run lies under {RUNS_FOLDER} here; name the folder of the run that you mean.")
    newest = max(folders, key=lambda folder: ((folder / file).stat().st_mtime_ns, folder.name))
    Console().say(f"the newest run: {newest}")
    return newest


def log(call: Call) -> Result:
    """Show every probe of a run with its reason, or one in full.

    Raises:
        UnavailableError: There is no such run or probe.
    """
    own = call[LogOptions]
    run, number = own.run, own.number
    if run is not None and number is None and str(run).isdecimal() and not run.exists():
        run, number = None, int(str(run))
    found = EarlierRun.read(newest_run() if run is None else run)
    if number is None:
        _show_run(found, call.console)
    else:
        _show_probe(found, number, call.console)
    return call.result


def _show_run(run: EarlierRun, console: Console) -> None:
    """Print one line for each probe, in the order in which the search asked."""
    console.answer(run.words)
    console.answer(f"in {run.binding.cwd}, version {run.binding.version}")
    for entry in run.probes:
        console.answer(
            f"{entry['number']:>4} {entry['verdict']:10} {entry['seconds']:7.2f} s  {entry['title']}: {entry['reason']}"
        )
    for entry in run.running:
        console.answer(f"   - unfinished             {entry['title']}: was running when the run ended")


def _show_probe(run: EarlierRun, number: int, console: Console) -> None:
    """Print one probe: its candidate, the command that runs it again, its output.

    Raises:
        UsageError: The run has no such probe.
    """
    entry = next((each for each in run.probes if each["number"] == number), None)
    if entry is None:
        raise UnknownNameError(f"{run.folder} has no probe {number}; it has {len(run.probes)}.")
    folder = run.candidate(entry)
    inside = folder / "model.onnx"
    model = inside if inside.exists() else folder.with_suffix(".onnx")  # where it shares a file of weights with others
    console.answer(f"probe {number}: {entry['verdict']}, {entry['reason']}")
    console.answer(f"candidate: {model} ({entry['title']})")
    console.answer(f"inputs: {folder / 'inputs.npz'}")
    console.answer(f"golden: {folder / 'golden.npz'}")
    console.answer(f"took: {entry['seconds']} s in {entry['runs']} run(s)")
    by_hand, output = folder / "command.txt", folder / "output.log"
    if by_hand.exists():
        console.answer(f"again by hand: {by_hand.read_text().strip()}")
    if output.exists():
        console.answer("output:")
        for line in output.read_text(errors="replace").rstrip().splitlines():
            console.answer(line.expandtabs())


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
    own = call[ViewOptions]
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
        raise RunFolderError(f"the run was started in {binding.cwd}, which is gone: {error.strerror}.") from error
    call.words = binding.argv
    return call.result
