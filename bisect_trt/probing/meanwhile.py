"""What is begun beside a probe because it is likely to be asked next, where a probe is minutes and there is room for more.

It counts only where it is asked, and only if it is a comparison: a refusal or a crash may be due to what ran beside it. What
nobody asks is ended. So the answer, and the order of decisions, are those of one probe after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from bisect_trt.probing.candidate import Candidate, Identity
from bisect_trt.probing.ledger import Ledger
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.speculation import Running
from bisect_trt.probing.workers.process import Cancel

Made = TypeVar("Made")


class Moot(Exception):  # noqa: N818 - how a story that is told ahead ends
    """Nobody will ask any more, or somebody has asked already."""


class Meanwhile:
    """Probes that run beside the one that is asked, by what they are of; and other work that looks ahead.

    Attributes:
        room: How many may run beside the one that is asked; with none, nothing is begun.
    """

    def __init__(self, runner: Runner, ledger: Ledger, room: int) -> None:
        """Nothing is begun yet."""
        self.room = room
        self._runner = runner
        self._ledger = ledger
        self._running: dict[str, Running] = {}
        self._work: list[tuple[Future[object], Cancel]] = []
        self._asked: set[str] = set()
        self._dropped = 0
        self._pool: ThreadPoolExecutor | None = None
        self._turn = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether anything runs that may be in the way of others."""
        running = any(not each.believed and not each.future.done() for each in self._running.values())
        return running or any(not future.done() for future, _ in self._work)

    def all(self) -> list[Running]:
        """The probes."""
        return list(self._running.values())

    def add(self, running: Running) -> None:
        """One that a search has begun."""
        self._running[running.identity.key] = running

    def asked(self, key: str) -> Running | None:
        """The probe of a candidate that is asked now, if it has begun; from here on nobody begins it ahead."""
        with self._turn:
            self._asked.add(key)
            running = self._running.get(key)
            if running is not None and not running.believed and running.future.cancel():  # it was waiting for room
                self._forget(running)
                return None
            return running

    def take(self, running: Running) -> None:
        """One that has ended."""
        with self._turn:
            self._running.pop(running.identity.key, None)
        running.cancel.close()

    def probe(self, candidate: Candidate, identity: Identity, cancel: Cancel) -> Outcome | Future[Outcome]:
        """What is known of a candidate; else what will be, the probe having begun.

        Args:
            candidate: The candidate.
            identity: What it will be asked as.
            cancel: Of the work that it belongs to.

        Raises:
            Moot: It is asked, or its work is ended.
        """
        with self._turn:
            known = self._ledger.known(identity.key)
            if known is not None:
                return known
            if cancel.is_set or identity.key in self._asked:
                raise Moot
            if identity.key not in self._running:
                self._ledger.start(identity)
                own = Cancel()
                future = self._threads().submit(self._runner.run, candidate, own)
                self._running[identity.key] = Running(identity, future, own, believed=False)
            return self._running[identity.key].future

    def drop(self, key: str) -> None:
        """End one probe, which will not be asked after all."""
        with self._turn:
            running = self._running.pop(key, None)
            self._dropped += running is not None
        if running is not None:
            running.future.cancel()
            running.end(self._ledger)

    def work(self, do: Callable[[Cancel], Made], *, builds: bool) -> Future[Made]:
        """Do something in a thread of its own.

        Args:
            do: What; it is to end soon once it is cancelled.
            builds: Whether it takes the room of a probe.
        """
        cancel = Cancel()
        made: Future[Made] = Future()

        def run() -> None:
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(do(cancel))
                except BaseException as error:
                    made.set_exception(error)

        with self._turn:
            self._work.append((made, cancel))  # type: ignore[arg-type]  # nobody here looks at what it makes
            if builds:
                self._threads().submit(run)
            else:
                threading.Thread(target=run, name="ahead", daemon=True).start()
        return made

    def end(self) -> int:
        """End all that runs; how many probes that were, with those that were ended before."""
        with self._turn:
            work, self._work = self._work, []
            for future, cancel in work:
                future.cancel()
                cancel.set()
            running, self._running = list(self._running.values()), {}
            for each in running:  # those that wait for room first, or the end of another would make some
                each.future.cancel()
            for each in running:
                each.cancel.set()
            pool, self._pool = self._pool, None
            dropped, self._dropped = self._dropped, 0
        ended = dropped + sum(not each.believed for each in running)
        for each in running:
            each.end(self._ledger)
        wait([future for future, _ in work])
        for _, cancel in work:
            cancel.close()
        if pool is not None:
            pool.shutdown()
        return ended

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(self.room, 1), thread_name_prefix="beside")
        return self._pool

    def _forget(self, running: Running) -> None:
        del self._running[running.identity.key]
        running.cancel.close()
        self._ledger.end_early(running.identity)
