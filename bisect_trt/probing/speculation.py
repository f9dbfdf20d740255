"""Parallel probes for a search that asks one question at a time.

The search is a pure function of an oracle, so it can be run ahead on guessed verdicts to learn what it would ask next.
Those candidates are probed in parallel; the true answers are then taken in one by one, in the order of the true questions,
and what they make moot is ended. The result and the order of decisions are those of one worker, by construction.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import TypeVar

from bisect_trt.probing.candidate import Candidate, Identity
from bisect_trt.probing.ledger import Ledger
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.watcher import Lookout
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.search.oracle import Ask, Subset
from bisect_trt.search.verdict import Verdict

Result = TypeVar("Result")
_REMEMBERED = 16
"""How many of the last verdicts say how likely the next one is to be a failure."""
_GUESSES = 8
"""How many guesses a question that may be asked is worth at most."""
_PRIOR = 8
"""How many verdicts the belief that failing and passing are equally likely, as they are in a bisection, is worth."""


class Asked(Exception):  # noqa: N818 - how a run ahead ends
    """The search has asked something whose answer is not known."""

    def __init__(self, units: Subset) -> None:
        """``units`` is what it asked."""
        super().__init__()
        self.units = units


def next_question(
    algorithm: Callable[[Ask], Result], known: Mapping[Subset, Verdict], heard: list[Subset] | None = None
) -> Subset | tuple[Result]:
    """What a search asks after what is known, or its result in a tuple.

    Args:
        algorithm: The search.
        known: The verdicts so far.
        heard: Gets every question up to there, also those that were asked before.
    """

    def ask(units: Subset) -> Verdict:
        if units not in known:
            raise Asked(units)
        if heard is not None:
            heard.append(units)
        return known[units]

    try:
        return (algorithm(ask),)
    except Asked as question:
        return question.units


def likely_questions(
    algorithm: Callable[[Ask], Result], known: Mapping[Subset, Verdict], number: int, failing: float
) -> list[Subset]:
    """The questions that a search is most likely to ask from here on, the certain one first.

    Walks the tree of guessed verdicts from its root, the most probable branch first.

    Args:
        algorithm: The search.
        known: The verdicts so far.
        number: How many different questions to find at most.
        failing: The chance that a verdict is a failure.
    """
    order = count()
    branches: list[tuple[float, int, dict[Subset, Verdict]]] = [(-1.0, next(order), {})]
    questions: dict[Subset, None] = {}
    for _ in range(_GUESSES * number):  # near the end few questions are left, but many ways to them
        if not branches or len(questions) == number:
            break
        weight, _, guessed = heapq.heappop(branches)
        question = next_question(algorithm, {**known, **guessed})
        if isinstance(question, tuple):
            continue
        questions[question] = None
        for verdict, chance in ((Verdict.FAIL, failing), (Verdict.PASS, 1 - failing)):
            heapq.heappush(branches, (weight * chance, next(order), {**guessed, question: verdict}))
    return list(questions)


@dataclass
class _Running:
    identity: Identity
    future: Future[Outcome]
    cancel: Cancel


class Speculation:
    """Runs one search with several workers; a context manager that leaves nothing running.

    Attributes:
        wasted: Probes that were ended because their answers were not needed any more.
    """

    def __init__(self, runner: Runner, ledger: Ledger, build: Callable[[Subset], Candidate], workers: int) -> None:
        """``workers`` probes run at a time."""
        self.wasted = 0
        self._runner = runner
        self._ledger = ledger
        self._build = build
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="probe")
        self._identities: dict[Subset, Identity] = {}
        self._running: dict[Subset, _Running] = {}
        self._taken: dict[Subset, Verdict] = {}
        self._recent: deque[bool] = deque(maxlen=_REMEMBERED)

    def __enter__(self) -> Speculation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(list(self._running))
        self._pool.shutdown()

    def run(self, algorithm: Callable[[Ask], Result]) -> Result:
        """The result of the search.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        heard: list[Subset] = []
        lookout = Lookout(self._ledger.watcher, algorithm)
        lookout.look()
        try:
            while True:
                heard.clear()
                question = next_question(algorithm, self._taken, heard)
                if isinstance(question, tuple):
                    return question[0]
                if self._take(question):
                    lookout.heard(question, self._taken[question], self._identity(question).title)
                else:
                    self._fill(algorithm, question)
                    self._collect()
        finally:
            lookout.end()
            self._ledger.cached += len(heard) - len(set(heard))

    def _identity(self, units: Subset) -> Identity:
        if units not in self._identities:
            self._identities[units] = self._build(units).identity
        return self._identities[units]

    def _take(self, units: Subset) -> bool:
        """Take the true answer to the true question in, if it is there."""
        identity = self._identity(units)
        outcome = self._ledger.outcome(identity.key)
        if outcome is None:
            return False
        verdict = self._ledger.decide(identity, outcome).verdict
        self._taken[units] = verdict
        self._recent.append(verdict is Verdict.FAIL)
        return True

    def _known(self) -> dict[Subset, Verdict]:
        """All verdicts that are in, those of guesses that happened to be probed too."""
        known = dict(self._taken)
        for units, identity in self._identities.items():
            outcome = None if units in known else self._ledger.outcome(identity.key)
            if outcome is not None:
                known[units] = outcome.judge(self._ledger.original, self._ledger.severity)
        return known

    def _fill(self, algorithm: Callable[[Ask], Result], certain: Subset) -> None:
        """Have the likeliest questions probed; end what cannot be asked any more."""
        failing = (sum(self._recent) + _PRIOR / 2) / (len(self._recent) + _PRIOR)
        while True:
            likely = likely_questions(algorithm, self._known(), 4 * self._workers, failing)
            self._end([units for units in self._running if units != certain and units not in likely])
            if certain not in self._running and len(self._running) == self._workers:
                self._end([max(self._running, key=likely.index)])  # the least likely makes room
            if all(self._start(units) for units in [certain, *likely]):
                return

    def _start(self, units: Subset) -> bool:
        """Have a question probed if there is room; ``False`` if its answer turns out to be known, so guess anew."""
        if units in self._running or len(self._running) == self._workers:
            return True
        candidate = self._build(units)
        identity = self._identities.setdefault(units, candidate.identity)
        if self._ledger.outcome(identity.key) is not None:
            return False  # another set of units makes the same model, or an earlier session of the run probed it
        if any(running.identity.key == identity.key for running in self._running.values()):
            return True  # another set of units makes the same model
        self._ledger.start(identity)
        cancel = Cancel()
        self._running[units] = _Running(identity, self._pool.submit(self._runner.run, candidate, cancel), cancel)
        return True

    def _collect(self) -> None:
        """Wait until a probe ends; keep what has ended.

        Raises:
            BudgetSpent: The time was up first.
        """
        futures = [running.future for running in self._running.values()]
        if not wait(futures, self._ledger.seconds_left(), FIRST_COMPLETED).done:
            self._ledger.check_budget()
        for units, running in list(self._running.items()):
            if running.future.done():
                del self._running[units]
                running.cancel.close()
                self._ledger.end(running.identity, running.future.result())

    def _end(self, moot: list[Subset]) -> None:
        """End probes whose answers nobody needs, their whole process groups with them."""
        ended = [self._running.pop(units) for units in moot]
        for running in ended:
            running.cancel.set()
        wait([running.future for running in ended])
        for running in ended:
            running.cancel.close()
            if running.future.exception() is None and not running.future.result().cancelled:
                self._ledger.end(running.identity, running.future.result())  # it was quicker; who knows what it is for
            else:
                self._ledger.end_early(running.identity)
        self.wasted += len(ended)
        self._ledger.watcher.wasted(len(ended))
