"""What the Python functions take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

Model = str | os.PathLike[str] | onnx.ModelProto | gs.Graph
"""Its path, or the model itself, which is not changed."""
Values = Mapping[str, NDArray[Any]]
Inputs = Values | Sequence[Values] | str | Path
"""One sample, several, or a file as ``--load-inputs`` takes."""
Tolerance = float | Mapping[str, float]
"""For every output, or by its name (``""`` for all others)."""
TargetName = Literal["onnxrt", "trt"] | str
"""``onnxrt``, ``trt``, or the name of a plug-in."""
Check = Callable[..., object] | str | Sequence[str]
"""A function, or a command as after ``--check``."""
