"""The memory of a run: outcomes by candidate, and the decisions of the search."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from bisect_trt.errors import BisectError, ExitStatus, UnavailableError
from bisect_trt.probe.candidate import Identity
from bisect_trt.probe.journal import Journal, Record
from bisect_trt.probe.outcome import BROKEN_PREFIXES, Outcome
from bisect_trt.search.oracle import Verdict

_OUT_OF_MEMORY = ("build: out of memory", "run: out of memory")
"""Signatures that say nothing of the model."""


class Listener(Protocol):
    """Who is told what happens, as it happens."""

    def probed(self, record: Record) -> None:
        """A probe has ended and been taken in."""


class Watcher:
    """Hears what goes on between verdicts; this one ignores it."""

    def started(self, key: str, title: str) -> None:
        """A probe runs from now on."""

    def ended(self, key: str) -> None:
        """It does not any more."""

    def wasted(self, number: int) -> None:
        """So many parallel probes were ended because their answers are not needed any more."""

    def measured(self, failures: int, runs: int, passes_needed: int) -> None:
        """How often the original fails, and how often a candidate has to pass."""

    def asking(self) -> AbstractContextManager[None]:
        """Keeps off the terminal while the user is asked there."""
        return nullcontext()


class BudgetSpent(BisectError):  # noqa: N818 - an ending, not an error
    """No more probes may be made."""

    status = ExitStatus.UNPROVEN


@dataclass(frozen=True)
class Budget:
    """How much a run may do.

    Attributes:
        probes: How many candidates may be probed.
        seconds: How long it may take.
    """

    probes: int | None = None
    seconds: float | None = None


class Ledger:
    """Remembers outcomes and records decisions.

    Attributes:
        records: Every probe taken in, in the order asked.
        passed: The candidates that passed.
        akin: Those that broke in another way, but in the function in which the original does.
        best: The smallest candidate that was seen to fail.
        cached: How many questions were answered from memory.
        original: The signature of the original model's failure, once it has been probed.
        severity: How severe that was, where it can be told; what is much milder is another failure.
        replayed: How many outcomes came from an earlier session of the run.
        watcher: Who looks on between verdicts.
        apart: Whether each candidate is judged by itself: any failure counts, and none is the original's.
    """

    apart = False

    def __init__(self, journal: Journal, listener: Listener, budget: Budget, watcher: Watcher | None = None) -> None:
        """``journal`` may hold what an earlier session learned."""
        self.watcher = watcher or Watcher()
        self.records: list[Record] = []
        self.passed: list[Identity] = []
        self.akin: list[Identity] = []
        self.best: Identity | None = None
        self.cached = 0
        self.original: str | None = None
        self.severity: float | None = None
        self.replayed = 0
        self._journal = journal
        self._listener = listener
        self._budget = budget
        self._deadline = None if budget.seconds is None else time.monotonic() + budget.seconds
        self._earlier: dict[str, Outcome] = dict(journal.outcomes)
        self._outcomes: dict[str, Outcome] = {}
        self._decided: dict[str, Record] = {}
        self._repeats: Counter[str] = Counter()

    @property
    def is_broken(self) -> bool:
        """Whether the original's failure is that it does not run: a crash, a time-out, a refused build."""
        return self.original is not None and self.original.startswith(BROKEN_PREFIXES)

    def outcome(self, key: str) -> Outcome | None:
        """What is known of a candidate."""
        if key not in self._outcomes and key in self._earlier:
            self._outcomes[key] = self._earlier.pop(key)
            self.replayed += 1
        return self._outcomes.get(key)

    def start(self, candidate: Identity) -> None:
        """A probe is about to run.

        Raises:
            BudgetSpent: It may not.
        """
        self.check_budget()
        self._journal.append("started", candidate.key, title=candidate.title)
        self.watcher.started(candidate.key, candidate.title)

    def check_budget(self) -> None:
        """Whether another probe may start.

        Raises:
            BudgetSpent: It may not.
        """
        self._check_number()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise BudgetSpent(f"the budget is spent (--max-time {self._budget.seconds:g}).")

    def _check_number(self) -> None:
        if self._budget.probes is not None and len(self.records) >= self._budget.probes:
            raise BudgetSpent(f"the budget is spent (--max-probes {self._budget.probes}).")

    def seconds_left(self) -> float | None:
        """How long probes may go on; ``None`` without a limit."""
        return None if self._deadline is None else min(max(self._deadline - time.monotonic(), 0), threading.TIMEOUT_MAX)

    def end(self, candidate: Identity, outcome: Outcome) -> None:
        """A probe has ended."""
        self._outcomes[candidate.key] = outcome
        self._journal.append("outcome", candidate.key, outcome=outcome.to_json(), forced=True)
        self.watcher.ended(candidate.key)

    def end_early(self, candidate: Identity) -> None:
        """A probe was ended because nobody needed its answer any more."""
        self._journal.append("moot", candidate.key)
        self.watcher.ended(candidate.key)

    def once_more(self, candidate: Identity) -> Identity:
        """A name for probing a candidate again although its verdict is known, so that both answers are remembered."""
        self._repeats[candidate.key] += 1
        return replace(candidate, key=f"{candidate.key}-again-{self._repeats[candidate.key]}")

    def decide(self, candidate: Identity, outcome: Outcome) -> Record:
        """Take an outcome in, as the answer to the search's next question.

        Raises:
            BudgetSpent: No more probes may be made.
            UnavailableError: It is the original, and there is no memory for it: a smaller model fails no more.
        """
        record = self._decided.get(candidate.key)
        if record is None:
            self._check_number()  # what was learned in time counts, also when the time is up since
        verdict = outcome.judge(self.original, self.severity)
        if self.original is None and verdict is Verdict.FAIL and not self.apart:
            # The first to fail is the original: without that there is no search.
            self.original, self.severity = outcome.signature, outcome.severity
        if verdict is Verdict.PASS and outcome.is_milder(self.severity):
            outcome = replace(outcome, reason=f"milder than the original's failure: {outcome.reason}")
        if verdict is Verdict.UNRESOLVED and outcome.is_akin(self.original):
            self.akin.append(candidate)
            outcome = replace(outcome, reason=f"breaks where the original does, but not on the same: {outcome.reason}")
        if verdict is Verdict.FAIL and (self.best is None or candidate.size <= self.best.size):
            self.best = candidate
        if verdict is Verdict.PASS:
            self.passed.append(candidate)
        # The listener is told last: a Ctrl-C while it prints must not lose the best.
        if record is not None:
            self.cached += 1
            return record
        record = self._record(candidate, outcome, verdict)
        if record.number == 1 and record.signature in _OUT_OF_MEMORY:
            raise UnavailableError(
                f"the original model does not fit: {outcome.reason}; free the GPU, feed less at a time (--input-shapes), or "
                "allow less scratch space (--pool-limit workspace:1G)."
            )
        return record

    def _record(self, candidate: Identity, outcome: Outcome, verdict: Verdict) -> Record:
        record = Record(
            number=len(self.records) + 1,
            key=candidate.key,
            title=candidate.title,
            size=candidate.size,
            verdict=verdict,
            signature=outcome.signature,
            reason=outcome.reason,
            tail=outcome.tail,
            seconds=round(outcome.seconds, 4),
            own_seconds=round(outcome.own_seconds, 4),
            place=outcome.place,
            runs=outcome.runs,
        )
        self.records.append(record)
        self._decided[candidate.key] = record
        self._journal.append("verdict", **{**asdict(record), "verdict": verdict.value})
        self._listener.probed(record)
        return record

    def forget_last(self) -> Record | None:
        """Take the last answer back."""
        if not self.records:
            return None
        record = self.records[-1]
        self._outcomes.pop(record.key, None)
        self._journal.append("undo", record.key, number=record.number, forced=True)
        self.restart()
        return record

    def restart(self) -> None:
        """Start the story over; what is known stays known."""
        self._earlier = {**self._earlier, **self._outcomes}
        self._outcomes, self._decided, self.records, self.passed, self.akin = {}, {}, [], [], []
        self.best, self.original, self.severity, self.cached = None, None, None, 0
        self._repeats.clear()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def counts(self) -> Mapping[str, int]:
        """Probes run and cached, and how they ended."""
        ended = {v.value.lower(): sum(record.verdict is v for record in self.records) for v in Verdict}
        return {"run": len(self.records), "cached": self.cached, **ended}
