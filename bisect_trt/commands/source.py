"""The model and inputs of a call as they were given: a path, a model in memory, or a PyTorch program to export."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import onnx
from numpy.typing import NDArray
from onnx import helper

from bisect_trt.commands.from_torch import SUFFIX, Exported, export_file, export_module, is_torch
from bisect_trt.commands.settings import ModelSettings
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.nodes import IR_WITHOUT_INITIALIZER_INPUTS
from bisect_trt.report.console import Console
from bisect_trt.tensors.npz import save_npz

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

MODEL_FILE = Path("model.onnx")
"""The name of a model in memory, in the run's folder."""
_PROTO_LIMIT_BYTES = (1 << 31) - 1


class TorchModel(Protocol):
    """A ``torch.nn.Module`` or a ``torch.export.ExportedProgram``; PyTorch need not be installed."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Its parameters."""


class Tensor(Protocol):
    """A ``torch.Tensor``, or any other array."""

    def __array__(self) -> NDArray[Any]:
        """Its values."""


Model: TypeAlias = Union[str, os.PathLike[str], onnx.ModelProto, "gs.Graph", TorchModel]
"""Its path, or the model itself, which is not changed."""
Values: TypeAlias = Mapping[str, NDArray[Any]]
Inputs: TypeAlias = Values | Sequence[Values] | str | Path | Tensor | tuple[Any, ...] | Mapping[str, Any] | list[Any]
"""One sample, several, or a file as ``--load-inputs`` takes; of a module one argument, a tuple of them, or a dict by name."""


@dataclass(frozen=True)
class Source:
    """The model and inputs as they were given.

    Attributes:
        model: The model, or its path.
        inputs: The values of its inputs; ``None`` for those that the options name.

    Raises:
        UsageError: It is no model.
    """

    model: Model
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.model, str | os.PathLike | onnx.ModelProto) or _is_graph(self.model)
        if not known and not is_torch(self.model):
            raise UsageError(
                "model: give a path, an onnx.ModelProto, an onnx_graphsurgeon.Graph or a torch.nn.Module, not "
                f"{type(self.model).__name__}."
            )

    @property
    def named(self) -> Path:
        """Its path; ``model.onnx`` for a model in memory."""
        return Path(self.model) if isinstance(self.model, str | os.PathLike) else MODEL_FILE

    @cached_property
    def proto(self) -> onnx.ModelProto | None:
        """A model in memory, as ONNX writes it; ``None`` for all others."""
        if not _is_graph(self.model):
            return self.model if isinstance(self.model, onnx.ModelProto) else None
        import onnx_graphsurgeon as gs  # noqa: PLC0415 - it made the graph; a path does without

        try:
            proto: onnx.ModelProto = gs.export_onnx(self.model)
        except Exception as error:  # whatever a graph of the user's makes it raise
            raise UsageError(f"onnx-graphsurgeon cannot export the graph: {str(error) or repr(error)}.") from error
        if getattr(self.model, "ir_version", None) is None:  # else it would be the newest, which few runtimes know
            oldest = helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
            proto.ir_version = max(oldest, IR_WITHOUT_INITIALIZER_INPUTS)
        return proto

    def place(
        self, settings: ModelSettings, folder: Path, console: Console
    ) -> tuple[ModelSettings, dict[str, Any] | None]:
        """Write what is in memory, or a PyTorch program, into a folder as an ONNX model with its inputs.

        Returns:
            The settings of the model that is written, or of that which was named; and how it was exported, if it was.

        Raises:
            UnavailableError: PyTorch is not installed, or the program cannot be exported.
            UsageError: The model is larger than 2 GiB, or the inputs are no values by name.
        """
        exported: Exported | None = None
        inputs = self.inputs
        if is_torch(self.model):
            exported, inputs = export_module(self.model, inputs, folder / MODEL_FILE), None
        elif self.proto is not None:
            settings = replace(settings, path=_write(self.proto, folder / MODEL_FILE))
        elif self.named.suffix == SUFFIX:
            exported = export_file(self.named, folder)
        if exported is not None:
            console.say(exported.describe())
            settings = replace(settings, path=exported.path)
            given = inputs is not None or settings.data.given
            inputs = inputs if given else list(exported.samples) or None
        files = [*settings.data.load_inputs, *_saved(inputs, folder)]
        settings = replace(settings, data=replace(settings.data, load_inputs=files))
        return settings, None if exported is None else exported.to_json()


def _is_graph(model: object) -> bool:
    gs: Any = sys.modules.get("onnx_graphsurgeon")
    return gs is not None and isinstance(model, gs.Graph)


def _saved(inputs: Inputs | None, folder: Path) -> Iterator[Path]:
    """The files of values of inputs, written into a folder unless they are one.

    Raises:
        UsageError: They are no values by name.
    """
    if inputs is None:
        return
    if isinstance(inputs, str | Path):
        yield Path(inputs)
        return
    samples: object = [inputs] if isinstance(inputs, Mapping) else inputs
    if not isinstance(samples, Sequence) or not all(isinstance(each, Mapping) for each in samples):
        raise UsageError("inputs: give a dict of arrays by the names of the model's inputs, a list of such, or a file.")
    for number, sample in enumerate(samples, 1):
        path = folder / f"inputs-{number}.npz"
        save_npz(path, sample)
        yield path


def _write(model: onnx.ModelProto, path: Path) -> Path:
    if model.ByteSize() > _PROTO_LIMIT_BYTES:
        raise UsageError("the model is larger than 2 GiB; save it with external data, and give its path.")
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
