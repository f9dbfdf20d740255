"""OpenVINO."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import openvino
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.lower import lower_roundtrip
from bisect_trt.graph.values import element_dtype
from bisect_trt.targets.base import Arrays
from bisect_trt.targets.interpreter import Interpreter, low_type
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.onnxrt.opening import TINY_MODEL
from bisect_trt.targets.openvino.opening import (
    CAPABILITIES,
    FULL,
    HINTS,
    compile_model,
    output_names,
    run_compiled,
    said,
)
from bisect_trt.targets.openvino.settings import OpenVinoSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo

_NO_DEVICE = re.compile(
    r"not registered|Cannot load library|(?i:failed to (?:create|load) plugin)|No (?:available|supported) device"
)
_PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "boolean": "bool"}
_TYPES = {"boolean": "BOOL", "f32": "FLOAT", "f16": "FLOAT16", "f64": "DOUBLE", "bf16": "BFLOAT16", "string": "STRING"}
_ENDS = ("Input", "Output", "Const")
"""Layers that run no node."""
_TOLD = ("layerType", "originalLayersNames", "outputPrecisions", "execOrder")
"""What the runtime model says of a layer."""


class OpenVino(Interpreter):
    """OpenVINO with one of its devices."""

    name = "OpenVINO"

    def __init__(self, settings: TargetSettings) -> None:
        """Set it up.

        Raises:
            UnavailableError: It has no such device here.
            UsageError: The device has no such property, or the property no such value.
        """
        self._settings = settings
        self._own = settings.of(OpenVinoSettings)
        self._core = openvino.Core()
        self._try()
        self._honoured = not settings.keep and all(
            CAPABILITIES[name] in self._capabilities() for name in settings.low_precisions
        )

    def _try(self) -> None:
        """Make sure of the device and its properties, with a model that nothing is wrong with."""
        try:
            compile_model(self._core, self._core.read_model(TINY_MODEL), self._plain(FULL))
        except Exception as error:  # it raises RuntimeError for all, and Python's own for what it cannot convert
            message, device = said(error), self._own.device
            if _NO_DEVICE.search(message):
                known = ", ".join(self._core.available_devices)
                raise UnavailableError(
                    f"OpenVINO has no device '{device}' here; it has: {known}. It says: {message}."
                ) from error
            if not self._own.properties:
                raise UnavailableError(f"OpenVINO's device {device} does not start: {message}.") from error
            given = ", ".join(f"{name}:{value}" for name, value in self._own.properties)
            known = ", ".join(sorted(self._settable()))
            raise UsageError(
                f"OpenVINO {openvino.__version__} does not take {given} for {device}: {message}. Its properties are: {known}."
            ) from error

    def _settable(self) -> Iterable[str]:
        try:
            names: Mapping[str, str] = self._core.get_property(self._own.device, "SUPPORTED_PROPERTIES")
        except Exception:  # of devices made of others
            return ()
        return (name for name, mode in names.items() if mode != "RO")

    def _capabilities(self) -> list[str]:
        try:
            return list(self._core.get_property(self._own.device, "OPTIMIZATION_CAPABILITIES"))
        except Exception:  # of devices made of others: they are told, and what they do with it is theirs
            return list(CAPABILITIES.values())

    def _plain(self, precision: str) -> dict[str, Any]:
        return {"device": self._own.device, "properties": self._own.properties, "precision": precision}

    def lowered(self, model: Path) -> onnx.ModelProto | None:
        """The model with every value rounded, where the device does not compute in the low precision or nodes are kept."""
        low = low_type(self._settings)
        if low is None or self._honoured:
            return None
        try:
            proto = onnx.load(str(model), load_external_data=False)
        except Exception as error:  # each of ONNX's formats raises its own
            raise BuildError(f"{model} cannot be read as an ONNX model: {error}") from error
        arithmetic = self._settings.target.drops_casts(self._settings)
        return lower_roundtrip(proto, self._settings.keep, None, low, arithmetic=arithmetic)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> OpenVinoSession:  # noqa: ARG002
        """Prepare a model; ``feed`` makes no difference.

        Raises:
            BuildError: OpenVINO refuses it, or it cannot be lowered.
        """
        lowered = self.lowered(model)
        low = next((name for name in self._settings.low_precisions), None)
        hint = FULL if low is None or lowered is not None else HINTS[low]
        written = None if lowered is None else _write(lowered, model)
        try:
            read = self._core.read_model(str(written or model))
            return OpenVinoSession(compile_model(self._core, read, self._plain(hint)), output_names(read))
        except Exception as error:  # RuntimeError for all
            raise BuildError(said(error)) from error
        finally:
            if written is not None:
                written.unlink()


def _write(proto: onnx.ModelProto, beside: Path) -> Path:
    """A file for a model, where its weights are if they lie in another file; several processes may do so."""
    path = beside.absolute().with_name(f"{beside.stem}.{os.getpid()}.lowered.onnx")
    path.write_bytes(proto.SerializeToString())
    return path


class OpenVinoSession:
    """A compiled model.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs that cannot be had as NumPy arrays, with their type.
    """

    def __init__(self, compiled: Any, names: list[str]) -> None:  # noqa: ANN401 - OpenVINO ships no types that hold
        """``compiled`` is OpenVINO's own; ``names`` are those of its outputs."""
        self._compiled, self._names = compiled, names
        self.inputs = [_info(port) for port in compiled.inputs]
        kinds = {name: port.get_element_type() for name, port in zip(names, compiled.outputs, strict=True)}
        self.skipped = {
            name: f"a tensor of {kind.get_type_name()}, which NumPy has no arrays of"
            for name, kind in kinds.items()
            if kind.bitwidth < 8 and kind.get_type_name() not in ("boolean", "string")
        }

    def layers(self) -> list[dict[str, Any]]:
        """What it runs, by the runtime model of the device; where that is not told, nothing."""
        try:
            found = [
                (each.get_friendly_name(), _told(each)) for each in self._compiled.get_runtime_model().get_ordered_ops()
            ]
        except Exception:  # not every device tells
            return []
        layers = []
        for name, told in sorted(found, key=lambda pair: int(pair[1].get("execOrder") or 0)):
            if told.get("layerType") in _ENDS or not told.get("layerType"):
                continue
            made = {_PRECISIONS.get(word, word): None for word in told.get("outputPrecisions", "").split(",") if word}
            tensors = [word for word in told.get("originalLayersNames", "").split(",") if word]
            layers.append({"name": name, "kind": told["layerType"], "precisions": list(made), "tensors": tensors})
        return layers

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs that are tensors.

        Raises:
            RunError: It fails.
        """
        try:
            return run_compiled(self._compiled, self._names, inputs)
        except Exception as error:  # RuntimeError for all
            raise RunError(said(error)) from error


def _told(node: Any) -> dict[str, str]:  # noqa: ANN401 - as above
    information = node.get_rt_info()
    return {key: str(information[key].astype(str)) for key in _TOLD if key in information}


def _info(port: Any) -> TensorInfo:  # noqa: ANN401 - as above
    kind = port.get_element_type().get_type_name()
    element = _TYPES.get(kind) or kind.replace("i", "INT", 1).replace("uINT", "UINT", 1)
    try:
        dtype = element_dtype(onnx.TensorProto.DataType.Value(element))
    except ValueError as error:
        raise BuildError(f"an input is a tensor of {kind}, which OpenVINO cannot be fed from a NumPy array") from error
    shape = port.get_partial_shape()
    sizes = None if shape.rank.is_dynamic else tuple(None if each.is_dynamic else each.get_length() for each in shape)
    return TensorInfo(port.get_node().get_friendly_name(), dtype, sizes)
