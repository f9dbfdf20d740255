"""What the Python functions take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray


class TorchModel(Protocol):
    """A ``torch.nn.Module`` or a ``torch.export.ExportedProgram``; PyTorch need not be installed."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Its parameters, by which it is told from other things."""


class Tensor(Protocol):
    """A ``torch.Tensor``, or what else is an array."""

    def __array__(self) -> NDArray[Any]:
        """Its values."""


Model = str | os.PathLike[str] | onnx.ModelProto | gs.Graph | TorchModel
"""Its path, or the model itself, which is not changed."""
Values = Mapping[str, NDArray[Any]]
Inputs = Values | Sequence[Values] | str | Path | Tensor | tuple[Any, ...] | Mapping[str, Any] | list[Any]
"""One sample, several, or a file as ``--load-inputs`` takes; of a module one argument, a tuple of them, or a dict by name."""
Tolerance = float | Mapping[str, float]
"""For every output, or by its name (``""`` for all others)."""
TargetName = Literal["onnxrt", "trt"] | str
"""``onnxrt``, ``trt``, or the name of a plug-in."""
Check = Callable[..., object] | str | Sequence[str]
"""A function, or a command as after ``--check``."""
