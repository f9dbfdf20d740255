"""The workers of a run: who answers a request, and what becomes of one whose worker has died."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.errors import BisectError
from bisect_trt.worker.process import MOST_LOST, Cancel, Limits, gate
from bisect_trt.worker.protocol import About, Failed, Order, R_co, Request
from bisect_trt.worker.worker import FOR_COMPARING, WorkerDied, WorkerProcess, keep, take_spare

if TYPE_CHECKING:
    from bisect_trt.worker.place import Place

DEFAULT_SECONDS, COSTLY_SECONDS = 600.0, 7200.0
"""How long a worker may take where nothing is said; the latter for a target whose probes are minutes by nature."""
_DEVICES = Path("/dev")
LEAST_SECONDS = 30.0
"""How long what is no probe may take at least, and a start with the runtime's import: too much for the time of a probe."""


class WorkerPool:
    """Workers that are kept for the next request.

    Attributes:
        fresh_process: Whether each request gets a worker of its own instead.
        memory_limit: Bytes that one may hold; one that holds more is ended.
        bounded: Whether the user said how long a run may take.
    """

    def __init__(
        self,
        folder: Path,
        gpus: Sequence[str] = (),
        *,
        fresh_process: bool = False,
        memory_limit: int | None = None,
        timeout: float | None = None,
        places: Sequence[Place] = (),
        bring: Callable[[Path], object] = bool,
    ) -> None:
        """``folder`` gets the log of what their runtimes print; with several ``gpus`` each worker gets one of them.

        ``bring`` is called with a model before a target is asked that wants its weights beside it. Targets run in ``places``,
        where there are any; what is asked of the reference never does.
        """
        self.places = tuple(places)
        self._placed: Counter[Place] = Counter()
        self._short = False
        self._lost: Counter[Place] = Counter()
        self._bring = bring
        self.bounded = timeout is not None
        self._patience = DEFAULT_SECONDS if timeout is None else max(timeout, LEAST_SECONDS)
        self.fresh_process = fresh_process
        self.memory_limit = memory_limit
        self._log = folder / "workers.log"
        self._gpus = list(gpus)
        self._given: Counter[str] = Counter()
        self._idle: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._warming: list[tuple[threading.Thread, Cancel]] = []
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def width(self) -> int:
        """How many probes may run at a time where nobody says: one a place; on this machine one a GPU, or else a core."""
        if self.places and (len(self.places) > 1 or not self.places[0].local):
            return len(self.places)
        return default_workers()

    def ask(
        self,
        request: Request[R_co],
        timeout: float | None = None,
        cancel: Cancel | None = None,
        *,
        log: Path | None = None,
        confirm: bool = False,
        here: bool = False,
        place: Place | None = None,
        told: Callable[[Place], object] | None = None,
    ) -> R_co | Failed:
        """Have an idle or a new worker answer.

        A worker that had served others and dies, or is poisoned, is given the benefit of the doubt: the request is
        repeated in a fresh one before that counts, because an earlier request may have poisoned it. A worker that
        somebody else has ended says nothing of the request at all, which is repeated then, twice if need be.

        Args:
            request: What to do.
            timeout: Seconds it may take; if not said as long as the pool was told, but at least 30, or as by default.
            cancel: Ends it when set.
            log: Where what the runtime prints goes; the pool's own log if not said.
            confirm: Whether a crash counts only once it has been seen twice.
            here: Whether it runs here, whatever places there are.
            place: In which of the places; in any if not said.
            told: Given the place that it runs in, each time.

        Raises:
            WorkerDied: It crashed, took too long or was cancelled, or its workers were ended again and again.
            UsageError: The request named something that is wrong.
            UnavailableError: Something it needs is not there.
        """
        # A worker may be older than this run, and its folder another.
        order = Order(request, log or self._log, Path.cwd())
        if timeout is None:
            costly = request.target.target.capabilities.costly
            timeout = max(self._patience, COSTLY_SECONDS) if costly else self._patience
        away = bool(self.places) and not here and not request.target.target.stays
        self._bring_weights(request, away=away)
        lost = crashed = 0
        while True:
            with gate.turn(cancel, alone=lost > 0 and not away):
                worker = self._take(away=away, fresh=lost + crashed > 0, place=place)
                used = worker.served > 0
                if told is not None and worker.place is not None:
                    told(worker.place)
                try:
                    reply = self._ask(worker, order, timeout, cancel)
                except WorkerDied as death:
                    if self._is_final(death, request):
                        raise
                    if death.outside is not None:
                        lost += 1
                        self._make_room(worker)
                        if lost >= MOST_LOST:
                            raise
                        continue
                    crashed += 1
                    if crashed < 2 and (used or confirm):
                        continue
                    raise
                if used and isinstance(reply, Failed) and reply.poisoned:
                    reply = self._ask(self._take(away=away, fresh=True, place=place), order, timeout, cancel)
            return reply  # type: ignore[no-any-return]

    def _bring_weights(self, request: Request[Any], *, away: bool) -> None:
        model = getattr(request, "model", None)
        if isinstance(model, Path) and (away or not request.target.target.finds_weights(request.target)):
            self._bring(model)

    def _is_final(self, death: WorkerDied, request: Request[Any]) -> bool:
        """Whether the end of a worker is our own doing. Where another takes seconds to start, it is started at once."""
        if death.end.cancelled and request.target.target.capabilities.costly:
            self.warm(About(request.target), 1)
        return death.end.cancelled or death.end.timed_out or death.end.over_memory

    def _ask(self, worker: WorkerProcess, order: Order, timeout: float | None, cancel: Cancel | None) -> Any:  # noqa: ANN401 - of the request's type
        try:
            limits = Limits(time.monotonic(), timeout, cancel, self.memory_limit, start=LEAST_SECONDS)
            answer = worker.ask(order, limits)
        except WorkerDied as death:
            if death.outside is not None and worker.place is not None:
                self._lost[worker.place] += 1
            if worker.alive:
                self._give_back(worker)
            else:
                self._dismiss(worker)
            raise
        except BisectError:
            self._give_back(worker)
            raise
        except BaseException:  # Ctrl-C: nobody waits for its answer
            self._dismiss(worker)
            raise
        self._give_back(worker)
        return answer.reply

    def warm(self, request: Request[Any], number: int) -> None:
        """Start workers and have each answer a request, while others do other things; probes wait for them, not for new ones.

        What goes wrong is said when it is asked for in earnest.

        Args:
            request: What makes a worker ready: that it says what it knows of a target.
            number: How many more workers.
        """
        if self.fresh_process or self.places:
            return
        for _ in range(number):
            cancel = Cancel()
            thread = threading.Thread(target=self._warm, args=(request, cancel), name="warm", daemon=True)
            with self._lock:
                if self._closed:  # a probe that nobody waits for has ended late
                    cancel.close()
                    return
                self._warming.append((thread, cancel))
                thread.start()

    def _warm(self, request: Request[Any], cancel: Cancel) -> None:
        worker: WorkerProcess | None = None
        try:
            with self._lock:
                worker = self._start(modules=FOR_COMPARING)
            order = Order(request, self._log, Path.cwd())
            worker.ask(order, Limits(time.monotonic(), COSTLY_SECONDS, cancel, self.memory_limit))
        except (WorkerDied, BisectError, OSError):
            pass
        finally:
            if worker is not None:
                (self._give_back if worker.alive else self._dismiss)(worker)
            with self._lock:
                self._warming = [each for each in self._warming if each[1] is not cancel]
                self._changed.notify_all()
            cancel.close()

    def _take(self, *, away: bool = False, fresh: bool = False, place: Place | None = None) -> WorkerProcess:
        """An idle or a new one; ``fresh`` if it must not have served, ``away`` in a place, and in the one with the fewest."""
        with self._lock:
            while (worker := self._idling(away=away, fresh=fresh, place=place)) is None and self._warming:
                if fresh or away:
                    break
                self._changed.wait()
            if worker is not None:
                self._idle.remove(worker)
                return worker
            if len(self._gpus) < 2 and not away and (worker := take_spare(fresh=fresh)) is not None:
                return worker
            if away and place is None:
                place = min(self.places, key=lambda each: (self._lost[each], self._placed[each]))
            return self._start(place)

    def _idling(self, *, away: bool, fresh: bool, place: Place | None) -> WorkerProcess | None:
        """The one that idles for the shortest time, of those that fit; to be called with the lock."""
        for worker in reversed(self._idle):
            fits = (worker.place is not None) == away and place in (None, worker.place)
            if fits and not (fresh and (worker.served or not away)):
                return worker
        return None

    def _start(self, place: Place | None = None, modules: Sequence[str] = ()) -> WorkerProcess:
        """A new one, on the GPU that the fewest have; to be called with the lock."""
        local = place is None or place.local
        gpu = min(self._gpus, key=self._given.__getitem__) if len(self._gpus) > 1 and local else None
        if gpu is not None:
            self._given[gpu] += 1
        if place is not None:
            self._placed[place] += 1
        return WorkerProcess(gpu, modules=modules, place=place, memory_limit=self.memory_limit)

    def _give_back(self, worker: WorkerProcess) -> None:
        if self.fresh_process or worker.worn_out or (self._short and worker.place is not None):
            self._dismiss(worker)
            return
        with self._lock:
            kept = not self._closed
            if kept:
                self._idle.append(worker)
                self._changed.notify_all()
        if not kept:
            self._dismiss(worker)

    def _make_room(self, lost: WorkerProcess) -> None:
        """A cluster may be smaller than it was: from now on nobody there keeps a place that he does not use."""
        if lost.place is None or lost.place.kind != "ray":
            return
        self._short = True
        with self._lock:
            idle = [worker for worker in self._idle if worker.place is not None]
            self._idle = [worker for worker in self._idle if worker.place is None]
        for worker in idle:
            self._dismiss(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.close()
        with self._lock:
            if worker.gpu is not None:
                self._given[worker.gpu] -= 1
            if worker.place is not None:
                self._placed[worker.place] -= 1

    def close(self) -> None:
        """End all that idle, and all that are being made ready."""
        with self._lock:
            self._closed = True
            warming = list(self._warming)
            for _, cancel in warming:
                cancel.set()
        for thread, _ in warming:
            thread.join()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in reversed(idle):
            keep(worker)


def visible_gpus() -> list[str]:
    """The GPUs that a process may use, as ``CUDA_VISIBLE_DEVICES`` names them; without asking CUDA, which takes seconds.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": what comes after the first entry that is no device
    (-1, say) does not count; devices are numbered from 0 whatever the numbers of their files.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        entries = (entry.strip() for entry in listed.split(","))
        return list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    files = sum(path.name.removeprefix("nvidia").isdigit() for path in _DEVICES.glob("nvidia*"))
    return [str(number) for number in range(files)]


def default_workers() -> int:
    """How many probes may run at a time: one per GPU, or one per core without a GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return len(visible_gpus()) or cores or 1
