"""What TensorRT computes and does not fuse away, seen while it runs: debug tensors, as TensorRT 10.12 and later have them.

An output mark keeps a tensor from being fused, so it changes the engine; this shows what the unchanged engine has.
Sources: TensorRT's Python API, ``INetworkDefinition.mark_unfused_tensors_as_debug_tensors``,
``IExecutionContext.unfused_tensors_debug_state`` and ``IDebugListener.process_debug_tensor``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.targets.base import Arrays
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.inspect import Origins
from bisect_trt.targets.trt.session import TensorRtSession, to_dtype
from bisect_trt.targets.trt.settings import TrtSettings

FIRST_VERSION = (10, 12, 0)
"""Of TensorRT, with debug tensors that are chosen after fusion."""


class UnfusedSession(TensorRtSession):
    """An engine that gives back, beside its outputs, every tensor that it has under a name of the model's."""

    def __init__(
        self,
        tensorrt: TensorRt,
        engine: Any,
        wanted: Mapping[str, int],
        skipped: Mapping[str, str],
        origins: Origins,
        own: TrtSettings | None = None,
    ) -> None:
        """As :class:`TensorRtSession`, of an engine whose unfused tensors were marked."""
        super().__init__(tensorrt, engine, wanted, skipped, origins, own)
        self._listener = make_listener(tensorrt)
        self._context.set_debug_listener(self._listener)
        self._context.unfused_tensors_debug_state = True

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs and all tensors that were seen, by name; those of regions go by names that are TensorRT's own.

        Raises:
            RunError: It fails, or an input does not fit.
        """
        self._listener.tensors.clear()
        outputs = super().run(inputs)
        self.skipped |= {name: why for name, why in self._listener.unread.items() if name not in outputs}
        return {**self._listener.tensors, **outputs}


def make_listener(tensorrt: TensorRt) -> Any:
    """Keeps a copy of each debug tensor; its memory is TensorRT's, and only good for as long as the call lasts."""
    base: Any = tensorrt.trt.IDebugListener

    class Listener(base):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)
            self.tensors: Arrays = {}
            self.unread: dict[str, str] = {}

        def process_debug_tensor(
            self,
            addr: Any,
            location: Any,
            type: Any,  # noqa: A002 - TensorRT's own name
            shape: Any,
            name: str,
            stream: int,
        ) -> bool:
            try:
                on_host = location == tensorrt.trt.TensorLocation.HOST
                self.tensors[name] = _copy(tensorrt, _address(addr), to_dtype(type), tuple(shape), stream, on_host)
            except Exception as error:  # what gets out of here would end the process
                self.unread[name] = f"it cannot be read while the engine runs ({error!r})"
            return True

    return Listener()


def _copy(
    tensorrt: TensorRt, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], stream: int, on_host: bool
) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    if on_host:
        tensorrt.cuda.synchronize(stream)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array
    return tensorrt.cuda.peek(address, dtype, shape, stream) if array.nbytes else array


def _address(pointer: Any) -> int:
    """The address in a Python capsule, which is how a ``void*`` arrives; whatever name the capsule has."""
    if isinstance(pointer, int):
        return pointer
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype = ctypes.c_char_p
    python.PyCapsule_GetName.argtypes = [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(python.PyCapsule_GetPointer(pointer, python.PyCapsule_GetName(pointer)) or 0)
