"""How much memory there is for what a run starts, and whether the kernel has ended something for the want of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills() -> int:
    """How many processes the kernel has ended because memory ran out, of this control group or of the machine.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst
    (memory.oom_control); /proc/vmstat counts all.
    """
    places = [folder / name for folder in _own_groups() for name in ("memory.events", "memory.oom_control")]
    return max((_count(path) for path in (*places, _PROC / "vmstat")), default=0)


def _count(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


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
