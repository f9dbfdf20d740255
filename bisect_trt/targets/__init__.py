"""The registry of targets: what runs a model.

Other packages add theirs by entry points (:mod:`bisect_trt.plugins`).
"""

from __future__ import annotations

from functools import cache

from bisect_trt.errors import PackageError, UnavailableError
from bisect_trt.plugins import TARGETS, installed, load
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
    try:
        target = load(place, name)()
    except UnavailableError:
        raise
    except (Exception, SystemExit) as error:
        # The code of another package may raise anything.
        raise PackageError(
            f"the target '{name}' cannot be used: {place} fails: {error!r}."
        ) from error
    if not isinstance(target, Target) or target.name != name:
        raise PackageError(
            f"the target '{name}' cannot be used: {place} is no target of that name."
        )
    return target


def names() -> tuple[str, ...]:
    """Return all targets, the ones of bisect-trt first."""
    return (*_BUILT_IN, *(name for name in installed(TARGETS) if name not in _BUILT_IN))
