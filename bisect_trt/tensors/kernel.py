"""Memory (total, free, processes over a limit) and child processes, as the kernel reports them."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_PDEATHSIG, _SUBREAPER = 1, 36
_UNLIMITED = 1 << 60
"""A limit past this is none; control groups of version 1 have a large number instead."""


def oom_kills() -> int:
    """How many processes the kernel has ended because memory ran out, of this control group or else of the machine.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst
    (memory.oom_control); /proc/vmstat counts all.
    """
    return _fields(_oom_counter(_PROC, _CGROUPS)).get("oom_kill", 0)


@cache
def _oom_counter(proc: Path, cgroups: Path) -> Path:
    """The file of the innermost control group that counts; it is looked for once, because each probe asks twice."""
    del cgroups  # which _own_groups looks into
    places = (folder / name for folder in _own_groups() for name in ("memory.events", "memory.oom_control"))
    return next((path for path in places if "oom_kill" in _fields(path)), proc / "vmstat")


def total_bytes() -> int | None:
    """The memory that this process and all it starts may use: the machine's, or what its control groups allow."""
    known = [limit for limit, _ in _limits()]
    return min(known) if known else None


def free_bytes() -> int | None:
    """How much of it is left, counting as free what the kernel gives back when asked."""
    known = [free for _, free in _limits()]
    return min(known) if known else None


def _limits() -> Iterator[tuple[int, int]]:
    """All limits that there are, each with what is left below it, in bytes."""
    host = _fields(_PROC / "meminfo")
    if "MemTotal:" in host and "MemAvailable:" in host:
        yield host["MemTotal:"] << 10, host["MemAvailable:"] << 10
    names = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for folder in _own_groups():
        for limit_name, usage_name in names:
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is not None and usage is not None and limit < _UNLIMITED:
                cached = _fields(folder / "memory.stat").get("inactive_file", 0)
                yield limit, max(limit - usage + cached, 0)


def holds_more(leader: int, limit: int) -> bool:
    """Whether a process and all that belongs to it, its descendants and its session, hold more than ``limit`` bytes.

    ``False`` where that cannot be seen. What several share counts once, by the share of each.
    """
    page = resource.getpagesize()
    parents: dict[int, int] = {}
    family = {leader}
    sizes: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name before it may hold blanks and brackets. See proc_pid_stat(5).
            rest = path.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], sizes[pid] = int(rest[1]), int(rest[21]) * page
            if int(rest[3]) == leader:
                family.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    held = {pid: sizes[pid] for pid in family & sizes.keys()}
    if sum(held.values()) <= limit or len(held) == 1:
        return sum(held.values()) > limit
    # The shares are not read at one moment: while a process multiplies, what was one's is counted again among several.
    return all(sum(_share(pid, size) for pid, size in held.items()) > limit for _ in range(2))


def _share(pid: int, resident: int) -> int:
    """A process's proportional share of what it holds; all of it if the kernel does not report it."""
    shares = _fields(_PROC / str(pid) / "smaps_rollup")
    return shares["Pss:"] << 10 if "Pss:" in shares else resident


def status_bytes(name: str) -> int:
    """A number of bytes from the kernel's status of this process, such as ``VmRSS:``; 0 where it is not known."""
    return _fields(_PROC / "self/status").get(name, 0) << 10


def forget_peak() -> None:
    """Reset the peak of this process's memory. Source: proc_pid_clear_refs(5)."""
    with suppress(OSError):
        (_PROC / "self/clear_refs").write_text("5")


def prefer_to_end(pid: int) -> None:
    """Have the kernel end this process rather than the driver when memory runs out."""
    with suppress(OSError):
        (_PROC / str(pid) / "oom_score_adj").write_text("500")


def adopt_orphans() -> bool:
    """Have this process become the parent of its orphaned descendants; whether that is possible here (Linux)."""
    return _prctl(_SUBREAPER, 1)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it exits."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> bool:
    """Set an attribute of this process. Source: prctl(2)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            return bool(ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0) == 0)
    return False


def children() -> list[int]:
    """The processes that this one has adopted, and those that its first thread has started; none where that is not listed."""
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _own_groups() -> Iterator[Path]:
    """The folders of the control groups that limit this process's memory, the innermost first."""
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        inner = root / path.lstrip("/")
        while root in (inner, *inner.parents):
            yield inner
            inner = inner.parent


def _fields(path: Path) -> dict[str, int]:
    """The numbers in a file of lines that begin with a name each."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) >= 2 and words[1].isdigit():
                found[words[0]] = int(words[1])
    return found


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # "max" is no limit
        return int(path.read_text())
    return None
