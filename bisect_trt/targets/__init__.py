"""The registry of targets: what runs a model. Other packages add theirs through the entry-point group of :data:`GROUP`."""

from __future__ import annotations

import importlib
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.base import Target

GROUP = "bisect_trt.targets"
"""Each entry names a subclass of :class:`~bisect_trt.targets.base.Target`; the entry's name is the target's."""
_BUILT_IN = {
    "onnxrt": "bisect_trt.targets.onnxrt.target:OnnxRuntimeTarget",
    "trt": "bisect_trt.targets.trt.target:TensorRtTarget",
    "onnx": "bisect_trt.targets.evaluator.target:EvaluatorTarget",
}


@cache
def find(name: str) -> Target:
    """A target by its name.

    Raises:
        UnavailableError: There is none of this name, or its package cannot be imported.
    """
    if name in _BUILT_IN:
        return _make(name, EntryPoint(name, _BUILT_IN[name], GROUP))
    entry = _installed().get(name)
    if entry is None:
        raise UnavailableError(f"there is no target '{name}' here; install the package that has it.")
    return _make(name, entry)


def names() -> tuple[str, ...]:
    """Of all targets, those that come with bisect-trt first."""
    return (*_BUILT_IN, *(name for name in _installed() if name not in _BUILT_IN))


@lru_cache(maxsize=1)
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def _make(name: str, entry: EntryPoint) -> Target:
    try:
        made = importlib.import_module(entry.module)
        for part in entry.attr.split("."):
            made = getattr(made, part)
        target = made()  # type: ignore[operator]  # a class, or it raises
    except Exception as error:  # somebody else's package: whatever it raises
        raise UnavailableError(
            f"the target '{name}' cannot be used: {entry.value} fails to load: {error!r}."
        ) from error
    if not isinstance(target, Target) or target.name != name:
        raise UnavailableError(f"the target '{name}' cannot be used: {entry.value} is no target of that name.")
    return target
