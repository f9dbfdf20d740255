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
from bisect_trt.commands.preflight import require_fit, require_reference
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ConflictError, MissingOptionError, OutputFileError
from bisect_trt.options.shared import CheckOptions, Search
from bisect_trt.probe.ledger import Ledger, Record, Watcher
from bisect_trt.probe.oracles import BuiltinCheck, EngineCache, EngineCheck
from bisect_trt.probe.prober import Check, Prober, Runner
from bisect_trt.probe.user_checks import CommandCheck, FunctionCheck, PromptCheck
from bisect_trt.report.console import Console, is_interactive
from bisect_trt.search.oracle import Verdict
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import workers_within

FOLDERS = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNRESOLVED: "unresolved"}
"""The folders that files of probes go to, by verdict."""


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
    own = settings.options
    for name in ("fail_regex", "fail_code", "ignore_fail_code"):
        if getattr(own, name):
            raise MissingOptionError(f"--{name.replace('_', '-')} needs a --check command.")
    if settings.target is not None:
        cache, timed = EngineCache() if settings.by_layer else None, settings.timed
        return BuiltinCheck(
            workers, settings.target, settings.tolerance, settings.timeout, timed=timed, engine_cache=cache
        )
    if not is_interactive():
        raise MissingOptionError(
            "there is nothing to check with: give a --check command, or a target such as --onnxrt; without either you are "
            "asked, which needs a terminal."
        )
    return PromptCheck()


def _command_check(settings: CheckSettings, workers: WorkerPool) -> Check:
    """The user's command, given candidates or their engines.

    Raises:
        UsageError: An option does not fit.
    """
    own = settings.options
    command = CommandCheck(
        settings.argv,
        tuple(own.fail_code),
        tuple(own.ignore_fail_code),
        tuple(map(re.compile, own.fail_regex)),
        settings.timeout,
        workers.memory_limit,
    )
    if settings.by_layer and settings.target is not None:
        return EngineCheck(workers, settings.target, command)
    return command


class _Nothing:
    """No activations."""

    more = ()

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002 - there is none
        """None."""
        return {}


class CheckLeavings(Watcher):
    """Sorts the files that a check left by verdict."""

    def __init__(self, options: CheckOptions) -> None:
        """``options`` says which files, and where they go."""
        self._options = options

    def probed(self, record: Record) -> None:
        """Move each file to ``good/``, ``bad/`` or ``unresolved/``, with the number of the probe before its name.

        Raises:
            UsageError: A file cannot be moved.
        """
        for file in filter(Path.exists, self._options.artifacts):
            target = self._options.artifacts_dir / FOLDERS[record.verdict] / f"{record.number:04d}_{file.name}"
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(file, target)
            except OSError as error:
                raise OutputFileError(f"the artifact {file} cannot be moved to {target}: {error.strerror}.") from error


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
    check = make_check(settings, subject.workers)
    if elsewhere is not None:
        require_reference(subject)
        check = elsewhere(check)
    elif isinstance(check, BuiltinCheck):
        require_fit(subject, check.target)
        if fed and not check.target.target.compiles:
            require_reference(subject)
        # A failure that comes and goes is known by how often it is seen; else one crash may be somebody else's doing.
        check = replace(check, confirm=search.repeat == 1)
        if settings.metric is not None:
            check = metric_check(subject, check, settings.metric)
    elif subject.workers.places:
        raise ConflictError(
            "--on is where a target runs, and a check runs here: drop --on, or name a target and no check."
        )
    workers = workers_within(search.workers, subject.workers.width)
    if settings.fixed_path is not None or settings.options.artifacts:
        workers = 1  # what lies at a fixed path is there for one at a time
    runner = Runner(check, subject.workspace, subject.reference if fed else _Nothing())
    watchers: list[Watcher] = [console, CheckLeavings(settings.options)]
    ledger = Ledger(subject.workspace.folder, watchers, max_probes=search.max_probes, max_seconds=search.max_time)
    for title in ledger.unfinished.values():
        console.say(f"  unfinished when the run ended, so probed again if it is asked for: {title}")
    return Prober(runner, ledger, workers)
