"""Runs an engine on buffers of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bisect_trt.targets.messages import RunError
from bisect_trt.targets.trt.cuda import Cuda
from bisect_trt.targets.trt.engine import Origins, inspect_engine, layers_in, to_dtype
from bisect_trt.targets.trt.log import Log
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

_ALIGNMENT = 256
"""Bytes that the address of every tensor is a multiple of."""


class TrtSession:
    """An engine with its execution context.

    Attributes:
        inputs: The inputs that it has to be fed.
        skipped: Outputs of the model that it does not return, with the reason.
        engine: TensorRT's own.
    """

    def __init__(
        self,
        trt: Any,
        log: Log,
        cuda: Cuda,
        engine: Any,
        types: Mapping[str, str],
        skipped: Mapping[str, str] | None = None,
        origins: Origins | None = None,
        took: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Make an execution context.

        Args:
            trt: The package.
            log: Its log.
            cuda: The CUDA runtime.
            engine: A deserialised engine.
            types: NumPy's types of the model's outputs; TensorRT computes int64 as int32 before 10.
            skipped: Outputs of the model that the engine does not have.
            origins: The nodes that the engine's layers come from; ``None`` where they are not known.
            took: The tactics that layers took, where those were recorded.

        Raises:
            RunError: There is no execution context.
        """
        self.engine, self.skipped = engine, dict(skipped or {})
        self._trt, self._log, self._cuda, self._types = trt, log, cuda, types
        self._origins, self._took = origins, took
        log.errors.clear()
        self._context = engine.create_execution_context()
        if self._context is None:
            raise log.failure(RunError, "no execution context could be made")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if name not in self._inputs]
        self.inputs = [
            TensorInfo(
                name, self._dtype(name), tuple(None if dim < 0 else dim for dim in engine.get_tensor_shape(name))
            )
            for name in self._inputs
        ]

    def layers(self) -> list[dict[str, Any]]:
        """Return the engine's layers in the order they run, with the tactics that can be pinned where those were recorded."""
        if self._origins is None:
            return []
        found = layers_in(inspect_engine(self._trt, self.engine), self._origins)
        took = {name: {"tactic": each[len(name) + 1 :], "pins": count > 1} for name, each, count in self._took}
        plain: dict[str, Any] = {"kind": "", "precisions": [], "tensors": []}
        alone = [{"name": name, **plain, **each} for name, each in took.items()]
        known = {layer["name"] for layer in found}
        return [{**layer, **took.get(layer["name"], {})} for layer in found] + [
            layer for layer in alone if layer["name"] not in known
        ]

    def _dtype(self, name: str) -> Any:
        return to_dtype(self.engine.get_tensor_dtype(name))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs, by name.

        Raises:
            RunError: It fails, or an input does not fit.
        """
        given = {name: self._fitted(name, inputs) for name in self._inputs}
        for name, value in given.items():
            if self._context.set_input_shape(name, value.shape) is False:
                raise self._log.failure(RunError, f"the engine does not take the shape {list(value.shape)} of '{name}'")
        outputs = self._execute(given)
        return {name: self._typed(name, outputs[name]) for name in self._outputs}

    def _execute(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs as the engine makes them."""
        context, cuda = self._context, self._cuda
        # An output whose size is not known before it runs reports it, and gets its memory then.
        shapes = {name: tuple(context.get_tensor_shape(name)) for name in self._outputs}
        grown = {name: make_allocator(self._trt, cuda) for name, shape in shapes.items() if min(shape, default=0) < 0}
        made = {name: np.empty(shapes[name], self._dtype(name)) for name in shapes if name not in grown}
        arrays = {**given, **made}
        on_gpu = [name for name in arrays if not self._on_host(name)]
        with self._memory({name: arrays[name].nbytes for name in on_gpu}, grown.values()) as addresses:
            for name, array in arrays.items():
                context.set_tensor_address(name, addresses.get(name, array.ctypes.data))
            for name in [name for name in on_gpu if name in given]:
                cuda.upload(addresses[name], given[name])
            for name, allocator in grown.items():
                context.set_output_allocator(name, allocator)
            self._log.errors.clear()
            if not context.execute_async_v3(cuda.stream):
                raise self._log.failure(RunError, "the engine does not run and gives no reason")
            cuda.synchronize()
            for name in [name for name in on_gpu if name in made]:
                made[name] = cuda.download(addresses[name], made[name].dtype, made[name].shape)
            late = {name: cuda.download(a.address, self._dtype(name), a.shape) for name, a in grown.items()}
        return {**made, **late}

    def _on_host(self, name: str) -> bool:
        return bool(self.engine.get_tensor_location(name) == self._trt.TensorLocation.HOST)

    def _fitted(self, name: str, inputs: Mapping[str, Any]) -> Any:
        """Return an input, contiguous and of the type that the engine takes."""
        if name not in inputs:
            raise RunError(f"the engine wants an input '{name}', and there is none of that name")
        value, dtype = inputs[name], self._dtype(name)
        if value.dtype != dtype:
            fitted = value.astype(dtype)
            if value.dtype.kind in "iu" and not np.array_equal(fitted, value):
                raise RunError(f"the input '{name}' holds values past {dtype.name}, which TensorRT takes")
            value = fitted
        return np.ascontiguousarray(value).reshape(value.shape)

    def _typed(self, name: str, value: Any) -> Any:
        return value.astype(dtype_from_name(self._types[name]), copy=False) if name in self._types else value

    @contextlib.contextmanager
    def _memory(self, sizes: Mapping[str, int], allocators: Any) -> Iterator[dict[str, int]]:
        """Lend GPU memory for some tensors in one piece; take it back, and what allocators have taken."""
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        base = self._cuda.malloc(end)
        try:
            yield {name: base + offset for name, offset in offsets.items()}
        finally:
            for allocator in allocators:
                allocator.release()
            self._cuda.free(base)


def make_allocator(trt: Any, cuda: Cuda) -> Any:
    """Return an ``IOutputAllocator``: memory for an output of a size that depends on the input values."""
    base: Any = trt.IOutputAllocator

    class Allocator(base):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)
            self.address = self.size = 0
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
                cuda.free(self.address)
            self.address = self.size = 0

    return Allocator()
