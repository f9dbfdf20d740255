"""Runs the check on a candidate, as often as its answer needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.outcome import LOST, Ending, Outcome
from bisect_trt.probe.pin import Pin
from bisect_trt.probe.times import Spent, account, current, spending
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.statistics import Flakiness, expected_verdicts
from bisect_trt.worker.process import Cancel

_FAILURES = (Ending.FAILED, Ending.MISMATCHED, Ending.BROKEN)


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
        self._spent = current()

    @property
    def folder(self) -> Path:
        """The run's."""
        return self._workspace.folder

    def run(self, candidate: Candidate, cancel: Cancel | None = None) -> Outcome:
        """The first failure, or the last of enough passes; or the other way round, if the candidate says so.

        A sequential test: a candidate that fails is mostly known after one or two runs.
        """
        most = self.flakiness.passes_needed if candidate.runs is None else candidate.runs
        going = (Ending.PASSED,) if candidate.until is Verdict.FAIL else _FAILURES
        began = time.monotonic()
        with account(self._spent) as spent:
            files = self.write(candidate)
            outcome = self.check.run(files, cancel)
            seconds, number = outcome.seconds, 1
            while outcome.ending in going and number < most:
                files.renew()
                outcome = self.check.run(files, cancel)
                seconds += outcome.seconds
                number += 1
            all_seconds = time.monotonic() - began
            times = _of_probe(candidate, spent, all_seconds)
        reason = outcome.reason if number == 1 else f"{outcome.reason} (run {number})"
        own = all_seconds - seconds
        return replace(outcome, reason=reason, seconds=seconds, own_seconds=own, runs=number, times=times)

    def measure(self, candidate: Candidate, repeat: int, go_on: Callable[[], object] = bool) -> Outcome:
        """Run the original ``repeat`` times; ``go_on`` is called before each time after the first, and may raise.

        Returns:
            Its first failure, or its last pass, with the number of runs and of failures.
        """
        began = time.monotonic()
        with account(self._spent) as spent:
            files = self.write(candidate)
            outcomes = [self._again(files)]
            for _ in range(1, repeat):
                go_on()
                held = self._is_held()
                outcomes.append(self._again(files))
                if self._is_held() and not held:  # from here on it is another thing: builds as this one
                    outcomes = outcomes[-1:]
            all_seconds = time.monotonic() - began
            times = _of_probe(candidate, spent, all_seconds)
        failures = [outcome for outcome in outcomes if outcome.ending in _FAILURES]
        outcome = (failures or outcomes[-1:])[0]
        seconds = sum(each.seconds for each in outcomes)
        number = len(outcomes)
        reason = outcome.reason if repeat == 1 else f"{outcome.reason} ({len(failures)} of {number} runs fail)"
        own = all_seconds - seconds
        known: dict[str, Any] = {"seconds": seconds, "own_seconds": own, "runs": len(outcomes), "times": times}
        return replace(outcome, reason=reason, failures=len(failures), **known)

    def _is_held(self) -> bool:
        pin = getattr(self.check, "pin", None)
        return isinstance(pin, Pin) and pin.is_held()

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

    def write(self, candidate: Candidate) -> CandidateFiles:
        """The files of a candidate, written where they are not there."""
        with spending("writing"):
            if candidate.has_external_data and not getattr(self.check, "finds_weights", False):
                self._workspace.weights.bring(candidate.proto)
            return self._written(candidate)

    def _written(self, candidate: Candidate) -> CandidateFiles:
        own = candidate.values
        if own is not None:
            fed, made = ({n: own[n] for n in names if n in own} for names in (candidate.inputs, candidate.outputs))
            return self._workspace.write(candidate, fed, made)
        first, *more = (
            (activations.select(candidate.inputs), activations.select(candidate.outputs))
            for activations in (self._activations, *self._activations.more)
        )
        return self._workspace.write(candidate, *first, more)


def _of_probe(candidate: Candidate, spent: Spent, seconds: float) -> dict[str, float]:
    """What a probe of so many seconds was spent on; what is in no account was waiting. The candidate was made before."""
    spent["waiting"] = spent.get("waiting", 0.0) + max(seconds - sum(spent.values()), 0.0)
    return {"cutting": candidate.cutting, **spent}
