"""A check that probes each candidate in an environment of its own: with another release of the runtime."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.command import CommandCheck
from bisect_trt.probing.outcome import CANCELLED, Ending, Outcome
from bisect_trt.probing.places.environments import Environment, interpreter
from bisect_trt.probing.places.place import make_place
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.targets.signatures import error_class


@dataclass(frozen=True)
class ReleaseCheck:
    """The built-in comparison, or a command, with the packages that a candidate names.

    What says nothing of the failure is never a verdict: a release that cannot be installed or started, or that does not know
    what the model is made of.

    Attributes:
        check: What says good or bad. A command has ``{python}`` in it, which becomes the environment's interpreter.
        workers: Makes the workers of an environment; they are ended with the probe.
        unknown: Whether a message says that a release, the ``newest`` or not, does not know what is in a model.
        expected: The signature of the failure that is looked for, where it is known already.
        newest: Whether it is about the newest release.
    """

    check: BuiltinCheck | CommandCheck
    workers: Callable[..., WorkerPool]
    unknown: Callable[..., bool]
    expected: str | None = None
    newest: bool = False

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.check.parallel

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate; its environment is made first, where it is not there yet."""
        began = time.monotonic()
        try:
            return self._judged(self._run(files, cancel))
        except (UnavailableError, UsageError) as error:  # of this release alone: others go on
            signature = CANCELLED if cancel is not None and cancel.is_set else "no environment"
            files.log.write_text(f"{error}\n", encoding="utf-8", errors="replace")
            return Outcome(Ending.OTHER, signature, str(error), time.monotonic() - began)

    def _run(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        python = interpreter(Environment.parse(files.packages), cancel=cancel)
        if isinstance(self.check, CommandCheck):
            return self.check.run(replace(files, python=python), cancel)
        place = make_place(f"env={files.packages}", lambda _: str(python))
        with self.workers(places=(place,)) as pool:
            outcome = replace(self.check, workers=pool).run(files, cancel)
        # How far it is off is the release's matter; that it is beyond tolerance is the failure.
        return replace(outcome, severity=None)

    def _judged(self, outcome: Outcome) -> Outcome:
        """The same failure in the words of another release has the same signature."""
        if outcome.ending is not Ending.BROKEN:
            return outcome
        kind = error_class(outcome.signature)
        if self.expected is not None and error_class(self.expected) == kind:
            return replace(outcome, signature=self.expected)
        if self.unknown(outcome.reason, newest=self.newest):
            return replace(outcome, ending=Ending.OTHER, reason=f"it does not know the model: {outcome.reason}")
        return replace(outcome, signature=kind)
