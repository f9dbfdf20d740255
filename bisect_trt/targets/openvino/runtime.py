"""OpenVINO in a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.graph.lower import lower_roundtrip
from bisect_trt.targets.interpreter import Interpreter, load_proto, low_type
from bisect_trt.targets.openvino.opening import FULL, hint_for
from bisect_trt.targets.openvino.sent import There
from bisect_trt.targets.openvino.session import OpenVinoSession
from bisect_trt.targets.openvino.settings import OpenVinoSettings
from bisect_trt.targets.settings import TargetSettings


class OpenVino(Interpreter):
    """OpenVINO with one of its devices."""

    name = "OpenVINO"

    def __init__(self, settings: TargetSettings) -> None:
        """Set it up.

        Raises:
            UnavailableError: It is not there, or has no such device.
            UsageError: The device has no such property, or the property no such value.
        """
        self._settings = settings
        self._there = There({**asdict(settings), **asdict(settings.of(OpenVinoSettings))})

    def lowered(self, model: Path) -> onnx.ModelProto | None:
        """See :func:`target_model`."""
        return target_model(model, self._settings, self._there.facts)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> OpenVinoSession:
        """Prepare a model; ``feed`` makes no difference.

        Raises:
            BuildError: OpenVINO refuses it, or it cannot be lowered.
        """
        lowered = self.lowered(model)
        written = None if lowered is None else _write(lowered, model)
        try:
            session = self._there.load(
                written or model, feed or {}, {"inputs": declared(load_proto(model))}, unfused=False
            )
        finally:
            if written is not None:
                written.unlink()
        assert session is not None  # it is only where nothing shall be fused
        return session

    def trace(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """The properties that could be turned; see :meth:`~bisect_trt.targets.openvino.sent.There.trace`."""
        return self._there.trace(model, feed or {}, {})


def target_model(model: Path, settings: TargetSettings, facts: Mapping[str, Any]) -> onnx.ModelProto | None:
    """The model with every value rounded, where the device does not compute in the low precision or nodes are kept.

    Args:
        model: The ONNX file.
        settings: How the target is set up.
        facts: What OpenVINO says of the device, see :class:`~bisect_trt.targets.openvino.sent.There`.

    Raises:
        BuildError: It cannot be read.
    """
    low = low_type(settings)
    name = next(iter(settings.low_precisions), None)
    if low is None or hint_for(name, settings.keep, facts["capabilities"]) != FULL:
        return None
    arithmetic = settings.target.drops_casts(settings)
    return lower_roundtrip(load_proto(model), settings.keep, None, low, arithmetic=arithmetic)


def declared(model: onnx.ModelProto) -> list[str]:
    """The names of a model's inputs, without those of weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


def _write(proto: onnx.ModelProto, beside: Path) -> Path:
    """A file for a model, where its weights are if they lie in another file; several processes may do so."""
    path = beside.absolute().with_name(f"{beside.stem}.{os.getpid()}.lowered.onnx")
    path.write_bytes(proto.SerializeToString())
    return path
