"""Choose the check, and who is told of its probes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bisect_trt.commands.metric import metric_check
from bisect_trt.commands.places import look_around
from bisect_trt.commands.preflight import require_fit, require_reference
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UsageError
from bisect_trt.options.shared import Search
from bisect_trt.probe.ledger import Ledger, Record, Watcher
from bisect_trt.probe.oracles import BuiltinCheck, EngineCheck, EngineShelf
from bisect_trt.probe.prober import Check, Prober, Runner
from bisect_trt.probe.user_checks import CommandCheck, FunctionCheck, PromptCheck
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console, is_interactive
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.pool import WorkerPool


def tell_unused(target: TargetSettings, console: Console) -> None:
    """Say that a check command decides, and not the target that was named beside it."""
    console.say(f"--check says good or bad, so {' '.join(target.flags())} is not used")


_FOLDERS = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNRESOLVED: "unresolved"}


def make_check(settings: CheckSettings, workers: WorkerPool) -> Check:
    """The user's function or command, else the built-in comparison, else the user.

    Raises:
        UsageError: There is none of the three, or an option does not fit the one there is.
    """
    if settings.oracle is not None:
        return settings.oracle.check(settings, workers)
    if settings.function is not None:
        return FunctionCheck(settings.function)
    if settings.argv:
        return _command_check(settings, workers)
    of_commands = {
        "--show-output": settings.show_output,
        "--fail-regex": settings.fail_regexes,
        "--fail-code": settings.fail_codes,
        "--ignore-fail-code": settings.ignore_fail_codes,
    }
    for option, value in of_commands.items():
        if value:
            raise UsageError(f"{option} needs a --check command.")
    if settings.target is not None:
        shelf = EngineShelf() if settings.by_layer else None
        return BuiltinCheck(
            workers, settings.target, settings.tolerance, settings.timeout, timed=settings.timed, shelf=shelf
        )
    if not is_interactive():
        raise UsageError(
            "there is nothing to check with: give a --check command, or a target such as --onnxrt; without either you are "
            "asked, which needs a terminal."
        )
    return PromptCheck()


def _command_check(settings: CheckSettings, workers: WorkerPool) -> Check:
    """The user's command, given candidates or their engines.

    Raises:
        UsageError: An option does not fit.
    """
    command = CommandCheck(
        settings.argv,
        settings.fail_codes,
        settings.ignore_fail_codes,
        tuple(_compile(text) for text in settings.fail_regexes),
        settings.timeout,
        workers.memory_limit,
        workers if workers.places else None,
    )
    if settings.artifacts and not all(place.local for place in workers.places):
        raise UsageError("--artifacts conflicts with --on: they are files that a check leaves here.")
    if settings.by_layer and settings.target is not None:
        return EngineCheck(workers, settings.target, command)
    return command


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--fail-regex '{text}' is no regular expression: {error}.") from error


class _Nothing:
    """No activations."""

    more = ()

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002 - there is none
        """None."""
        return {}


class CheckOutput(Watcher):
    """Shows all that the check printed, below the line of its probe."""

    def __init__(self, workspace: Workspace, console: Console) -> None:
        """``workspace`` has the logs of checks."""
        self._workspace = workspace
        self._console = console

    def probed(self, record: Record) -> None:
        """Show what the check printed in this probe."""
        log = self._workspace.files(record.key).log
        if not log.exists():
            return
        for line in log.read_text(errors="replace").splitlines():
            self._console.say(f"    | {line}")


class ArtifactSorter(Watcher):
    """Moves the named files to ``good/``, ``bad/`` or ``unresolved/`` after each probe, with its number before the name."""

    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        """``files`` as the check leaves them, ``folder`` to sort them into."""
        self._files = files
        self._folder = folder

    def probed(self, record: Record) -> None:
        """Sort what this probe left.

        Raises:
            UsageError: A file cannot be moved.
        """
        for file in self._files:
            if file.exists():
                target = self._folder / _FOLDERS[record.verdict] / f"{record.number:04d}_{file.name}"
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(file, target)
                except OSError as error:
                    raise UsageError(f"the artifact {file} cannot be moved to {target}: {error.strerror}.") from error


def _scaled(check: BuiltinCheck, settings: CheckSettings, subject: Subject) -> Check:
    return check if settings.metric is None else metric_check(subject, check, settings.metric)


def make_prober(
    settings: CheckSettings,
    search: Search,
    subject: Subject,
    console: Console,
    elsewhere: Callable[[Check], Check] | None = None,
    *,
    fed: bool = True,
) -> Prober:
    """A prober with the check that was asked for.

    Args:
        settings: What says good or bad.
        search: How the search is run.
        subject: The model.
        console: Who is told.
        elsewhere: Makes of the check one that is run where the target need not be the one that is here.
        fed: Whether candidates are fed the reference's activations; else each brings values of its own.
    """
    watchers: list[Watcher] = [console] if console.view is None else [console.view, console]
    if settings.artifacts:
        watchers.append(ArtifactSorter(settings.artifacts, settings.artifacts_dir))
    check = make_check(settings, subject.workers)
    if settings.show_output:
        watchers.append(CheckOutput(subject.workspace, console))
    if elsewhere is not None:
        require_reference(subject)
        check = elsewhere(check)
    elif isinstance(check, BuiltinCheck):
        require_fit(subject, check.target)
        if fed and not check.target.target.capabilities.runs_more:
            require_reference(subject)
        # A failure that comes and goes is known by how often it is seen; else one crash may be somebody else's doing.
        check = _scaled(replace(check, confirm=search.repeat == 1), settings, subject)
    elif subject.workers.places and isinstance(check, CommandCheck | EngineCheck):
        look_around(subject, check.target if isinstance(check, EngineCheck) else None)
    elif subject.workers.places:
        raise UsageError("--on is where a target or a check command runs, and there is neither; drop it.")
    workers = subject.workers.width if search.workers is None else search.workers
    if settings.fixed_path is not None or settings.artifacts:
        workers = 1  # what lies at a fixed path is there for one at a time
    reference = subject.reference if fed else _Nothing()
    ledger = Ledger(subject.workspace.folder, watchers, max_probes=search.max_probes, max_seconds=search.max_time)
    for title in ledger.unfinished.values():
        console.say(f"  unfinished when the run ended, so probed again if it is asked for: {title}")
    return Prober(Runner(check, subject.workspace, reference), ledger, workers)
