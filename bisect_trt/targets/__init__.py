"""The registry of targets: what runs a model.

Other packages add theirs by entry points (:mod:`bisect_trt.plugins`).
"""

from __future__ import annotations

from functools import cache

from bisect_trt.errors import PackageError
from bisect_trt.plugins import FAILED, TAKEN, TARGETS, contained, installed, load, refused
from bisect_trt.targets.base import Target

_BUILT_IN = {
    "onnxrt": "bisect_trt.targets.onnxrt:OnnxRuntimeTarget",
    "trt": "bisect_trt.targets.trt:TensorRtTarget",
    "trt-rtx": "bisect_trt.targets.trt:TensorRtRtxTarget",
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
    place = _BUILT_IN.get(name) or installed(TARGETS).get(name)
    if place is None:
        raise PackageError(f"there is no target '{name}' here; install the package that has it.")
    kind = load(place, name)
    is_target = isinstance(kind, type) and issubclass(kind, Target)
    if not is_target or getattr(kind, "name", "") != name:
        raise PackageError(refused(name, place, "is no target of that name"))
    if not kind.sent and kind.make_runner is Target.make_runner:
        raise PackageError(refused(name, place, "has neither make_runner nor sent"))
    target: Target = contained(kind, Target)
    return target


@cache
def names() -> tuple[str, ...]:
    """Return all targets, the ones of bisect-trt first."""
    others = installed(TARGETS)
    FAILED.extend(refused(name, others[name], TAKEN) for name in others if name in _BUILT_IN)
    return tuple(dict.fromkeys((*_BUILT_IN, *others)))
