"""Child processes that always end, with everything they started."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from bisect_trt.tensors.kernel import free_bytes, holds_more, readable, total_bytes
from bisect_trt.worker.guard import guard

_FAULTS = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
)
"""Signals that a process causes itself; every other signal comes from another process."""
_POLL_SECONDS = 0.05
"""Seconds between checks of a process and the length of its log."""
_LONG_SECONDS = 3600.0
MEMORY_LOOK_SECONDS = 0.1
"""Seconds between checks of the memory of a process with a limit."""
LOG_BYTES = 32 << 20
"""Bytes that are kept from the beginning of a process's output."""
_TAIL_BYTES = 256 << 10
"""Bytes that are kept from its end."""
MOST_LOST = 3
"""Number of times that another process may end a request before it stays unanswered."""
GRACE_SECONDS = 2.0
"""Seconds that a process group may take to end after SIGTERM."""
_RESERVE = 0.05
"""The share of all memory that is left alone by probes that run beside others."""


def workers_within(wanted: int | None, default: int) -> int:
    """Return the number of probes at a time; each has some open files, so their limit is raised as far as that is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return default if wanted is None else wanted


def module_command(module: str, *words: str) -> list[str]:
    """The command of a process that runs one of our modules and imports nothing from the folder it is started in.

    What ``PYTHONSAFEPATH`` asks for from Python 3.11 on; a folder from a stranger may hold an
    ``onnx.py``.
    """
    run = f"import sys; del sys.path[0]; import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", run, *words]


Limit = Literal["time", "cancelled", "memory"]


class ProcessEnd(Struct, frozen=True):
    """The end of a process after some seconds.

    Attributes:
        code: Exit status, or minus the signal's number, as in ``subprocess``.
        limit: The limit because of which it was ended, if so.
        left_out: How many bytes of its output are not in the log, because it printed too much.
    """

    code: int
    seconds: float
    limit: Limit | None = None
    left_out: int = 0

    @property
    def signal_name(self) -> str | None:
        """The signal that killed it, such as ``SIGSEGV``."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def from_outside(self) -> bool:
        """Whether another process ended it, as the kernel does when memory runs out: this is no verdict about its work."""
        return self.code < 0 and -self.code not in _FAULTS and self.limit is None

    def describe(self) -> str:
        """Describe an end without an answer."""
        if self.limit == "time":
            return f"no answer after {self.seconds:.1f} s"
        if self.limit == "memory":
            return "it took more memory than --memory-limit"
        return f"it crashed ({self.signal_name or self.code})"


class Cancel:
    """Tells a running process, from another thread, that its answer is not needed any more."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        self.is_set = False
        self.until = 0.0

    def set(self, patience: float = 0.0) -> None:
        """Cancel; a worker, which another request needs then, may take so many seconds more."""
        if not self.is_set:
            self.until = time.monotonic() + patience
            self.is_set = True
            os.write(self._write_fd, b"x")

    def close(self) -> None:
        """Give the pipe back."""
        for fd in (self.read_fd, self._write_fd):
            os.close(fd)


def _shorten(log: Path, *, mark: int = 0) -> int:
    """Leave the middle of a long log out, also while it is written; returns how many bytes that is, or writes that (``mark``)."""
    # A check may have removed it.
    with contextlib.suppress(OSError), log.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        tail_bytes = size - LOG_BYTES if mark else _TAIL_BYTES
        if mark or size > LOG_BYTES + _TAIL_BYTES:
            file.seek(size - tail_bytes)
            tail = file.read()
            file.seek(LOG_BYTES)
            file.write(
                (f"\n[{mark} bytes of output left out here]\n".encode() if mark else b"") + tail
            )
            file.flush()
            # The process may have written since the end was read.
            left_out = os.fstat(file.fileno()).st_size - file.tell()
            file.truncate()
            return left_out
    return 0


def run_to_end(
    argv: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    timeout: float | None = None,
    cancel: Cancel | None = None,
    memory_limit: int | None = None,
    cwd: Path | None = None,
) -> ProcessEnd:
    """Run a command in a process group of its own, without a shell; a log gets its output, of much the beginning and the end.

    Whatever is left of the group when the command has ended is killed, so no probe outlives its
    answer. After ``timeout`` seconds, when it is cancelled, or when it and all it has started hold
    more bytes than they may, it gets SIGTERM, then SIGKILL. The environment is set on top of the
    caller's.

    Args:
        argv: The program and its arguments.
        log: The file of stdout and stderr.
        environment: Variables on top of the caller's.
        timeout: Seconds until it is ended.
        cancel: Ends it early.
        memory_limit: Bytes that it and its children may hold together.
        cwd: Its working folder.

    Raises:
        OSError: It cannot be started, or its log cannot be written.
    """
    began = time.monotonic()
    left_out = 0
    log.write_bytes(b"")
    # Each write goes to the end of what is kept.
    with log.open("ab") as output:
        process = guard.start(argv, {**os.environ, **environment}, output=output, cwd=cwd)
    limits = ProcessLimits(began, timeout, cancel, memory_limit)
    try:
        while process.poll() is None and limits.passed(process.pid) is None:
            _wait(process, limits)
            left_out += _shorten(log)
    finally:
        if process.poll() is None:
            # The last output of a probe that is not needed any more is not waited for.
            kill_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if limits.past == "cancelled" else GRACE_SECONDS)
        kill_group(process.pid)
        process.wait()
        # Not earlier: until here the guard has to kill the group if the driver dies.
        guard.release(process.pid)
        left_out += _shorten(log)
        if left_out:
            _shorten(log, mark=left_out)
    return ProcessEnd(process.returncode, time.monotonic() - began, limits.past, left_out)


class ProcessLimits:
    """The limits of a process (see :func:`run_to_end`), and the one that it was past when that was last looked at, if any."""

    def __init__(
        self,
        began: float,
        timeout: float | None,
        cancel: Cancel | None,
        memory: int | None,
        *,
        start: float = 0.0,
        patient: bool = False,
    ) -> None:
        """``start`` is how long it may take at least until it has :meth:`begun`; ``patient`` waits as long as a cancel allows."""
        self.cancel = cancel
        self._patient = patient
        self.past: Limit | None = None
        self._timeout = timeout
        self._deadline = None if timeout is None else began + max(timeout, start)
        self._memory = memory
        self._next_look = began

    def begun(self) -> None:
        """It has started; its time counts from now on."""
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout

    def wait(self, *fds: int, most: float = _LONG_SECONDS) -> bool:
        """Wait until a file descriptor is ready, or the limits are to be looked at; returns whether one is."""
        looks = most if self._memory is None else self._next_look - time.monotonic()
        ends = most if self._deadline is None else self._deadline - time.monotonic()
        watched = [*fds]
        if self.cancel is not None and self._patient and self.cancel.is_set:
            ends = min(ends, self.cancel.until - time.monotonic())
        elif self.cancel is not None:
            watched.append(self.cancel.read_fd)
        return not {*fds}.isdisjoint(readable(watched, min(most, looks, ends)))

    def passed(self, pid: int, *, done: bool = False) -> Limit | None:
        """Return the limit that a process exceeds, if any; where its work is ``done``, only memory counts."""
        now = time.monotonic()
        self.past = None
        if not done and self.cancel is not None and self.cancel.is_set:
            if not self._patient or now >= self.cancel.until:
                self.past = "cancelled"
        elif not done and self._deadline is not None and now >= self._deadline:
            self.past = "time"
        # Reading the memory of a process tree costs milliseconds, so it is not done at each turn.
        elif self._memory is not None and (done or now >= self._next_look):
            self.past = "memory" if holds_more(pid, self._memory) else None
            self._next_look = time.monotonic() + MEMORY_LOOK_SECONDS
        return self.past


def _wait(process: subprocess.Popen[bytes], limits: ProcessLimits) -> None:
    """Wait for the end of a process, or until its limits are to be looked at."""
    ending = list[int]()
    with contextlib.ExitStack() as opened:
        # Linux has `pidfd_open` from 5.3 on.
        with contextlib.suppress(AttributeError, OSError):
            ending.append(os.pidfd_open(process.pid))
            opened.callback(os.close, *ending)
        limits.wait(*ending, most=_POLL_SECONDS)


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Kill the rest of a process group, or send it another signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Turn:
    """A process of a probe: its work at present, how far that is, and since when (``time.monotonic``).

    Attributes:
        most: The largest number of turns that ran at a time during this one, itself included.
    """

    work = ""

    def __init__(self) -> None:
        self.most = 1
        self.begin("checking")

    def begin(self, work: str, run: int = 0, runs: int = 0) -> None:
        """Begin other work, or one of several runs of the same, as the events of ``worker/protocol.py`` name them."""
        if work != self.work:
            self.since = time.monotonic()
        self.work = work
        self.run = run
        self.runs = runs


class MemoryGate:
    """Lets a probe begin while there is memory for one more; one at a time always may.

    Attributes:
        turns: The processes that run, the earliest first.
        most: How many may run at a time; ``None`` while no GPU lacked memory.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._condition = threading.Condition()
        self._alone = False
        self._largest = 0
        self.most: int | None = None

    @contextlib.contextmanager
    def turn(self, cancel: Cancel | None = None, *, alone: bool = False) -> Iterator[Turn]:
        """Wait for room; with ``alone`` while anything else runs.

        A cancelled process does not wait.
        """
        with self._condition:
            # A probe that would be the only one begins however little memory is free, else none
            # ever would.
            while self.turns and (alone or self._alone or not self._fits()):
                if cancel is not None and cancel.is_set:
                    break
                # Nobody says when other programs free memory, so the wait has a bound.
                self._condition.wait(MEMORY_LOOK_SECONDS)
            self.turns.append(turn := Turn())
            for running in self.turns:
                running.most = max(running.most, len(self.turns))
            self._alone = self._alone or alone
        try:
            yield turn
        finally:
            with self._condition:
                self.turns.remove(turn)
                self._alone = self._alone and not alone
                self._condition.notify_all()

    def narrow(self, turn: Turn) -> None:
        """Let fewer run at a time from now on than ran beside this one, for which a GPU had too little memory."""
        with self._condition:
            self.most = max(min(turn.most, self.most or turn.most) - 1, 1)

    def saw(self, size: int) -> None:
        """A probe has taken so many bytes."""
        self._largest = max(self._largest, size)

    def saw_children(self) -> None:
        """A process has ended: what the largest has taken is known now."""
        # Of ru_maxrss macOS reports bytes, Linux kilobytes.
        unit = 1 if os.uname().sysname == "Darwin" else 1 << 10
        self.saw(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)

    def _fits(self) -> bool:
        if self.most is not None and len(self.turns) >= self.most:
            return False
        free = free_bytes()
        total = total_bytes()
        return free is None or total is None or free > self._largest + _RESERVE * total


gate = MemoryGate()
