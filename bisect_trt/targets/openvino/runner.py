"""Compiles and runs models in OpenVINO: for the local worker, remote workers and ``reproduce.py``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.messages import TINY_MODEL, BuildError, RunError, clean_message
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

HINT = "INFERENCE_PRECISION_HINT"
FULL, HINTS = "f32", {"fp16": "f16", "bf16": "bf16"}
CAPABILITIES = {"fp16": "FP16", "bf16": "BF16"}
PROPERTIES = (
    ("LP_TRANSFORMS_MODE", "NO"),
    ("SNIPPETS_MODE", "DISABLE"),
    ("EXECUTION_MODE_HINT", "ACCURACY"),
    ("CPU_DENORMALS_OPTIMIZATION", "YES"),
    ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
    ("ENABLE_CPU_PINNING", "NO"),
    ("INFERENCE_NUM_THREADS", "1"),
)
"""Properties that can be turned, and to what."""
_RESULT = "/sink_port_0"
"""What OpenVINO's frontend appends to the name of a model's output."""
_SOURCE = re.compile(r" at \S+\.(?:cpp|hpp|h):\d+:?|^\s*Exception from \S+:\d+:?", re.MULTILINE)
"""Of its source, in its messages."""
_BITS = {"bf16": "bfloat16"}
"""Types that NumPy lacks, as ml_dtypes calls them; their bits are 16."""


_OPENVINO_TYPES = {"boolean": "bool", "f16": "float16", "f32": "float32", "f64": "float64", "string": "object", **_BITS}
"""NumPy's, or ml_dtypes', names of OpenVINO's element types, where they are not i and u with a number of bits."""
_ENDS = ("Input", "Output", "Const")
"""Layers that run no node."""
_TOLD = ("layerType", "originalLayersNames", "outputPrecisions", "execOrder")
"""What the runtime model says of a layer."""


_NO_DEVICE = re.compile(
    r"not registered|Cannot load library|(?i:failed to (?:create|load) plugin)|No (?:available|supported) device"
)


class OpenVinoRunner:
    """OpenVINO with one of its devices.

    Attributes:
        facts: Its version, who lowers for it, and what the device says that it computes in.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Set it up.

        Args:
            settings: Those of all targets, and the fields of ``OpenVinoSettings``.

        Raises:
            UnavailableError: It is not there, or has no such device.
            UsageError: The device has no such property, or the property no such value.
        """
        openvino = require_openvino()
        self._settings, self._core = settings, openvino.Core()
        self._try(openvino.__version__)
        capabilities = self._capabilities()
        low = next((name for name in CAPABILITIES if settings[name]), None)
        self._hint = hint_for(low, settings["keep"], capabilities)
        self.facts = {"lowers_by": "cast", "version": openvino.__version__, "capabilities": capabilities}

    def _try(self, version: str) -> None:
        """Make sure of the device and its properties, with a model that nothing is wrong with."""
        device, properties = self._settings["device"], self._settings["properties"]
        try:
            compile_model(self._core, self._core.read_model(TINY_MODEL), {**self._settings, "precision": FULL})
        except Exception as error:  # RuntimeError for all, and Python's own for what cannot be converted
            message = said(error)
            if _NO_DEVICE.search(message):
                known = ", ".join(self._core.available_devices)
                raise UnavailableError(
                    f"OpenVINO has no device '{device}' here; it has: {known}. It says: {message}."
                ) from error
            if not properties:
                raise UnavailableError(f"OpenVINO's device {device} does not start: {message}.") from error
            given = ", ".join(f"{name}:{value}" for name, value in properties)
            settable = ", ".join(sorted(self._settable()))
            raise UsageError(
                f"OpenVINO {version} does not take {given} for {device}: {message}. Its properties are: {settable}."
            ) from error

    def _settable(self) -> list[str]:
        try:
            names = self._core.get_property(self._settings["device"], "SUPPORTED_PROPERTIES")
        except Exception:  # of devices made of others
            return []
        return [name for name, mode in names.items() if mode != "RO"]

    def _capabilities(self) -> list[str]:
        try:
            return list(self._core.get_property(self._settings["device"], "OPTIMIZATION_CAPABILITIES"))
        except Exception:  # of devices made of others: they are told, and what they do with it is theirs
            return list(CAPABILITIES.values())

    def gpu_memory(self) -> int:
        """0: it does not say."""
        return 0

    def load(
        self,
        path: pathlib.Path,
        feed: Mapping[str, Any],
        hints: Mapping[str, Any],
        unfused: bool,
    ) -> OpenVinoSession | None:
        """A model, which is lowered already where the device does not do that; ``None`` for an unfused one.

        Raises:
            BuildError: OpenVINO refuses it.
        """
        if unfused:
            return None
        content, written = hints.get("content"), path
        if content is not None:  # its weights lie beside the model; several processes may do so
            written = path.absolute().with_name(f"{path.stem}.{os.getpid()}.lowered.onnx")
            written.write_bytes(content)
        try:
            read = self._core.read_model(str(written))
            compiled = compile_model(self._core, read, {**self._settings, "precision": self._hint})
            names = output_names(read)
        except Exception as error:  # RuntimeError for all
            raise BuildError(said(error)) from error
        finally:
            if content is not None:
                written.unlink()
        return OpenVinoSession(compiled, list(hints.get("inputs", ())), names)

    def trace(self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``takes``: the properties that the device takes, with the value that each can be set to, whatever the model."""
        tiny, takes = self._core.read_model(TINY_MODEL), {}
        for name, value in PROPERTIES:
            plain = {**self._settings, "precision": FULL, "properties": [(name, value)]}
            with contextlib.suppress(Exception):  # RuntimeError for all
                compile_model(self._core, tiny, plain)
                takes[name] = value
        return {"takes": takes}


make = OpenVinoRunner


def require_openvino() -> Any:
    """The package.

    Raises:
        UnavailableError: It is not installed, or cannot be loaded.
    """
    try:
        import openvino
    except ModuleNotFoundError as error:
        if error.name != "openvino":
            raise
        raise UnavailableError(
            f"OpenVINO is not installed for {sys.executable}; install it there (pip install openvino)."
        ) from error
    except ImportError as error:
        raise UnavailableError(f"OpenVINO is installed and cannot be loaded: {error}; install it again.") from error
    return openvino


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
        self.inputs = [_port_info(port, name) for port, name in zip(compiled.inputs, self._inputs, strict=True)]
        self.skipped = {}
        for name, port in zip(names, compiled.outputs, strict=True):
            if _port_dtype(port) is None:
                kind = port.get_element_type().get_type_name()
                self.skipped[name] = f"a tensor of {kind}, which NumPy has no arrays of"

    def layers(self) -> list[dict[str, Any]]:
        """What it runs, by the runtime model of the device; where that is not told, nothing."""
        try:
            ordered = self._compiled.get_runtime_model().get_ordered_ops()
            found = [(each.get_friendly_name(), _layer_info(each)) for each in ordered]
        except Exception:  # not every device tells
            return []
        layers = []
        for name, told in sorted(found, key=lambda pair: int(pair[1].get("execOrder") or 0)):
            if told.get("layerType") in _ENDS or not told.get("layerType"):
                continue
            made = {
                _OPENVINO_TYPES.get(word, word): None for word in told.get("outputPrecisions", "").split(",") if word
            }
            tensors = [word for word in told.get("originalLayersNames", "").split(",") if word]
            layers.append({"name": name, "kind": told["layerType"], "precisions": list(made), "tensors": tensors})
        return layers

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs that are tensors.

        Raises:
            RunError: It fails.
        """
        try:
            return run_compiled(self._compiled, self._inputs, self._names, inputs)
        except Exception as error:  # RuntimeError for all
            raise RunError(said(error)) from error


def _layer_info(node: Any) -> dict[str, str]:
    information = node.get_rt_info()
    return {key: str(information[key].astype(str)) for key in _TOLD if key in information}


def _port_dtype(port: Any) -> Any:
    """NumPy's type of a tensor; ``None`` if it has none."""
    kind = port.get_element_type().get_type_name()
    name = _OPENVINO_TYPES.get(kind)
    if name is None and kind[:1] in "iu" and kind[1:] in ("8", "16", "32", "64"):
        name = ("int" if kind[0] == "i" else "uint") + kind[1:]
    try:
        return None if name is None else dtype_from_name(name)
    except UnavailableError:  # of a package that is not installed
        return None


def _port_info(port: Any, name: str) -> TensorInfo:
    dtype = _port_dtype(port)
    if dtype is None:
        kind = port.get_element_type().get_type_name()
        raise BuildError(f"input '{name}' is a tensor of {kind}, which OpenVINO cannot be fed from a NumPy array")
    shape = port.get_partial_shape()
    sizes = None if shape.rank.is_dynamic else tuple(None if each.is_dynamic else each.get_length() for each in shape)
    return TensorInfo(name, dtype, sizes)


def said(error: Exception) -> str:
    """What OpenVINO says, on one line, without the places in its source."""
    return clean_message(_SOURCE.sub("", str(error)))


def hint_for(low: str | None, kept: Any, capabilities: Any) -> str:
    """The precision to ask for: the low one, where the device computes in it and no node is kept from it; else fp32.

    Args:
        low: ``fp16``, ``bf16`` or none.
        kept: Nodes that stay in fp32.
        capabilities: What the device says of itself.
    """
    return HINTS[low] if low is not None and not kept and CAPABILITIES[low] in capabilities else FULL


def compile_model(core: Any, model: Any, settings: Mapping[str, Any]) -> Any:
    """A model compiled for a device.

    Args:
        core: OpenVINO's.
        model: What it has read.
        settings: ``device``, ``properties`` and the ``precision`` hint, a word of OpenVINO's.
    """
    properties = {HINT: settings["precision"]}
    properties.update((name, value) for name, value in settings["properties"])
    return aside(core.compile_model, model, settings["device"], properties)


def aside(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, in a thread that ends with it.

    OpenVINO changes the floating-point mode of the thread that it works in (CPU_DENORMALS_OPTIMIZATION flushes subnormals), and
    leaves it so for whatever else is computed there: NumPy's comparison of what came out, first of all.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *arguments).result()


def output_names(read: Any) -> list[str]:
    """The model's outputs in its own order, by the names that ONNX gives them."""
    names = []
    for port in read.outputs:
        name = port.get_node().get_friendly_name()
        if not name.endswith(_RESULT):  # of a model that another frontend has read
            names.append(min(port.get_names()))
            continue
        names.append(name[: -len(_RESULT)])
    return names


def input_names(compiled: Any, declared: Any) -> list[str]:
    """What each input is called.

    Args:
        compiled: The model.
        declared: The names of the model's inputs, without those of weights, in its own order, which OpenVINO keeps; empty
            where they are not known. Where a node passes an input on, OpenVINO itself knows it by that node's name.
    """
    if len(declared) == len(compiled.inputs):
        return list(declared)
    return [port.get_node().get_friendly_name() for port in compiled.inputs]


def run_compiled(compiled: Any, inputs: list[str], outputs: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name; those of types that NumPy has no arrays of are left out."""
    request = compiled.create_infer_request()
    aside(request.infer, {place: to_tensor(compiled.inputs[place], values[name]) for place, name in enumerate(inputs)})
    found = {}
    for place, name in enumerate(outputs):
        array = to_array(request.get_output_tensor(place))
        if array is not None:
            found[name] = array
    return found


def to_tensor(port: Any, values: Any) -> Any:
    """An input's values as OpenVINO is fed."""
    import openvino

    kind = port.get_element_type()
    if kind.get_type_name() in _BITS:
        tensor = openvino.Tensor(kind, openvino.Shape(list(values.shape)))
        tensor.data.view(np.uint16)[...] = np.ascontiguousarray(values).view(np.uint16)
        return tensor
    return openvino.Tensor(np.array(values, order="C"))


def to_array(tensor: Any) -> Any:
    """A copy of a tensor as an array; ``None`` if NumPy has no such type."""
    kind = tensor.element_type.get_type_name()
    if kind == "string":
        return tensor.str_data.astype(object)
    if kind in _BITS:
        try:
            return tensor.data.view(np.uint16).copy().view(dtype_from_name(_BITS[kind]))
        except UnavailableError:
            return None
    return tensor.data.copy() if tensor.element_type.bitwidth >= 8 and not kind.startswith("f8") else None
