"""The workers of a run: the assignment of requests, and the retry of a request after the death of its worker."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bisect_trt.targets.messages import OUT_OF_MEMORY, leaves_tactics_out
from bisect_trt.worker.deadline import Deadline
from bisect_trt.worker.process import MOST_LOST, Cancel, ProcessLimits, gate
from bisect_trt.worker.protocol import (
    CANCELLED,
    CRASHED,
    LOST,
    OVER_MEMORY,
    Failed,
    OnModel,
    Order,
    R_co,
    Request,
)
from bisect_trt.worker.worker import WorkerDied, WorkerProcess, keep, take_spare

if TYPE_CHECKING:
    from bisect_trt.worker.place import Place

DEFAULT_SECONDS = 600.0
COSTLY_SECONDS = 7200.0
"""Seconds that a request may take without --timeout; the second for a target with probes of
minutes."""
LEAST_SECONDS = 30.0
"""The least time for a request that is no probe, and for a start with the runtime's import."""
_DEVICES = Path("/dev")
_CORES_OF_A_BUILD = 4
_MOOT = Failed("cancelled", "its answer was not needed any more", CANCELLED)
_MOST_ON_A_GPU = 4
"""A GPU is busy for 12 to 35% of the time that a build takes."""


class _Tries(Struct):
    """The tries of a request.

    Attributes:
        lost: The number of workers that another process ended.
        damaged: The number that ended by themselves, or failed at everything.
        crowded: Whether memory was short beside others.
    """

    lost: int = 0
    damaged: int = 0
    crowded: bool = False

    @property
    def failed(self) -> bool:
        """Whether a worker did not answer."""
        return self.lost + self.damaged > 0

    def allow_another(self, death: WorkerDied, *, doubtful: bool) -> bool:
        """Count a death; returns whether the request is repeated, ``doubtful`` if it may not be to blame."""
        if death.outside is not None:
            self.lost += 1
            again = self.lost < MOST_LOST
        else:
            self.damaged += 1
            again = doubtful and self.damaged < 2
        return again and death.end.limit is None


class WorkerPool:
    """Workers that are kept for the next request.

    Attributes:
        places: Where targets run, but not the reference; none for this machine.
        fresh_process: Whether each request gets a worker of its own instead.
        memory_limit: Bytes that one may hold; one that holds more is ended.
        bounded: Whether the user limited the time of a run.
        deadline: The end of the time for requests; one that has a ``cancel`` is ended by that
            instead.
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
        deadline: Deadline | None = None,
    ) -> None:
        """Start with no workers.

        Args:
            folder: Gets the log of what their runtimes print.
            gpus: Each worker gets one of them, if there are several.
            fresh_process: See the class.
            memory_limit: See the class.
            timeout: Seconds that a request may take; by default as the target needs.
            places: See the class.
            bring: Called with a model before a request to a target that needs its weights beside
                it.
            deadline: See the class.
        """
        self.places = tuple(places)
        self.bounded = timeout is not None
        self.deadline = deadline or Deadline()
        self.fresh_process = fresh_process
        self.memory_limit = memory_limit
        self._bring = bring
        self._patience = DEFAULT_SECONDS if timeout is None else max(timeout, LEAST_SECONDS)
        self._log = folder / "workers.log"
        self._gpus = list(gpus)
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._given: Counter[str | Place] = Counter()
        """The number of workers of each GPU and each place."""
        self._lost: Counter[Place | None] = Counter()
        self._short = False
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def width(self, *, shares_gpu: bool) -> int:
        """Return the default number of parallel probes: one a place; on this machine see :func:`default_workers`."""
        if self.places and (len(self.places) > 1 or not self.places[0].local):
            return len(self.places)
        return default_workers(shares_gpu=shares_gpu)

    def ask(
        self,
        request: Request[R_co],
        timeout: float | None = None,
        cancel: Cancel | None = None,
        *,
        log: Path | None = None,
        confirm: bool = False,
        fresh: bool = False,
        here: bool = False,
        place: Place | None = None,
        on_place: Callable[[Place], object] | None = None,
    ) -> R_co | Failed:
        """Have an idle or a new worker answer.

        If a worker that had served others dies, or is poisoned, the request is repeated once in a
        fresh one, because an earlier request may have damaged it. If a worker is ended from
        outside, which says nothing about the request, it is repeated up to twice. If memory was
        short while others ran, it is repeated alone, and fewer run at a time from then on.

        Args:
            request: What to do.
            timeout: Seconds it may take; by default the time-out of the pool.
            cancel: Ends it when set.
            log: Gets what the runtime prints; by default the pool's own log.
            confirm: Whether a crash counts only once it has been seen twice.
            fresh: Whether the worker must not have served others.
            here: Whether it runs here, whatever places there are.
            place: In which of the places; in any by default.
            on_place: Called with the place that it runs in, each time.

        Returns:
            The reply; that a worker crashed, took too long or was cancelled is one too.

        Raises:
            UsageError: The request named something that is wrong.
            UnavailableError: Something it needs is not there.
            BudgetSpent: The deadline has passed.
        """
        # A worker may be older than this run, and its folder another.
        order = Order(request, log or self._log, Path.cwd())
        costly = request.target.target.compiles
        patience = max(self._patience, COSTLY_SECONDS) if costly else self._patience
        allowed = patience if timeout is None else timeout
        away = self._sends(request, here=here)
        tries = _Tries()
        while True:
            allowed = self._until_deadline(allowed, cancel)
            # A worker that the kernel ended for its memory gets all of it the next time.
            alone = tries.crowded or (tries.lost > 0 and not away)
            with gate.turn(cancel, alone=alone) as turn:
                if cancel is not None and cancel.is_set:
                    return _MOOT
                worker = self._take(away=away, fresh=fresh or tries.failed, place=place)
                used = worker.served > 0
                if on_place is not None and worker.place is not None:
                    on_place(worker.place)
                limits = ProcessLimits(
                    time.monotonic(),
                    allowed,
                    cancel,
                    self.memory_limit,
                    start=LEAST_SECONDS,
                    patient=True,
                )
                try:
                    reply = worker.ask(order, limits, turn).reply
                except WorkerDied as death:
                    # An earlier request may have damaged a used worker; a fresh one is believed.
                    again = tries.allow_another(death, doubtful=used or confirm)
                    if death.outside is not None:
                        self._lost[worker.place] += 1
                        self._make_room(worker)
                    if death.end.limit == "time":
                        self._until_deadline(allowed, cancel)
                    if again:
                        continue
                    by_default = "" if self.bounded else ", the most by default"
                    more = f"{by_default}; --timeout allows more" if timeout is None else ""
                    return _failed(death, more)
                finally:
                    self._give_back(worker)
            if turn.most > 1 and not tries.crowded and _ran_short(reply, order.log):
                gate.narrow(turn)
                tries.crowded = True
            elif used and isinstance(reply, Failed) and reply.poisoned:
                tries.damaged += 1
            else:
                return reply  # type: ignore[no-any-return]

    def _sends(self, request: Request[Any], *, here: bool) -> bool:
        """Whether a request runs in a place; brings the weights that it needs beside its model."""
        target = request.target.target
        away = bool(self.places) and not here and not target.stays
        if isinstance(request, OnModel) and (away or not target.finds_weights(request.target)):
            self._bring(request.model)
        return away

    def _until_deadline(self, seconds: float, cancel: Cancel | None) -> float:
        """Return the seconds that a request may take; one with a ``cancel`` is ended by that."""
        remaining = self.deadline.seconds_left() if cancel is None else None
        if remaining is None:
            return seconds
        self.deadline.check()
        return min(seconds, remaining)

    def _take(
        self, *, away: bool = False, fresh: bool = False, place: Place | None = None
    ) -> WorkerProcess:
        """An idle or a new worker; ``fresh`` if it must not have served, ``away`` in a place, by default the least used."""
        with self._lock:
            self._idle += take_spare() if len(self._gpus) < 2 else []
            # The worker that idles for the shortest time goes first.
            for worker in reversed(self._idle):
                fits = (worker.place is not None) == away and place in (None, worker.place)
                if fits and not (fresh and worker.served):
                    self._idle.remove(worker)
                    return worker
            if away and place is None:
                place = min(
                    self.places,
                    key=lambda candidate: (self._lost[candidate], self._given[candidate]),
                )
            local = place is None or place.local
            gpu = (
                min(self._gpus, key=self._given.__getitem__)
                if len(self._gpus) > 1 and local
                else None
            )
            self._given.update(holder for holder in (gpu, place) if holder is not None)
            return WorkerProcess(gpu, place=place)

    def _give_back(self, worker: WorkerProcess) -> None:
        worn_out = (
            self.fresh_process or worker.worn_out or (self._short and worker.place is not None)
        )
        with self._lock:
            # Under the lock: a pool that is closed meanwhile would never end a worker that is put
            # back.
            reusable = worker.alive and not (self._closed or worn_out)
            if reusable:
                self._idle.append(worker)
        if not reusable:
            # Outside of the lock, because the end of a process may take seconds.
            self._dismiss(worker)

    def _make_room(self, lost: WorkerProcess) -> None:
        """A cluster may be smaller than it was: from now on no idle worker there occupies a place."""
        if lost.place is not None and lost.place.kind == "ray":
            self._short = True
            with self._lock:
                idle = self._idle
                self._idle = []
            for worker in idle:
                self._give_back(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.close()
        with self._lock:
            self._given.subtract(
                holder for holder in (worker.gpu, worker.place) if holder is not None
            )

    def close(self) -> None:
        """End all idle workers, except the ones that are kept for the next run."""
        with self._lock:
            self._closed = True
            idle = self._idle
            self._idle = []
        for worker in reversed(idle):
            keep(worker)


def _ran_short(reply: object, log: Path) -> bool:
    """Whether the memory of the GPU did not suffice: the request failed by that, or left tactics out, as its log says."""
    if isinstance(reply, Failed) and reply.signature.endswith(OUT_OF_MEMORY):
        return True
    # It may have none.
    with contextlib.suppress(OSError):
        return leaves_tactics_out(log.read_text(errors="replace"))
    return False


def _failed(death: WorkerDied, hint: str) -> Failed:
    """The death of a worker as a reply; ``hint`` says after a time-out how to allow more time."""
    end = death.end
    # The kernel ends the largest process, which may not be the one that asked for memory.
    if death.outside is not None and death.out_of_memory:
        return Failed(
            "memory", f"out of memory: {death.outside}, {MOST_LOST} times", f"run: {OUT_OF_MEMORY}"
        )
    if death.outside is not None:
        return Failed("lost", f"{death.outside}, and so were those that were asked after it", LOST)
    if end.limit == "cancelled":
        return _MOOT
    if end.limit == "time":
        return Failed("time-out", f"{end.describe()}{hint}", "time-out")
    if end.limit == "memory":
        return Failed("memory", end.describe(), OVER_MEMORY)
    return Failed(
        "crash", end.describe(), f"{CRASHED}{end.signal_name or f'exit status {end.code}'}"
    )


def visible_gpus() -> list[str]:
    """The GPUs that a process may use, as ``CUDA_VISIBLE_DEVICES`` names them; without asking CUDA, which takes seconds.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": what comes after the first
    entry that is no device (-1, say) does not count; devices are numbered from 0 whatever the
    numbers of their files.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        entries = (entry.strip() for entry in listed.split(","))
        # CUDA ignores what follows the first entry that is none.
        return list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    files = sum(path.name.removeprefix("nvidia").isdigit() for path in _DEVICES.glob("nvidia*"))
    return [str(number) for number in range(files)]


def default_workers(*, shares_gpu: bool) -> int:
    """Return the number of probes that may run at a time: one per core without a GPU, else one or several per GPU.

    Args:
        shares_gpu: Whether several may run on a GPU. A request to a worker that lacks memory is
            repeated alone; a command of the user is not, so it gets a GPU of its own.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    gpus = len(visible_gpus())
    if not gpus:
        return cores
    builds = cores // (_CORES_OF_A_BUILD * gpus) if shares_gpu else 1
    return gpus * min(max(builds, 1), _MOST_ON_A_GPU)
