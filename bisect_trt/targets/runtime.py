"""Runs models: :class:`Runtime`, which drives a target's runner, and the ``RuntimeSession`` of a model.

A runner is an object with

- ``facts``: plain values, among them ``version``, and ``lowers_by`` where that is not ``cast``; it may be missing,
- ``load(path, feed, hints)``: a :class:`RuntimeSession`,
- ``trace(path, feed, hints)`` and ``describe_engine()``, where it has such,
- ``profile(path, feed, hints)``, where it has such: ``layers``, in the order they run, each with its ``name``, its median ``ms``,
  and the ``tensors`` that it makes or the names of the nodes that it runs,
- ``fusions(path, feed, hints)``, where it has such: the layers that its compiler makes, with the nodes of each,
- ``gpu_memory()``: bytes of GPU memory in use, where it has such.

A ``runner.py`` that is sent to other machines is plain: it imports NumPy, its runtime's package and
the modules that are sent with it, and defines ``make(settings)``, which returns the runner.
``hints`` are plain values that :meth:`~bisect_trt.targets.base.Target.hints` reads in the graph,
since such a runner has no ONNX. The same source serves the local worker, remote workers, and
``reproduce.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bisect_trt.aliases import Fields, Plain, Sizes
from bisect_trt.targets.messages import BuildError

if TYPE_CHECKING:
    # Nothing of them is needed to parse a command line, or by a worker that lowers nothing.
    from numpy.typing import NDArray
    from onnx import ModelProto

    from bisect_trt.targets.base import TargetSettings
    from bisect_trt.tensors.info import TensorInfo

    Arrays = dict[str, NDArray[Any]]
else:
    Arrays = dict

ELSEWHERE = "weights.folder"
"""A file beside a candidate: the folders of weights that are not there, with NUL between them."""
Lowering = Literal["cast", "layer"]
"""The way to lower a model: by Casts in the ONNX graph, or by the runtime's own per-layer
precision."""


class RuntimeSession(Protocol):
    """A model, ready to run. ``inputs`` and ``skipped`` may be missing: then it takes all values, and hands all outputs out.

    It may have ``layers()``: the layers that the runtime made of the model, in the order they run.
    Each has a ``name`` and a ``kind`` in the runtime's words, the ``precisions`` of what it makes,
    and the ``tensors`` of the model that its nodes make; it may have what
    ``choices.choices_of_layers`` reads. One that times its runs has ``ran_s``, the seconds of the
    last run.
    """

    @property
    def inputs(self) -> Sequence[TensorInfo]:
        """The inputs that it needs."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Outputs of the model that it does not hand out, with the reason."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All its outputs that are tensors, by name.

        Raises:
            RunError: It fails.
        """


class Runtime:
    """Runs models on a target: it drives the target's runner, lowers models and reads hints with ONNX."""

    def __init__(self, settings: TargetSettings, remote: Any = None) -> None:  # noqa: ANN401 - of a runner module
        """Set the runner up, or take one that runs in a place and gets the model as a hint.

        Raises:
            UnavailableError: The runtime is missing, or has no such provider, or there is no GPU.
            UsageError: The runtime has no such option.
        """
        self._settings = settings
        self._target = settings.target
        self._remote = remote is not None
        self.runner: Any = remote or self._target.make_runner(settings)
        self.facts: Plain = getattr(self.runner, "facts", {})

    def lowered(self, model: Path) -> ModelProto | None:
        """Return the form of a model that really runs; ``None`` if that is the model itself."""
        changes = self._target.changes_model(self._settings, self.facts)
        return self._target.lower(self._settings, model, self.facts) if changes else None

    def load(
        self,
        model: Path,
        feed: Mapping[str, NDArray[Any]] | None = None,
        ranges: Mapping[str, Sequence[Sizes]] | None = None,
    ) -> RuntimeSession:
        """Prepare a model for the values that it will be fed; a runtime that compiles may compile for them.

        Args:
            model: The model's file.
            feed: The first values that it will be fed, by input name, where known.
            ranges: The smallest and the largest shape of each input, by name, where several samples
                will be fed.

        Raises:
            BuildError: The runtime refuses the model.
        """
        hints = self._hints(model)
        if ranges:
            hints["ranges"] = {
                name: [list(shape) for shape in shapes] for name, shapes in ranges.items()
            }
        session: RuntimeSession = self.runner.load(model, feed or {}, hints)
        return session

    def trace(
        self,
        model: Path,
        feed: Mapping[str, NDArray[Any]] | None = None,
        method: Literal["trace", "profile", "fusions", "placement"] = "trace",
    ) -> Fields:
        """Return its changes to a model before running it, as plain values that the target's ``switches`` read; or a profile.

        A model that it refuses has a trace too, of what was done before. Empty where the runtime
        does not report any.

        Args:
            model: The model's file.
            feed: The first values that it will be fed, by input name, where known.
            method: The method of the runner to call.
        """
        if not hasattr(self.runner, method):
            return {}
        return dict(getattr(self.runner, method)(model, feed or {}, self._hints(model)))

    def gpu_memory(self) -> int:
        """Return the bytes of GPU memory in use, by any process; 0 if the runtime does not report it."""
        return int(self.runner.gpu_memory()) if hasattr(self.runner, "gpu_memory") else 0

    def _hints(self, model: Path) -> Fields:
        """Collect the plain values that the runner needs, with the model's content where that is not its file's."""
        lowered = self._target.lower(self._settings, model, self.facts)
        elsewhere = model.with_name(ELSEWHERE).exists()
        if lowered is None and not elsewhere and not self._target.reads_graph and not self._remote:
            return {}
        proto = load_proto(model) if lowered is None else lowered
        hints = dict(self._target.hints(self._settings, proto, model, self.facts))
        if lowered is not None or elsewhere or self._remote:
            hints |= content_of(proto, model)
        return hints


def content_of(proto: ModelProto, path: Path) -> Fields:
    """Return the hints ``content`` and, where the model has weights outside it, ``weights``: their folder.

    Raises:
        BuildError: The model is over 2 GB with its weights inside.
    """
    from bisect_trt.onnxlib.load import folder_with, has_external_data  # noqa: PLC0415 - a model in a file needs no ONNX

    try:
        content = proto.SerializeToString()
    except Exception as error:
        # Protobuf raises an exception of its own for messages over 2 GB.
        raise BuildError(
            f"{path} is over 2 GB with its weights inside: save them as external data"
        ) from error
    if not has_external_data(proto):
        return {"content": content}
    folder = path.absolute().parent
    note = path.absolute().with_name(ELSEWHERE)
    # Folders are listed with NUL between them, because paths may contain anything else.
    noted = note.read_bytes().split(b"\0") if note.exists() else []
    weights = folder_with(proto, [folder, *map(Path, map(os.fsdecode, noted))]) or folder
    return {"content": content, "weights": str(weights)}


def load_proto(path: Path) -> ModelProto:
    """Read a model without the weights outside it.

    Raises:
        BuildError: It cannot be read.
    """
    import onnx  # noqa: PLC0415 - as above

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:
        # Each of ONNX's formats raises its own error.
        raise BuildError(f"{path} cannot be read as an ONNX model: {error}") from error


def low_type(settings: TargetSettings) -> int:
    """ONNX's element type of the low precision, fp16 or bf16, that a graph is lowered to."""
    from bisect_trt.onnxlib.low_plan import LOW_TYPES  # noqa: PLC0415 - as above

    return next(LOW_TYPES[name] for name in settings.low_precisions if name in LOW_TYPES)
