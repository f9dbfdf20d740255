"""The driver's side of a worker process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.errors import BisectError, ExitStatus, UnavailableError, UsageError
from bisect_trt.probing.protocol import (
    BEGUN,
    READY,
    About,
    Answer,
    Build,
    Compare,
    Died,
    Failed,
    Misuse,
    Order,
    R_co,
    Reply,
    Request,
    decode_answer,
    encode,
)
from bisect_trt.probing.times import asking
from bisect_trt.probing.workers.guard import guard
from bisect_trt.probing.workers.process import MOST_LOST, Cancel, Limits, ProcessEnd, kill_group, module_command
from bisect_trt.probing.workers.resources import default_workers, gate, oom_kills

if TYPE_CHECKING:
    from bisect_trt.probing.places.place import Place
    from bisect_trt.probing.slicing import Slicing

_LAST_WORDS_SECONDS = 60.0
_GIVE_UP_SECONDS = 5.0
"""How long a place may take to say that it has ended what nobody waits for any more."""
_TIDY_SECONDS = 2.0
"""How long a worker may take to end what it has in a place; what is killed then ends there too, a little later."""
DEFAULT_SECONDS, COSTLY_SECONDS = 600.0, 7200.0
"""How long a worker may take where nothing is said; the latter for a target whose probes are minutes by nature."""
LEAST_SECONDS = 30.0
"""How long what is no probe may take at least, and a start with the runtime's import: too much for the time of a probe."""
GROWTH_LIMIT = 4 << 30
"""Bytes that a worker, or the use of its GPU, may grow by after its second answer before it is replaced."""


class WorkerDied(Exception):  # noqa: N818 - it is an ending, not an error of ours
    """The worker ended, or was ended, before it answered.

    Attributes:
        end: How.
        outside: Why that says nothing of what it was asked, if so; else ``None``.
    """

    def __init__(self, end: ProcessEnd, outside: str | None = None) -> None:
        super().__init__()
        self.end = end
        self.outside = outside


class WorkerProcess:
    """One worker; start it by asking.

    Attributes:
        served: How many requests it has answered, since what runs models was started.
        place: Where it has models run, if not in itself.
        gpu: The GPU it was given, as ``CUDA_VISIBLE_DEVICES`` has it; ``None`` for all that there are.
        worn_out: Whether it should serve no more: it has leaked, or CUDA does not work in it any more.
        environment: The variables that it was started among, by which runtimes go.
    """

    def __init__(
        self,
        gpu: str | None = None,
        *,
        modules: Sequence[str] = (),
        place: Place | None = None,
        memory_limit: int | None = None,
    ) -> None:
        """It is started at once, and imports what it needs while the driver does other things.

        Args:
            gpu: The only one that it sees.
            modules: What else its first requests are likely to need, which it imports at once too.
            place: Where it has models run, if not in itself.
            memory_limit: Bytes that whatever runs models there may hold.
        """
        request_read, self._request_write = os.pipe()
        self._reply_read, reply_write = os.pipe()
        self.served = 0
        self.gpu = gpu
        self.place = place
        self.worn_out = False
        self.environment = surroundings()
        self._busy = False
        self._first_memory = (0, 0)
        self._buffer = b""
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        words = list(modules)
        if place is not None:
            plain = {"place": place.to_json(), "session": _session(), "memory_limit": memory_limit}
            words = [json.dumps(plain)]
        else:
            with contextlib.suppress(OSError):  # there is no place for it, which only few of them need
                visible["TMPDIR"] = str(guard.scratch())
        self._process = guard.start(
            module_command("bisect_trt.probing.workers.serve", str(request_read), str(reply_write), *words),
            {**os.environ, **visible},
            output=subprocess.DEVNULL,  # each request says where its output goes
            pass_fds=(request_read, reply_write),
        )
        os.close(request_read)
        os.close(reply_write)

    def ask(self, order: Order, limits: Limits) -> Answer:
        """Send a request and wait for the answer.

        Raises:
            WorkerDied: It crashed, took too long or too much, was ended by somebody or was cancelled; it is gone then.
            UsageError: The request named something that is wrong.
            UnavailableError: Something it needs is not there.
        """
        began, kills = time.monotonic(), oom_kills()
        self._busy = True
        begun = False
        line: bytes | None = b""
        with contextlib.suppress(BrokenPipeError):
            _write(self._request_write, encode(order))
            line = self._read_line(limits)
            begun = line == BEGUN
            if begun and (line := self._read_line(limits)) == READY:  # a slow start is none of what it was asked
                began = time.monotonic()
                limits.begun()
                line = self._read_line(limits)
        if line is None and begun and self.place is not None and self._give_up():
            raise WorkerDied(_ended(limits.past, None, time.monotonic() - began))
        if not line:
            end = self._bury(limits.past if line is None else None, began)
            raise WorkerDied(end, _outside(end, begun=begun, memory=oom_kills() > kills))
        self._busy = False
        self.served += 1
        answer = decode_answer(line)
        if isinstance(answer.reply, Died):  # in the place, where the next request finds a fresh process
            self.served = 0
            end = ProcessEnd(
                answer.reply.code, False, False, time.monotonic() - began, over_memory=answer.reply.over_memory
            )
            raise WorkerDied(end, _outside(end, begun=True, memory=False))
        self._see_wear(answer)
        if isinstance(order.request, Build | Compare):
            gate.saw(answer.peak_bytes)
        if isinstance(answer.reply, Misuse):
            raise _user_error(answer.reply)
        if isinstance(answer.reply, Failed) and answer.reply.kind == "lost":
            self.close()
            end = ProcessEnd(self._process.returncode, False, False, time.monotonic() - began)
            raise WorkerDied(end, answer.reply.message)
        return answer

    def _see_wear(self, answer: Answer) -> None:
        """The first answers load libraries and warm caches up; what is added for long after them is lost."""
        memory = answer.host_bytes, answer.gpu_bytes
        if self.served <= 2:
            self._first_memory = memory
        grown = any(now - first > GROWTH_LIMIT for now, first in zip(memory, self._first_memory, strict=True))
        self.worn_out = grown or (isinstance(answer.reply, Failed) and answer.reply.poisoned)

    def _read_line(self, limits: Limits) -> bytes | None:
        """A line with its end; empty at the end of the pipe, ``None`` if it is past a limit first."""
        cancel = limits.cancel
        watched = [self._reply_read] if cancel is None else [self._reply_read, cancel.read_fd]
        while b"\n" not in self._buffer:
            ready, _, _ = select.select(watched, [], [], limits.seconds_left())
            if self._reply_read not in ready:
                if limits.passed(self._process.pid) is not None:
                    return None
                continue
            chunk = os.read(self._reply_read, 1 << 16)
            if not chunk:
                return b""
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line + b"\n"

    def _give_up(self) -> bool:
        """Have the process in the place ended, and keep the connection; whether that worked."""
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, signal.SIGUSR1)
            limits = Limits(time.monotonic(), _GIVE_UP_SECONDS, None, None)
            line = self._read_line(limits)
            if line == READY:  # its start ended just then; what it answers is none to the next request
                line = self._read_line(limits)
            if line:
                self.served, self._busy = 0, False
                return True
        return False

    def _bury(self, why: str | None, began: float) -> ProcessEnd:
        """End it for what limit it is past, if for any."""
        if why is None:  # it crashes: its exit status is the finding, so let it finish, core dump and all
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_SECONDS)
        self.close()
        return _ended(why, self._process.returncode, time.monotonic() - began)

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._request_write >= 0

    def close(self) -> None:
        """End it at once: it has nothing to lose."""
        if self._request_write < 0:
            return
        os.close(self._request_write)
        os.close(self._reply_read)
        self._request_write = -1
        if self.place is not None and not self._busy:  # what it has in the place is tidied up there
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TIDY_SECONDS)
        kill_group(self._process.pid)
        self._process.wait()
        guard.release(self._process.pid)


def surroundings() -> dict[str, str]:
    """The environment variables by which a runtime may go."""
    return dict(os.environ)


_spare: list[WorkerProcess] = []
_most_kept = 0
_FOR_REFERENCE = ("bisect_trt.targets.onnxrt.runtime",)
_FOR_COMPARING = ("bisect_trt.graph.quantized",)
"""With ONNX, which no other part of a worker needs."""


def start_spare(*, compares: bool = True) -> None:
    """Start the first worker before anything else, so that it is ready when the driver is.

    Args:
        compares: Whether it will likely be asked to compare a target with the reference, and not for the reference alone.
    """
    _spare.append(WorkerProcess(modules=[*_FOR_REFERENCE, *(_FOR_COMPARING if compares else ())]))
    atexit.register(end_spare)


def keep_spare(most: int = 1) -> None:
    """From now on keep so many workers of each run for the next: for a process that makes several, as a notebook does."""
    global _most_kept  # noqa: PLW0603 - like the spare itself, it is the process's
    if not _most_kept:
        atexit.register(end_spare)
    _most_kept = max(_most_kept, most)


def end_spare() -> None:
    """End it, if nobody has taken it."""
    while _spare:
        _spare.pop().close()


def _take_spare(*, fresh: bool) -> WorkerProcess | None:
    """One there is; those end for which a variable has changed since they were started, as a notebook sets which GPU to use."""
    now = surroundings()
    for worker in [each for each in _spare if each.environment != now]:
        _spare.remove(worker)
        worker.close()
    return _spare.pop() if _spare and not (fresh and _spare[-1].served) else None


class WorkerPool:
    """Workers that are kept for the next request.

    Attributes:
        fresh_process: Whether each request gets a worker of its own instead.
        memory_limit: Bytes that one may hold; one that holds more is ended.
        bounded: Whether the user said how long a run may take.
        slicing: Who runs in slices what is too large for memory, if that may be.
    """

    slicing: Slicing | None = None

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
            return reply  # type: ignore[return-value]  # the protocol has one type of reply a request

    def _bring_weights(self, request: Request[Any], *, away: bool) -> None:
        model = getattr(request, "model", None)
        if isinstance(model, Path) and (away or not request.target.target.finds_weights(request.target)):
            self._bring(model)

    def _is_final(self, death: WorkerDied, request: Request[Reply]) -> bool:
        """Whether the end of a worker is our own doing. Where another takes seconds to start, it is started at once."""
        if death.end.cancelled and request.target.target.capabilities.costly:
            self.warm(About(request.target), 1)
        return death.end.cancelled or death.end.timed_out or death.end.over_memory

    def _ask(self, worker: WorkerProcess, order: Order, timeout: float | None, cancel: Cancel | None) -> Reply:
        try:
            with asking() as spent:
                limits = Limits(time.monotonic(), timeout, cancel, self.memory_limit, start=LEAST_SECONDS)
                answer = worker.ask(order, limits)
                spent(answer.spent)
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

    def warm(self, request: Request[Reply], number: int) -> None:
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

    def _warm(self, request: Request[Reply], cancel: Cancel) -> None:
        worker: WorkerProcess | None = None
        try:
            with self._lock:
                worker = self._start(modules=_FOR_COMPARING)
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
            if len(self._gpus) < 2 and not away and (worker := _take_spare(fresh=fresh)) is not None:
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
            if len(_spare) < _most_kept and worker.gpu is None and worker.place is None:
                _spare.append(worker)
            else:
                worker.close()


def _ended(why: str | None, code: int | None, seconds: float) -> ProcessEnd:
    """How a process has ended that was past a limit, if past any."""
    killed = -signal.SIGKILL if code is None else code
    return ProcessEnd(killed, why == "timed out", why == "cancelled", seconds, why == "over memory")


@functools.cache
def _session() -> str:
    """Names this driver on the hosts of its places."""
    return os.urandom(8).hex()


def _write(fd: int, line: bytes) -> None:
    while line:
        line = line[os.write(fd, line) :]


def _outside(end: ProcessEnd, *, begun: bool, memory: bool) -> str | None:
    """Why the end of a worker says nothing of what it was asked, if so."""
    how = end.signal_name or f"exit status {end.code}"
    if end.timed_out or end.cancelled or end.over_memory:
        return None
    if memory:
        return f"its process was ended ({how}) because memory ran out"
    if not begun:
        return f"its process ended before it began ({how})"
    return f"its process was ended from outside ({how})" if end.from_outside else None


def _user_error(reply: Misuse) -> BisectError:
    kinds: dict[int, type[BisectError]] = {ExitStatus.USAGE: UsageError, ExitStatus.UNAVAILABLE: UnavailableError}
    return kinds.get(reply.status, BisectError)(reply.message)
