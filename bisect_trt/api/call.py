"""One call of a Python function: its keywords as options, its run's folder, and how it ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from bisect_trt.commands.binding import CALL_FILE
from bisect_trt.commands.call import Call
from bisect_trt.commands.commands import COMMANDS
from bisect_trt.commands.record import attempt, leave_record
from bisect_trt.commands.source import Inputs, Model, Source
from bisect_trt.errors import BisectError, ExitStatus, OutputFileError, UnknownNameError, ValueRefusedError
from bisect_trt.options.run import Run
from bisect_trt.options.shared import General
from bisect_trt.options.spec import Params, entries
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console, NotebookConsole, QuietConsole, notebook
from bisect_trt.report.result import Result
from bisect_trt.targets.options import selectable
from bisect_trt.worker.worker import keep_spare

Check: TypeAlias = Callable[..., object] | str | Sequence[str]
"""A function, or a command as after ``--check``."""
_FREE = ("verbose", "overwrite", "workers", "max_probes", "max_time")
"""Options that do not change what a verdict is about, so that a run goes on with other ones too."""


def run_call(
    command: str,
    model: Model,
    inputs: Inputs | None = None,
    target: str | None = None,
    *,
    check: Check | None = None,
    output: str | Path | None = None,
    run: str | Path | None = None,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Run a command with the arguments of its Python function.

    Args:
        command: The name of the command.
        model: The model, or its path.
        inputs: The values of its inputs; random values if not given.
        target: The runtime under test.
        check: A function or command that decides whether a candidate fails.
        output: The path of what is found; in the run's folder if not given.
        run: The run's folder, if it is named: a new one, or one that goes on.
        verbose: Whether to print.
        **options: The other options of the command.

    Raises:
        UsageError: An option does not exist or does not fit, or the folder cannot be made.
        UnavailableError: Something needed is not there.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _refuse_target(check, target)
    if target is not None:
        given.setdefault(target, True)  # one that has a value says it by a keyword of its name
    fixed = {name: value for name, value in sorted(given.items()) if name not in _FREE}
    words = [f"{name}={json.dumps(value, default=str, sort_keys=True)}" for name, value in fixed.items()]
    home = COMMANDS[command].output
    groups = [group for group in COMMANDS[command].groups if group not in (Run, General)]
    known = {entry.name for group in groups for entry in entries(group)} - (
        {"model"} if home is None else {"model", "output"}
    )
    for name in given.keys() - known:
        raise UnknownNameError(f"`{command}` has no option '{name}'; `bisect-trt {command} --help-all` lists them.")
    if check is not None and not callable(check):
        if not isinstance(check, Sequence):
            raise ValueRefusedError(f"check: give a function, a command or the list of its words, not {check!r:.60}.")
        given["check"] = [check] if isinstance(check, str) else list(check)
        words.append(f"check={given['check']}")
    source = Source(model, inputs)
    folder = Workspace.new_folder(command, source.named) if run is None else Path(run)
    resumed = (folder / CALL_FILE).exists()
    if not resumed and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputFileError(f"run: {folder} exists and is no run of a Python function; name another folder.")
    given |= {"model": source.named} if any(entry.name == "model" for entry in entries(groups[0])) else {}
    given |= {} if home is None else {"output": folder / home if output is None else output}
    params = Params(groups, given, words=False)
    console = Console(int(verbose) - 1) if verbose else _quiet_console(command)
    function = check if callable(check) else None
    call = Call(command, params, console, Result(command), (command, *words), source, folder, resumed, function)
    Workspace(folder)
    return _worked(call)


def _worked(call: Call) -> Result:
    """Run a command; leave ``result.json`` and ``report.html`` in the run's folder however it ends."""
    keep_spare()  # the next call finds TensorRT started, and its timing cache warm
    result, console = call.result, call.console
    with call.kept, closing(console):
        status, ending = attempt(call, lambda: COMMANDS[call.command].load()(call))
        answered = isinstance(ending, BisectError) and status in (ExitStatus.NOT_REPRODUCED, ExitStatus.UNPROVEN)
        if answered:
            console.answer(str(result.why))
        leave_record(result, call.folder, (), console, None)
    if ending is not None and not answered:
        raise ending
    return result


def _quiet_console(command: str) -> Console:
    """One that prints nothing; in a notebook it shows how far it is."""
    show = notebook()
    return QuietConsole() if show is None else NotebookConsole(command, show)


def _refuse_target(check: object, target: str | None) -> None:
    """Make sure that there is such a target, and that no target's name stands where a check belongs.

    Raises:
        UsageError: It is not so, and no program has the name of the check.
    """
    known = [plugin.name for plugin in selectable()]
    if target is not None and target not in known:
        raise UnknownNameError(f"there is no target '{target}'; write one of {', '.join(map(repr, known))}.")
    if isinstance(check, str) and check in known and shutil.which(check) is None:
        raise ValueRefusedError(f"there is no program '{check}' to check with; did you mean target='{check}'?")
