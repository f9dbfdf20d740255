"""A model that OpenVINO has compiled; in a worker here, or in a place that this is sent to.

So it has Python 3.8's syntax, and needs OpenVINO and NumPy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.openvino.opening import BITS, input_names, run_compiled, said
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bisect_trt.targets.base import Arrays

_TYPES = {"boolean": "bool", "f16": "float16", "f32": "float32", "f64": "float64", "string": "object", **BITS}
"""NumPy's, or ml_dtypes', names of OpenVINO's element types, where they are not i and u with a number of bits."""
_ENDS = ("Input", "Output", "Const")
"""Layers that run no node."""
_TOLD = ("layerType", "originalLayersNames", "outputPrecisions", "execOrder")
"""What the runtime model says of a layer."""


class OpenVinoSession:
    """A compiled model.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs that cannot be had as NumPy arrays, with their type.
    """

    def __init__(self, compiled: Any, declared: list[str], names: list[str]) -> None:
        """``compiled`` is OpenVINO's own; ``declared`` are the names of the model's inputs, ``names`` those of its outputs.

        Raises:
            BuildError: It has to be fed what NumPy has no arrays of.
        """
        self._compiled, self._names = compiled, names
        self._inputs = input_names(compiled, declared)
        self.inputs = [_info(port, name) for port, name in zip(compiled.inputs, self._inputs)]
        self.skipped = {}
        for name, port in zip(names, compiled.outputs):
            if _dtype(port) is None:
                kind = port.get_element_type().get_type_name()
                self.skipped[name] = f"a tensor of {kind}, which NumPy has no arrays of"

    def layers(self) -> list[dict[str, Any]]:
        """What it runs, by the runtime model of the device; where that is not told, nothing."""
        try:
            ordered = self._compiled.get_runtime_model().get_ordered_ops()
            found = [(each.get_friendly_name(), _told(each)) for each in ordered]
        except Exception:  # not every device tells
            return []
        layers = []
        for name, told in sorted(found, key=lambda pair: int(pair[1].get("execOrder") or 0)):
            if told.get("layerType") in _ENDS or not told.get("layerType"):
                continue
            made = {_TYPES.get(word, word): None for word in told.get("outputPrecisions", "").split(",") if word}
            tensors = [word for word in told.get("originalLayersNames", "").split(",") if word]
            layers.append({"name": name, "kind": told["layerType"], "precisions": list(made), "tensors": tensors})
        return layers

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs that are tensors.

        Raises:
            RunError: It fails.
        """
        try:
            return run_compiled(self._compiled, self._inputs, self._names, inputs)
        except Exception as error:  # RuntimeError for all
            raise RunError(said(error)) from error


def _told(node: Any) -> dict[str, str]:
    information = node.get_rt_info()
    return {key: str(information[key].astype(str)) for key in _TOLD if key in information}


def _dtype(port: Any) -> Any:
    """NumPy's type of a tensor; ``None`` if it has none."""
    kind = port.get_element_type().get_type_name()
    name = _TYPES.get(kind)
    if name is None and kind[:1] in "iu" and kind[1:] in ("8", "16", "32", "64"):
        name = ("int" if kind[0] == "i" else "uint") + kind[1:]
    try:
        return None if name is None else dtype_from_name(name)
    except UnavailableError:  # of a package that is not installed
        return None


def _info(port: Any, name: str) -> TensorInfo:
    dtype = _dtype(port)
    if dtype is None:
        kind = port.get_element_type().get_type_name()
        raise BuildError(f"input '{name}' is a tensor of {kind}, which OpenVINO cannot be fed from a NumPy array")
    shape = port.get_partial_shape()
    sizes = None if shape.rank.is_dynamic else tuple(None if each.is_dynamic else each.get_length() for each in shape)
    return TensorInfo(name, dtype, sizes)
