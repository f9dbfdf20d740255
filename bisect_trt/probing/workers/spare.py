"""Workers that no run has yet: the first, started before the driver is ready, and those kept from one run for the next."""

from __future__ import annotations

import atexit

from bisect_trt.probing.workers.worker import WorkerProcess

_spare: list[WorkerProcess] = []
_most_kept = 0
_FOR_REFERENCE = ("bisect_trt.targets.onnxrt.runtime",)
FOR_COMPARING = ("bisect_trt.tensors.compare", "bisect_trt.tensors.saved", "bisect_trt.graph.quantized")
"""With ONNX, which no other part of a worker needs."""


def start_spare(*, compares: bool = True) -> None:
    """Start the first worker before anything else, so that it is ready when the driver is.

    Args:
        compares: Whether it will likely be asked to compare a target with the reference, and not for the reference alone.
    """
    _spare.append(WorkerProcess(modules=[*_FOR_REFERENCE, *(FOR_COMPARING if compares else ())]))
    atexit.register(end_spare)


def keep_spare(most: int = 1) -> None:
    """From now on keep so many workers of each run for the next: for a process that makes several, as a notebook does."""
    global _most_kept  # noqa: PLW0603 - like the spare itself, it is the process's
    if not _most_kept:
        atexit.register(end_spare)
    _most_kept = max(_most_kept, most)


def end_spare() -> None:
    """End it, if nobody has taken it."""
    while _spare:
        _spare.pop().close()


def take_spare(*, fresh: bool) -> WorkerProcess | None:
    """One there is, if any; those end that are outdated."""
    for worker in [each for each in _spare if each.outdated]:
        _spare.remove(worker)
        worker.close()
    return _spare.pop() if _spare and not (fresh and _spare[-1].served) else None


def keep(worker: WorkerProcess) -> None:
    """Keep an idle worker for the next run, where there is room for it and it fits any run; end it otherwise."""
    if len(_spare) < _most_kept and worker.gpu is None and worker.place is None:
        _spare.append(worker)
    else:
        worker.close()
