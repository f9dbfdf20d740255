"""Parallel probes for a search that asks one question at a time.

The search is a pure function of an oracle, so it can be run ahead on guessed verdicts to learn what
it would ask next. Those candidates are probed in parallel; the true answers are then taken in one
by one, in the order of the true questions, and what they make moot is ended. The result and the
order of decisions are the same as with one worker, by construction.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count

from msgspec import Struct

from bisect_trt.probe.candidate import Identity, Probe
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Outcome
from bisect_trt.search.oracle import Question, Result, Search, Verdict
from bisect_trt.worker.process import Cancel

_REMEMBERED = 16
"""The chance of a failure follows from so many of the last verdicts."""
_PRIOR = 8
"""Number of verdicts that outweigh the belief that failing and passing are equally likely, as they
are in a bisection."""
_GUESSES = 8
"""Most guesses for each question."""
_PATIENCE = 1.0
"""Seconds that a worker may go on with a probe that is not needed any more: about as many as
another worker takes to start."""


class Asked(Exception):  # noqa: N818 - how a run ahead ends
    """The search asked a question, the argument, without a known answer."""


def next_question(
    search: Search[Result],
    known: Mapping[Question, Verdict],
    questions: list[Question] | None = None,
) -> Question | tuple[Result]:
    """Return the next question of a search, or its result in a tuple; ``questions`` gets every question up to there."""

    def oracle(question: Question) -> Verdict:
        if question not in known:
            raise Asked(question)
        if questions is not None:
            questions.append(question)
        return known[question]

    try:
        return (search(oracle),)
    except Asked as asked:
        question: Question = asked.args[0]
        return question


def likely_questions(
    search: Search[Result], known: Mapping[Question, Verdict], number: int, failing: float
) -> list[Question]:
    """Return the questions that a search is most likely to ask from here on, the certain one first.

    Walks the tree of guessed verdicts from its root, the most probable branch first; ``failing`` is
    the chance of a failure.

    Args:
        search: The search, a function without effects.
        known: The verdicts so far.
        number: How many questions at most.
        failing: The probability that a question is answered ``FAIL``.
    """
    order = count()
    branches: list[tuple[float, int, dict[Question, Verdict]]] = [(-1.0, next(order), {})]
    questions: dict[Question, None] = {}
    # Near the end few questions are left, but many ways to them.
    for _ in range(_GUESSES * number):
        if not branches or len(questions) == number:
            break
        weight, _, guessed = heapq.heappop(branches)
        question = next_question(search, {**known, **guessed})
        if isinstance(question, tuple):
            continue
        questions[question] = None
        for verdict, chance in ((Verdict.FAIL, failing), (Verdict.PASS, 1 - failing)):
            heapq.heappush(branches, (weight * chance, next(order), {**guessed, question: verdict}))
    return list(questions)


class Running(Struct):
    """A probe that is under way; ``cancel`` ends it."""

    identity: Identity
    future: Future[Outcome]
    cancel: Cancel


class Speculation:
    """Runs one search with several workers; a context manager that leaves nothing running.

    Attributes:
        wasted: Probes that were ended because their answers were not needed any more.
    """

    def __init__(
        self,
        run: Callable[[Probe, Cancel], Outcome],
        ledger: Ledger,
        build: Callable[[Question], Probe],
        workers: int,
    ) -> None:
        """Prepare to run so many probes at a time."""
        self.wasted = 0
        self._run = run
        self._ledger = ledger
        self._build = build
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="probe")
        self._identities: dict[Question, Identity] = {}
        self._running: dict[Question, Running] = {}
        self._taken: dict[Question, Verdict] = {}
        self._recent: deque[bool] = deque(maxlen=_REMEMBERED)

    def __enter__(self) -> Speculation:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(list(self._running))
        self._pool.shutdown()

    def run(self, search: Search[Result]) -> Result:
        """Return the result of a search; a ``BudgetSpent`` is raised if no more probes may be made."""
        questions: list[Question] = []
        try:
            while True:
                questions.clear()
                question = next_question(search, self._taken, questions)
                if isinstance(question, tuple):
                    return question[0]
                if not self._take(question):
                    self._fill(search, question)
                    self._collect()
        finally:
            self._ledger.cached += len(questions) - len(set(questions))

    def _take(self, question: Question) -> bool:
        """Use the true answer to the true question, if it is known."""
        if question not in self._identities:
            self._identities[question] = self._build(question).identity
        identity = self._identities[question]
        outcome = self._ledger.outcome(identity.key)
        if outcome is None:
            return False
        verdict = self._ledger.decide(identity, outcome).verdict
        self._taken[question] = verdict
        self._recent.append(verdict is Verdict.FAIL)
        return True

    def _known(self) -> dict[Question, Verdict]:
        """All known verdicts, including guesses that were probed."""
        verdicts = dict(self._taken)
        for question, identity in self._identities.items():
            outcome = None if question in verdicts else self._ledger.outcome(identity.key)
            if outcome is not None:
                verdicts[question] = outcome.judge(self._ledger.original, self._ledger.severity)
        return verdicts

    def _fill(self, search: Search[Result], certain: Question) -> None:
        """Have the likeliest questions probed; end what cannot be asked any more."""
        # A prior of as many failures as passes, because the first answers alone say little.
        failing = (sum(self._recent) + _PRIOR / 2) / (len(self._recent) + _PRIOR)
        while True:
            likely = likely_questions(search, self._known(), 4 * self._workers, failing)
            self._end(
                [
                    question
                    for question in self._running
                    if question != certain and question not in likely
                ]
            )
            if certain not in self._running and len(self._running) == self._workers:
                # The least likely makes room.
                self._end([max(self._running, key=likely.index)])
            if all(self._start(question) for question in [certain, *likely]):
                return

    def _start(self, question: Question) -> bool:
        """Have a question probed if there is room; ``False`` if its answer turns out to be known, so guess anew."""
        if question in self._running or len(self._running) == self._workers:
            return True
        probe = self._build(question)
        identity = self._identities.setdefault(question, probe.identity)
        if self._ledger.outcome(identity.key) is not None:
            # Another question is about the same model, or an earlier session of the run probed it.
            return False
        if any(running.identity.key == identity.key for running in self._running.values()):
            # Another question is about the same model.
            return True
        self._ledger.start(identity)
        cancel = Cancel()
        self._running[question] = Running(
            identity, self._pool.submit(self._run, probe, cancel), cancel
        )
        return True

    def _collect(self) -> None:
        """Wait until a probe ends; keep what has ended."""
        futures = [running.future for running in self._running.values()]
        if not wait(futures, self._ledger.seconds_left(), FIRST_COMPLETED).done:
            self._ledger.check_budget()
        for question, running in list(self._running.items()):
            if running.future.done():
                # Out of the table first: the ledger may stop the search.
                del self._running[question]
                running.cancel.close()
                self._ledger.end(running.identity, running.future.result())

    def _end(self, moot: list[Question]) -> None:
        """End probes that are not needed, with their process groups; finished ones are remembered."""
        ended = [self._running.pop(question) for question in moot]
        # All are cancelled before one is waited for, so that they end side by side.
        for running in ended:
            running.cancel.set(_PATIENCE)
        for running in ended:
            future = running.future
            wait([future])
            running.cancel.close()
            # One that ended before it was cancelled has an answer, which a later question may need.
            done = (
                not future.cancelled()
                and future.exception() is None
                and not future.result().cancelled
            )
            self._ledger.end(running.identity, future.result() if done else None)
        self.wasted += len(ended)
