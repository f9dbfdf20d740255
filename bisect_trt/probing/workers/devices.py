"""What there is to run probes on: GPUs, else cores."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return len(visible_gpus()) or cores or 1
