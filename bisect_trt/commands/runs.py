"""``log``, ``report`` and ``resume``: commands about an earlier run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_trt.commands.binding import CALL_FILE, RUN_FILE, Binding
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


@dataclass(frozen=True)
class EarlierRun:
    """A run, read from its folder while it is running or later.

    Attributes:
        folder: The run's folder.
        binding: Its command line, working directory and files.
        words: The command line, or the Python call.
        probes: The verdicts, in the order of the questions.
        running: The probes without an outcome.
    """

    folder: Path
    binding: Binding
    words: str
    probes: Sequence[Json]
    running: Sequence[Json]

    @classmethod
    def read(cls, folder: Path) -> EarlierRun:
        """Read a run's folder.

        Raises:
            UnavailableError: It is not the folder of a run.
        """
        called = (folder / CALL_FILE).exists()
        binding = Binding.read(folder, CALL_FILE if called else RUN_FILE)
        command, *words = binding.argv or ("",)
        shown = f"bisect_trt.{command}({', '.join(words)})" if called else f"bisect-trt {shlex.join(binding.argv)}"
        verdicts: dict[int, Json] = {}
        unfinished: dict[str, Json] = {}
        for entry in read_journal(folder / JOURNAL):
            if entry["event"] == "started":
                unfinished[entry["key"]] = entry
            elif entry["event"] in ("outcome", "moot"):
                unfinished.pop(entry["key"], None)
            elif entry["event"] == "verdict":
                verdicts[entry["number"]] = entry
            elif entry["event"] == "undo":
                verdicts.pop(entry["number"], None)
        return cls(folder, binding, shown, [verdicts[number] for number in sorted(verdicts)], [*unfinished.values()])


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
    """Show every probe of a run with its reason, or one in full.

    Raises:
        UnavailableError: There is no such run.
        UsageError: The run has no such probe.
    """
    own = call[LogOptions]
    run, number = own.run, own.number
    if run is not None and number is None and str(run).isdecimal() and not run.exists():
        run, number = None, int(str(run))
    found = EarlierRun.read(newest_run() if run is None else run)
    show = call.console.answer
    if number is not None:
        _show_probe(found, number, call.console)
        return call.result
    show(found.words)
    show(f"in {found.binding.cwd}, version {found.binding.version}")
    for entry in found.probes:
        show(
            f"{entry['number']:>4} {entry['verdict']:10} {entry['seconds']:7.2f} s  {entry['title']}: {entry['reason']}"
        )
    for entry in found.running:
        show(f"   - unfinished             {entry['title']}: was running when the run ended")
    return call.result


def _show_probe(run: EarlierRun, number: int, console: Console) -> None:
    """Print one probe: its candidate, the command that runs it again, its output."""
    entry = next((each for each in run.probes if each["number"] == number), None)
    if entry is None:
        raise UnknownNameError(f"{run.folder} has no probe {number}; it has {len(run.probes)}.")
    folder = run.folder / "candidates" / str(entry["key"])[:KEY_LENGTH]
    inside = folder / "model.onnx"
    model = inside if inside.exists() else folder.with_suffix(".onnx")  # with a shared file of weights
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


def resume(call: Call) -> Result:
    """Change to the directory of an interrupted run; the call gets its command line as ``words`` and its ``folder``.

    Raises:
        UnavailableError: There is no such run, or its directory is gone.
    """
    folder = call[Resume].run or newest_run()
    binding = Binding.read(folder)
    call.folder = folder.absolute()
    try:
        os.chdir(binding.cwd)
    except OSError as error:
        raise RunFolderError(
            f"the run was started in {binding.cwd}, which does not exist: {error.strerror}."
        ) from error
    call.words = binding.argv
    return call.result
