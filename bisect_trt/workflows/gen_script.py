"""A short Python program that does what a ``run`` on the command line does."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from bisect_trt.options.values import TopK
from bisect_trt.targets.options import selectable
from bisect_trt.tensors.npz import replacing

_PROGRAM = '''\
"""Compare a model on a target with the reference; ends with the exit status of `bisect-trt run`."""

import sys

import bisect_trt

try:
    result = bisect_trt.compare(
{arguments}
        verbose=True,
    )
except bisect_trt.BisectError as error:
    print(f"error: {{error}}", file=sys.stderr)
    sys.exit(int(error.status))
sys.exit(int(result.exit_status))
'''


def write_script(path: Path, model: Path, options: Mapping[str, Any]) -> None:
    """Write the program.

    Args:
        path: Where to.
        model: The model.
        options: What was given, by the names of :func:`bisect_trt.api.compare`; the name of a target for that.

    Raises:
        UsageError: It cannot be written.
    """
    names = [plugin.name for plugin in selectable()]
    target = next((name for name in reversed(names) if name in options), None)
    rest = {name: plain(value) for name, value in options.items() if name not in names}
    lines = [repr(str(model)), repr(target), *(f"{name}={value!r}" for name, value in rest.items())]
    text = _PROGRAM.format(arguments="\n".join(f"        {line}," for line in lines))
    with replacing(path) as file:
        file.write(text.encode())


def plain(value: Any) -> Any:  # noqa: ANN401 - of options
    """A value of an option as one that Python code can spell, and that means the same there."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TopK):
        return f"top-{value.k},axis={value.axis}"
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
