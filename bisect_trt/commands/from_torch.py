"""Export a PyTorch module, or a ``.pt2`` file, to an ONNX model with its inputs.

PyTorch is no dependency: a module can only come from where it is installed, and a file is refused where it is not. The dynamo
exporter of ``torch.onnx.export`` records with each node which module it comes from.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.tensors.info import dtype_from_name
from bisect_trt.tensors.saved import load_runs

SUFFIX = ".pt2"
_WHY_LENGTH = 300
_ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Has ``torch.load`` take tensors and plain values only: a pickle of anything else is a program."""


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        path: The ONNX model.
        samples: Values of its inputs by name, a mapping for each sample; none where nothing was given.
        version: The version of PyTorch.
    """

    path: Path
    samples: Sequence[Mapping[str, NDArray[Any]]]
    version: str

    def describe(self) -> str:
        """Return how it was exported, as text."""
        return f"Exported by torch.onnx.export (dynamo) of PyTorch {self.version}"

    def to_json(self) -> dict[str, Any]:
        """Return the field ``export`` of the result."""
        return {"by": "dynamo", "torch": self.version, "model": str(self.path)}


def is_torch(model: object) -> bool:
    """Return whether it is a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``; PyTorch is not imported for that."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | _program_type(torch))


def _program_type(torch: Any) -> type:  # noqa: ANN401 - a module without types
    found: type = getattr(getattr(torch, "export", None), "ExportedProgram", torch.nn.Module)
    return found


def export_file(file: Path, folder: Path) -> Exported:
    """Export a ``.pt2`` file, as ``torch.export.save`` writes it, with the example inputs that are in it.

    Raises:
        UnavailableError: PyTorch is not installed, or the file cannot be read or exported.
    """
    if not file.is_file():
        raise UnavailableError(f"{file}: no such file; give the path of an ONNX model or of a .pt2 file.")
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise UnavailableError(
            f"{file} is a program of PyTorch, which is not installed here ({error}); install torch, or export the model to ONNX "
            "where it is."
        ) from error
    try:
        with _quiet():
            program = torch.export.load(str(file))
    except Exception as error:  # of the archive, of the deserialiser, of the unpickler
        raise UnavailableError(
            f"{file} cannot be read by torch.export.load of PyTorch {torch.__version__} ({_first(error)}): it is no program that "
            "torch.export.save wrote, of another version, or holds Python objects, which are not loaded; export it to ONNX there."
        ) from error
    return _export(torch, program, _examples(program), folder / f"{file.stem}.onnx")


def _examples(program: object) -> list[_Sample]:
    """Return the example inputs that a program has."""
    given = getattr(program, "example_inputs", None)
    return [_Sample(tuple(given[0]), dict(given[1]))] if given else []


def export_module(model: object, inputs: object, path: Path) -> Exported:
    """Export a module with its inputs.

    Args:
        model: A ``torch.nn.Module``, which is not changed (it is exported as it runs in evaluation mode), or a
            ``torch.export.ExportedProgram``.
        inputs: A tensor; a tuple of positional arguments; a mapping of arguments by name; a list of such, one a sample; or a
            file with arguments by name.
        path: Where the ONNX model goes.

    Raises:
        UsageError: There are no inputs, or they do not fit.
        UnavailableError: It cannot be exported.
    """
    torch: Any = import_module("torch")
    if inputs is None:
        samples = _examples(model)
        if not samples:
            raise UsageError("inputs: a torch.nn.Module is exported by running it; give its inputs, such as a tensor.")
        return _export(torch, model, samples, path)
    if isinstance(inputs, str | os.PathLike):
        inputs = [dict(sample) for run in load_runs(Path(inputs)) for sample in run.samples]
    several = inputs if isinstance(inputs, list) else [inputs]
    samples = [_sample(torch, model, each) for each in several]
    if not samples:
        raise UsageError("inputs: the list is empty; give at least one sample.")
    return _export(torch, model, samples, path)


@dataclass(frozen=True)
class _Sample:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _sample(torch: Any, model: object, given: object) -> _Sample:  # noqa: ANN401 - a module without types
    """Return one sample as the arguments of ``forward``, in the order of its parameters.

    Raises:
        UsageError: They do not fit.
    """

    def tensor(value: object) -> object:
        return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value

    whole = torch.utils._pytree.tree_map(tensor, given)
    kwargs = dict(whole) if isinstance(whole, Mapping) else {}
    args = () if isinstance(whole, Mapping) else whole if isinstance(whole, tuple) else (whole,)
    forward = getattr(model, "forward", None)
    if not isinstance(model, torch.nn.Module) or forward is None:
        return _Sample(tuple(args), kwargs)
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"inputs: {error} in {type(model).__name__}.forward; give a tensor, a tuple of its arguments or a dict by name."
        ) from error
    except ValueError:  # no signature to be had
        return _Sample(tuple(args), kwargs)
    return _Sample(bound.args, bound.kwargs)


def _export(torch: Any, model: Any, samples: Sequence[_Sample], path: Path) -> Exported:  # noqa: ANN401 - as above
    """Write the ONNX model.

    Raises:
        UnavailableError: It cannot be exported, or has other inputs than it was given.
    """
    version, first = str(torch.__version__), samples[0] if samples else _Sample((), {})
    is_module = isinstance(model, torch.nn.Module)
    name = type(model).__name__ if is_module else "the program"
    modes = [(each, each.training) for each in model.modules()] if is_module else []
    try:
        for each, _ in modes:  # a model is deployed in evaluation mode
            each.training = False
        with _quiet(), torch.no_grad():
            given = {"args": first.args, "kwargs": first.kwargs or None} if is_module else {}
            torch.onnx.export(model, **given, dynamo=True, verbose=False).save(str(path))
    except Exception as error:  # whatever a model of the user's makes it raise
        raise UnavailableError(
            f"{name} cannot be exported by torch.onnx.export(dynamo=True) of PyTorch {version}: {_first(error)}. Export it to "
            "ONNX yourself, and give the file."
        ) from error
    finally:
        for each, mode in modes:
            each.training = mode
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    return Exported(path, [_fed(torch, sample, names) for sample in samples], version)


def _fed(torch: Any, sample: _Sample, names: Sequence[str]) -> dict[str, NDArray[Any]]:  # noqa: ANN401 - as above
    """Return the tensors among the arguments, which are in the order of the model's inputs.

    Raises:
        UnavailableError: The model has other inputs than it was given.
    """
    leaves = torch.utils._pytree.tree_leaves((sample.args, sample.kwargs))
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    if len(names) != len(tensors):
        raise UnavailableError(
            f"the exported model has the inputs {', '.join(names)}, and was given {len(tensors)} tensors; export it to ONNX "
            "yourself, and give the file."
        )
    return {name: _array(torch, tensor) for name, tensor in zip(names, tensors, strict=True)}


def _array(torch: Any, tensor: Any) -> NDArray[Any]:  # noqa: ANN401 - as above
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:  # NumPy has none
        return np.asarray(plain.view(torch.int16).numpy()).view(dtype_from_name("bfloat16"))
    return np.asarray(plain.numpy())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings, log and output of the exporter, and without pickles that run code."""
    log, variable = logging.root.manager.disable, os.environ.get(_ONLY_WEIGHTS)
    logging.disable(logging.WARNING)
    os.environ[_ONLY_WEIGHTS] = "1"
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(log)
        if variable is None:
            del os.environ[_ONLY_WEIGHTS]
        else:
            os.environ[_ONLY_WEIGHTS] = variable


def _first(error: BaseException) -> str:
    """Return the first sentence of the innermost cause of an error, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    return words if len(words) <= _WHY_LENGTH else f"{words[:_WHY_LENGTH]}..."
