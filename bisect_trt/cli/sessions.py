"""What commands about a target open with: the run's folder, bound to all files that they depend on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bisect_trt.cli.options import Check, Compare, Data, Target
from bisect_trt.cli.runs import open_run
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.sessions import Session
from bisect_trt.workflows.settings import CheckSettings


def open_session(
    model: Path,
    target: Target,
    compare: Compare,
    data: Data,
    console: Console,
    result: Result,
    annotation: Path | None = None,
    files: Iterable[Path] = (),
    fixed_path: Path | None = None,
) -> Session:
    """The session of a command, in a folder of its own; see :func:`~bisect_trt.cli.runs.open_run`.

    Args:
        model: The model.
        target: A group of options, as are ``compare`` and ``data``.
        compare: What is compared, and how.
        data: What the model is fed.
        console: Who is told.
        result: What is filled in; it has the command's name.
        annotation: Where the original model goes with its nodes' verdicts, if it was asked for.
        files: What else the run depends on.
        fixed_path: Where every candidate goes, if the check reads a fixed path.

    Raises:
        UsageError: A value is malformed, the folder cannot be made, or the run that is to go on was about something else.
    """
    workspace = open_run(
        result.command, model, [*data.files(), *compare.files(), *files], fixed_path, weights=data.external_data_dir
    )
    return Session(data.settings(model), workspace, console, result, target.fresh_process, annotation)


def open_search(
    model: Path,
    check: Check,
    runtime: TargetSettings | None,
    target: Target,
    compare: Compare,
    data: Data,
    console: Console,
    result: Result,
    annotation: Path | None,
) -> tuple[Session, CheckSettings]:
    """The session of a command whose check the user chooses, and that check; ``runtime`` is the target as plain data.

    Raises:
        UsageError: As :func:`open_session`, or an option of the check is wrong.
    """
    checks = check.settings(runtime, compare)
    if checks.candidate is not None:
        check_output(checks.candidate, overwrite=True)  # whether it is somebody else's file is seen later
    session = open_session(model, target, compare, data, console, result, annotation, check.files(), checks.fixed_path)
    return session, checks
