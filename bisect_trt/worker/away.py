"""A worker in another interpreter, container or host: what its zip application runs.

The first process watches, and forks the process that runs models. When that ends, it reports how on stderr
(:data:`channel.DIED`), because a crash is an answer. When the driver is gone, which the kernel reports by a hang-up of stdin, it
ends everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from bisect_trt.worker.channel import DIED, Closed

_LOG_TAIL = 1 << 16
_PDEATHSIG, _SUBREAPER = 1, 36
_LOOK_SECONDS = 0.1
_STALE_SECONDS = 600.0
_STRAY_ROUNDS = 100


def main(own: str, options: Mapping[str, Any]) -> NoReturn:
    """Run models for a driver at the other end of stdin and stdout until one side is gone.

    Args:
        own: A folder of this process; it is removed in the end.
        options: ``session`` names the driver, whose workers on one host share files; ``memory_limit`` in bytes or ``None``.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    prctl(_SUBREAPER, 1)
    shared, lock = shared_folder(options["session"])
    log = Path(own, "output.log")
    log.touch()
    deaths, wake = os.pipe()
    for fd in (deaths, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        for fd in (lock, deaths, wake):
            os.close(fd)
        _run_models(source, sink, shared, own, log)
    os.close(sink)
    crashed = False
    try:
        status, over_memory = _watch(child, source, deaths, options["memory_limit"])
        if status is not None:
            crashed = status != 0
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            report = {"code": code, "over_memory": over_memory, "log": _tail(log)}
            os.write(2, b"\n" + DIED + json.dumps(report).encode() + b"\n")
    except SystemExit:
        pass
    finally:
        with contextlib.suppress(BaseException):
            _end(child)
            shutil.rmtree(own, ignore_errors=True)
            leave_folder(shared, lock, remove=not crashed)
        os._exit(0)


def _watch(child: int, source: int, deaths: int, limit: int | None) -> tuple[int | None, bool]:
    """Wait for the end of the process or of the driver.

    Returns:
        The process's status, ``None`` if the driver is gone; and whether it was killed because of its memory.
    """
    poll, over_memory = select.poll(), False
    poll.register(source, getattr(select, "POLLRDHUP", 0))  # a hang-up is always reported
    poll.register(deaths, select.POLLIN)
    while True:
        ready = dict(poll.poll(None if limit is None else 1000 * _LOOK_SECONDS))
        if deaths in ready:
            os.read(deaths, 1 << 12)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status, over_memory
        if source in ready:
            return None, False
        if limit is not None and not over_memory and held_bytes(child) > limit:
            over_memory = True
            os.killpg(child, signal.SIGKILL)


def _run_models(source: int, sink: int, shared: str, own: str, log: Path) -> NoReturn:
    """Be the process that runs models, until the pipe is closed."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        prctl(_PDEATHSIG, signal.SIGKILL)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        for fd in (1, 2):
            os.dup2(output, fd)
        os.chdir(own)
        from bisect_trt.worker import host  # noqa: PLC0415 - the process that watches stays small

        host.serve(source, sink, shared, own, log)
    except Closed:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _end(child: int) -> None:
    """Kill the process's group, and what has left it (Linux: this process is the parent of what loses its own)."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    for _ in range(_STRAY_ROUNDS):
        try:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return
        if not children:
            return
        for pid in map(int, children):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def held_bytes(session: int) -> int:
    """Bytes of memory of the processes of a session; 0 where that is not known. Source: proc_pid_stat(5)."""
    page, held = os.sysconf("SC_PAGE_SIZE"), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(words[3]) == session:
                held += int(words[21]) * page
    return held


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _LOG_TAIL, 0))
        return file.read().decode(errors="replace")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def shared_folder(session: str) -> tuple[str, int]:
    """The folder that the workers of one driver share on this host, and a lock that marks it as used.

    Folders of drivers that are gone are removed.
    """
    root = Path(tempfile.gettempdir())
    prefix = f"bisect-trt-{os.getuid()}-"
    folder = root / f"{prefix}{session}"
    for other in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if other != folder and time.time() - other.stat().st_mtime > _STALE_SECONDS:
                leave_folder(str(other), os.open(other / "lock", os.O_RDWR | os.O_CREAT), remove=True)
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(lock), (folder / "lock").stat()):
                return str(folder), lock
        except FileNotFoundError:  # the last worker there has just removed it
            continue
        os.close(lock)


def leave_folder(folder: str, lock: int, *, remove: bool) -> None:
    """Give it up; the last one removes it, unless a worker that crashed is about to be replaced."""
    with contextlib.suppress(OSError):  # others use it
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
