"""A check command that reads engines: each candidate is built before the command sees it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_trt.errors import UsageError
from bisect_trt.probing.builtin import outcome_of_failure
from bisect_trt.probing.command import CommandCheck
from bisect_trt.probing.models import ask
from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.probing.protocol import Build, Failed
from bisect_trt.probing.shelf import ENGINE, EngineShelf
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.targets.settings import TargetSettings

FIXED_ENGINE, POLYGRAPHYS_ENGINE = Path("bisect_trt_debug.engine"), Path("polygraphy_debug.engine")
"""Where the engine lies for a command that names no placeholder; the latter where it names that."""


@dataclass(frozen=True)
class EngineCheck:
    """Builds a candidate's engine, then runs a command on it.

    Attributes:
        workers: Who builds.
        target: The runtime, and how it is set up.
        command: The check command; ``{engine}`` in it, or ``BISECT_TRT_ENGINE``, is the engine.
        shelf: Which engines stay.
    """

    workers: WorkerPool
    target: TargetSettings
    command: CommandCheck
    shelf: EngineShelf = field(default_factory=EngineShelf)

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.command.parallel

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: The engine cannot be written, or the command cannot be run.
            UnavailableError: The target is not there.
        """
        if files.engine is not None:
            return self._judge(files, cancel)
        engine = files.folder / ENGINE
        target = replace(self.target, keep=files.keep or ()) if files.target is None else files.target
        began = time.monotonic()
        request = Build(target, files.model, files.inputs, engine)
        reply = ask(self.workers, request, self.command.timeout, cancel, log=files.log)
        if isinstance(reply, Failed):
            return outcome_of_failure(reply, time.monotonic() - began)
        passed = False
        try:
            outcome = self._judge(replace(files, engine=engine), cancel)
            passed = outcome.ending is Ending.PASSED
        finally:
            self.shelf.offer(files, passed=passed)
        return outcome

    def _judge(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        """Run the command on an engine."""
        if not self.command.names_placeholder and files.engine is not None:
            theirs = any(POLYGRAPHYS_ENGINE.name in word for word in self.command.argv)
            fixed = POLYGRAPHYS_ENGINE if theirs else FIXED_ENGINE
            try:
                shutil.copyfile(files.engine, fixed)
            except OSError as error:
                raise UsageError(f"{fixed} cannot be written: {error.strerror}; run where you can write.") from error
        return self.command.run(files, cancel)
