"""The Typer application and how a command ends."""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer

from bisect_trt import __version__
from bisect_trt.cli.arguments import grouped, multiple_flags, rewrite
from bisect_trt.cli.foreign import refuse_foreign
from bisect_trt.cli.interrupt import Interrupts
from bisect_trt.cli.options import General
from bisect_trt.cli.runs import invocation
from bisect_trt.errors import BisectError, ExitStatus
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console, LogFile
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.record import leave_record

app = typer.Typer(
    name="bisect-trt",
    help="Finds why an ONNX model that runs right in ONNX Runtime runs wrong in TensorRT.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    "diagnose",
    "reduce",
    "precision",
    "layerwise",
    "extract",
    "sanitize",
    "inspect",
    "convert",
    "run",
    "resume",
    "log",
    "report",
    "doctor",
)
"""In the order that --help lists them; each is a module of this package."""
flags: dict[str, frozenset[str]] = {}
"""For each command the flags that take several values."""


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function with groups of options as a command of its name."""
    name = function.__name__.removesuffix("_command").replace("_", "-")
    flat = grouped(function)
    flags[name] = multiple_flags(flat)
    app.command(name)(flat)
    return function


def run_command_line(argv: Sequence[str]) -> NoReturn:
    """Run a command line: the words after the program's name.

    Only the command that is named is imported and built: all of them take a tenth of a second longer, which a check of
    a tenth of a second would wait for.
    """
    try:
        refuse_foreign(argv)
    except BisectError as error:
        Console().error(str(error))
        sys.exit(int(error.status))
    named = next((word for word in argv if not word.startswith("-")), None)
    for name in [named] if named in COMMANDS else COMMANDS:
        import_module(f"bisect_trt.cli.{name}")
    app.registered_commands.sort(key=lambda entry: COMMANDS.index(str(entry.name)))
    app(rewrite(argv, flags), prog_name="bisect-trt")
    raise AssertionError("Typer ends the process")


def fail(error: BisectError) -> NoReturn:
    """End with an error's sentence and status."""
    Console().error(str(error))
    raise typer.Exit(int(error.status))


def finish(work: Callable[[Console, Result], Result], name: str, general: General) -> None:
    """Do the work of a command; write its result however it ends; exit with its status.

    Args:
        work: Given a console and an empty result, which it fills in as it goes.
        name: The command.
        general: Its general options.
    """
    console = Console(general.verbosity, live=True)
    result = Result(name)
    try:
        for path in filter(None, (general.json, general.report, general.log_file)):
            check_output(path, overwrite=True)
        if general.log_file is not None:
            console.log_to(LogFile(general.log_file))
            console.note(f"bisect-trt {__version__}: {shlex.join(invocation.argv)}")
    except BisectError as error:
        fail(error)
    with Interrupts(console.stopping, lambda: _stop_at_once(console)), closing(console):
        status = _work(work, console, result, general)
    raise typer.Exit(int(status))


def _work(
    work: Callable[[Console, Result], Result], console: Console, result: Result, general: General
) -> ExitStatus | int:
    """Do the work and leave its result.

    Returns:
        The status to exit with.
    """
    began = time.monotonic()
    try:
        result = work(console, result)
        status = result.exit_status
    except BisectError as error:
        status = error.status
        result.status = {ExitStatus.NOT_REPRODUCED: "not_reproduced", ExitStatus.UNPROVEN: "inconclusive"}.get(
            status, "error"
        )
        result.why = str(error)
        (console.answer if status is ExitStatus.NOT_REPRODUCED else console.error)(str(error))
        if general.verbosity > 1:
            traceback.print_exc()
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
        result.status, result.why = "interrupted", "stopped by the user"
        run = result.artifacts.get("run")
        console.error(f"stopped; go on with: bisect-trt resume {run}" if run else "stopped.")
    except Exception as error:  # a bug of ours, which is no reason for a traceback either
        status = ExitStatus.UNPROVEN
        result.why = f"{type(error).__name__}: {error}"
        console.error(f"internal error: {result.why}; please report it with what -vv shows.")
        if general.verbosity > 1:
            traceback.print_exc()
    result.wall_s = round(time.monotonic() - began, 3)
    status = _leave(result, general, console) or status
    _tell_files(result, general, console)  # after all is written: the line is no part of the story
    return status


def _stop_at_once(console: Console) -> None:
    """The last words after a second Ctrl-C; in a signal handler, so past all that may hold a lock."""
    console.abandon()
    run = invocation.folder
    how = "" if run is None else f"; go on with: bisect-trt resume {run}"
    os.write(sys.stderr.fileno(), f"stopped at once{how}\n".encode())


def _leave(result: Result, general: General, console: Console) -> ExitStatus | None:
    """Write the result, and the report into the run's folder; another status if what was asked for cannot be written."""
    leave_record(result, invocation.folder, invocation.argv, console, general.report)
    if general.json is not None:
        try:
            result.write(general.json)
        except BisectError as error:
            console.error(str(error))
            return error.status
    return None


def _tell_files(result: Result, general: General, console: Console) -> None:
    """Name the report, and what to attach, unless only the answer is asked for twice over."""
    report, archive = result.artifacts.get("report"), result.artifacts.get("archive")
    if report and general.verbosity > -2:
        path = Path(report)  # absolute in a run that goes on
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        console.answer(f"Report: {path}" + (f" (to attach: {archive})" if archive else ""))
