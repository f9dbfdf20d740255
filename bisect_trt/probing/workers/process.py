"""Child processes that always end, with everything they started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_trt.probing.workers.guard import guard

_FAULTS = {
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
}
"""What a process does to itself; every other signal is sent by somebody."""
GRACE_SECONDS = 2.0
"""How long a process group may take to end itself after SIGTERM."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended.

    Attributes:
        code: Exit status, or minus the signal's number, as in ``subprocess``.
        timed_out: It was ended because its time was up.
        cancelled: It was ended because nobody needs its answer any more.
        seconds: How long it ran.
    """

    code: int
    timed_out: bool
    cancelled: bool
    seconds: float

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
        """Whether somebody else ended it, as the kernel does when memory runs out: it says nothing of what it did."""
        return self.code < 0 and -self.code not in _FAULTS and not self.timed_out and not self.cancelled

    def describe(self) -> str:
        """How it ended without an answer, in words."""
        if self.timed_out:
            return f"no answer after {self.seconds:.1f} s"
        return f"it crashed ({self.signal_name or self.code})"


class Cancel:
    """Tells a running process, from another thread, that its answer is not needed any more."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        self.is_set = False

    def set(self) -> None:
        """Cancel."""
        if not self.is_set:
            self.is_set = True
            os.write(self._write_fd, b"x")

    def close(self) -> None:
        """Give the pipe back."""
        for fd in (self.read_fd, self._write_fd):
            os.close(fd)


def run_to_end(
    argv: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    timeout: float | None = None,
    cancel: Cancel | None = None,
    cwd: Path | None = None,
) -> ProcessEnd:
    """Run a command in a process group of its own, without a shell, stdout and stderr to ``log``.

    Whatever is left of the group when the command has ended is killed, so no probe outlives its answer.

    Args:
        argv: The command.
        log: Where its output goes.
        environment: Set on top of the caller's environment.
        timeout: Seconds after which it is ended: SIGTERM, then SIGKILL.
        cancel: Ends it too when set.
        cwd: Where it runs; here if not given.

    Raises:
        OSError: It cannot be started.
    """
    began = time.monotonic()
    with log.open("wb") as output:
        process = guard.start(argv, {**os.environ, **environment}, output=output, cwd=cwd)
    ended = False
    try:
        ended = wait(process, timeout, cancel)
    finally:
        if not ended:  # nobody waits for the last words of a probe that is not needed any more
            end_group(process, 0 if cancel is not None and cancel.is_set else GRACE_SECONDS)
        kill_group(process.pid)
        guard.release(process.pid)
    cancelled = cancel is not None and cancel.is_set and not ended
    return ProcessEnd(process.returncode, not ended and not cancelled, cancelled, time.monotonic() - began)


def wait(process: subprocess.Popen[bytes], timeout: float | None, cancel: Cancel | None) -> bool:
    """Wait for a process; ``False`` if the time was up or it was cancelled first."""
    if timeout is None and cancel is None:
        process.wait()
        return True
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel: poll instead
        return _wait_by_polling(process, timeout, cancel)
    try:
        watched = [pidfd] if cancel is None else [pidfd, cancel.read_fd]
        ready, _, _ = select.select(watched, [], [], timeout)
    finally:
        os.close(pidfd)
    if pidfd not in ready:
        return False
    process.wait()
    return True


def _wait_by_polling(process: subprocess.Popen[bytes], timeout: float | None, cancel: Cancel | None) -> bool:
    deadline = None if timeout is None else time.monotonic() + timeout
    while process.poll() is None:
        if (cancel is not None and cancel.is_set) or (deadline is not None and time.monotonic() > deadline):
            return False
        time.sleep(0.01)
    return True


def end_group(process: subprocess.Popen[bytes], grace: float = GRACE_SECONDS) -> None:
    """End a process and its group: SIGTERM, and SIGKILL for what has not gone after ``grace`` seconds."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    kill_group(process.pid)
    process.wait()


def kill_group(group: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
