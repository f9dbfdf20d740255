"""Ends the processes of a run when the run itself is killed.

Each check has a process group of its own, so that a time-out ends all of it. The price is that a check would outlive a driver
that is killed (kill -9, out of memory). A small process, the guard, therefore waits for the end of a socket that only the driver
holds open, and then kills the groups that are still registered. PR_SET_PDEATHSIG cannot do this: the kernel sends it when the
starting *thread* ends, and probes are started from threads.

The driver may be killed between starting a process and registering its group. Each process is therefore announced first, under
a number that stands in its environment, and the guard looks for the announced ones by this number (Linux).

A daemon that a check starts (a double fork) leaves the check's group. On Linux the driver adopts it (PR_SET_CHILD_SUBREAPER) and
kills it, by the number in its environment, after the probe; the guard does so if the driver is dead. A daemon that has cleared
its environment is left running.

Temporary folders lie in one folder that the guard removes, whichever signal ends the driver.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO

from bisect_trt.tensors.kernel_memory import prefer_to_end

MARK = "BISECT_TRT_PROCESS"
"""Environment variable of the processes that a run starts."""

_WATCH = f"""
import glob, os, shutil, signal, socket, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pipe = socket.socket(fileno=0)
held = {{}}
groups = {{}}
folders = []
passed = []
def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
rest = b''
while True:
    try:
        content, files, _, _ = socket.recv_fds(pipe, 65536, 1)
    except OSError:
        break
    if not content:
        break
    passed.extend(files)
    *lines, rest = (rest + content).split(b'\\n')
    for line in lines:
        mark, group = line.decode().split()
        if mark == 'folder':
            folders.append(bytes.fromhex(group))
        elif mark == 'hold':
            held[group] = passed[:]
            passed.clear()
        elif mark == 'drop':
            for file in held.pop(group, ()):
                os.close(file)
        elif group == '-':
            groups.pop(mark, None)
        else:
            groups[mark] = int(group)
for group in groups.values():
    if group:
        kill(group)
started = b'\\0{MARK}=' + sys.argv[1].encode() + b'-'
lost = any(not group for group in groups.values())
for _ in range(20 if lost else 1):
    for path in glob.glob('/proc/[0-9]*/environ'):
        try:
            with open(path, 'rb') as file:
                if started in b'\\0' + file.read():
                    kill(os.getpgid(int(path.split('/')[2])))
        except OSError:
            pass
    time.sleep(0.05 if lost else 0)
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""
_PR_SET_CHILD_SUBREAPER = 36
_STRAY_ROUNDS = 100
"""How often to look for the daemons of a probe, while there are some: a killed one may have started more."""


class Guard:
    """Starts processes and knows which are running; its own process starts with the first."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._held: dict[str, int] = {}
        self._owner = 0
        self._lock = threading.Lock()
        self._numbers = count()
        self._live: set[str] = set()
        self._marks: dict[int, str] = {}
        self._adopts = False
        self._scratch: Path | None = None

    def scratch(self) -> Path:
        """The folder for what is needed for a while, for this process and its workers; it ends with this process.

        Raises:
            OSError: There is no place for it.
        """
        if self._scratch is None or self._owner != os.getpid() or not self._scratch.is_dir():
            folder = Path(gettempdir(), f"bisect-trt-{uuid.uuid4().hex}")
            self._tell("folder", os.fsencode(folder).hex())
            folder.mkdir(mode=0o700)
            self._scratch = folder
        return self._scratch

    @contextlib.contextmanager
    def holding(self, lock: int) -> Iterator[None]:
        """Have a lock (``flock(2)``) held until all that was started has ended, whoever ends this process; a file's number."""
        name = str(lock)
        with self._lock:
            self._held[name] = lock
            self._send("hold", name, lock)
        try:
            yield
        finally:
            with self._lock:
                del self._held[name]
                self._send("drop", name)

    def adopt(self) -> None:
        """Adopt the orphans among this process's descendants (Linux); only for a process that runs this program alone."""
        if sys.platform != "linux":
            return
        import ctypes  # noqa: PLC0415 - it takes a while to import, and a program that uses the library does without

        with contextlib.suppress(OSError, AttributeError):
            self._adopts = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

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
        self._live.add(mark)
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
            self._live.discard(mark)
            self._tell(mark, "-")
            raise
        self._marks[process.pid] = mark
        self._tell(mark, str(process.pid))
        prefer_to_end(process.pid)
        return process

    def release(self, group: int) -> None:
        """Forget a group that has ended, and end the daemons that it started, where the driver adopts them."""
        mark = self._marks.pop(group)
        self._live.discard(mark)
        self._tell(mark, "-")
        for _ in range(_STRAY_ROUNDS if self._adopts else 0):
            if not self._end_strays():
                break

    def _end_strays(self) -> bool:
        """Kill the adopted daemons of probes that have ended, and reap zombies; whether there was anything to kill."""
        found = False
        prefix = f"{MARK}={os.getpid()}-".encode()
        for pid in _children():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                mark = next((word.partition(b"=")[2].decode() for word in words if word.startswith(prefix)), None)
                if mark is not None and mark not in self._live:
                    found = True
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                elif not any(words) and self._is_foreign(pid):  # a zombie has no environment any more
                    os.waitpid(pid, os.WNOHANG)
        return found

    def _is_foreign(self, pid: int) -> bool:
        """Whether a process was not started by this guard; False while another is being started, because it may be that one."""
        starting = len(self._live) != len(self._marks)
        return not starting and pid not in self._marks and (self._process is None or pid != self._process.pid)

    def close(self) -> None:
        """End the guard's own process; whatever is still running is killed with it."""
        with self._lock:
            process, self._process, pipe, self._pipe = self._process, None, self._pipe, None
            if process is None or pipe is None or self._owner != os.getpid():
                return
            pipe.close()
            process.wait()
            if self._scratch is not None:  # where the guard was killed
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _tell(self, mark: str, group: str) -> None:
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                if group == "-":  # at the end of a program that kept a worker the guard has gone before it: no new one
                    return
                self._owner = os.getpid()
                self._pipe, its = socket.socketpair()
                with its:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid())],
                        stdin=its.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                for name, lock in self._held.items():
                    self._send("hold", name, lock)
                atexit.register(self.close)
            self._send(mark, group)

    def _send(self, mark: str, group: str, *locks: int) -> None:
        """Say something to the guard, if it is there."""
        if self._pipe is None or self._owner != os.getpid():
            return
        content = f"{mark} {group}\n".encode()
        with contextlib.suppress(ConnectionError):  # somebody killed it: a run goes on without
            if locks:
                socket.send_fds(self._pipe, [content], locks)
            else:
                self._pipe.sendall(content)


def _children() -> list[int]:
    """The processes that this one has adopted, and those that its first thread has started."""
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # a kernel that does not say
        return []


guard = Guard()


def scratch() -> TemporaryDirectory[str]:
    """A folder for a while, which is taken away even if this process is killed.

    Raises:
        OSError: There is no place for it.
    """
    return TemporaryDirectory(dir=guard.scratch())
