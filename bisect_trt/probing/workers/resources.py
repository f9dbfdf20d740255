"""What there is to run probes on (GPUs, else cores); and memory: how much, who may begin, who took too much of it."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bisect_trt.probing.workers.process import Cancel

_MOST_BUILDERS, _BUILDER_CORES, _BUILDER_BYTES = 4, 4, 4 << 30
"""On one GPU, and what each should find free: three of a ViT took as long beside each other as one, at 3 GB of memory each."""
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""A limit past this is none; control groups of version 1 say it with a number."""
_RESERVE = 0.05
"""The share of all memory that is left alone by probes that run beside others."""
_LOOK_SECONDS = 0.1
"""How often one that waits for memory looks again."""


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
    """A process's proportional share of what it holds; all of it where the kernel does not say."""
    shares = _fields(_PROC / str(pid) / "smaps_rollup")
    return shares["Pss:"] << 10 if "Pss:" in shares else resident


def prefer_to_end(pid: int) -> None:
    """Have the kernel end this process rather than the driver when memory runs out."""
    with suppress(OSError):
        (_PROC / str(pid) / "oom_score_adj").write_text("500")


class MemoryGate:
    """Lets a probe begin while there is memory for one more; one at a time always may."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._alone = False
        self._largest = 0

    @contextmanager
    def turn(self, cancel: Cancel | None = None, *, alone: bool = False) -> Iterator[None]:
        """Wait for room; ``alone`` for as long as anything else runs. One that is cancelled does not wait."""
        with self._condition:
            while self._running and (alone or self._alone or not self._fits()):
                if cancel is not None and cancel.is_set:
                    break
                self._condition.wait(_LOOK_SECONDS)
            self._running += 1
            self._alone = self._alone or alone
        try:
            yield
        finally:
            with self._condition:
                self._running -= 1
                self._alone = self._alone and not alone
                self._condition.notify_all()

    def saw(self, size: int) -> None:
        """A probe has taken so many bytes."""
        self._largest = max(self._largest, size)

    def saw_children(self) -> None:
        """A process has ended: what the largest has taken is known now."""
        unit = 1 if os.uname().sysname == "Darwin" else 1 << 10
        self.saw(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)

    def _fits(self) -> bool:
        free, total = free_bytes(), total_bytes()
        return free is None or total is None or free > self._largest + _RESERVE * total


gate = MemoryGate()


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


_DEVICES = Path("/dev")


def visible_gpus() -> list[str]:
    """The GPUs that a process may use, as ``CUDA_VISIBLE_DEVICES`` names them; without asking CUDA, which takes seconds.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": what comes after the first entry that is no device
    (-1, say) does not count; devices are numbered from 0 whatever the numbers of their files.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        entries = (entry.strip() for entry in listed.split(","))
        return list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    files = sum(path.name.removeprefix("nvidia").isdigit() for path in _DEVICES.glob("nvidia*"))
    return [str(number) for number in range(files)]


def default_workers() -> int:
    """How many probes may run at a time: one a GPU, or without any one a core."""
    return len(visible_gpus()) or _cores()


def builders() -> int:
    """How many engines may be built at a time where each keeps one core busy and holds gigabytes: on one GPU."""
    free = free_bytes()
    room = _MOST_BUILDERS if free is None else free // _BUILDER_BYTES
    return max(min(_MOST_BUILDERS, _cores() // _BUILDER_CORES, room), 1)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1
