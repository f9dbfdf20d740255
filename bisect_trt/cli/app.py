"""The run of a command on the command line: result, JSON, exit status, errors as sentences."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import NoReturn, TextIO

from bisect_trt.aliases import Names, Plain
from bisect_trt.cli.interrupts import interrupts
from bisect_trt.cli.parser import parse
from bisect_trt.commands.table import COMMANDS
from bisect_trt.errors import (
    BisectError,
    ExitStatus,
    InternalError,
    ModelFileError,
    OutputFileError,
    SameFileError,
)
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.shared import General
from bisect_trt.options.spec import STDOUT, Params
from bisect_trt.report.console import Console
from bisect_trt.report.exports import write_junit, write_node_data
from bisect_trt.report.result import Result
from bisect_trt.session.call import Call
from bisect_trt.session.ending import attempt, keeps_earlier, system_errors
from bisect_trt.session.paths import Paths
from bisect_trt.session.record import leave_record
from bisect_trt.worker.guard import claimed_run


def perform(name: str, values: Plain, words: Names) -> NoReturn:
    """Run a command with values of options by field name, leave its result, and end the process.

    Args:
        name: The command.
        values: The options by field name.
        words: The command line, as ``result.json`` and a resumed run have it.
    """
    try:
        if General in COMMANDS[name].groups:
            # Errors of the system in what is left after the command.
            with system_errors():
                sys.exit(_answer(name, values, words, None))
        paths = Paths.of(COMMANDS[name].groups, values)
        paths.refuse()
        call = Call(
            name,
            Params(COMMANDS[name].groups, values, words=True),
            Console(),
            Result(name),
            paths=paths,
        )
        with (
            system_errors(),
            interrupts.stop_work(call.console.stopping, lambda: _stop_at_once(call)),
        ):
            COMMANDS[name].run(call)
        if name != "resume":
            sys.exit(0)
        assert call.folder is not None, "it names the run"
        # Before any file of it is opened: who is refused changes nothing.
        with (
            system_errors(),
            claimed_run(call.folder),
        ):
            keywords = {**values}
            keywords.pop("run")
            budget = {key: keywords.pop(key) for key in ("max_probes", "max_time")}
            name, values = parse(call.words)
            # They replace the options of the start.
            values |= keywords if any(keywords.values()) else {}
            values |= {key: value for key, value in budget.items() if value is not None}
            sys.exit(_answer(name, values, call.words, call.folder))
    except BisectError as error:
        Console().error(str(error), error.code)
        sys.exit(error.status)
    except KeyboardInterrupt:
        Console().error(f"{interrupts.reason}.")
        sys.exit(ExitStatus.INTERRUPTED)


def _answer(name: str, values: Plain, words: Names, resumed: Path | None) -> ExitStatus:
    """Run a command that has a result, and write that however it ends.

    Returns:
        The exit status.

    Raises:
        BisectError: A file that was asked for cannot be written.
    """
    groups = COMMANDS[name].groups
    # The other options are read where an error is written to --json too.
    general = Params((General,), values, words=True)[General]
    output = sys.stdout
    if general.json == STDOUT:
        # The JSON alone goes to standard output.
        sys.stdout = sys.stderr
    console = Console(general.verbosity, live=True)
    result = Result(name)
    for path in (general.json, general.report, general.junit, general.model_explorer):
        if path is not None and path != STDOUT:
            check_output(path, overwrite=True)
    paths = Paths.of(groups, values)
    paths.refuse(of_result=True)
    options = Params((), {}, words=True)
    is_resumed = resumed is not None
    call = Call(
        name, options, console, result, words, folder=resumed, resumed=is_resumed, paths=paths
    )
    call.kept.callback(setattr, sys, "stdout", output)

    def work() -> None:
        with interrupts.stop_work(console.stopping, lambda: _stop_at_once(call)):
            paths.refuse()
            call.options = Params(groups, values, words=True)
            COMMANDS[name].run(call)

    with call.kept, closing(console):
        status, ending = attempt(call, work)
        if isinstance(ending, KeyboardInterrupt):
            result.why = interrupts.reason
        if ending is not None:
            _say_ending(ending, call, general.verbosity)
        if (
            (status is ExitStatus.USAGE or isinstance(ending, ModelFileError))
            and call.folder is not None
            and not call.resumed
            and not result.probes["run"]
        ):
            # The traceback has nothing that the message has not.
            shutil.rmtree(call.folder, ignore_errors=True)
            call.folder, result.artifacts["run"] = None, None
        keeps = keeps_earlier(call)
        if keeps:
            console.say(f"The earlier result in {call.folder} is kept.")
        replaces = not (keeps or (isinstance(ending, SameFileError) and ending.of_result))
        status = _leave(result, general, call, output, replaces=replaces) or status
        console.conclude(result)
    return status


def _say_ending(ending: BaseException, call: Call, verbosity: int) -> None:
    """Say why there is no answer."""
    console = call.console
    reason = str(call.result.why)
    if isinstance(ending, KeyboardInterrupt):
        if call.result.artifacts.get("run") is None:
            # Else the summary has the reason and the next command.
            console.error(f"{reason}.")
        return
    if not isinstance(ending, BisectError):
        console.error(
            f"internal error: {reason}; please report it with what -vv shows.", InternalError.code
        )
    elif ending.status is not ExitStatus.NOT_REPRODUCED:
        console.error(reason, ending.code)
    if verbosity > 1:
        traceback.print_exception(ending)


def _stop_at_once(call: Call) -> None:
    """Print the last line after a second Ctrl-C; it takes no lock, because it runs in a signal handler."""
    call.console.progress.abandon()
    advice = (
        ""
        if call.folder is None
        else f"; to continue: bisect-trt resume {shlex.quote(str(call.folder))}"
    )
    os.write(sys.stderr.fileno(), f"stopped at once{advice}\n".encode())


def _leave(
    result: Result, general: General, call: Call, output: TextIO, *, replaces: bool
) -> ExitStatus | None:
    """Write the result and the report; return another status if a requested file cannot be written.

    Args:
        result: The result.
        general: The files that are requested.
        call: The call, with the folder of its run.
        output: Standard output.
        replaces: Whether files may be written, in place of earlier ones.
    """
    content = (
        leave_record(result, call.folder, call.words, call.console, general.report)
        if replaces
        else None
    )
    try:
        if general.json == STDOUT:
            output.write((content or result.content()).decode())
            output.flush()
        if not replaces:
            return None
        if general.json is not None and general.json != STDOUT:
            result.write(general.json, content)
        writers = ((general.junit, write_junit), (general.model_explorer, write_node_data))
        for path, write in writers:
            if path is not None:
                write(result, path)
    except BisectError as error:
        call.console.error(str(error), error.code)
        return error.status
    # A report that was asked for and not written is an error, unlike the one in the run's folder.
    lost = general.report is not None and result.artifacts["report"] is None
    return OutputFileError.status if lost else None
