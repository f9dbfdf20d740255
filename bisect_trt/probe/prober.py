"""Who answers a search's questions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Timer
from typing import TypeVar

from bisect_trt.errors import BisectError, ExitStatus
from bisect_trt.probe.candidate import Candidate, Identity
from bisect_trt.probe.journal import Record
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.runner import Runner
from bisect_trt.probe.speculation import Speculation
from bisect_trt.probe.times import spending
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.oracle import Again, Oracle, Original, Question, Search, Subset, Units, Verdict
from bisect_trt.worker.process import Cancel

Result = TypeVar("Result")


class DoesNotReproduce(BisectError):  # noqa: N818 - an ending, not an error
    """The original model passes its check, so there is nothing to look for."""

    status = ExitStatus.NOT_REPRODUCED


class Prober:
    """Probes candidates and remembers what was said of them.

    Attributes:
        ledger: What is known.
        runner: Who runs the check.
        measured: Whether somebody asked how often the original fails.
        wasted: Parallel probes that were ended because their answers were not needed any more.
        workers: How many probes may run at a time.
    """

    def __init__(self, runner: Runner, ledger: Ledger, workers: int = 1) -> None:
        """``workers`` is how many probes may run at a time, if the check can."""
        self.runner = runner
        self.ledger = ledger
        self.measured = False
        self.wasted = 0
        self.workers = workers if runner.check.parallel else 1

    def probe_original(
        self, candidate: Candidate, *, repeat: int | None = None, confidence: float = 0.99, units: int = 1
    ) -> Record:
        """Probe the original model; it must fail.

        Args:
            candidate: The original.
            repeat: How often to run it, to measure its failure rate; ``None`` for once, if nobody asks how often.
            confidence: How sure the search shall be, if it fails only sometimes.
            units: How many units will be searched.

        Raises:
            DoesNotReproduce: It does not fail.
        """
        outcome = self.ledger.outcome(candidate.key)
        if outcome is None:
            self.ledger.start(candidate.identity)
            with self._prompting():
                outcome = self.runner.measure(candidate, repeat or 1, self.ledger.check_budget)
            self.ledger.end(candidate.identity, outcome)
        self.runner.expect(outcome, confidence=confidence, units=units)
        self.measured = repeat is not None
        self.ledger.watcher.measured(outcome.failures, outcome.runs, self.runner.flakiness.passes_needed)
        return _must_fail(self.ledger.decide(candidate.identity, outcome))

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
        return self.ledger.decide(identity, outcome)

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

    def search(
        self, search: Search[Result], build: Callable[[Subset], Candidate], original: Candidate | None = None
    ) -> Result:
        """Run a search.

        Args:
            search: What is asked.
            build: Makes the candidate for a set of units.
            original: What the search means by the original, if it asks about that.

        Raises:
            BudgetSpent: No more probes may be made.
        """

        def candidate_for(question: Question) -> Candidate:
            if isinstance(question, Again):
                candidate = candidate_for(question.question)
                title = question.title or f"{candidate.title}, once more"
                return replace(candidate, title=title, again=True, runs=question.runs, until=question.until)
            if isinstance(question, Units):
                with spending("cutting"):
                    return build(question.units)
            assert original is not None, "the search asks about an original that it was not given"
            return original

        if self.workers > 1:
            speculation = Speculation(self.runner, self.ledger, candidate_for, self.workers)
            try:
                with speculation:
                    return speculation.run(search)
            finally:
                self.wasted += speculation.wasted
        memory: dict[Question, Verdict] = {}

        def oracle(question: Question) -> Verdict:
            if question in memory:
                self.ledger.cached += 1
            else:
                memory[question] = self.probe(candidate_for(question)).verdict
            return memory[question]

        return search(oracle)

    def search_from(self, original: Candidate, search: Search[Result], build: Callable[[Subset], Candidate]) -> Result:
        """Probe the original, then search; with several workers the search runs ahead of that first answer too.

        Raises:
            DoesNotReproduce: The original does not fail.
            BudgetSpent: No more probes may be made.
        """

        def story(oracle: Oracle) -> tuple[Result] | None:
            return (search(oracle),) if oracle(Original()) is Verdict.FAIL else None

        result = self.search(story, build, original)
        if result is None:
            _must_fail(self.ledger.records[0])
        assert result is not None
        return result[0]


def _must_fail(record: Record) -> Record:
    if record.verdict is not Verdict.FAIL:
        raise DoesNotReproduce(f"the failure does not reproduce on the original model: {record.reason}.")
    return record
