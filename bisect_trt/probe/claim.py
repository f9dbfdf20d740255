"""Who may write where: one process at a time in a run's folder, and at a path that every candidate goes to.

Two that go on with one run would take each other's files away and leave the ending of whoever ends last; two whose checks read
one path would judge each other's candidates. A lock of the system (``flock(2)``) is free whenever its holder ends, however that
is. Where there are none (some network file systems), and where nothing can be written, nobody is held up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bisect_trt.errors import UsageError
from bisect_trt.worker.guard import guard

_LOCK = "run.lock"


@contextlib.contextmanager
def claimed_run(folder: Path) -> Iterator[None]:
    """Have a run's folder to oneself; waits for the end of what somebody has started there who was killed.

    Raises:
        UsageError: Another process is at work there.
    """

    def taken(holder: str) -> str:
        return (
            f"the run {folder} is at work in process {holder}, so nothing was done; wait until that ends, or stop it."
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
    """Have a path to oneself that every candidate goes to; ``None`` if there is none.

    Raises:
        UsageError: The candidates of another run go there.
    """
    if path is None:
        yield
        return

    def taken(holder: str) -> str:
        return (
            f"{path} is rewritten for each probe of a run that is at work in process {holder}; wait until that ends, name "
            "another with --candidate, or put {model} into the check command."
        )

    with _locked(path.with_name(path.name + ".lock"), taken):
        yield


@contextlib.contextmanager
def _locked(path: Path, taken: Callable[[str], str]) -> Iterator[None]:
    """A file that is there while the lock is held; it says by whom.

    Raises:
        UsageError: Another has it; ``taken`` says so, of whom it is told.
    """
    file = _lock(path, taken)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(file)


def _lock(path: Path, taken: Callable[[str], str]) -> int | None:
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:  # whoever writes there next says why that is not possible
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
            raise UsageError(taken(holder or "unknown")) from None
        except FileNotFoundError:  # its holder took it away just now
            pass
        except OSError:  # no locks there, or a full disk
            return file
        os.close(file)
