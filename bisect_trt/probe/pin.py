"""Builds that are held to the choices of the build that failed, so that dropping nodes reshuffles nothing of the rest.

The first build of a search that fails leaves its choices (:meth:`~bisect_trt.targets.base.Target.recording`). It is built once
more, held to them: if it still fails, all later builds are held to them, and a build that cannot be held to them is refused,
which says nothing of its candidate. They lie in the run's folder, so that a run that goes on holds to the same ones.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.choices import RECORD, Choice, choices_of_layers, read_choices, write_choices
from bisect_trt.targets.settings import TargetSettings

_FOLDER = "pinned"
_CHOICES = "choices"
"""In the folder of a candidate: what its build chose."""
_NOTHING = "--pin: {} says nothing of this build that another one can be held to; leave --pin out."
_FAILURES = (Ending.MISMATCHED, Ending.BROKEN)


@dataclass
class Pin:
    """What the builds of one search are held to, once one has failed.

    Attributes:
        run: The run's folder.
    """

    run: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """Where the build that failed left what it chose."""
        return self.run / _FOLDER

    def is_held(self) -> bool:
        """Whether a build has failed whose choices others are held to."""
        return (self.folder / RECORD).exists()

    def choices(self) -> list[Choice]:
        """All that it chose."""
        found = read_choices(json.loads((self.folder / RECORD).read_text(encoding="utf-8")))
        assert found is not None, "nobody else writes there"
        return found

    def hold(self, target: TargetSettings) -> TargetSettings:
        """The target, its builds held to that; as it is while there is nothing to hold to.

        Raises:
            UnavailableError: A build cannot be held to anything that it chose.
        """
        if not self.is_held():
            return target
        held = target.target.held_to(target, self.choices(), self.folder)
        if held is None:
            shutil.rmtree(self.folder)
            raise UnavailableError(_NOTHING.format(target.describe()))
        return held

    def probe(self, target: TargetSettings, files: CandidateFiles, ask: Callable[[TargetSettings], Outcome]) -> Outcome:
        """Ask about a candidate whose build is held, or written down as long as none has failed.

        Args:
            target: The target as it takes this candidate.
            files: The candidate.
            ask: Builds and runs it on a target.

        Raises:
            UnavailableError: What the build that failed chose is not why it fails, or it cannot be held to it.
        """
        if self.is_held():
            return ask(self.hold(target))
        folder = files.folder / _CHOICES
        folder.mkdir(exist_ok=True)
        (folder / RECORD).unlink(missing_ok=True)
        outcome = ask(target.target.recording(target, folder))
        if outcome.ending not in _FAILURES:
            return outcome
        if not (folder / RECORD).exists() and outcome.layers:
            write_choices(folder / RECORD, choices_of_layers(outcome.layers))
        if not (folder / RECORD).exists():
            if outcome.ending is Ending.MISMATCHED:
                raise UnavailableError(_NOTHING.format(target.describe()))
            return outcome  # it was refused or crashed, so there is no build to hold others to
        with self._lock:
            if not self.is_held():
                shutil.copytree(folder, self.folder, dirs_exist_ok=True)
                return self._seen_again(target, outcome, ask)
        return outcome

    def _seen_again(
        self, target: TargetSettings, outcome: Outcome, ask: Callable[[TargetSettings], Outcome]
    ) -> Outcome:
        """The outcome of the failing build, built again and held to its own choices."""
        again = ask(self.hold(target))
        if again.cancelled:
            shutil.rmtree(self.folder)
            return again
        number = sum(choice.pins for choice in self.choices())
        what = "1 choice" if number == 1 else f"{number} choices"
        if again.ending is not outcome.ending or again.signature != outcome.signature:
            shutil.rmtree(self.folder)
            raise UnavailableError(
                f"--pin: what this build chose is not why it fails: held to it ({what}) {again.reason}. Leave --pin out, or "
                "see with `bisect-trt repeat` what builds that fail have in common."
            )
        reason = f"{again.reason}; its build is what others are held to ({what})"
        return replace(again, reason=reason, seconds=outcome.seconds + again.seconds)

    def to_json(self) -> dict[str, Any]:
        """For the result: the folder, and what later builds were held to."""
        if not self.is_held():
            return {"build": None, "choices": []}
        plain = [{"layer": each.layer, "choice": each.said} for each in self.choices() if each.pins]
        return {"build": str(self.folder), "choices": plain}


def make_pin(run: Path, target: TargetSettings | None, wanted: bool, others: bool) -> Pin | None:
    """The choices that builds are held to, if that is asked for.

    Args:
        run: The run's folder.
        target: Builds the candidates; ``None`` if a command does, or a metric is the check.
        wanted: Whether it is asked for.
        others: Whether other releases build too.

    Raises:
        UsageError: The builds cannot be held to anything.
    """
    if not wanted:
        return None
    if target is not None and target.target.capabilities.pins and not others:
        return Pin(run)
    why = "the builds of a --check command, of a --metric and of other releases cannot be held"
    if target is not None and not others:
        why = f"{target.target.title} has none that could be held"
    raise UsageError(f"--pin holds the builds of a target to what one of them chose, and {why}; leave it out.")
