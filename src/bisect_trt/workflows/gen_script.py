"""A short Python program that does what a ``run`` on the command line does."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from bisect_trt.tensors.npz import replacing

_PROGRAM = '''\
"""Compare {model} on a target with the reference; exits with 0 if everything matches, else with 1."""

import sys

import bisect_trt

result = bisect_trt.compare(
{arguments}
    verbose=True,
)
sys.exit(0 if result.status == "found" else 1)
'''


def write_script(path: Path, model: Path, target: str, options: Mapping[str, Any]) -> None:
    """Write the program.

    Args:
        path: Where to.
        model: The model.
        target: ``onnxrt`` or ``trt``.
        options: What else was given, by the names of :func:`bisect_trt.api.compare`.

    Raises:
        UsageError: It cannot be written.
    """
    lines = [repr(str(model)), repr(target), *(f"{name}={plain(value)!r}" for name, value in options.items())]
    text = _PROGRAM.format(model=model, arguments="\n".join(f"    {line}," for line in lines))
    with replacing(path) as file:
        file.write(text.encode())


def plain(value: Any) -> Any:  # noqa: ANN401 - of options
    """A value of an option as one that Python code can spell."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
