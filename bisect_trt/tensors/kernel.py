"""Memory as the kernel reports it: total, free, processes over a limit."""

from __future__ import annotations

import ctypes
import resource
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_PDEATHSIG = 1


def oom_kills() -> int:
    """Return how many processes of this control group, or else of the machine, the kernel ended because memory ran out.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.events); /proc/vmstat
    counts all.
    """
    return _fields(_oom_counter(_PROC, _CGROUPS)).get("oom_kill", 0)


@cache
def _oom_counter(proc: Path, cgroups: Path) -> Path:
    """Return the file of the innermost control group that counts; cached, because each probe reads it twice."""
    # Part of the key of the cache only: _own_groups reads the global.
    del cgroups
    places = (folder / "memory.events" for folder in _own_groups())
    return next((path for path in places if "oom_kill" in _fields(path)), proc / "vmstat")


def total_bytes() -> int | None:
    """Return the memory that this process and its children may use: the machine's, or the limit of its control groups."""
    return min((limit for limit, _ in _limits()), default=None)


def free_bytes() -> int | None:
    """Return how much of it is free, caches included."""
    return min((free for _, free in _limits()), default=None)


def _limits() -> Iterator[tuple[int, int]]:
    """Yield each limit and the bytes that are left below it."""
    host = _fields(_PROC / "meminfo")
    if "MemTotal:" in host and "MemAvailable:" in host:
        yield host["MemTotal:"] << 10, host["MemAvailable:"] << 10
    for folder in _own_groups():
        limit = _number(folder / "memory.max")
        usage = _number(folder / "memory.current")
        if limit is not None and usage is not None:
            # The page cache counts as usage, and the kernel reclaims its inactive part.
            cached = _fields(folder / "memory.stat").get("inactive_file", 0)
            yield limit, max(limit - usage + cached, 0)


def holds_more(leader: int, limit: int) -> bool:
    """Return whether a process, its descendants and its session hold more than ``limit`` bytes.

    ``False`` where that is not known. Shared memory counts once, by each process's proportional
    share.
    """
    page = resource.getpagesize()
    parents: dict[int, int] = {}
    family = {leader}
    sizes: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name before may hold blanks and brackets. See proc_pid_stat(5).
            stat_fields = path.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], sizes[pid] = int(stat_fields[1]), int(stat_fields[21]) * page
            if int(stat_fields[3]) == leader:
                family.add(pid)
    while children := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= children
    resident = {pid: sizes[pid] for pid in family & sizes.keys()}
    # The sum counts shared pages several times, so it is an upper bound, and quicker than the
    # shares.
    if sum(resident.values()) <= limit or len(resident) == 1:
        return sum(resident.values()) > limit
    # The shares are not read at one moment: while a process forks, its memory may be counted twice.
    return all(sum(_share(pid, size) for pid, size in resident.items()) > limit for _ in range(2))


def _share(pid: int, resident: int) -> int:
    """Return a process's proportional share of its memory; all of it if the kernel does not report shares."""
    shares = _fields(_PROC / str(pid) / "smaps_rollup")
    return shares["Pss:"] << 10 if "Pss:" in shares else resident


def status_bytes(name: str) -> int:
    """Return a number of bytes from the kernel's status of this process, such as ``VmRSS:``; 0 where it is not known."""
    return _fields(_PROC / "self/status").get(name, 0) << 10


def forget_peak() -> None:
    """Reset the peak of this process's memory. Source: proc_pid_clear_refs(5)."""
    with suppress(OSError):
        (_PROC / "self/clear_refs").write_text("5")


def prefer_to_end(pid: int) -> None:
    """Let the kernel end this process before the driver when memory runs out."""
    with suppress(OSError):
        (_PROC / str(pid) / "oom_score_adj").write_text("500")


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it exits (Linux).

    Source: prctl(2).
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _own_groups() -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process's memory, the innermost first; of version 2 alone."""
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                inner = _CGROUPS / line[3:].lstrip("/")
                yield from (
                    folder for folder in (inner, *inner.parents) if folder.is_relative_to(_CGROUPS)
                )


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a file of lines with a name and a number each."""
    numbers: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) >= 2 and words[1].isdigit():
                numbers[words[0]] = int(words[1])
    return numbers


def _number(path: Path) -> int | None:
    # The file says "max" where there is no limit.
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def readable(descriptors: Iterable[int], seconds: float | None = None) -> set[int]:
    """Return the file descriptors that can be read or are at their end, after waiting for one of them.

    ``select(2)`` takes none of 1024 and more, which a process with many files open has.

    Args:
        descriptors: The file descriptors.
        seconds: The longest time to wait; ``None`` for no limit.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {
        descriptor
        for descriptor, _ in poll.poll(
            None if seconds is None else min(max(seconds, 0), 1e6) * 1000
        )
    }
