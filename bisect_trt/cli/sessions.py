"""What commands about a target open with: the run's folder, bound to all files that they depend on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bisect_trt.cli.runs import open_run
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.graph.save import check_output
from bisect_trt.options.check import Check
from bisect_trt.options.compare import Compare
from bisect_trt.options.data import Data
from bisect_trt.options.given import Given
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.from_options import check_files, check_settings, compare_files, data_files, model_settings
from bisect_trt.workflows.sessions import Session
from bisect_trt.workflows.settings import CheckSettings


def open_session(
    model: Path,
    given: Given,
    console: Console,
    result: Result,
    annotation: Path | None = None,
    files: Iterable[Path] = (),
    fixed_path: Path | None = None,
) -> Session:
    """The session of a command, in a folder of its own; see :func:`~bisect_trt.cli.runs.open_run`.

    Args:
        model: The model.
        given: The options, with the groups of the target, the comparison and the data.
        console: Who is told.
        result: What is filled in; it has the command's name.
        annotation: Where the original model goes with its nodes' verdicts, if it was asked for.
        files: What else the run depends on.
        fixed_path: Where every candidate goes, if the check reads a fixed path.

    Raises:
        UsageError: A value is malformed, the folder cannot be made, or the run that is to go on was about something else.
    """
    if annotation is not None:
        check_annotated(annotation, model)
    data = given[Data]
    settings = model_settings(model, data)
    named = [*data_files(data), *compare_files(given[Compare]), *files]
    workspace = open_run(result.command, model, named, fixed_path, weights=data.external_data_dir)
    return Session(settings, workspace, console, result, given[Target].fresh_process, annotation)


def open_search(
    model: Path,
    given: Given,
    runtime: TargetSettings | None,
    console: Console,
    result: Result,
    annotation: Path | None,
) -> tuple[Session, CheckSettings]:
    """The session of a command whose check the user chooses, and that check; ``runtime`` is the target as plain data.

    Raises:
        UsageError: As :func:`open_session`, or an option of the check is wrong.
    """
    check = given[Check]
    checks = check_settings(check, runtime, given[Compare])
    if checks.candidate is not None:
        check_output(checks.candidate, overwrite=True)  # whether it is somebody else's file is seen later
    session = open_session(model, given, console, result, annotation, check_files(check), checks.fixed_path)
    return session, checks
