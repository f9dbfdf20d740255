"""Compiles and runs models in OpenVINO: for the local worker, remote workers and ``reproduce.py``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bisect_trt.aliases import Plain
from bisect_trt.errors import (
    ConflictError,
    RuntimeMissingError,
    UnavailableError,
    ValueRefusedError,
)
from bisect_trt.targets.messages import (
    TINY_MODEL,
    BuildError,
    Feed,
    Found,
    RunError,
    clean_message,
    layer_times,
    load_package,
    profiled,
)
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

HINT = "INFERENCE_PRECISION_HINT"
FULL = "f32"
HINTS = {"fp16": "f16", "bf16": "bf16"}
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
"""The suffix that OpenVINO's frontend appends to the name of a model's output."""
_SOURCE = re.compile(r" at \S+\.(?:cpp|hpp|h):\d+:?|^\s*Exception from \S+:\d+:?", re.MULTILINE)
"""Paths of OpenVINO's source in its messages."""
_CONSEQUENCE = re.compile(
    r"Failed operations detailed log:.*(?=Summary:\s+-- No conversion rule)"
    r"|(?<=No conversion rule)(?P<rule>[^\n]*\n)-- Conversion is failed for:[^\n]*",
    re.DOTALL,
)
"""Operations that are not converted because one before them has no conversion rule."""
_OPERATION = re.compile(r"(\w+::\w+) (\S+) \([^()]*\) -> \([^()]*\)")
"""An operation with what makes its inputs, which depends on where a piece is cut."""
_BITS = {"bf16": "bfloat16"}
"""Types that NumPy lacks, as ml_dtypes calls them; their bits are 16."""
_OPENVINO_TYPES = {
    "boolean": "bool",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    **{f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **_BITS,
}
"""NumPy's, or ml_dtypes', names of OpenVINO's element types."""
_NO_DEVICE = re.compile(
    r"not registered|Cannot load library|(?i:failed to (?:create|load) plugin)|No (?:available|supported) device"
)


class OpenVinoRunner:
    """OpenVINO with one of its devices; its facts are its version, and the precisions that the device reports."""

    def __init__(self, settings: Plain) -> None:
        """Set it up with the shared settings and the fields of ``OpenVinoSettings``.

        Raises:
            UnavailableError: It is not there, or has no such device.
            UsageError: The device has no such property, or the property no such value.
        """
        openvino = load_package("openvino", "OpenVINO", "install it there (pip install openvino)")
        self._settings = settings
        self._core = openvino.Core()
        self._try(openvino.__version__)
        capabilities = self._capabilities()
        low = next((name for name in CAPABILITIES if settings[name]), None)
        kept = settings["keep"] and settings["device"] == "CPU"
        if low == "fp16" and (kept or CAPABILITIES[low] not in capabilities):
            raise ConflictError(
                f"--fp16: OpenVINO's {settings['device']} computes fp16 in fp32; use --bf16, or --onnxrt --fp16, which rounds "
                "each value."
            )
        # Where a node is kept from the low precision, or the device does not compute in bf16, the
        # model is rounded instead.
        self._hint = FULL
        if low is not None and not settings["keep"] and CAPABILITIES[low] in capabilities:
            self._hint = HINTS[low]
        self.facts = {
            "lowers_by": "cast",
            "version": openvino.__version__,
            "capabilities": capabilities,
        }

    def _try(self, version: str) -> None:
        """Check the device and its properties with a model that every device takes."""
        device = self._settings["device"]
        properties = self._settings["properties"]
        try:
            self._compile(TINY_MODEL, properties)
        except Exception as error:
            # OpenVINO raises RuntimeError for everything, and Python its own for values of a wrong
            # type.
            message = said(error)
            if _NO_DEVICE.search(message):
                devices = ", ".join(self._core.available_devices)
                raise RuntimeMissingError(
                    f"OpenVINO has no device '{device}' here; it has: {devices}. Its message: {message}."
                ) from error
            if not properties:
                raise RuntimeMissingError(
                    f"OpenVINO's device {device} does not start: {message}."
                ) from error
            rejected = ", ".join(f"{name}:{value}" for name, value in properties)
            raise ValueRefusedError(
                f"OpenVINO {version} does not take {rejected} for {device}: {message}; change it."
            ) from error

    def _capabilities(self) -> list[str]:
        try:
            return list(
                self._core.get_property(self._settings["device"], "OPTIMIZATION_CAPABILITIES")
            )
        except Exception:
            # Virtual devices (AUTO, HETERO) have no capabilities; they pass the precision on.
            return list(CAPABILITIES.values())

    def _compile(
        self, model: str | bytes, properties: Iterable[tuple[str, str]], precision: str = FULL
    ) -> tuple[Any, Any]:
        """Read a model and compile it for the device, with a precision hint, a word of OpenVINO's; return both."""
        read = self._core.read_model(model)
        return read, aside(
            self._core.compile_model,
            read,
            self._settings["device"],
            {HINT: precision, **dict(properties)},
        )

    def load(self, path: pathlib.Path, feed: Feed, hints: Plain) -> OpenVinoSession:
        """Compile a model, which is lowered already where the device does not do that.

        Args:
            path: The ONNX file.
            feed: Not used.
            hints: ``content`` is the serialized model where it is not in the file, ``inputs`` the
                names of its inputs.

        Raises:
            BuildError: OpenVINO refuses it.
        """
        content = hints.get("content")
        written = path
        # The weights lie beside the model; several processes may write there at once.
        if content is not None:
            written = path.absolute().with_name(f"{path.stem}.{os.getpid()}.lowered.onnx")
            written.write_bytes(content)
        try:
            read, compiled = self._compile(str(written), self._settings["properties"], self._hint)
            names = output_names(read)
        except Exception as error:
            # OpenVINO raises RuntimeError for everything.
            raise BuildError(said(error)) from error
        finally:
            if content is not None:
                written.unlink()
        return OpenVinoSession(compiled, list(hints.get("inputs", ())), names)

    def trace(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Found:
        """Return ``takes``: the properties that the device takes, with the value that each can be set to, whatever the model.

        Args:
            path: Not used.
            feed: Not used.
            hints: Not used.
        """
        takes = {}
        for name, value in PROPERTIES:
            # OpenVINO raises RuntimeError for everything.
            with contextlib.suppress(Exception):
                self._compile(TINY_MODEL, [(name, value)])
                takes[name] = value
        return {"takes": takes}

    def profile(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Found:
        """Return the time of each layer (``PERF_COUNT``), with the names of the nodes that it runs.

        Args:
            path: The ONNX file.
            feed: The values to run it with: arrays by input name.
            hints: ``content`` is the serialized model where it is not in the file, ``inputs`` the
                names of its inputs.
        """
        properties = [*self._settings["properties"], ("PERF_COUNT", "YES")]
        session = OpenVinoRunner({**self._settings, "properties": properties}).load(
            path, feed, hints
        )
        times = dict[str, list[float]]()

        def run() -> None:
            session.run(feed)
            for node in session.request.profiling_info:
                if node.status == node.Status.EXECUTED:
                    times.setdefault(node.node_name, []).append(
                        1e3 * node.real_time.total_seconds()
                    )

        profiled(run)
        return layer_times(times, session.origins())


make = OpenVinoRunner


class OpenVinoSession:
    """A compiled model, and the ``request`` that runs it."""

    def __init__(self, compiled: Any, declared: list[str], names: list[str]) -> None:
        """Read the inputs and outputs of a model, given their names.

        The declared inputs are those without weights, in the model's order, which OpenVINO keeps;
        empty where they are not known. Where a node passes an input on, OpenVINO names it after
        that node.

        Raises:
            BuildError: NumPy has no arrays of an input.
        """
        self._compiled = compiled
        self._names = names
        self.request: Any = None
        # Compiling drops inputs that nothing reads.
        if len(declared) != len(compiled.inputs):
            declared = [port.get_node().get_friendly_name() for port in compiled.inputs]
        self.inputs = []
        for name, port in zip(declared, compiled.inputs, strict=True):
            dtype = _port_dtype(port)
            shape = port.get_partial_shape()
            if dtype is None:
                kind = port.get_element_type().get_type_name()
                raise BuildError(
                    f"input '{name}' is a tensor of {kind}, which OpenVINO cannot be fed from a NumPy array"
                )
            sizes = None
            if not shape.rank.is_dynamic:
                sizes = tuple(None if dim.is_dynamic else dim.get_length() for dim in shape)
            self.inputs.append(TensorInfo(name, dtype, sizes))
        self.skipped = {
            name: f"a tensor of {port.get_element_type().get_type_name()}, which NumPy has no arrays of"
            for name, port in zip(names, compiled.outputs, strict=True)
            if _port_dtype(port) is None
        }

    def origins(self) -> dict[str, list[str]]:
        """Return the names of the model's nodes that each layer runs."""
        ops = self._compiled.get_runtime_model().get_ordered_ops()
        names = (
            (op.get_friendly_name(), op.get_rt_info()["originalLayersNames"].astype(str))
            for op in ops
        )
        return {name: origins.split(",") for name, origins in names}

    def run(self, inputs: Feed) -> Found:
        """Return all outputs that are tensors, by name.

        Raises:
            RunError: It fails.
        """
        try:
            self.request = request = self.request or self._compiled.create_infer_request()
            ports = self._compiled.inputs
            feed = {
                place: _to_tensor(ports[place], inputs[info.name])
                for place, info in enumerate(self.inputs)
            }
            aside(request.infer, feed)
            tensors = {
                name: request.get_output_tensor(place) for place, name in enumerate(self._names)
            }
            return {
                name: _to_array(tensor)
                for name, tensor in tensors.items()
                if name not in self.skipped
            }
        except Exception as error:
            # OpenVINO raises RuntimeError for everything.
            raise RunError(said(error)) from error


def _port_dtype(port: Any) -> Any:
    """Return NumPy's type of a tensor; ``None`` if it has none."""
    try:
        return dtype_from_name(_OPENVINO_TYPES[port.get_element_type().get_type_name()])
    except (KeyError, UnavailableError):
        # Or of a package that is not installed.
        return None


def _to_tensor(port: Any, values: Any) -> Any:
    """Return an input's values as OpenVINO's tensor."""
    import openvino

    kind = port.get_element_type()
    if kind.get_type_name() not in _BITS:
        return openvino.Tensor(np.array(values, order="C"))
    tensor = openvino.Tensor(kind, openvino.Shape(list(values.shape)))
    tensor.data.view(np.uint16)[...] = np.ascontiguousarray(values).view(np.uint16)
    return tensor


def _to_array(tensor: Any) -> Any:
    """Return a copy of a tensor as an array."""
    kind = tensor.element_type.get_type_name()
    if kind in _BITS:
        return tensor.data.view(np.uint16).copy().view(dtype_from_name(_BITS[kind]))
    return tensor.data.copy()


def said(error: Exception) -> str:
    """Return OpenVINO's message on one line, without the places in its source."""
    text = _CONSEQUENCE.sub(r"\g<rule>", _SOURCE.sub("", str(error)))
    return clean_message(_OPERATION.sub(r"\1 node \2", text))


_THREAD = concurrent.futures.ThreadPoolExecutor(1)


def aside(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, made in a thread for such calls alone.

    OpenVINO changes the floating-point mode of the thread that it works in
    (CPU_DENORMALS_OPTIMIZATION flushes subnormals), and leaves it so for whatever else is computed
    there: NumPy's comparison of what came out, first of all.
    """
    return _THREAD.submit(call, *arguments).result()


def output_names(read: Any) -> list[str]:
    """Return the names that ONNX gives the model's outputs, in its own order."""
    names = [(port, port.get_node().get_friendly_name()) for port in read.outputs]
    # A name without that ending is of a model that another frontend has read.
    return [
        n[: -len(_RESULT)] if n.endswith(_RESULT) else min(port.get_names()) for port, n in names
    ]
