"""The little of the CUDA runtime that running an engine needs: by cuda-python where it is installed, else by ctypes.

Source of every signature: CUDA Runtime API, "Memory Management", "Stream Management", "Device Management".
"""

from __future__ import annotations

import ctypes
import glob
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.trt.wording import OUT_OF_MEMORY

_PYTHON_MODULES = ("cuda.bindings.runtime", "cuda.cudart")
"""cuda-python since 12.8, and before."""
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_SIGNATURES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "cudaMalloc": ((_POINTER,), (_SIZE,)),
    "cudaFree": ((), (_POINTER,)),
    "cudaMemcpyAsync": ((), (_POINTER, _POINTER, _SIZE, _INT, _POINTER)),
    "cudaStreamCreate": ((_POINTER,), ()),
    "cudaStreamSynchronize": ((), (_POINTER,)),
    "cudaGetDeviceCount": ((_INT,), ()),
    "cudaMemGetInfo": ((_SIZE, _SIZE), ()),
    "cudaDriverGetVersion": ((_INT,), ()),
    "cudaRuntimeGetVersion": ((_INT,), ()),
}
"""Of each function what it gives and what it takes; in C the former come first, by pointer."""


class CudaStatus(IntEnum):
    """Those of ``cudaError_t`` that mean something of their own to a user."""

    OUT_OF_MEMORY = 2
    INSUFFICIENT_DRIVER = 35
    NO_DEVICE = 100
    SYSTEM_DRIVER_MISMATCH = 803


class CudaError(RunError):
    """A CUDA call failed.

    Attributes:
        status: Its ``cudaError_t``.
    """

    def __init__(self, call: str, status: int, text: str) -> None:
        """``text`` is CUDA's own for ``status``."""
        # What comes after a failed kernel or copy fails too, whatever it is: the process is of no more use.
        no_memory = status == CudaStatus.OUT_OF_MEMORY
        signature = OUT_OF_MEMORY if no_memory else None
        super().__init__(f"CUDA error {status} in {call}: {text}", signature=signature, poisoned=not no_memory)
        self.status = status


class _Library(Protocol):
    def call(self, name: str, *values: int) -> tuple[int, tuple[int, ...]]:
        """Call a function: its status and what it gives."""

    def text(self, status: int) -> str:
        """What a status means."""


class _Ctypes:
    """libcudart, loaded here."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *values: int) -> tuple[int, tuple[int, ...]]:
        gives, takes = _SIGNATURES[name]
        given = [kind() for kind in gives]
        arguments = [kind(value) for kind, value in zip(takes, values, strict=True)]
        status = getattr(self._library, name)(*map(ctypes.byref, given), *arguments)
        return int(status), tuple(int(entry.value or 0) for entry in given)

    def text(self, status: int) -> str:
        return bytes(self._library.cudaGetErrorString(status)).decode()


class _CudaPython:
    """NVIDIA's cuda-python."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def call(self, name: str, *values: int) -> tuple[int, tuple[int, ...]]:
        arguments: list[Any] = list(values)
        if name == "cudaMemcpyAsync":
            arguments[3] = self._module.cudaMemcpyKind(values[3])
        status, *given = getattr(self._module, name)(*arguments)
        return int(status), tuple(map(int, given))

    def text(self, status: int) -> str:
        _, text = self._module.cudaGetErrorString(self._module.cudaError_t(status))
        return bytes(text).decode()


class _Kind(IntEnum):
    """``cudaMemcpyKind``."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2


@dataclass(frozen=True)
class Cuda:
    """The CUDA runtime of one process.

    Attributes:
        library: Who makes the calls.
        origin: Where that was found, for people.
    """

    library: _Library
    origin: str

    def _call(self, name: str, *values: int) -> tuple[int, ...]:
        status, given = self.library.call(name, *values)
        if status:
            raise CudaError(name, status, self.library.text(status))
        return given

    def device_count(self) -> int:
        """How many GPUs there are.

        Raises:
            UnavailableError: None, or none that this driver and this CUDA can use together.
        """
        try:
            return self._call("cudaGetDeviceCount")[0]
        except CudaError as error:
            raise UnavailableError(_no_gpu(error)) from error

    def versions(self) -> tuple[int, int]:
        """Of CUDA: what the driver supports, and the runtime's; 12040 is 12.4."""
        return self._call("cudaDriverGetVersion")[0], self._call("cudaRuntimeGetVersion")[0]

    def memory(self) -> tuple[int, int]:
        """Bytes of GPU memory: free, and in all."""
        free, total = self._call("cudaMemGetInfo")
        return free, total

    def stream(self) -> int:
        """A new stream."""
        return self._call("cudaStreamCreate")[0]

    def synchronize(self, stream: int) -> None:
        """Wait for all that was asked of a stream.

        Raises:
            CudaError: Some of it failed.
        """
        self._call("cudaStreamSynchronize", stream)

    def malloc(self, size: int) -> int:
        """The address of so many bytes of GPU memory; at least one, since an engine takes no null pointer."""
        return self._call("cudaMalloc", max(size, 1))[0]

    def free(self, address: int) -> None:
        """Give them back."""
        self._call("cudaFree", address)

    def upload(self, address: int, array: NDArray[Any], stream: int) -> None:
        """Copy a contiguous array to the GPU; it must stay alive until the stream is synchronised."""
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, _Kind.HOST_TO_DEVICE, stream)

    def download(self, array: NDArray[Any], address: int, stream: int) -> None:
        """Copy from the GPU into a contiguous array; see :meth:`upload`."""
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, _Kind.DEVICE_TO_HOST, stream)

    def peek(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], stream: int) -> NDArray[Any]:
        """A copy of an array on the GPU."""
        array = np.empty(shape, dtype)
        self.download(array, address, stream)
        self.synchronize(stream)
        return array


def _no_gpu(error: CudaError) -> str:
    if error.status == CudaStatus.NO_DEVICE:
        return "there is no NVIDIA GPU here that CUDA may use (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)."
    if error.status in (CudaStatus.INSUFFICIENT_DRIVER, CudaStatus.SYSTEM_DRIVER_MISMATCH):
        return (
            f"the NVIDIA driver is missing, or older than this CUDA needs ({error.message}); update the driver, or "
            "install the TensorRT that was made for an older CUDA."
        )
    return f"CUDA cannot use the GPU: {error.message}; `nvidia-smi` says more."


@lru_cache(maxsize=1)
def load_cuda() -> Cuda:
    """The CUDA runtime.

    Raises:
        UnavailableError: It is not found.
    """
    for name in _PYTHON_MODULES:
        try:
            module = importlib.import_module(name)
        except Exception:
            continue
        return Cuda(_CudaPython(module), f"cuda-python {getattr(module, '__version__', '')}".strip())
    for candidate in _libraries():
        try:
            return Cuda(_Ctypes(ctypes.CDLL(candidate)), candidate)
        except OSError:
            continue
    raise UnavailableError(
        "the CUDA runtime (libcudart.so) is not found; install it with `pip install nvidia-cuda-runtime-cu12` (or "
        "cuda-python), or add its folder to LD_LIBRARY_PATH."
    )


def _libraries() -> Iterator[str]:
    """Where libcudart may be: on the loader's path, in NVIDIA's Python packages, in the toolkit; newest first."""
    yield from ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
    for folder in map(Path, sys.path):
        yield from sorted(map(str, folder.glob("nvidia/*/lib/libcudart.so*")), reverse=True)
    yield from sorted(glob.glob("/usr/local/cuda*/lib64/libcudart.so*"), reverse=True)  # noqa: PTH207 - absolute
