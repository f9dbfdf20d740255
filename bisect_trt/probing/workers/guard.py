"""Ends what a run has started if the run itself is killed.

A check has a process group of its own, so that a time-out ends all of it. The price is that it would outlive a driver
that dies without a word (kill -9, out of memory). So a small process waits for the end of a pipe whose other end only the
driver holds, and then kills the groups that were still registered.

A driver may be killed after it has started a process and before it has said so. Each process is therefore announced under
a number that stands in its environment, and those that were only announced are looked for there (Linux).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import IO

MARK = "BISECT_TRT_PROCESS"
"""Environment variable of the processes that a run starts."""

_WATCH = f"""
import glob, os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
groups = {{}}
for line in sys.stdin:
    mark, group = line.split()
    if group == '-':
        groups.pop(mark, None)
    else:
        groups[mark] = int(group)
def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
for group in groups.values():
    if group:
        kill(group)
lost = {{b'{MARK}=' + mark.encode() for mark, group in groups.items() if not group}}
for _ in range(20 if lost else 0):
    for path in glob.glob('/proc/[0-9]*/environ'):
        try:
            with open(path, 'rb') as file:
                if lost.intersection(file.read().split(b'\\0')):
                    kill(os.getpgid(int(path.split('/')[2])))
        except OSError:
            pass
    time.sleep(0.05)
"""


class Guard:
    """Starts processes and knows which are running; its own process starts with the first."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._numbers = count()
        self._marks: dict[int, str] = {}

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        output: IO[bytes] | int = subprocess.DEVNULL,
        pass_fds: Collection[int] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, to be killed with all its group if the driver dies.

        Args:
            argv: The command.
            env: Its whole environment.
            output: Where its stdout and stderr go; it has no stdin.
            pass_fds: Files that it gets.
            cwd: Where it runs; here if not given.

        Raises:
            OSError: It cannot be started.
        """
        mark = f"{os.getpid()}-{next(self._numbers)}"
        self._tell(mark, "0")
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**env, MARK: mark},
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except BaseException:
            self._tell(mark, "-")
            raise
        self._marks[process.pid] = mark
        self._tell(mark, str(process.pid))
        return process

    def release(self, group: int) -> None:
        """The group has ended."""
        self._tell(self._marks.pop(group), "-")

    def close(self) -> None:
        """End the guard's own process; whatever is still running is killed with it."""
        with self._lock:
            process, self._process = self._process, None
            if process is None or process.stdin is None or self._owner != os.getpid():
                return
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()

    def _tell(self, mark: str, group: str) -> None:
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._owner = os.getpid()
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _WATCH],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                atexit.register(self.close)
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # somebody killed it: a run goes on without
                self._process.stdin.write(f"{mark} {group}\n".encode())
                self._process.stdin.flush()


guard = Guard()
