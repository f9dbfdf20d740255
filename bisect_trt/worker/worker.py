"""A worker process as its driver sees it: started, asked, ended; and the spare workers that no run has yet."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bisect_trt.errors import BisectError
from bisect_trt.targets.messages import NO_TELEMETRY
from bisect_trt.tensors.kernel import oom_kills
from bisect_trt.worker.channel import Closed, ConnectionLost, Message, ProcessDied, receive, send
from bisect_trt.worker.guard import Forked, guard
from bisect_trt.worker.place import Place
from bisect_trt.worker.process import (
    Limit,
    ProcessEnd,
    ProcessLimits,
    Turn,
    gate,
    kill_group,
    module_command,
)
from bisect_trt.worker.protocol import READY, Answered, BuildEngine, Compare, Failed, Order

_LAST_WORDS_SECONDS = 60.0
_TIDY_SECONDS = 2.0
"""Seconds that a worker may take to end its processes in a place; killed ones end there a little
later."""
GROWTH_LIMIT = 4 << 30
"""Bytes that a worker, or the use of its GPU, may grow by after its second answer before it is
replaced."""


class WorkerDied(Exception):  # noqa: N818 - it is an ending, not an error of ours
    """The worker ended, or was ended, before it answered.

    Attributes:
        outside: Why that says nothing about the request, if so; else ``None``.
        out_of_memory: Whether the kernel has ended a process meanwhile because memory ran out.
    """

    def __init__(
        self, end: ProcessEnd, outside: str | None = None, *, out_of_memory: bool = False
    ) -> None:
        super().__init__()
        self.end = end
        self.outside = outside
        self.out_of_memory = out_of_memory


class _PastLimit(Exception):  # noqa: N818 - as above
    """A limit is passed before the worker answers."""


class WorkerProcess:
    """A worker process, on one GPU (as ``CUDA_VISIBLE_DEVICES`` has it) or all; its place runs the models, if it has one.

    Attributes:
        served: How many requests it has answered, since the process that runs models was started.
        worn_out: Whether it should serve no more: it has leaked, or CUDA does not work in it any
            more.
    """

    def __init__(
        self, gpu: str | None = None, *, place: Place | None = None, fork: bool = False
    ) -> None:
        """Start it, as a fork of this process or by itself; it imports what it needs while the driver does other things."""
        request_read, self._request_write = os.pipe()
        self._reply_read, reply_write = os.pipe()
        self.served = 0
        self.gpu = gpu
        self.place = place
        self.worn_out = False
        self._surroundings = surroundings()
        self._busy = False
        self._first_memory: Mapping[str, int] = {}
        variables = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        # The disk is full, and only few of them need it.
        with contextlib.suppress(OSError):
            variables["TMPDIR"] = str(guard.scratch())
        pipes = request_read, reply_write
        command = module_command("bisect_trt.worker.serve", *map(str, pipes))
        self._process: subprocess.Popen[bytes] | Forked = (
            guard.fork(lambda: self._serve(variables, *pipes))
            if fork
            else guard.start(command, {**os.environ, **variables}, pass_fds=pipes)
        )
        # The worker's ends: while one is open here too, its death does not close the pipe.
        for pipe in pipes:
            os.close(pipe)
        # The first request finds that it is gone.
        with contextlib.suppress(Closed):
            send(self._request_write, {}, [pickle.dumps(place)])

    def _serve(self, env: Mapping[str, str], requests: int, replies: int) -> None:
        """Be the worker, in a fork of the driver."""
        from bisect_trt.worker import serve  # noqa: PLC0415 - the driver itself does not need it

        os.close(self._request_write)
        os.close(self._reply_read)
        os.environ.update({**env, **NO_TELEMETRY})
        # It has the folder of the driver, from before TMPDIR was set.
        tempfile.tempdir = None
        # The request that needs it reports the error.
        with contextlib.suppress(Exception):
            importlib.import_module("onnxruntime")
        # A collection would write to every object of the driver, and so copy the pages that are
        # shared with it.
        gc.freeze()
        # The driver imports without it.
        gc.enable()
        serve.main(requests, replies)

    def ask(self, order: Order, limits: ProcessLimits, turn: Turn) -> Answered:
        """Send a request and wait for the answer; ``turn`` gets what the worker does meanwhile.

        Raises:
            WorkerDied: It crashed, passed a limit, was ended by another process or was cancelled.
            UsageError: The request named something that is wrong.
            UnavailableError: Something it needs is not there.
        """
        began = time.monotonic()
        kills = oom_kills()
        begun = False
        self._busy = True
        try:
            send(self._request_write, {}, [pickle.dumps(order)])
            header, content = self._receive(limits)
            while header:
                begun = True
                turn.begin(**header)
                if header == READY:
                    # A slow start is not the time of the request.
                    began = time.monotonic()
                    limits.begun()
                header, content = self._receive(limits)
        except (Closed, _PastLimit):
            if limits.past is None:
                # It crashes: its exit status is the finding, so let it finish, core dump and all.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LAST_WORDS_SECONDS)
            end = self._ended(began, limits.past)
            out = oom_kills() > kills
            raise WorkerDied(
                end, _outside(end, begun=begun, memory=out), out_of_memory=out
            ) from None
        except BaseException:
            # Ctrl-C: its answer is not needed.
            self.close()
            raise
        self._busy = False
        self.served += 1
        answer: Answered = pickle.loads(content)
        reply = answer.reply
        if isinstance(reply, ConnectionLost):
            raise WorkerDied(self._ended(began), str(reply))
        if isinstance(reply, ProcessDied):
            # It ended in the place, where the next request starts another process.
            self.served = 0
            end = ProcessEnd(reply.code, time.monotonic() - began)
            raise WorkerDied(end, _outside(end, begun=True, memory=False))
        self._see_wear(answer, ("host",) if turn.most > 1 else ("host", "gpu"))
        if isinstance(order.request, BuildEngine | Compare):
            gate.saw(answer.memory["peak"])
        if isinstance(reply, BisectError):
            raise reply
        return answer

    def _see_wear(self, answer: Answered, kinds: Sequence[str]) -> None:
        """The first answers load libraries and warm caches up; what is added for long after them is lost.

        The memory of a GPU is what all its processes hold, so it tells nothing while others run.
        """
        if self.served <= 2:
            self._first_memory = answer.memory
        grown = any(answer.memory[name] - self._first_memory[name] > GROWTH_LIMIT for name in kinds)
        self.worn_out = grown or (isinstance(answer.reply, Failed) and answer.reply.poisoned)

    def _receive(self, limits: ProcessLimits) -> Message:
        """A message from the worker.

        Raises:
            Closed: The worker has ended.
            _PastLimit: A limit is passed first.
        """

        def wait() -> None:
            while not limits.wait(self._reply_read):
                # The wait ends at the next look too, not only when a limit is passed.
                if limits.passed(self._process.pid) is not None:
                    raise _PastLimit

        message = receive(self._reply_read, wait)
        if limits.passed(self._process.pid, done=True) is not None:
            # A short request ends between two looks.
            raise _PastLimit
        return message

    def _ended(self, began: float, limit: Limit | None = None) -> ProcessEnd:
        """End it, because of a limit if any."""
        self.close()
        return ProcessEnd(self._process.wait(), time.monotonic() - began, limit)

    @property
    def outdated(self) -> bool:
        """Whether an environment variable has changed since it was started, as a notebook sets which GPU to use."""
        return self._surroundings != surroundings()

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
        if self.place is not None and not self._busy:
            # What it has in the place is tidied up there.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TIDY_SECONDS)
        kill_group(self._process.pid)
        self._process.wait()
        guard.release(self._process.pid)


def surroundings() -> dict[str, str]:
    """The environment variables that a runtime may depend on."""
    return dict(os.environ)


def _outside(end: ProcessEnd, *, begun: bool, memory: bool) -> str | None:
    """Why the end of a worker says nothing about the request, if so."""
    status = end.signal_name or f"exit status {end.code}"
    if end.limit is not None:
        return None
    if memory:
        return f"its process was ended ({status}) because memory ran out"
    # A worker that had not read the request cannot have died of the model.
    if not begun:
        return f"its process ended before it began ({status})"
    return f"its process was ended from outside ({status})" if end.from_outside else None


_spare: list[WorkerProcess] = []
_most_kept = 0


def fork_spare(most: int) -> None:
    """Fork the first workers from this process, one a core, unless other threads run here (or may: not on Linux)."""
    alone = len(list(Path("/proc/self/task").glob("*"))) == 1
    for _ in range(min(most, os.cpu_count() or 1) if alone else 0):
        _spare.append(WorkerProcess(fork=True))  # noqa: PERF401 - the second may not start


def keep_spare(limit: int = 1) -> None:
    """From now on keep so many workers of each run for the next: for a process that makes several, as a notebook does."""
    global _most_kept  # noqa: PLW0603 - like the spare itself, it is the process's
    _most_kept = max(_most_kept, limit)
    atexit.register(end_spare)


def end_spare() -> None:
    """End the spare workers."""
    while _spare:
        _spare.pop().close()


def take_spare() -> list[WorkerProcess]:
    """The spare workers, which belong to the caller from now on; outdated ones are ended."""
    usable = [worker for worker in _spare if not worker.outdated]
    _spare[:] = [worker for worker in _spare if worker.outdated]
    end_spare()
    return usable


def keep(worker: WorkerProcess) -> None:
    """Keep an idle worker for the next run, if there is room for it and it fits any run; end it otherwise."""
    if len(_spare) < _most_kept and worker.gpu is None and worker.place is None:
        _spare.append(worker)
    else:
        worker.close()
