"""``log``, ``report`` and ``resume``: commands about an earlier run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from bisect_trt.commands.binding import RUN_FILE, Binding
from bisect_trt.commands.call import Call
from bisect_trt.errors import RunFolderError, UnknownNameError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import LogOptions, Report, Resume
from bisect_trt.probe.ledger import JOURNAL, read_journal
from bisect_trt.probe.workspace import KEY_LENGTH, RUNS_FOLDER
from bisect_trt.report.console import Console
from bisect_trt.report.page import write_report
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, read_result
from bisect_trt.report.text import Json


def read_probes(journal: Path) -> tuple[dict[int, Json], list[Json]]:
    """Return the verdicts in a journal by their numbers, and the probes without an outcome, while it is written or later.

    Raises:
        UnavailableError: The journal is damaged.
    """
    verdicts: dict[int, Json] = {}
    unfinished: dict[str, Json] = {}
    for entry in read_journal(journal):
        if entry["event"] == "started":
            unfinished[entry["key"]] = entry
        elif entry["event"] in ("outcome", "moot"):
            unfinished.pop(entry["key"], None)
        elif entry["event"] == "verdict":
            verdicts[entry["number"]] = entry
        elif entry["event"] == "undo":
            verdicts.pop(entry["number"], None)
    return dict(sorted(verdicts.items())), [*unfinished.values()]


def newest_run(file: str = RUN_FILE) -> Path:
    """Return the folder of the newest run in the working directory, and print it.

    Raises:
        UnavailableError: There is no run.
    """
    folders = [path.parent for path in Path(RUNS_FOLDER).glob(f"*/{file}")]
    if not folders:
        raise RunFolderError(f"there is no run under {RUNS_FOLDER} here; name the folder of a run.")
    newest = max(folders, key=lambda folder: ((folder / file).stat().st_mtime_ns, folder.name))
    Console().answer(f"the newest run: {newest}")
    return newest


def log(call: Call) -> Result:
    """Show every probe of a run with its reason, or one in full."""
    own, show = call[LogOptions], call.console.answer
    folder, number = own.run, own.number
    if folder is not None and number is None and str(folder).isdecimal() and not folder.exists():
        folder, number = None, int(str(folder))
    folder = newest_run() if folder is None else folder
    binding = Binding.read(folder)
    verdicts, unfinished = read_probes(folder / JOURNAL)
    if number is not None and number not in verdicts:
        raise UnknownNameError(f"{folder} has no probe {number}; it has {len(verdicts)}.")
    if number is not None:
        _show_probe(folder, verdicts[number], call.console)
        return call.result
    command, *words = binding.argv or ("",)
    show(f"bisect_trt.{command}({', '.join(words)})" if binding.python else f"bisect-trt {shlex.join(binding.argv)}")
    show(f"in {binding.cwd}, version {binding.version}")
    for entry in verdicts.values():
        show(
            f"{entry['number']:>4} {entry['verdict']:10} {entry['seconds']:7.2f} s  {entry['title']}: {entry['reason']}"
        )
    for entry in unfinished:
        show(f"   - unfinished             {entry['title']}: was running when the run ended")
    return call.result


def _show_probe(run: Path, entry: Json, console: Console) -> None:
    """Print one probe: its candidate, the command that runs it again, its output."""
    folder = run / "candidates" / str(entry["key"])[:KEY_LENGTH]
    inside = folder / "model.onnx"
    model = inside if inside.exists() else folder.with_suffix(".onnx")  # with a shared file of weights
    console.answer(f"probe {entry['number']}: {entry['verdict']}, {entry['reason']}")
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
    """Write the report.html of a run again, from its result.json alone."""
    own = call[Report]
    source = newest_run(RESULT_FILE) if own.run is None else own.run
    result = read_result(source)
    path = own.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    check_output(path, overwrite=True)
    write_report(result, path)
    call.console.answer(str(path))
    return call.result


def resume(call: Call) -> Result:
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
    except OSError as error:
        raise RunFolderError(
            f"the run was started in {binding.cwd}, which does not exist: {error.strerror}."
        ) from error
    call.words = binding.argv
    return call.result
