"""Who answers a search's questions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Timer
from typing import TypeVar

from bisect_trt.errors import BisectError, ExitStatus
from bisect_trt.probing.candidate import Candidate, Identity
from bisect_trt.probing.journal import Record
from bisect_trt.probing.ledger import Ledger
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.prompt import PromptCheck
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.speculation import Speculation
from bisect_trt.probing.watcher import Lookout
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.search.oracle import Ask, Subset
from bisect_trt.search.verdict import Verdict

Result = TypeVar("Result")


class DoesNotReproduce(BisectError):  # noqa: N818 - an ending, not an error
    """The original model passes its check, so there is nothing to look for."""

    status = ExitStatus.NOT_REPRODUCED


class Prober:
    """Probes candidates and remembers what was said of them.

    Attributes:
        ledger: What is known.
        runner: Who runs the check.
        last_outcome: What the check said of the candidate that was last asked about.
        wasted: Parallel probes that were ended or never asked for.
    """

    def __init__(self, runner: Runner, ledger: Ledger, workers: int = 1) -> None:
        """``workers`` is how many probes may run at a time, if the check can."""
        self.runner = runner
        self.ledger = ledger
        self.last_outcome: Outcome
        self.wasted = 0
        self._workers = workers if runner.check.parallel else 1

    def probe_original(
        self, candidate: Candidate, *, repeat: int = 1, confidence: float = 0.99, units: int = 1
    ) -> Record:
        """Probe the original model; it must fail.

        Args:
            candidate: The original.
            repeat: How often to run it; with more than 1 its failure rate is measured.
            confidence: How sure the search shall be, if it fails only sometimes.
            units: How many units will be searched.

        Raises:
            DoesNotReproduce: It does not fail.
        """
        outcome = self.ledger.outcome(candidate.key)
        if outcome is None:
            self.ledger.start(candidate.identity)
            with self._prompting():
                outcome = self.runner.measure(candidate, repeat)
            self.ledger.end(candidate.identity, outcome)
        self.runner.expect(outcome, confidence=confidence, units=units)
        self.ledger.watcher.measured(outcome.failures, outcome.runs, self.runner.flakiness.passes_needed)
        return _must_fail(self._decide(candidate.identity, outcome))

    def probe(self, candidate: Candidate, *, again: bool = False) -> Record:
        """Probe one candidate, or remember what was said of it.

        Args:
            candidate: The model.
            again: Whether to run the check even if the verdict is known.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        identity = self.ledger.once_more(candidate.identity) if again else candidate.identity
        outcome = self.ledger.outcome(identity.key)
        if outcome is None:
            self.ledger.start(identity)
            with self._prompting():
                outcome = self._run(candidate, identity)
            self.ledger.end(identity, outcome)
        return self._decide(identity, outcome)

    def _prompting(self) -> AbstractContextManager[None]:
        """Leaves the terminal to the user's answers, if the user is the check."""
        return self.ledger.watcher.asking() if isinstance(self.runner.check, PromptCheck) else nullcontext()

    def _run(self, candidate: Candidate, identity: Identity) -> Outcome:
        """Run the check, but not for longer than the budget allows."""
        seconds = self.ledger.seconds_left()
        if seconds is None:
            return self.runner.run(candidate)
        cancel = Cancel()
        timer = Timer(seconds, cancel.set)
        timer.start()
        try:
            outcome = self.runner.run(candidate, cancel)
        finally:
            timer.cancel()
            timer.join()
            cancel.close()
        if outcome.cancelled:
            self.ledger.end_early(identity)
            self.ledger.check_budget()
        return outcome

    def _decide(self, identity: Identity, outcome: Outcome) -> Record:
        self.last_outcome = outcome
        return self.ledger.decide(identity, outcome)

    def search(self, algorithm: Callable[[Ask], Result], build: Callable[[Subset], Candidate]) -> Result:
        """Run a search.

        Args:
            algorithm: A plain function of an oracle. It may be called several times and must ask the same each time.
            build: Makes the candidate for a set of units.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        if self._workers > 1:
            speculation = Speculation(self.runner, self.ledger, build, self._workers)
            try:
                with speculation:
                    return speculation.run(algorithm)
            finally:
                self.wasted += speculation.wasted
        memory: dict[Subset, Verdict] = {}
        lookout = Lookout(self.ledger.watcher, algorithm)

        def ask(units: Subset) -> Verdict:
            if units in memory:
                self.ledger.cached += 1
            else:
                candidate = build(units)
                memory[units] = self.probe(candidate).verdict
                lookout.heard(units, memory[units], candidate.title)
            return memory[units]

        lookout.look()
        try:
            return algorithm(ask)
        finally:
            lookout.end()

    def search_from(
        self, original: Candidate, algorithm: Callable[[Ask], Result], build: Callable[[Subset], Candidate]
    ) -> Result:
        """Probe the original, then search; with several workers the search runs ahead of that first answer too.

        Raises:
            DoesNotReproduce: The original does not fail.
            BudgetSpent: No more probes may be made.
        """

        def story(ask: Ask) -> tuple[Result] | None:
            return (algorithm(ask),) if ask(_ORIGINAL) is Verdict.FAIL else None

        result = self.search(story, lambda units: original if units == _ORIGINAL else build(units))
        if result is None:
            _must_fail(self.ledger.records[0])
        assert result is not None
        return result[0]


_ORIGINAL: Subset = frozenset({-1})
"""Stands for the original model among the questions of a search."""


def _must_fail(record: Record) -> Record:
    if record.verdict is not Verdict.FAIL:
        raise DoesNotReproduce(f"the failure does not reproduce on the original model: {record.reason}.")
    return record
