"""The registry of targets: what runs a model. Other packages add theirs through the entry-point group of :data:`GROUP`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.base import Target

GROUP = "bisect_trt.targets"
"""Each entry names a subclass of :class:`~bisect_trt.targets.base.Target`; the entry's name is the target's."""
_BUILT_IN = {
    "onnxrt": "bisect_trt.targets.onnxrt:OnnxRuntimeTarget",
    "trt": "bisect_trt.targets.trt.target:TensorRtTarget",
    "openvino": "bisect_trt.targets.openvino:OpenVinoTarget",
    "through": "bisect_trt.targets.through:ThroughTarget",
    "onnx": "bisect_trt.targets.evaluator:EvaluatorTarget",
}


@cache
def find(name: str) -> Target:
    """A target by its name.

    Raises:
        UnavailableError: There is none of this name, or its package cannot be imported.
    """
    place = _BUILT_IN.get(name) or _installed().get(name)
    if place is None:
        raise UnavailableError(f"there is no target '{name}' here; install the package that has it.")
    try:
        module, _, attribute = place.partition(":")
        target = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # somebody else's package: whatever it raises
        raise UnavailableError(f"the target '{name}' cannot be used: {place} fails to load: {error!r}.") from error
    if not isinstance(target, Target) or target.name != name:
        raise UnavailableError(f"the target '{name}' cannot be used: {place} is no target of that name.")
    return target


def names() -> tuple[str, ...]:
    """Of all targets, those that come with bisect-trt first."""
    return (*_BUILT_IN, *(name for name in _installed() if name not in _BUILT_IN))


@cache
def _installed() -> dict[str, str]:
    """Where the targets of other packages are, by name."""
    if not any(_mentions(folder) for folder in sys.path):
        return {}
    # It takes as long to import as half of a command line takes to parse.
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return {entry.name: entry.value for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def _mentions(folder: str) -> bool:
    """Whether a package in a folder of Python's path has such an entry point."""
    return any(f"[{GROUP}]" in text for text in _entry_points(folder or "."))


def _entry_points(folder: str) -> Iterator[str]:
    try:
        found = [each.path for each in os.scandir(folder) if each.name.endswith((".dist-info", ".egg-info"))]
    except OSError:  # an archive, or not there
        return
    for path in found:
        try:
            yield Path(path, "entry_points.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
