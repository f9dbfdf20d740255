"""The driver's side of a worker process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bisect_trt.errors import BisectError, ExitStatus, UnavailableError, UsageError
from bisect_trt.probing.workers.guard import guard
from bisect_trt.probing.workers.process import Cancel, ProcessEnd, kill_group

_LAST_WORDS_SECONDS = 60.0
GROWTH_LIMIT = 4 << 30
"""Bytes that a worker, or the use of its GPU, may grow by after its second answer before it is replaced."""


class WorkerDied(Exception):  # noqa: N818 - it is an ending, not an error of ours
    """The worker ended, or was ended, before it answered."""

    def __init__(self, end: ProcessEnd) -> None:
        """``end`` says how."""
        super().__init__()
        self.end = end


class WorkerProcess:
    """One worker; start it by asking.

    Attributes:
        served: How many requests it has answered.
        gpu: The GPU it was given, as ``CUDA_VISIBLE_DEVICES`` has it; ``None`` for all that there are.
        worn_out: Whether it should serve no more: it has leaked, or CUDA does not work in it any more.
    """

    def __init__(self, gpu: str | None = None, *, first: bool = False) -> None:
        """It is started at once, and imports what it needs while the driver does other things.

        Args:
            gpu: The only one that it sees.
            first: Whether its first request is likely the reference run, for which it imports ONNX Runtime at once too.
        """
        request_read, self._request_write = os.pipe()
        self._reply_read, reply_write = os.pipe()
        self.served = 0
        self.gpu = gpu
        self.worn_out = False
        self._first_memory: dict[str, int] = {}
        self._buffer = b""
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        warm = ["warm"] if first else []
        self._process = guard.start(
            [sys.executable, "-m", "bisect_trt.probing.workers.serve", str(request_read), str(reply_write), *warm],
            # The user's folder may hold an onnx.py.
            {**os.environ, **visible, "PYTHONSAFEPATH": "1"},
            output=subprocess.DEVNULL,  # each request says where its output goes
            pass_fds=(request_read, reply_write),
        )
        os.close(request_read)
        os.close(reply_write)

    def ask(
        self, request: dict[str, Any], timeout: float | None = None, cancel: Cancel | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            WorkerDied: It crashed, took too long or was cancelled; it is gone then.
            UsageError: The request named something that is wrong.
            UnavailableError: Something it needs is not there.
        """
        began = time.monotonic()
        try:
            os.write(self._request_write, json.dumps(request).encode() + b"\n")
            line = self._read_line(timeout, cancel)
        except BrokenPipeError:
            line = b""
        if line is None or not line:
            raise WorkerDied(self._bury(line is None, cancel, began))
        self.served += 1
        reply: dict[str, Any] = json.loads(line)
        self._see_wear(reply)
        if reply.get("error") == "user":
            raise _user_error(reply)
        return reply

    def _see_wear(self, reply: dict[str, Any]) -> None:
        """The first answers load libraries and warm caches up; what is added for long after them is lost."""
        memory: dict[str, int] = reply.pop("memory", {})
        if self.served <= 2:
            self._first_memory = memory
        grown = any(size - self._first_memory.get(kind, size) > GROWTH_LIMIT for kind, size in memory.items())
        self.worn_out = grown or bool(reply.get("poisoned"))

    def _read_line(self, timeout: float | None, cancel: Cancel | None) -> bytes | None:
        """A line; empty at the end of the pipe, ``None`` if it did not come in time."""
        watched = [self._reply_read] if cancel is None else [self._reply_read, cancel.read_fd]
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready, _, _ = select.select(watched, [], [], left)
            if self._reply_read not in ready:
                return None
            chunk = os.read(self._reply_read, 1 << 16)
            if not chunk:
                return b""
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _bury(self, ended_by_us: bool, cancel: Cancel | None, began: float) -> ProcessEnd:
        cancelled = ended_by_us and cancel is not None and cancel.is_set
        if not ended_by_us:  # it crashes: its exit status is the finding, so let it finish, core dump and all
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_SECONDS)
        self.close()
        return ProcessEnd(self._process.returncode, ended_by_us and not cancelled, cancelled, time.monotonic() - began)

    def close(self) -> None:
        """End it at once: it has nothing to lose."""
        if self._request_write < 0:
            return
        os.close(self._request_write)
        os.close(self._reply_read)
        self._request_write = -1
        kill_group(self._process.pid)
        self._process.wait()
        guard.release(self._process.pid)


_spare: list[WorkerProcess] = []
_keeping = False


def start_spare() -> None:
    """Start the first worker before anything else, so that it is ready when the driver is."""
    _spare.append(WorkerProcess(first=True))
    atexit.register(end_spare)


def keep_spare() -> None:
    """From now on keep a worker of each run for the next: for a process that makes several, as a notebook does."""
    global _keeping  # noqa: PLW0603 - like the spare itself, it is the process's
    if not _keeping:
        _keeping = True
        atexit.register(end_spare)


def end_spare() -> None:
    """End it, if nobody has taken it."""
    while _spare:
        _spare.pop().close()


class WorkerPool:
    """Workers that are kept for the next request.

    Attributes:
        fresh_process: Whether each request gets a worker of its own instead.
    """

    def __init__(self, folder: Path, gpus: Sequence[str] = (), *, fresh_process: bool = False) -> None:
        """``folder`` gets the log of what their runtimes print; with several ``gpus`` each worker gets one of them."""
        self.fresh_process = fresh_process
        self._log = folder / "workers.log"
        self._gpus = list(gpus)
        self._given: Counter[str] = Counter()
        self._idle: list[WorkerProcess] = []
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(
        self, request: dict[str, Any], timeout: float | None = None, cancel: Cancel | None = None
    ) -> dict[str, Any]:
        """Have an idle or a new worker answer; see :meth:`WorkerProcess.ask`.

        A worker that had served others and dies, or is poisoned, is given the benefit of the doubt: the request is
        repeated in a fresh one before that counts, because an earlier request may have poisoned it.
        """
        # A worker may be older than this run, and its folder another.
        request = {"log": str(self._log), "cwd": str(Path.cwd()), **request}
        worker = self._take()
        used = worker.served > 0
        try:
            reply = self._ask(worker, request, timeout, cancel)
        except WorkerDied as death:
            if not used or death.end.cancelled or death.end.timed_out:
                raise
            return self._ask(self._take(fresh=True), request, timeout, cancel)
        if used and reply.get("poisoned"):
            return self._ask(self._take(fresh=True), request, timeout, cancel)
        return reply

    def _ask(
        self, worker: WorkerProcess, request: dict[str, Any], timeout: float | None, cancel: Cancel | None
    ) -> dict[str, Any]:
        try:
            reply = worker.ask(request, timeout, cancel)
        except WorkerDied:
            self._dismiss(worker)
            raise
        except BisectError:
            self._give_back(worker)
            raise
        self._give_back(worker)
        return reply

    def _take(self, *, fresh: bool = False) -> WorkerProcess:
        with self._lock:
            if self._idle and not fresh:
                return self._idle.pop()
            if _spare and len(self._gpus) < 2:
                return _spare.pop()
            gpu = min(self._gpus, key=self._given.__getitem__) if len(self._gpus) > 1 else None
            if gpu is not None:
                self._given[gpu] += 1
        return WorkerProcess(gpu)

    def _give_back(self, worker: WorkerProcess) -> None:
        if self.fresh_process or worker.worn_out:
            self._dismiss(worker)
            return
        with self._lock:
            self._idle.append(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.close()
        with self._lock:
            if worker.gpu is not None:
                self._given[worker.gpu] -= 1

    def close(self) -> None:
        """End all that idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        if _keeping and idle and not _spare and idle[-1].gpu is None:
            _spare.append(idle.pop())
        for worker in idle:
            worker.close()


def _user_error(reply: dict[str, Any]) -> BisectError:
    kinds: dict[int, type[BisectError]] = {ExitStatus.USAGE: UsageError, ExitStatus.UNAVAILABLE: UnavailableError}
    return kinds.get(reply["status"], BisectError)(reply["message"])
