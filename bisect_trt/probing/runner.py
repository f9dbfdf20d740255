"""Runs the check on a candidate, as often as its answer needs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.outcome import LOST, Ending, Outcome
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles, Workspace

_FAILURES = (Ending.FAILED, Ending.MISMATCHED, Ending.BROKEN)
MOST_PASSES = 1000
"""A failure that needs more repeats than this to be missed for certain cannot be searched for."""


class Check(Protocol):
    """Whatever says good or bad of a candidate."""

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Look at one candidate."""


class Activations(Protocol):
    """The reference's values of tensors."""

    @property
    def more(self) -> Sequence[Activations]:
        """Those of the input samples after the first."""

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Those of the named tensors that are known."""


@dataclass(frozen=True)
class Flakiness:
    """How often the original fails, and how often a candidate must pass to count as passing.

    Attributes:
        runs: How often the original was run.
        failures: How often it failed.
        confidence: How sure the whole search shall be.
        verdicts: How many passing verdicts that sureness is spread over.
    """

    runs: int = 1
    failures: int = 1
    confidence: float = 0.99
    verdicts: int = 1

    @property
    def rate(self) -> float:
        """The measured failure rate."""
        return self.failures / self.runs

    @property
    def passes_needed(self) -> int:
        """How many passes in a row rule a failing candidate out.

        The share of the error that each passing verdict may have is ``(1 - confidence) / verdicts`` (Bonferroni).
        """
        if self.failures >= self.runs:
            return 1
        allowed = (1 - self.confidence) / max(self.verdicts, 1)
        return next(
            number for number, missed in enumerate(self._missed()) if missed <= allowed or number == MOST_PASSES
        )

    def reached(self, verdicts: int) -> float:
        """The confidence that a search with so many passing verdicts has reached.

        Less than was asked for where it needed more of them than it was expected to.
        """
        if self.failures >= self.runs:
            return self.confidence
        return max(1 - verdicts * next(islice(self._missed(), self.passes_needed, None)), 0.0)

    def _missed(self) -> Iterator[float]:
        """The probability that a candidate that fails like the original passes 0, 1, 2, ... times in a row.

        The posterior mean of ``(1 - rate) ** m`` under Jeffreys' prior, Beta(1/2, 1/2), which counts in that the rate
        itself is only measured.
        """
        passes, total = self.runs - self.failures + 0.5, self.runs + 1.0
        chance = 1.0
        for number in count():
            yield chance
            chance *= (passes + number) / (total + number)


def expected_verdicts(units: int) -> int:
    """About how many passing verdicts a search over so many units needs, for :class:`Flakiness`."""
    return 4 * math.ceil(math.log2(units + 1)) + 4


class Runner:
    """Writes a candidate and runs the check on it.

    Attributes:
        check: The check.
        flakiness: How often it has to pass.
    """

    def __init__(self, check: Check, workspace: Workspace, activations: Activations) -> None:
        """A check is taken for steady until ``flakiness`` is set."""
        self.check = check
        self.flakiness = Flakiness()
        self._workspace = workspace
        self._activations = activations

    @property
    def folder(self) -> Path:
        """The run's."""
        return self._workspace.folder

    def run(self, candidate: Candidate, cancel: Cancel | None = None) -> Outcome:
        """The first failure, or the last of enough passes.

        A sequential test: a candidate that fails is mostly known after one or two runs.
        """
        began = time.monotonic()
        files = self._write(candidate)
        outcome = self.check.run(files, cancel)
        seconds, number = outcome.seconds, 1
        while outcome.ending is Ending.PASSED and number < self.flakiness.passes_needed:
            files.renew()
            outcome = self.check.run(files, cancel)
            seconds += outcome.seconds
            number += 1
        reason = outcome.reason if number == 1 else f"{outcome.reason} (run {number})"
        own = time.monotonic() - began - seconds
        return replace(outcome, reason=reason, seconds=seconds, own_seconds=own, runs=number)

    def measure(self, candidate: Candidate, repeat: int) -> Outcome:
        """Run the original ``repeat`` times.

        Returns:
            Its first failure, or its last pass, with the number of runs and of failures.
        """
        began = time.monotonic()
        files = self._write(candidate)
        outcomes = [self._again(files) for _ in range(repeat)]
        failures = [outcome for outcome in outcomes if outcome.ending in _FAILURES]
        outcome = (failures or outcomes[-1:])[0]
        seconds = sum(each.seconds for each in outcomes)
        reason = outcome.reason if repeat == 1 else f"{outcome.reason} ({len(failures)} of {repeat} runs fail)"
        own = time.monotonic() - began - seconds
        return replace(outcome, reason=reason, seconds=seconds, own_seconds=own, runs=repeat, failures=len(failures))

    def _again(self, files: CandidateFiles) -> Outcome:
        """One run of the original, which has to say something.

        Raises:
            UnavailableError: Somebody ends it again and again.
        """
        files.renew()
        outcome = self.check.run(files)
        if outcome.signature == LOST:
            raise UnavailableError(
                f"the original model cannot be probed: {outcome.reason}. Free memory, or end what ends it, and start again."
            )
        return outcome

    def expect(self, original: Outcome, *, confidence: float, units: int) -> None:
        """Learn from the original how often a candidate must pass.

        Args:
            original: What :meth:`measure` gave.
            confidence: How sure the whole search shall be.
            units: How many units it walks.
        """
        self.flakiness = Flakiness(original.runs, original.failures, confidence, expected_verdicts(units))

    def _write(self, candidate: Candidate) -> CandidateFiles:
        own = candidate.values
        if own is not None:
            fed, made = ({n: own[n] for n in names if n in own} for names in (candidate.inputs, candidate.outputs))
            return self._workspace.write(candidate, fed, made)
        first, *more = (
            (activations.select(candidate.inputs), activations.select(candidate.outputs))
            for activations in (self._activations, *self._activations.more)
        )
        return self._workspace.write(candidate, *first, more)
