"""A runtime that crashes, hangs, leaks and breaks on command, in real worker processes.

A worker that is started with the folder of :func:`install` on its ``PYTHONPATH`` takes it for
TensorRT: what a model does is the text of its file. For one that is real it stands for a target
whose fp16 overflows, and writes down which process and which GPU ran it.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

GB = 1 << 30
LOG = "BISECT_TRT_TEST_LOG"
TOGETHER = "BISECT_TRT_TEST_TOGETHER"
"""Builds of real models that have to have begun before the first of all ends, by their nodes
(``1 8 8``). A node alone runs in fp32 then, unless it is held."""


def install(folder: Path, environ: Callable[[str, str], None]) -> Path:
    """Have workers that are started from now on use it; the file that it writes into.

    The real one is not to be had in any process, for it may be installed and not load: what is run
    beside workers then says what it says where there is none.
    """
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hidden:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'tensorrt':\n"
        "            raise ModuleNotFoundError(\"No module named 'tensorrt'\", name=name)\n"
        "sys.meta_path.insert(0, Hidden)\n"
        "if 'bisect_trt.worker.serve' in ' '.join(getattr(sys, 'orig_argv', [])):\n"
        f"    sys.path.append({str(Path(__file__).parent)!r})\n"
        "    import standin_runtime\n"
        "    standin_runtime.take_over()\n"
    )
    environ(
        "PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    environ(LOG, str(folder / "ran.txt"))
    return folder / "ran.txt"


class StandInPool:
    """A pool whose workers run the stand-in."""

    def __init__(self, folder: Path, ran: Path, workers: Any) -> None:
        self.workers = workers
        self._folder = folder
        self._ran = ran
        self._numbers = count()
        np.savez(folder / "in.npz")

    def request(self, command: str) -> Any:
        from bisect_trt.targets.base import TargetSettings
        from bisect_trt.worker.protocol import Collect

        model = self._folder / f"{next(self._numbers)}.onnx"
        model.write_text(command)
        return Collect(
            TargetSettings("trt"), model, (self._folder / "in.npz",), (model.with_suffix(".npz"),)
        )

    def ask(self, command: str, timeout: float | None = None, **options: Any) -> Any:
        return self.workers.ask(self.request(command), timeout, **options)

    def process(self, command: str = "fine") -> int:
        """Which process answered."""
        request = self.request(command)
        assert self.workers.ask(request) is None
        with np.load(request.to[0]) as answer:
            return int(answer["process"])

    @property
    def tried(self) -> list[int]:
        """The processes that were given something, in order."""
        return [int(line.split()[0]) for line in self._ran.read_text().splitlines()]


@contextmanager
def standin_pool(
    folder: Path, environ: Callable[[str, str], None], gpus: Sequence[str] = (), **options: Any
) -> Iterator[StandInPool]:
    """Workers that run the stand-in, none of which an earlier test has kept."""
    from bisect_trt.worker.pool import WorkerPool
    from bisect_trt.worker.worker import end_spare

    ran = install(folder, environ)
    end_spare()
    with WorkerPool(folder, list(gpus), **options) as workers:
        yield StandInPool(folder, ran, workers)
    end_spare()


def take_over() -> None:
    """In the worker: be what ``runtime="trt"`` stands for."""
    from bisect_trt.targets import runtime

    real = runtime.Runtime

    def make_runtime(settings: Any, *remote: Any) -> Any:
        return StandInRuntime(settings) if settings.runtime == "trt" else real(settings, *remote)

    runtime.Runtime = make_runtime  # type: ignore[assignment, misc]  # as its constructor


class StandInRuntime:
    facts: Mapping[str, Any] = {"lowers_by": "layer"}

    def __init__(self, settings: Any) -> None:
        from bisect_trt.errors import UnavailableError
        from bisect_trt.targets.trt.settings import TrtSettings

        level = dict(settings.of(TrtSettings).builder_settings).get("stand_in")
        if level == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if level == "missing":
            raise UnavailableError("there is no NVIDIA GPU here.")
        self._settings = settings
        self._served = 0
        self._gpu = GB
        self._kept: list[Any] = []

    def gpu_memory(self) -> int:
        return self._gpu

    def _onnxrt(self) -> Any:
        from dataclasses import replace

        from bisect_trt.targets.runtime import Runtime

        return Runtime(replace(self._settings, runtime="onnxrt", own=None))

    def lowered(self, model: Path) -> None:  # noqa: ARG002 - the protocol's
        return None

    def load(self, model: Path, feed: Any = None, ranges: object = None) -> Any:  # noqa: ARG002, C901 - the protocol's; a case a command
        from bisect_trt.targets.messages import BuildError, RunError

        self._served += 1
        with Path(os.environ[LOG]).open("a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        content = model.read_bytes()
        if content.startswith(b"\x08"):  # a real model
            return self._real(model, feed)
        command = content.decode()
        used = self._served > 1
        if command == "crash" or (command == "crash if used" and used):
            os.kill(os.getpid(), signal.SIGSEGV)
        word, _, times = command.partition(" ")
        if word in ("SIGKILL", "SIGTERM", "SIGSEGV"):  # so often, and then no more
            counted = model.with_suffix(".times")
            number = len(counted.read_text()) if counted.exists() else 0
            if number < int(times):
                counted.write_text("x" * (number + 1))
                os.kill(os.getpid(), getattr(signal, word))
        if command == "hold":
            self._kept.append(np.ones(64 << 20))
            time.sleep(1000)
        while command == "hang" and not model.with_suffix(".go").exists():
            time.sleep(0.01)
        if command == "poison" or (command == "poison if used" and used):
            raise RunError(
                "CUDA error 700: an illegal memory access was encountered", poisoned=True
            )
        if command == "refuse":
            raise BuildError("no implementation for node 7")
        if command == "no memory":
            lack_memory("memory")
        if word == "crowded" and crowded():
            lack_memory(times)
        if command == "leak on the GPU":
            self._gpu += 5 * GB
        if command == "leak":
            self._kept.append(np.ones(8 << 20))
        return StandInSession()

    def _real(self, model: Path, feed: Mapping[str, Any] | None) -> Any:
        from bisect_trt.targets.base import TargetSettings
        from bisect_trt.targets.runtime import Runtime

        if TOGETHER in os.environ:
            return self._together(model, feed)
        engine, to = (
            getattr(self._settings.own, name, None) for name in ("load_engine", "save_engine")
        )
        if to is not None:
            lowered = self._onnxrt().lowered(model)  # what it keeps in fp32 is in the engine, too
            Path(to).write_bytes(
                model.read_bytes() if lowered is None else lowered.SerializeToString()
            )
        if engine is not None:
            return Runtime(TargetSettings()).load(Path(engine), feed)
        return self._onnxrt().load(model, feed)

    def _together(self, model: Path, feed: Mapping[str, Any] | None) -> Any:
        from dataclasses import replace

        import onnx

        from bisect_trt.targets.messages import BuildError
        from bisect_trt.targets.runtime import Runtime

        nodes = len(onnx.load(str(model), load_external_data=False).graph.node)
        begun = Path(os.environ[LOG]).with_name("begun.txt")
        with begun.open("a") as file:
            file.write(f"{nodes} {'held' if self._settings.held else 'free'} {model}\n")
        first = begun.read_text().splitlines()[0].endswith(f" {model}")
        ends = time.monotonic() + 60
        wanted = Counter(os.environ[TOGETHER].split())
        while first and wanted - Counter(
            line.split()[0] for line in begun.read_text().splitlines()
        ):
            if time.monotonic() > ends:
                raise BuildError("nobody builds beside this")
            time.sleep(0.01)
        own = replace(self._settings, runtime="onnxrt", own=None)
        if (
            nodes == 1 and not self._settings.held
        ):  # this model alone: what this process builds next is in fp16 again
            own = replace(own, fp16=False)
        return Runtime(own).load(model, feed)


def lack_memory(what: str) -> None:
    """Fail by it, or leave tactics out and say so."""
    from bisect_trt.targets.messages import BuildError

    if what == "memory":
        raise BuildError("out of memory: OutOfMemory", signature="out of memory")
    print(
        "TensorRT WARNING: Skipping tactic 3 due to insuficient memory on requested size of 7",
        flush=True,
    )


def crowded() -> bool:
    """Whether another build runs beside this one; the first two wait for each other."""
    folder = Path(os.environ[LOG]).parent

    def number(pattern: str, least: int = 0) -> int:
        ends = time.monotonic() + 60
        while (found := len([*folder.glob(pattern)])) < least and time.monotonic() < ends:
            time.sleep(0.01)
        return found

    mine = folder / f"builds-{os.getpid()}"
    mine.touch()
    first = number("met-*") < 2
    beside = number("builds-*", 2 if first else 1) > 1
    if first:
        (folder / f"met-{os.getpid()}").touch()
        number("met-*", 2)
    mine.unlink()
    return beside


class StandInSession:
    inputs = ()
    skipped: Mapping[str, str] = {}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - the protocol's
        return {"process": np.array(os.getpid())}
