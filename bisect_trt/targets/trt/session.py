"""Run an engine on buffers of our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.shapes import element_dtype
from bisect_trt.targets.base import Arrays
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.inspect import Origins, describe_layers
from bisect_trt.targets.trt.knobs import NoSuch, make_context
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.wording import is_out_of_memory, is_poisoning, reason, signature
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}
"""NumPy's names of TensorRT's types."""


_WORKING = ""
"""What an engine computes in, among the tensors that it needs memory for; none of them has this name."""


def to_dtype(kind: Any) -> np.dtype[Any]:
    """NumPy's type for a ``DataType`` of TensorRT's."""
    return dtype_from_name(_DTYPES[kind.name])


class TensorRtSession:
    """An engine with its execution context.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs of the model that it does not hand out, with the reason.
        engine: TensorRT's own.
    """

    def __init__(
        self,
        tensorrt: TensorRt,
        engine: Any,
        wanted: Mapping[str, int],
        skipped: Mapping[str, str] | None = None,
        origins: Origins | None = None,
        own: TrtSettings | None = None,
    ) -> None:
        """Make an execution context.

        Args:
            tensorrt: This process's TensorRT.
            engine: A deserialised engine.
            wanted: ONNX element types that outputs are to be given in; TensorRT computes int64 as int32 before 10.
            skipped: Outputs of the model that the engine does not have.
            origins: Which nodes the engine's layers come from; ``None`` where that is not known.
            own: How it is run; ``None`` for as by default.

        Raises:
            RunError: There is no execution context.
            UsageError: It has no such profile.
        """
        self.engine = engine
        self.skipped = dict(skipped or {})
        self._tensorrt = tensorrt
        self._wanted = wanted
        self._origins = origins
        tensorrt.log.take()
        said = vars(own or TrtSettings())
        self._takes_memory = said["allocation_strategy"] == "runtime"
        try:
            self._context = make_context(tensorrt.trt, engine, said, tensorrt.stream)
        except NoSuch as error:
            raise UsageError(f"{error}.") from error
        if self._context is None:
            raise failed(tensorrt, "no execution context could be made")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [name for name in names if self._mode(name) == "INPUT"]
        self._outputs = [name for name in names if self._mode(name) == "OUTPUT"]
        self.inputs = [TensorInfo(name, self._dtype(name), self._static_shape(name)) for name in self._inputs]

    def _mode(self, name: str) -> str:
        return str(self.engine.get_tensor_mode(name).name)

    def layers(self) -> list[dict[str, Any]]:
        """The engine's layers, in the order they run."""
        return [] if self._origins is None else describe_layers(self.engine, self._origins, self._tensorrt)

    def _dtype(self, name: str) -> np.dtype[Any]:
        return to_dtype(self.engine.get_tensor_dtype(name))

    def _static_shape(self, name: str) -> tuple[int | str | None, ...]:
        return tuple(None if dim < 0 else dim for dim in self.engine.get_tensor_shape(name))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs, by name.

        Raises:
            RunError: It fails, or an input does not fit.
        """
        given = {name: self._fit(name, inputs) for name in self._inputs}
        for name, value in given.items():
            if self._context.set_input_shape(name, value.shape) is False:
                raise failed(self._tensorrt, f"the engine does not take the shape {list(value.shape)} of '{name}'")
        # What is not of a known size before it runs says so itself, and gets its memory then.
        shapes = {name: tuple(self._context.get_tensor_shape(name)) for name in self._outputs}
        known = {name: shape for name, shape in shapes.items() if min(shape, default=0) >= 0}
        host = {name: np.empty(known[name], self._dtype(name)) for name in known if self._on_host(name)}
        sizes = {name: value.nbytes for name, value in given.items() if not self._on_host(name)}
        sizes |= {name: prod(known[name]) * self._dtype(name).itemsize for name in known if name not in host}
        if self._takes_memory:
            sizes[_WORKING] = self._context.update_device_memory_size_for_shapes()
        grown = {name: _make_allocator(self._tensorrt) for name in shapes if name not in known}
        with _memory(self._tensorrt, sizes) as addresses:
            for name, array in {**given, **host}.items():
                if name not in addresses:
                    self._context.set_tensor_address(name, array.ctypes.data)
            if self._takes_memory:
                self._context.set_device_memory(addresses.pop(_WORKING), sizes[_WORKING])
            for name, address in addresses.items():
                self._context.set_tensor_address(name, address)
            for name, allocator in grown.items():
                self._context.set_output_allocator(name, allocator)
            try:
                return self._execute(given, known, host, addresses, grown)
            finally:
                for allocator in grown.values():
                    allocator.release()

    def _on_host(self, name: str) -> bool:
        return bool(self.engine.get_tensor_location(name) == self._tensorrt.trt.TensorLocation.HOST)

    def _fit(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        if name not in inputs:
            raise RunError(f"the engine wants an input '{name}', and there is none of that name")
        value, dtype = inputs[name], self._dtype(name)
        if value.dtype != dtype:
            fitted = value.astype(dtype)
            if value.dtype.kind in "iu" and not np.array_equal(fitted, value):
                raise RunError(f"the input '{name}' holds values past {dtype.name}, which TensorRT takes")
            value = fitted
        return np.ascontiguousarray(value).reshape(value.shape)

    def _execute(
        self,
        given: Arrays,
        known: Mapping[str, tuple[int, ...]],
        host: Arrays,
        addresses: Mapping[str, int],
        grown: Mapping[str, Any],
    ) -> Arrays:
        cuda, stream = self._tensorrt.cuda, self._tensorrt.stream
        self._tensorrt.log.take()
        for name, value in given.items():
            if name in addresses:
                cuda.upload(addresses[name], value, stream)
        if not self._context.execute_async_v3(stream):
            raise failed(self._tensorrt, "the engine does not run and gives no reason")
        cuda.synchronize(stream)
        outputs = dict(host)
        for name, shape in known.items():
            if name not in host:
                outputs[name] = cuda.peek(addresses[name], self._dtype(name), shape, stream)
        for name, allocator in grown.items():
            outputs[name] = cuda.peek(allocator.address, self._dtype(name), allocator.shape, stream)
        return {name: self._as_wanted(name, outputs[name]) for name in self._outputs}

    def _as_wanted(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        if name not in self._wanted:
            return value
        return value.astype(element_dtype(self._wanted[name]), copy=False)


def failed(tensorrt: TensorRt, otherwise: str) -> RunError:
    """What TensorRT said since its log was last read, as an error to be raised; ``otherwise`` if it said nothing."""
    errors = tensorrt.log.take()
    message = reason(errors, otherwise)
    if is_out_of_memory(errors):
        message = f"out of memory: {message}"
    return RunError(message, signature=signature(message, ()), poisoned=is_poisoning(errors))


@contextmanager
def _memory(tensorrt: TensorRt, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """GPU memory for some tensors in one piece, each aligned as TensorRT asks (256 bytes)."""
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += -(-max(size, 1) // 256) * 256
    base = tensorrt.cuda.malloc(end)
    try:
        yield {name: base + offset for name, offset in offsets.items()}
    finally:
        _free(tensorrt, base)


def _free(tensorrt: TensorRt, address: int) -> None:
    """Give memory back; after a failed kernel that fails too, and would hide which failure it was."""
    with suppress(RunError):
        tensorrt.cuda.free(address)


def _make_allocator(tensorrt: TensorRt) -> Any:
    """Memory for an output whose size depends on the values that went in; see ``IOutputAllocator``."""
    cuda = tensorrt.cuda
    base: Any = tensorrt.trt.IOutputAllocator

    class Allocator(base):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)
            self.address = 0
            self.size = 0
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            if size > self.size or not self.address:
                self.release()
                self.address, self.size = cuda.malloc(size), size
            return self.address

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def release(self) -> None:
            if self.address:
                _free(tensorrt, self.address)
            self.address = self.size = 0

    return Allocator()
