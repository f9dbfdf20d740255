"""One door to "run this model there": writes what a worker reads, asks, and loads what it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.probe.outcome import CANCELLED, LOST, OVER_MEMORY
from bisect_trt.probe.workspace import Workspace
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.worker.place import Place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import BuildEngine, Collect, Failed, Lower, R_co, Request
from bisect_trt.worker.worker import WorkerDied


def ask(
    workers: WorkerPool,
    request: Request[R_co],
    timeout: float | None = None,
    cancel: Cancel | None = None,
    *,
    log: Path | None = None,
    confirm: bool = False,
    here: bool = False,
    place: Place | None = None,
    told: Callable[[Place], object] | None = None,
) -> R_co | Failed:
    """What a worker answers; its death is an answer too. The arguments are those of :meth:`WorkerPool.ask`.

    Raises:
        UsageError: The request named something that is wrong.
        UnavailableError: Something it needs is not there.
    """
    try:
        return workers.ask(request, timeout, cancel, log=log, confirm=confirm, here=here, place=place, told=told)
    except WorkerDied as death:
        end = death.end
        if death.outside is not None:
            return Failed("lost", f"{death.outside}, and so were those that were asked after it", LOST)
        if end.cancelled:
            return Failed("cancelled", "its answer was not needed any more", CANCELLED)
        if end.timed_out:
            allowed = "; --timeout allows more" if workers.bounded else ", the most by default; --timeout allows more"
            more = "" if timeout is not None else allowed
            return Failed("time-out", f"{end.describe()}{more}", "time-out")
        if end.over_memory:
            return Failed("memory", end.describe(), OVER_MEMORY)
        return Failed("crash", end.describe(), f"signal {end.signal_name or f'exit status {end.code}'}")


class Models:
    """Runs models for what they give, not to be judged; on the reference runtime unless said otherwise.

    Attributes:
        reference: The reference runtime.
    """

    def __init__(self, workspace: Workspace, workers: WorkerPool, target: TargetSettings | None = None) -> None:
        """``workspace`` gets the files that a worker reads, for this session only; ``workers`` run them.

        ``target`` is what the reference is for, where that makes a difference.
        """
        self.reference = reference_settings(target)
        self._reference_once = reference_settings(target, spinning=False)
        self._scratch = workspace.scratch
        self._workers = workers

    def write(self, name: str, model: onnx.ModelProto) -> Path:
        """A file that holds a model; it lies beside the candidates, where the shared weights are."""
        path = self._scratch(f"{name}.onnx")
        path.write_bytes(model.SerializeToString())
        return path

    def feed(self, name: str, values: Mapping[str, NDArray[Any]]) -> Path:
        """A file that holds values."""
        path = self._scratch(f"{name}.npz")
        save_npz(path, values)
        return path

    def ask(
        self,
        request: Request[R_co],
        timeout: float | None = None,
        cancel: Cancel | None = None,
        *,
        here: bool = False,
        place: Place | None = None,
        log: Path | None = None,
    ) -> R_co | Failed:
        """Have a worker do something; see :func:`ask`."""
        return ask(self._workers, request, timeout, cancel, here=here, place=place, log=log)

    def run(
        self, name: str, model: onnx.ModelProto, values: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]] | Failed:
        """The outputs of a model by name, or why it is not run; ``name`` is that of its files.

        Raises:
            UnavailableError: As :meth:`collect`.
        """
        made = self._scratch(f"{name}.made.npz")
        failed = self.collect(self.write(name, model), self.feed(f"{name}.in", values), made)
        return load_npz(made) if failed is None else failed

    def collect(
        self,
        model: Path,
        inputs: Path,
        to: Path,
        target: TargetSettings | None = None,
        *,
        feeds: Path | None = None,
        append: bool = False,
        here: bool = False,
    ) -> Failed | None:
        """Run a model and leave its outputs in a file or a store; why it is not run, if so. See :class:`Collect`.

        The reference always runs here, and so does what is asked for ``here``.

        Raises:
            UnavailableError: The reference takes too long or too much memory, or somebody ends the workers that run it.
        """
        settings = self.reference if target is None else target
        asked = self._reference_once if target is None else target
        reply = self.ask(Collect(asked, model, inputs, to, feeds, append), here=here or target is None)
        if isinstance(reply, Failed) and reply.kind in ("time-out", "memory") and target is None:
            raise UnavailableError(f"{settings.describe()} does not get to the end of a model: {reply.message}.")
        if isinstance(reply, Failed) and reply.kind == "lost":
            raise UnavailableError(
                f"{settings.describe()} could not run a model: {reply.message}. Free memory, or run fewer probes at a time "
                "(--workers 1), and start again."
            )
        return reply if isinstance(reply, Failed) else None

    def build(
        self,
        name: str,
        model: onnx.ModelProto,
        values: Mapping[str, NDArray[Any]],
        to: Path,
        target: TargetSettings,
        timeout: float | None = None,
    ) -> Failed | None:
        """Write the engine that a target makes of a model; why it is not built, if so."""
        request = BuildEngine(target, self.write(name, model), self.feed(name, values), to.absolute())
        reply = self.ask(request, timeout)
        return reply if isinstance(reply, Failed) else None

    def lowered(self, model: Path, target: TargetSettings) -> onnx.ModelProto | Failed | None:
        """The form of a model that a target really runs; ``None`` if that is the model itself."""
        path = self._scratch("lowered.onnx")
        reply = self.ask(Lower(target, model, path))
        if isinstance(reply, Failed):
            return reply
        return onnx.load(str(path), load_external_data=False) if reply else None
