"""What each build leaves: read again for comparing, and sorted by verdict for whoever wants to look."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bisect_trt.errors import UsageError
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.journal import Record
from bisect_trt.probing.shelf import ENGINE
from bisect_trt.probing.workspace import Workspace
from bisect_trt.search.oracle import Ask, Subset, Verdict, over_units
from bisect_trt.targets.chosen import (
    LAYERS,
    RECORD,
    REPLAY,
    TIMINGS,
    Choice,
    choices_of_layers,
    read_choices,
    write_choices,
)
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.builds.proof import Held
from bisect_trt.workflows.investigation import Investigation

T = TypeVar("T")

FOLDERS = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNRESOLVED: "unresolved"}
"""Where what a build left goes, by its verdict."""
_COPIED = (RECORD,)
"""What is read again when the run goes on."""
_LEFT = (RECORD, REPLAY, LAYERS, TIMINGS, ENGINE)


def recorded_choices(investigation: Investigation, candidate: Candidate) -> frozenset[Choice]:
    """What the build of a candidate that was probed chose, as far as the target says."""
    subject = investigation.subject
    file = subject.workspace.files(candidate.key).folder / RECORD
    if file.is_file():
        found = read_choices(json.loads(file.read_text(encoding="utf-8")))
        return frozenset(found or ())
    outcome = investigation.prober.ledger.outcome(candidate.key)
    return frozenset(choices_of_layers(outcome.layers if outcome is not None else ()))


@dataclass(frozen=True)
class ProbedBuilds:
    """Builds of the original that are held to choices, as probes of a run.

    Attributes:
        investigation: Who probes.
        target: What builds.
        known: What builds chose that were seen.
    """

    investigation: Investigation
    target: TargetSettings
    known: Sequence[Choice] = ()

    def build(self, held: Held) -> tuple[Verdict, frozenset[Choice]]:
        """Whether a build is bad, and what it chose."""
        candidate = self._candidate(held)
        verdict = self.investigation.prober.probe(candidate).verdict
        return verdict, recorded_choices(self.investigation, candidate)

    def search(self, algorithm: Callable[[Ask], T], held: Callable[[Subset], Held]) -> T:
        """Run a search whose sets of units are builds."""
        original = self.investigation.subject.original
        return self.investigation.prober.search(
            over_units(Verdict.FAIL, algorithm), lambda units: self._candidate(held(units)), original
        )

    def _candidate(self, held: Held) -> Candidate:
        turned = self.target.target.pinned(self.target, held.pins, held.bans, self.known)
        units = held.units or frozenset({0})
        original = self.investigation.subject.original
        return replace(original, title=held.title, target=turned, units=units, repetition=held.repetition)


class BuildSorter:
    """Sorts what builds left to ``good/``, ``bad/`` and ``unresolved/``, each with its number before the name."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        """``workspace`` has the candidates, ``folder`` gets what they left."""
        self._workspace = workspace
        self._folder = folder

    def sort(self, record: Record, number: int, choices: frozenset[Choice]) -> Mapping[str, str]:
        """Sort what one build left: the paths by what they are. What was sorted before, in a run that goes on, stays.

        Raises:
            UsageError: A file cannot be moved.
        """
        source, to = self._workspace.files(record.key).folder, self._folder / FOLDERS[record.verdict]
        left = {}
        try:
            if choices and not (source / RECORD).exists():
                write_choices(source / RECORD, sorted(choices))
            for name in _LEFT:
                file, target = source / name, to / f"{number:04d}_{name}"
                if file.is_file():
                    to.mkdir(parents=True, exist_ok=True)
                    if name in _COPIED:
                        shutil.copyfile(file, target)
                    else:
                        shutil.move(file, target)
                if target.is_file():
                    left[name.partition(".")[0]] = str(target)
        except OSError as error:
            raise UsageError(
                f"what build {number} left cannot be moved to {to}: {error.strerror}; make room, or name another folder "
                "(--artifacts-dir)."
            ) from error
        return left
