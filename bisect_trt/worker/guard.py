"""Ends the processes of a run and removes its temporary folders when the run ends, also when it is killed.

Each check has its own process group, so that a time-out ends the whole group; such a group would
outlive a driver that is killed (kill -9, out of memory). A small process, the guard, therefore
waits for the end of a socket that only the driver holds open, and then kills the groups that are
still registered. PR_SET_PDEATHSIG cannot replace it: it reaches no group, and the kernel sends it
when the starting *thread* ends.

Locks are here too. A run's folder, and a path that every candidate is written to, belong to one
process at a time: two processes in one folder would remove each other's files, and two checks that
read one path would judge each other's candidates. A lock of the system (``flock(2)``) is free as
soon as its holder ends. File systems without locks are not waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO

from bisect_trt.errors import RunStateError
from bisect_trt.targets.messages import NO_TELEMETRY
from bisect_trt.tensors.kernel import prefer_to_end, readable

_LOCK = "run.lock"
_WATCH = """
import glob, os, shutil, signal, socket
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
driver, groups, folders, locks, rest = socket.socket(fileno=0), set(), set(), [], b''
starting = set()
while True:
    try:
        content, files, _, _ = socket.recv_fds(driver, 65536, 1)
    except OSError:
        break
    if not content:
        break
    locks.extend(files)
    *lines, rest = (rest + content).split(b'\\n')
    for line in lines:
        word, what, *mark = line.split()
        if word == b'start':
            starting.add(what)
        elif word == b'started':
            groups.add(int(what))
            starting.difference_update(mark)
        elif word == b'ended':
            groups.discard(int(what))
        elif word == b'folder':
            folders.add(bytes.fromhex(what.decode()))
for path in glob.glob('/proc/[0-9]*/environ') if starting else ():
    try:
        with open(path, 'rb') as environment:
            content = environment.read()
        if any(mark in content for mark in starting):
            groups.add(os.getpgid(int(path.split('/')[2])))
    except OSError:
        pass
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""


_MARK = "BISECT_TRT_STARTED_AS"
"""The environment variable by which the guard finds a process that the driver had no time to name."""


class Forked:
    """A process that was forked from this one, with what is used of :class:`subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            TimeoutExpired: It has not ended in so many seconds.
        """
        if self.returncode is None:
            ending = os.pidfd_open(self.pid)
            ended = readable([ending], timeout)
            os.close(ending)
            if not ended:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class Guard:
    """Starts processes and registers which are running; its own process starts with the first."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._scratch: Path | None = None

    def scratch(self) -> Path:
        """The folder for temporary files of this process and its workers; it is removed when this process ends.

        Raises:
            OSError: It cannot be made.
        """
        # A fork has the path of its parent's folder, which the parent's guard removes.
        if self._scratch is None or self._owner != os.getpid() or not self._scratch.is_dir():
            folder = Path(gettempdir(), f"bisect-trt-{uuid.uuid4().hex}")
            # The guard hears of the folder before it exists, so a kill in between leaves nothing.
            self._tell("folder", os.fsencode(folder).hex())
            folder.mkdir(mode=0o700)
            self._scratch = folder
        return self._scratch

    def hold(self, lock: int) -> None:
        """Keep a lock (``flock(2)``, by its file descriptor) until all processes have ended, also if this one is killed.

        Unlocking it in this process unlocks it in the guard too.
        """
        self._tell("hold", lock, lock)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        output: IO[bytes] | int = subprocess.DEVNULL,
        pass_fds: Collection[int] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in its own group, without stdin, to be killed with all its group if the driver dies.

        Args:
            argv: The program and its arguments.
            env: Its whole environment.
            output: Where stdout and stderr go.
            pass_fds: File descriptors that it inherits.
            cwd: Its working folder.

        Raises:
            OSError: It cannot be started.
        """

        def begin() -> subprocess.Popen[bytes]:
            # A driver that is killed right after the start cannot name the process any more.
            mark = uuid.uuid4().hex
            self._tell("start", mark)
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**env, **NO_TELEMETRY, _MARK: mark},
                pass_fds=pass_fds,
                start_new_session=True,
            )
            self._tell("started", f"{process.pid} {mark}")
            prefer_to_end(process.pid)
            return process

        # Ctrl-C interrupts the main thread alone. There it could come between the start and the
        # message, and the process would outlive the run; leaving the pool waits for both.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(begin).result()

    def fork(self, work: Callable[[], object]) -> Forked:
        """Fork this process, in which no other thread runs; the fork calls a function and ends.

        See :meth:`start`.
        """
        # The guard is there before the process is, which names itself.
        self._tell("fork", 0)
        pid = os.fork()
        if pid:
            prefer_to_end(pid)
            return Forked(pid)
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            assert self._pipe is not None
            # The guard acts when the last copy of the pipe is closed: by then it knows the worker,
            # also where the driver was killed meanwhile, and the worker must not hold one.
            self._send("started", os.getpid())
            self._pipe.close()
            work()
        finally:
            # Handlers of exit that the driver registered are not the fork's to run.
            os._exit(1)

    def release(self, group: int) -> None:
        """Forget a group that was killed."""
        self._tell("ended", group)

    def close(self) -> None:
        """End the guard's process; whatever is still running is killed with it."""
        with self._lock:
            process = self._process
            pipe = self._pipe
            if process is None or pipe is None or not self._is_there():
                return
            self._process = self._pipe = None
            pipe.close()
            process.wait()
            if self._scratch is not None:
                # Where the guard was killed, nobody else removes it.
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _is_there(self) -> bool:
        """Whether there is a guard, of this process and not of one that it was forked from."""
        return self._process is not None and self._owner == os.getpid()

    def _tell(self, word: str, argument: object, *locks: int) -> None:
        """Send a message to the guard, which is started if there is none."""
        with self._lock:
            if not self._is_there():
                if word == "ended":
                    # A worker that a program kept to its end may be told of after the guard has
                    # gone.
                    return
                self._owner = os.getpid()
                self._pipe, its = socket.socketpair()
                with its:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", "-c", _WATCH],
                        stdin=its.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                atexit.register(self.close)
            self._send(word, argument, *locks)

    def _send(self, word: str, argument: object, *locks: int) -> None:
        """Send a message to the running guard."""
        assert self._pipe is not None
        # The guard was killed: a run goes on without it.
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._pipe, [f"{word} {argument}\n".encode()], locks)


guard = Guard()


def scratch() -> TemporaryDirectory[str]:
    """A temporary folder, which is removed even if this process is killed.

    Raises:
        OSError: It cannot be made.
    """
    return TemporaryDirectory(dir=guard.scratch())


@contextlib.contextmanager
def claimed_run(folder: Path) -> Iterator[None]:
    """Hold a run's folder; waits for the end of checks that a killed process has started there.

    Raises:
        UsageError: Another process works there.
    """
    message = f"the run {folder} belongs to the running process {{}}, so nothing was done; wait until it ends, or stop it."
    with _locked(folder / _LOCK, message), contextlib.ExitStack() as opened:
        # Checks outlive a driver that is killed until its guard has ended them: it has this lock as
        # well.
        with contextlib.suppress(OSError):
            directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, directory)
            fcntl.flock(directory, fcntl.LOCK_EX)
            # This unlocks it for the guard too, which shares the lock.
            opened.callback(fcntl.flock, directory, fcntl.LOCK_UN)
            guard.hold(directory)
        yield


def claimed_path(path: Path | None) -> contextlib.AbstractContextManager[None]:
    """Hold the path that every candidate is written to; ``None`` if there is none.

    Raises:
        UsageError: The candidates of another run are written there.
    """
    message = (
        f"{path} is rewritten for each probe of a run in process {{}}; wait until it ends, name "
        "another with --candidate, or put {model} into the check command."
    )
    return (
        contextlib.nullcontext()
        if path is None
        else _locked(path.with_name(f".{path.name[:100]}.bisect-trt"), message)
    )


@contextlib.contextmanager
def _locked(path: Path, message: str) -> Iterator[None]:
    """A file that exists while the lock is held, and names the process.

    Raises:
        UsageError: Another process holds it: ``message``, with that process in its braces.
    """
    file = _lock(path, message)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                # It is removed while the lock is held: later it may be the file of another process.
                path.unlink()
            os.close(file)


def _lock(path: Path, message: str) -> int | None:
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:
            # The next write there says why that is not possible.
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the opening and the lock its holder may have removed the file, and a lock on a
            # removed file excludes nobody.
            if os.path.samestat(os.fstat(file), path.lstat()):
                os.truncate(file, 0)
                os.write(file, f"{os.getpid()} of {os.uname().nodename}".encode())
                return file
        except BlockingIOError:
            holder = os.pread(file, 100, 0).decode(errors="replace")
            os.close(file)
            raise RunStateError(message.replace("{}", holder or "unknown", 1)) from None
        except FileNotFoundError:
            # Its holder removed it just now.
            pass
        except OSError:
            # The file system has no locks, or the disk is full.
            return file
        os.close(file)
