"""``log``, ``report``, ``view`` and ``resume``: commands about an earlier run."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bisect_trt.commands.binding import CALL_FILE, RUN_FILE, Binding
from bisect_trt.commands.call import Call
from bisect_trt.errors import RunFolderError, UnknownNameError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import LogOptions, Report, Resume, ViewOptions
from bisect_trt.probe.ledger import JOURNAL, read_journal
from bisect_trt.probe.workspace import KEY_LENGTH, RUNS_FOLDER
from bisect_trt.report.console import Console, open_page
from bisect_trt.report.page import frame, macro, write_report
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, read_result
from bisect_trt.report.summary import headline
from bisect_trt.report.text import Json, plural
from bisect_trt.tensors.npz import replacing

VIEW_FILE = "view.html"
"""The page of ``view`` in a run's folder."""
_CUT = " units"
"""A part of the titles of candidates that were cut from the whole model, and of no others."""
_LATE_S = 1.0
"""Seconds by which the journal of a resumed run is newer than its result."""
_SHOWN = 100
"""Probes in the table."""


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

    @cached_property
    def result(self) -> Json | None:
        """The result; ``None`` while the run is running, also after it was resumed."""
        file, journal = self.folder / RESULT_FILE, self.folder / JOURNAL
        if not file.exists() or (journal.exists() and journal.stat().st_mtime > file.stat().st_mtime + _LATE_S):
            return None
        return read_result(self.folder)

    @property
    def headline(self) -> str:
        """The answer; before there is one, the smallest failing candidate so far, or the number of probes."""
        if self.result is not None:
            return headline(self.result)
        cut = [probe for probe in self.probes if probe["verdict"] == "FAIL" and _CUT in probe["title"]]
        if cut:
            best = min(cut, key=lambda probe: probe["size"])
            return f"{best['title'].replace(_CUT, ' nodes')} still fail{'s' if best['size'] == 1 else ''}"
        return f"{plural(len(self.probes), 'probe')} done" if self.probes else "no probe is done yet"

    def page(self) -> str:
        """Return the page of the run: its state and its newest probes."""
        counts = Counter(str(probe["verdict"]).lower() for probe in self.probes)
        verdicts = ", ".join(f"{counts[key]} {key}" for key in ("fail", "pass", "unresolved") if counts[key])
        facts = [
            ("Command", self.words),
            ("Probes", f"{len(self.probes):,}{f' ({verdicts})' if verdicts else ''}"),
            ("Running now", None if self.result else ", ".join(str(probe["title"]) for probe in self.running)),
        ]
        main = macro("runs.html", "run", self, facts, self.probes[: -_SHOWN - 1 : -1])
        return frame(self.folder.name, main, "Made by bisect-trt from the folder of the run.", "runs.js")[0]


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


def view(call: Call) -> Result:
    """Write the page of a run into its folder, update it until the run ends, and open it in the browser.

    Raises:
        UnavailableError: There is no such run.
        UsageError: The page cannot be written.
    """
    own = call[ViewOptions]
    folder = newest_run() if own.run is None else own.run
    path, shown = (folder / VIEW_FILE).absolute(), ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            run = EarlierRun.read(folder)
            page = run.page()
            if page != shown:
                with replacing(path) as file:
                    file.write(page.encode(errors="backslashreplace"))
            if not shown:
                call.console.answer(str(path))
                if not own.no_browser:
                    open_page(path.as_uri())
            if run.result is not None:
                break
            shown = page
            time.sleep(1)
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
