"""How a command is done and how it ends: result, JSON, exit status, no traceback, Ctrl-C."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from io import IOBase
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import bisect_trt
from bisect_trt.cli.main import invocation
from bisect_trt.commands.commands import COMMANDS
from bisect_trt.commands.record import leave_record
from bisect_trt.errors import BisectError, ExitStatus, UnavailableError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.shared import General
from bisect_trt.options.spec import Params
from bisect_trt.probe.times import account, whole
from bisect_trt.report.ci import workflow_commands, write_junit
from bisect_trt.report.console import Console, LogFile
from bisect_trt.report.result import Result

Work = Callable[[Console, Result], Result]
"""Takes a console and an empty result, which it fills in as it goes."""
_HOMES: dict[str, str] = {
    **dict.fromkeys(
        (
            *("diagnose", "reduce", "precision", "cause", "layerwise", "releases", "repeat", "samples", "sweep"),
            "workaround",
        ),
        "searches",
    ),
    **dict.fromkeys(("extract", "sanitize", "convert"), "conversions"),
    "run": "run",
    **dict.fromkeys(("inspect", "diff", "resume", "log", "report", "view", "doctor"), "looks"),
}
"""In which module of this package the function of a command's name lies, which does it."""


def perform(name: str, values: Mapping[str, Any]) -> NoReturn:
    """Do what a command line asks for, and end the process."""
    work = getattr(import_module(f"bisect_trt.cli.{_HOMES[name]}"), name)
    groups = COMMANDS[name]

    def read() -> Params:
        return Params(groups, values, words=True)

    try:
        if General in groups:
            general = Params((General,), values, words=True)[General]
        elif "json" in values:
            own: Any = read()[groups[0]]
            general = General(json=own.json)
        else:
            with said_of_the_system():
                work(read())
            sys.exit(0)
    except BisectError as error:
        fail(error)
    # The other options are read where an error is written to --json too.
    _finish(lambda console, result: work(read(), console, result), name, general)


def fail(error: BisectError) -> NoReturn:
    """End with an error's sentence and status."""
    Console().error(str(error))
    sys.exit(int(error.status))


def _finish(work: Work, name: str, general: General) -> NoReturn:
    """Do the work of a command; write its result however it ends; exit with its status."""
    console = Console(general.verbosity, live=True)
    result = Result(name)
    try:
        for path in filter(None, (general.json, general.report, general.junit, general.log_file)):
            check_output(path, overwrite=True)
        if general.log_file is not None:
            console.log_to(LogFile(general.log_file))
            console.note(f"bisect-trt {bisect_trt.__version__}: {shlex.join(invocation.argv)}")
    except BisectError as error:
        fail(error)
    with invocation.kept, Interrupts(console.stopping, lambda: _stop_at_once(console)), closing(console):
        status = _work(lambda: work(console, result), console, result, general)
    sys.exit(int(status))


def _work(work: Callable[[], Result], console: Console, result: Result, general: General) -> ExitStatus | int:
    """Do the work and leave its result.

    Returns:
        The status to exit with.
    """
    began, since = time.monotonic(), invocation.began
    earlier = 0.0 if since is None else began - since
    with account() as spent:
        spent["start"] = earlier
        status, result = _worked(work, console, result, general)
    result.wall_s = round(time.monotonic() - began, 3)
    result.extra["times"] = whole(spent, result.wall_s + earlier)
    status = _leave(result, general, console) or status
    _annotate(result, general)
    _tell_files(result, general, console)  # after all is written: the line is no part of the story
    return status


def _worked(
    work: Callable[[], Result], console: Console, result: Result, general: General
) -> tuple[ExitStatus | int, Result]:
    """Do the work; however it ends, there is a status and a result."""
    status: ExitStatus | int
    try:
        with said_of_the_system():
            result = work()
        status = result.exit_status
    except BisectError as error:
        status = error.status
        result.status = {ExitStatus.NOT_REPRODUCED: "not_reproduced", ExitStatus.UNPROVEN: "inconclusive"}.get(
            status, "error"
        )
        result.why = str(error)
        if status is ExitStatus.NOT_REPRODUCED:
            for line in result.why.split("\n"):  # what to try next is a list
                console.answer(line)
        else:
            console.error(result.why)
        if general.verbosity > 1:
            traceback.print_exc()
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
        result.status, result.why = "interrupted", "stopped by the user"
        run = result.artifacts.get("run")
        console.error(f"stopped; go on with: bisect-trt resume {shlex.quote(run)}" if run else "stopped.")
    except Exception as error:  # a bug of ours, which is no reason for a traceback either
        status = ExitStatus.UNPROVEN
        result.why = f"{type(error).__name__}: {error}"
        console.error(f"internal error: {result.why}; please report it with what -vv shows.")
        if general.verbosity > 1:
            traceback.print_exc()
    return status, result


@contextmanager
def said_of_the_system() -> Iterator[None]:
    """What the system refuses, in a sentence.

    Raises:
        UnavailableError: A file cannot be used, or there is not enough memory.
    """
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"{_file_of(error)} cannot be used: {error.strerror or error}; check its path, permissions and disk."
        ) from error
    except MemoryError as error:
        raise UnavailableError(
            "there is not enough memory for what is to be done; free some, or feed less at a time (--input-shapes)."
        ) from error
    except RecursionError as error:
        raise UnavailableError("what is to be read is nested too deeply; export it in a simpler form.") from error


def _file_of(error: OSError) -> str:
    """The file that an error is about; writing to a full disk, and closing, do not say which it was."""
    if error.filename:
        return str(error.filename)
    found = "a file" if invocation.folder is None else f"a file of the run {invocation.folder}"
    for frame, _ in traceback.walk_tb(error.__traceback__):  # the innermost last
        for value in frame.f_locals.values():
            name = getattr(value, "name", None) if isinstance(value, IOBase) else None
            found = name if isinstance(name, str) else found
    return found


def _stop_at_once(console: Console) -> None:
    """The last words after a second Ctrl-C; in a signal handler, so past all that may hold a lock."""
    console.abandon()
    run = invocation.folder
    how = "" if run is None else f"; go on with: bisect-trt resume {shlex.quote(str(run))}"
    os.write(sys.stderr.fileno(), f"stopped at once{how}\n".encode())


def _leave(result: Result, general: General, console: Console) -> ExitStatus | None:
    """Write the result, and the report into the run's folder; another status if what was asked for cannot be written."""
    content = leave_record(result, invocation.folder, invocation.argv, console, general.report)
    try:
        if general.json is not None:
            result.write(general.json, content)
        if general.junit is not None:
            write_junit(result.to_json(), general.junit)
    except BisectError as error:
        console.error(str(error))
        return error.status
    return None


def _annotate(result: Result, general: General) -> None:
    """Print what is wrong as GitHub Actions reads it, where that runs or it is asked for."""
    if general.annotations or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(result.to_json()):
            print(line, flush=True)


def _tell_files(result: Result, general: General, console: Console) -> None:
    """Name the report, and what to attach, unless only the answer is asked for twice over."""
    report, archive = result.artifacts.get("report"), result.artifacts.get("archive")
    if report and general.verbosity > -2:
        path = Path(report)  # absolute in a run that goes on
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        fault = result.extra.get("fault") or {}
        # What is no bug of the target's is none to report to those who make it.
        use = (
            "to attach"
            if fault.get("whose") in (None, "target", "unknown")
            else "no bug report; for a ticket of your own"
        )
        console.answer(f"Report: {path}" + (f" ({use}: {archive})" if archive else ""))


class Interrupts:
    """A context manager within which a second Ctrl-C does not wait for what the first one set off.

    The process then ends without a further word of Python; what it has started is ended by the guard
    (``worker/guard.py``), as after ``kill -9``.
    """

    def __init__(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Each is called in the signal handler, and so must wait for nobody."""
        self._first = first
        self._second = second
        self._interrupted = False
        self._ours = False

    def __enter__(self) -> Interrupts:
        # A shell that starts a command in the background has it ignore Ctrl-C, which is left so.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what signal handlers are given
        if self._interrupted:
            try:
                self._second()
            finally:
                os._exit(ExitStatus.INTERRUPTED)
        self._interrupted = True
        self._first()
        raise KeyboardInterrupt
