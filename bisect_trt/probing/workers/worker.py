"""One worker process, as its driver sees it: started, asked, given up, buried."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bisect_trt.errors import BisectError, ExitStatus, UnavailableError, UsageError
from bisect_trt.probing.lines import decode_answer, encode
from bisect_trt.probing.protocol import (
    BEGUN,
    READY,
    Answer,
    Build,
    Compare,
    Died,
    Failed,
    Misuse,
    Order,
)
from bisect_trt.probing.workers.guard import guard
from bisect_trt.probing.workers.process import Limits, ProcessEnd, kill_group, module_command
from bisect_trt.probing.workers.resources import gate
from bisect_trt.tensors.kernel_memory import oom_kills

if TYPE_CHECKING:
    from bisect_trt.probing.places.place import Place

_LAST_WORDS_SECONDS = 60.0
_GIVE_UP_SECONDS = 5.0
"""How long a place may take to say that it has ended what nobody waits for any more."""
_TIDY_SECONDS = 2.0
"""How long a worker may take to end what it has in a place; what is killed then ends there too, a little later."""
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
    def outdated(self) -> bool:
        """Whether a variable has changed since it was started, as a notebook sets which GPU to use."""
        return self.environment != surroundings()

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
