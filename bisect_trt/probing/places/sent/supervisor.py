"""The first process in a place: it passes messages on, and sees that whatever runs models there ends when it has to.

It imports nothing but the standard library, so it starts at once, stays small and does not crash. Models run in a process
that it forks, and forks again if that has crashed; how it ended is reported, for a crash is an answer. When the driver's end
of the pipe is closed, or nothing is heard of it for long, everything that was started here is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from typing import Any, Mapping, NoReturn

from bisect_trt.probing.places.sent import wire

_LOG_TAIL = 1 << 16
_PDEATHSIG, _SUBREAPER = 1, 36
_MEMORY_LOOK_SECONDS = 0.1
_STRAY_ROUNDS = 100
_STALE_SECONDS = 60.0


class Supervisor:
    """One conversation with a driver."""

    def __init__(self, source: int, sink: int, options: Mapping[str, Any]) -> None:
        """Nothing is forked yet.

        Args:
            source: Where the driver's chunks come from.
            sink: Where chunks to it go.
            options: ``alive`` and ``silence``, seconds between signs of life and without any; ``memory_limit`` in bytes or
                ``None``; ``session``, which workers share that belong to one driver.
        """
        self._source, self._sink = source, sink
        self._options = options
        self._folder, self._lock = shared_folder(options["session"])
        self._own = tempfile.mkdtemp(prefix="worker-", dir=self._folder)
        self._child = 0
        self._to_child = self._from_child = -1
        self._over_memory = self._ended = self._hears = False
        self._deaths, write = os.pipe()  # what it leaves may hold the ends of its own pipes open
        for fd in (self._deaths, write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write)

    def run(self) -> None:
        """Until the driver is gone."""
        heard = told = looked = time.monotonic()
        alive, silence, limit = (self._options[name] for name in ("alive", "silence", "memory_limit"))
        while True:
            watched = [self._source, self._deaths] + ([self._from_child] if self._child else [])
            ready, _, _ = select.select(watched, [], [], _MEMORY_LOOK_SECONDS if limit and self._child else alive / 2)
            now = time.monotonic()
            if self._source in ready:
                heard = now
                self._hear()
            elif now - heard > silence:
                return
            if self._child and self._from_child in ready:
                self._pass_back()
            if self._deaths in ready:
                os.read(self._deaths, 1 << 12)
                self._bury()
            if now - told >= alive:
                told = now
                self._tell(wire.ALIVE)
            if limit and self._child and now - looked >= _MEMORY_LOOK_SECONDS:
                looked = now
                if not self._over_memory and held_bytes(self._child) > limit:
                    self._over_memory = True
                    kill_group(self._child)

    def _hear(self) -> None:
        """Take one chunk of the driver's in."""
        kind, size = wire.CHUNK.unpack(bytes(wire.read_exactly(self._source, wire.CHUNK.size)))
        content = wire.read_exactly(self._source, size)
        if kind == wire.BEGIN:
            if not self._child:
                self._fork()
            self._hears = True
        if kind in (wire.BEGIN, wire.DATA) and self._hears:
            with contextlib.suppress(wire.Closed):  # it has died; how is seen at the end of its own pipe
                wire.write_all(self._to_child, content)
        elif kind == wire.END:
            self._ended = True
            if self._child:
                kill_group(self._child)
            else:  # it has died by itself, which was told before this came
                self._report(-signal.SIGKILL, "")

    def _pass_back(self) -> None:
        """Pass on what the process has written."""
        content = os.read(self._from_child, wire.MOST)
        if content:
            self._tell(wire.DATA, content)
        else:
            self._bury(block=True)

    def _bury(self, *, block: bool = False) -> None:
        """Say how the process has ended, if it has."""
        pid, status = os.waitpid(self._child, 0 if block else os.WNOHANG) if self._child else (0, 0)
        if not pid:
            return
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._report(code, self._end_child())

    def _report(self, code: int, log: str) -> None:
        report = {"code": code, "over_memory": self._over_memory, "ended": self._ended, "log": log}
        self._over_memory = self._ended = False
        self._tell(wire.DIED, json.dumps(report).encode())

    def _tell(self, kind: bytes, content: bytes = b"") -> None:
        wire.write_all(self._sink, wire.CHUNK.pack(kind, len(content)) + content)

    def _fork(self) -> None:
        """Start the process that runs models."""
        read_in, self._to_child = os.pipe()
        self._from_child, write_out = os.pipe()
        self._log = os.path.join(self._own, "output.log")
        self._child = os.fork()
        if self._child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._to_child, self._from_child, self._source, self._sink, self._lock, self._deaths):
                os.close(fd)
            run_child(read_in, write_out, self._folder, self._own, self._log)
        os.close(read_in)
        os.close(write_out)

    def _end_child(self) -> str:
        """Kill what is left of the process's group, and all that it has left; the end of what it printed."""
        kill_group(self._child)
        os.close(self._to_child)
        os.close(self._from_child)
        self._child, self._hears = 0, False
        end_strays()
        try:
            with open(self._log, "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _LOG_TAIL, 0))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def close(self) -> None:
        """End everything, and take the files away; those that workers share with the last of them."""
        if self._child:
            kill_group(self._child)
            with contextlib.suppress(OSError):
                os.waitpid(self._child, 0)
            self._child = 0
        end_strays()
        shutil.rmtree(self._own, ignore_errors=True)
        leave_folder(self._folder, self._lock)


def shared_folder(session: str) -> tuple[str, int]:
    """The folder that the workers of one driver share on this host, and a lock that says that it is in use.

    Folders of drivers whose workers were all killed before they could tidy up are taken away.
    """
    root = tempfile.gettempdir()
    prefix = os.path.join(root, f"bisect-trt-{os.getuid()}-")
    folder = prefix + session
    for other in glob.glob(f"{prefix}*"):
        if other != folder:
            with contextlib.suppress(OSError):
                try:
                    leave_folder(other, os.open(os.path.join(other, "lock"), os.O_RDWR))
                except FileNotFoundError:  # one that was killed while it took its folder away, or is just making it
                    if time.time() - os.stat(other).st_mtime > _STALE_SECONDS:
                        shutil.rmtree(other, ignore_errors=True)
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.stat(folder).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else")
        try:
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the last one there has just left
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            if os.fstat(lock).st_ino == os.stat(os.path.join(folder, "lock")).st_ino:
                return folder, lock
        except OSError:
            pass
        os.close(lock)


def leave_folder(folder: str, lock: int) -> None:
    """Give it up; the last one takes it away."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # others use it
        pass
    os.close(lock)


def run_child(source: int, sink: int, folder: str, own: str, log: str) -> NoReturn:
    """Be the process that runs models, till the pipe is closed."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        prctl(_PDEATHSIG, signal.SIGKILL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        for fd in (1, 2):
            os.dup2(output, fd)
        os.chdir(own)
        from bisect_trt.probing.places.sent import server

        server.serve(source, sink, folder, own, log)
        status = 0
    except wire.Closed:
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def prctl(option: int, value: int) -> None:
    """Ask something of the kernel, where it is Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def kill_group(group: int) -> None:
    """Kill a process group; the process leads one of its own as soon as it runs."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(group, signal.SIGKILL)


def end_strays() -> None:
    """Kill what was adopted: what something that ran here has put into a session of its own (Linux)."""
    for _ in range(_STRAY_ROUNDS):
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            return
        if not children:
            return
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def held_bytes(leader: int) -> int:
    """What the processes of a session hold, in bytes; 0 where that cannot be seen. Source: proc_pid_stat(5)."""
    page, held = os.sysconf("SC_PAGE_SIZE"), 0
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, errors="replace") as file:
                rest = file.read().rpartition(")")[2].split()
            if int(rest[3]) == leader:
                held += int(rest[21]) * page
        except (OSError, ValueError, IndexError):
            continue
    return held


def main(options: Mapping[str, Any]) -> NoReturn:
    """Talk to the driver over stdin and stdout, and leave them to nobody else."""
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    prctl(_SUBREAPER, 1)
    supervisor = Supervisor(source, sink, options)
    try:
        supervisor.run()
    except (wire.Closed, SystemExit):
        pass
    finally:
        with contextlib.suppress(BaseException):
            supervisor.close()
        os._exit(0)
