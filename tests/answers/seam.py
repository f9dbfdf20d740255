"""The one place where the corpus meets the code that starts processes: models run in this process instead.

What a runtime gets wrong is written into the names of a model's nodes, which :mod:`faults` reads.
The target under test runs a model with these faults; the reference runs it without. Check commands
that start ``check.py`` are called as a function.

Whoever changes how workers and checks are started adapts :func:`replaced` and nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec import structs

from answers import check, faults
from answers.standin import StandInTensorRt
from bisect_trt.errors import BisectError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.worker import pool, process, protocol, serve, worker
from bisect_trt.worker.connection import Connection

_TURN = threading.Lock()


class Counter:
    """Counts what the target under test was asked.

    Attributes:
        runs: How many models it ran or built.
        interrupt_at: The run that Ctrl-C comes in, if it comes.
    """

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.runs = 0
        self.interrupt_at = interrupt_at


class InProcessWorker:
    """A worker that is asked as one in a process of its own is, and answers in this one."""

    worn_out = False
    outdated = False
    environment: Mapping[str, str] = {}

    def __init__(
        self, counter: Counter, gpu: str | None = None, place: Any = None, **_: Any
    ) -> None:
        self.served = 0
        self.gpu = gpu
        self.place = place
        self.alive = True
        self._counter = counter
        self._worker: Any = None

    def ask(self, order: Any, limits: Any, turn: Any) -> Any:  # noqa: ARG002 - as a worker process has it
        """Answer; a fault that ends the process is told as the end of one."""
        request = order.request
        # Parallel probes take turns: what is random is drawn in the order of the questions.
        with _TURN:
            model = getattr(request, "model", None)
            if isinstance(model, Path) and not faults.is_reference(request.target):
                self._counter.runs += 1
                if self._counter.runs == self._counter.interrupt_at:
                    raise KeyboardInterrupt
                met = faults.meet(model)
                if met.kind in ("crash", "hang"):
                    self.alive = False
                    hang = met.kind == "hang"
                    raise worker.WorkerDied(
                        process.ProcessEnd(-9 if hang else -11, 0.01, "time" if hang else None)
                    )
                if met.kind == "refuse":
                    return protocol.Answered(
                        protocol.Failed("build", met.message, f"build: {met.message}")
                    )
                if met.model is not None:
                    order = structs.replace(
                        order, request=structs.replace(request, model=met.model)
                    )
            self._worker = self._worker or serve.Worker(self._connection())
            with _printed_to(order.log):
                answer = self._worker.serve(order)
            self.served += 1
        if isinstance(answer.reply, BisectError):
            raise answer.reply
        return answer

    def _connection(self) -> Any:
        """A place is a process of its own as ever."""
        return None if self.place is None else Connection(self.place)

    def close(self) -> None:
        """It is gone."""
        self.alive = False
        if self._worker is not None:
            self._worker.close()


@contextmanager
def _printed_to(log: Path) -> Iterator[None]:
    """What runtimes print goes to the log of what is asked; the folder stays the same."""
    here = Path.cwd()
    saved = [os.dup(1), os.dup(2)]
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        for number, fd in enumerate(saved, 1):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(here)


def _run_to_end(argv: Sequence[str], *, log: Path, **options: Any) -> process.ProcessEnd:
    """Answer for the check of the corpus, and for ``reproduce.py`` of a model with faults, which a runtime alone has not."""
    script = Path(options.get("cwd") or "", argv[1]) if len(argv) > 1 else Path()
    if script.name == "check.py":
        code, said = check.judge(argv[2:])
        log.write_text(said)
        return process.ProcessEnd(code, 0.01, "time" if code == check.HANGS else None)
    if script.name == "reproduce.py" and any(map(faults.has_fault, script.parent.glob("*.onnx"))):
        log.write_bytes(b"")
        return process.ProcessEnd(1, 0.01)
    return _real_run_to_end(argv, log=log, **options)


_real_run_to_end = process.run_to_end


def _everywhere(name: str, old: object, new: object) -> None:
    """Put another function in the place of one, in all modules that have it."""
    for module in [each for key, each in sys.modules.items() if key.startswith("bisect_trt")]:
        if getattr(module, name, None) is old:
            setattr(module, name, new)


@contextmanager
def replaced(
    interrupt_at: int | None = None, seed: int = 0, *, tensorrt: bool = False
) -> Iterator[Counter]:
    """Workers and check commands are answered in this process, ``--trt`` by a stand-in if asked; one probe runs at a time."""

    def make_runtime(settings: Any, *remote: Any) -> Any:
        return (
            StandInTensorRt(settings)
            if settings.runtime == "trt" and tensorrt and not remote
            else Runtime(settings, *remote)
        )

    counter = Counter(interrupt_at)
    faults.begin(seed)
    check.begin(seed)
    _everywhere("run_to_end", _real_run_to_end, _run_to_end)
    try:
        with (
            mock.patch.object(
                pool,
                "WorkerProcess",
                lambda *words, **named: InProcessWorker(counter, *words, **named),
            ),
            mock.patch.object(pool, "take_spare", return_value=[]),
            mock.patch.object(pool, "keep", lambda worker: worker.close()),
            mock.patch.object(pool, "default_workers", return_value=1),
            mock.patch.object(serve, "_print_to"),
            mock.patch.object(serve, "Runtime", make_runtime),
        ):
            yield counter
    finally:  # also in modules that were imported meanwhile
        _everywhere("run_to_end", _run_to_end, _real_run_to_end)
