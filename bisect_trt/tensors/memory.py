"""How much memory arrays may take at once."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_SHARE = 8
"""Of the free memory, the arrays of one slice may take this part: a runtime holds weights twice, a comparison errors too."""
_LEAST, _MOST = 64 << 20, 1 << 30


def swap_limit(megabytes: int | None = None) -> int:
    """Bytes of weights and tensors past which a model is run in slices, its tensors on the disk in between.

    Args:
        megabytes: What the user asked for, in MiB; ``None`` for an eighth of the free memory, from 64 MiB to 1 GiB.
    """
    if megabytes is not None:
        return megabytes << 20
    return min(max(free_memory() // _SHARE, _LEAST), _MOST)


def free_memory() -> int:
    """Bytes that can be had without swapping, in this control group too; as much as ever is used, where nobody says."""
    free = [_MOST * _SHARE]
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) << 10)
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        free.append(max(int(text) - int(used.read_text()), 0))
    return min(free)
