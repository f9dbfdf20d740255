"""What there is to run probes on (GPUs, else cores), and which may begin beside others, by the memory that is left."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.tensors.kernel_memory import free_bytes, total_bytes

if TYPE_CHECKING:
    from bisect_trt.worker.process import Cancel

_RESERVE = 0.05
"""The share of all memory that is left alone by probes that run beside others."""
_LOOK_SECONDS = 0.1
"""How often one that waits for memory looks again."""


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


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1
