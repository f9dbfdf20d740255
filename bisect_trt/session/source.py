"""The model and inputs of a Python call: a path, a model in memory, or a PyTorch module, which is exported."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from msgspec import structs

from bisect_trt.aliases import Fields
from bisect_trt.errors import (
    InputValuesError,
    ModelFileError,
    UnsuitableModelError,
    ValueRefusedError,
)
from bisect_trt.session.eager import Arguments, Eager, evaluating, tensors_of, to_array
from bisect_trt.session.subject import ModelSettings
from bisect_trt.tensors.files import Values, load_runs, save_npz

MODEL_FILE = Path("model.onnx")
"""The name of a model in memory, in the run's folder."""
_PROTO_LIMIT_BYTES = (1 << 31) - 1
Model: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | Any
"""A path, an ``onnx.ModelProto``, a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``; they
are not changed."""
Inputs: TypeAlias = (
    Values | Sequence[Values] | str | Path | tuple[Any, ...] | Mapping[str, Any] | list[Any] | Any
)
"""One sample, several, or a file for ``--load-inputs``; for a module one argument, a tuple of
arguments, or a dict by name."""


@dataclass(frozen=True)
class Source:
    """The model and inputs of a call.

    Raises:
        UsageError: The model has another type.
        UnavailableError: The file does not exist.
    """

    model: Model
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        if not (
            isinstance(self.model, str | os.PathLike | onnx.ModelProto) or _is_torch(self.model)
        ):
            raise ValueRefusedError(
                f"model: give a path, an onnx.ModelProto or a torch.nn.Module, not {type(self.model).__name__}."
            )
        # Checked before the run has a folder.
        if self.named is not MODEL_FILE and not os.path.exists(self.named):  # noqa: PTH110 - Path.exists raises for too long names
            raise ModelFileError(f"{self.named}: no such file; give the path of an ONNX model.")

    @property
    def named(self) -> Path:
        """The model's path; ``model.onnx`` for a model in memory."""
        return Path(self.model) if isinstance(self.model, str | os.PathLike) else MODEL_FILE

    @property
    def eager(self) -> Eager | None:
        """The module that is exported, to run it; ``None`` for a model that is no module."""
        if not _is_torch(self.model):
            return None
        torch: Any = sys.modules["torch"]
        model: Any = self.model
        module = model if isinstance(model, torch.nn.Module) else model.module()
        example = _samples(torch, model, self.inputs)[0]
        return Eager(module, type(model).__name__, example)

    def place(self, settings: ModelSettings, folder: Path) -> tuple[ModelSettings, Fields | None]:
        """Write a model and inputs in memory to a folder.

        Returns:
            The settings with their paths; and, for an exported module, what exported it.

        Raises:
            UnavailableError: PyTorch cannot export the module.
            UsageError: The model is larger than 2 GiB, or the inputs do not fit.
        """
        exported = None
        inputs = self.inputs
        if _is_torch(self.model):
            settings = structs.replace(settings, path=folder / MODEL_FILE)
            inputs = export(self.model, inputs, settings.path)
            exported = {
                "by": "dynamo",
                "torch": str(sys.modules["torch"].__version__),  # a class of its own
                "model": str(settings.path),
            }
        elif not isinstance(self.model, str | os.PathLike):
            if self.model.ByteSize() > _PROTO_LIMIT_BYTES:
                raise UnsuitableModelError(
                    "the model is larger than 2 GiB; save it with external data, and give its path."
                )
            settings = structs.replace(settings, path=folder / MODEL_FILE)
            settings.path.write_bytes(self.model.SerializeToString(deterministic=True))
        files = (*settings.data.load_inputs, *_saved(inputs, folder))
        return structs.replace(settings, data=replace(settings.data, load_inputs=files)), exported


def _is_torch(model: object) -> bool:
    """Return whether PyTorch can export it, without importing PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def _saved(inputs: Inputs | None, folder: Path) -> Iterator[Path]:
    """Yield the files of input values, written to a folder unless a file is given.

    Raises:
        UsageError: The values have no names.
    """
    if inputs is None:
        return
    if isinstance(inputs, str | Path):
        yield Path(inputs)
        return
    samples: object = [inputs] if isinstance(inputs, Mapping) else inputs
    if not isinstance(samples, Sequence) or not all(
        isinstance(sample, Mapping) for sample in samples
    ):
        raise InputValuesError(
            "inputs: give a dict of arrays by the names of the model's inputs, a list of such, or a file."
        )
    for number, sample in enumerate(samples, 1):
        path = folder / f"inputs-{number}.npz"
        save_npz(path, sample)
        yield path


def export(model: Any, inputs: Any, path: Path) -> list[Values]:  # noqa: ANN401 - a module without types
    """Export a PyTorch module in evaluation mode; the exporter records the module of each node.

    ``inputs`` is a tensor, a tuple of positional arguments, a mapping of arguments by name, a list
    of these, one for each sample, or a file with arguments by name.

    Returns:
        For each sample the values of the model's inputs by name.

    Raises:
        UnavailableError: It cannot be exported, or the exported model has other inputs.
        UsageError: There are no inputs, or they do not fit.
    """
    torch: Any = sys.modules["torch"]
    samples = _samples(torch, model, inputs)
    arguments: Fields = {}
    mode: AbstractContextManager[None] = nullcontext()
    if isinstance(model, torch.nn.Module):
        arguments = {"args": samples[0][0], "kwargs": samples[0][1] or None}
        mode = evaluating(model)
    try:
        with mode, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, **arguments, dynamo=True, verbose=False).save(str(path))
    except Exception as error:
        # The user's model may raise anything.
        missing = isinstance(error, ModuleNotFoundError) and error.name
        remedy = (
            f"Install it: pip install {missing}"
            if missing
            else "Export it to ONNX yourself, and give the file"
        )
        raise ModelFileError(
            f"{type(model).__name__} cannot be exported by torch.onnx.export(dynamo=True) of PyTorch {torch.__version__}: "
            f"{str(error.__cause__ or error).partition(chr(10))[0]:.300}. {remedy}; "
            "`compare(FILE, inputs, reference='SCRIPT.py:make')` says whether the export is right."
        ) from error
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    return [_fed(sample, names) for sample in samples]


def _samples(torch: Any, model: Any, inputs: Any) -> list[Arguments]:  # noqa: ANN401 - as above
    """Return each sample as the arguments of ``forward``.

    Raises:
        UsageError: There is none, or it does not fit.
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = [dict(sample) for run in load_runs(Path(inputs)) for sample in run.samples]
    samples = inputs if isinstance(inputs, list) else [] if inputs is None else [inputs]
    if not samples:
        raise InputValuesError(
            "inputs: a torch.nn.Module is exported by running it; give at least one sample of its inputs."
        )
    return [_arguments(torch, model, sample) for sample in samples]


def _arguments(torch: Any, model: Any, sample: Any) -> Arguments:  # noqa: ANN401 - as above
    """Return a sample as the arguments of ``forward``, in the order of its parameters.

    Raises:
        UsageError: They do not fit.
    """
    arguments = torch.utils._pytree.tree_map_only(
        np.ndarray, lambda array: torch.from_numpy(array.copy()), sample
    )
    args = arguments if isinstance(arguments, tuple) else (arguments,)
    kwargs = Fields()
    if isinstance(arguments, Mapping):
        args = ()
        kwargs = dict(arguments)
    if not isinstance(model, torch.nn.Module):
        return args, kwargs
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InputValuesError(
            f"inputs: {error} in {type(model).__name__}.forward; give a tensor, a tuple of its arguments or a dict by name."
        ) from error
    return bound.args, bound.kwargs


def _fed(sample: object, names: Sequence[str]) -> Values:
    """Return the tensors among the arguments by the names of the model's inputs, which have the same order.

    Raises:
        UnavailableError: The model has another number of inputs.
    """
    tensors = tensors_of(sample)
    if len(names) != len(tensors):
        raise ModelFileError(
            f"the exported model has the inputs {', '.join(names)}, but {len(tensors)} tensors are given; export it to ONNX "
            "yourself, and give the file."
        )
    return {name: to_array(tensor) for name, tensor in zip(names, tensors, strict=True)}
