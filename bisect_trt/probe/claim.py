"""Locks: a run's folder, and a path that every candidate is written to, belong to one process at a time.

Two processes that go on with one run would remove each other's files; two with checks that read one path would judge each other's
candidates. A lock of the system (``flock(2)``) is free as soon as its holder ends. Where there are none (some network file
systems), and where nothing can be written, there is no waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from bisect_trt.errors import RunStateError
from bisect_trt.worker.guard import guard

_LOCK = "run.lock"


@contextlib.contextmanager
def claimed_run(folder: Path) -> Iterator[None]:
    """Hold a run's folder; waits for the end of checks that a killed process has started there.

    Raises:
        UsageError: Another process works there.
    """
    taken = (
        f"the run {folder} belongs to the running process {{}}, so nothing was done; wait until it ends, or stop it."
    )
    with _locked(folder / _LOCK, taken), contextlib.ExitStack() as kept:
        # Checks outlive a driver that is killed until its guard has ended them: it has this lock as well.
        with contextlib.suppress(OSError):
            directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            kept.callback(os.close, directory)
            fcntl.flock(directory, fcntl.LOCK_EX)
            kept.callback(fcntl.flock, directory, fcntl.LOCK_UN)  # the guard's too
            guard.hold(directory)
        yield


@contextlib.contextmanager
def claimed_path(path: Path | None) -> Iterator[None]:
    """Hold the path that every candidate is written to; ``None`` if there is none.

    Raises:
        UsageError: The candidates of another run are written there.
    """
    with contextlib.ExitStack() as kept:
        if path is not None:
            taken = (
                f"{path} is rewritten for each probe of a run in process {{}}; wait until it ends, name "
                "another with --candidate, or put {model} into the check command."
            )
            kept.enter_context(_locked(path.with_name(path.name + ".lock"), taken))
        yield


@contextlib.contextmanager
def _locked(path: Path, taken: str) -> Iterator[None]:
    """A file that exists while the lock is held, and names the process.

    Raises:
        UsageError: Another process holds it: ``taken``, with that process in its braces.
    """
    file = _lock(path, taken)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(file)


def _lock(path: Path, taken: str) -> int | None:
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:  # the next write there says why that is not possible
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), path.lstat()):
                os.truncate(file, 0)
                os.write(file, f"{os.getpid()} of {os.uname().nodename}".encode())
                return file
        except BlockingIOError:
            holder = os.pread(file, 100, 0).decode(errors="replace")
            os.close(file)
            raise RunStateError(taken.replace("{}", holder or "unknown", 1)) from None
        except FileNotFoundError:  # its holder removed it just now
            pass
        except OSError:  # no locks there, or a full disk
            return file
        os.close(file)
