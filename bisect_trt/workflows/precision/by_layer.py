"""Lowering by TensorRT itself, layer by layer: its candidates are sets of nodes to keep, not models."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.lower import first_output
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.shelf import ENGINE
from bisect_trt.search.oracle import Subset
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.precision.lowering import CastLowering
from bisect_trt.workflows.subject import Subject

ENGINES = (".engine", ".plan", ".trt")


class LayerLowering:
    """By ``ILayer.precision`` and output types, obeyed: TensorRT 8.6 to 10.

    Attributes:
        units: The units that it may lower, in topological order.
        cast: Writes the same answer as a model with Casts; ``None`` where none is the same.
    """

    def __init__(
        self,
        subject: Subject,
        units: Sequence[int],
        target: TargetSettings,
        cast: CastLowering | None,
        left: Collection[int] = (),
    ) -> None:
        """Prepare.

        Args:
            subject: The model.
            units: What may be lowered.
            target: TensorRT, in the low precision.
            cast: Writes the same answer as a model with Casts; ``None`` where none is the same.
            left: Nodes about which nothing is said: those that Q/DQ has in integers.
        """
        self.units = tuple(units)
        self._subject = subject
        self._target = target
        self.cast = cast
        network = subject.network
        lowered = {*left, *(network.order[unit] for unit in units)}
        self._fixed = [index for index in network.order if index not in lowered and not network.constant[index]]

    def candidate(self, keep: Subset) -> Candidate:
        """What is probed: ``keep`` in fp32, the other ``units`` lowered."""
        return self._candidate(keep, f"{len(keep)} of {len(self.units)} nodes in fp32")

    def _candidate(self, keep: Subset, title: str) -> Candidate:
        # With nothing to keep it is the original, of which there may be an answer already.
        return replace(self._subject.original, title=title, units=keep, keep=self.names(keep) or None)

    def names(self, keep: Subset) -> tuple[str, ...]:
        """The nodes to keep as the target takes them: the first output of each, in topological order."""
        network = self._subject.network
        kept = {*self._fixed, *(network.order[unit] for unit in keep)}
        return tuple(first_output(network.nodes[index]) for index in network.order if index in kept)

    def writes_model(self, path: Path) -> bool:
        """Whether what is written is an ONNX model."""
        return self.cast is not None and path.suffix not in ENGINES

    def write(self, keep: Subset, path: Path) -> None:
        """Write the engine that passed; beside it, if ``path`` is a model, the same as a model with Casts.

        Where that engine is not kept any more, it is built again.

        Raises:
            UsageError: It cannot be written.
            UnavailableError: It cannot be built any more.
        """
        if self.cast is not None and self.writes_model(path):
            self.cast.write(keep, path)
        subject, engine = self._subject, engine_path(path)
        built = subject.workspace.files(self.candidate(keep).key).folder / ENGINE
        if built.exists():
            _copy(built, engine)
            return
        target = replace(self._target, keep=self.names(keep))
        failed = subject.models.build("answer", subject.network.proto, subject.reference.inputs, engine, target)
        if failed is not None:
            raise UnavailableError(f"the engine of the answer cannot be built: {failed.message}.")

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The engine that was written: TensorRT may build another one of the same candidate."""
        engine = engine_path(path)
        return replace(self._candidate(keep, f"{engine.name}, read back"), engine=engine)


def _copy(engine: Path, to: Path) -> None:
    try:
        shutil.copyfile(engine, to)
    except OSError as error:
        raise UsageError(f"{to} cannot be written: {error.strerror}; name another file.") from error


def engine_path(path: Path) -> Path:
    """Where the engine of an answer lies."""
    return path if path.suffix in ENGINES else path.with_suffix(".engine")
