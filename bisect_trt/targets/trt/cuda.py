"""The part of the CUDA runtime that running an engine needs, by ctypes.

Source of every signature: CUDA Runtime API, "Memory Management", "Stream Management", "Device Management".
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from bisect_trt.errors import RuntimeMissingError
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.trt.log import OUT_OF_MEMORY

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
"""The results and the arguments of each function; in C the results come first, by pointer."""
_NO_MEMORY, _NO_DEVICE = 2, 100
"""Values of ``cudaError_t``."""
_TO_DEVICE, _TO_HOST = 1, 2
"""Values of ``cudaMemcpyKind``."""
NO_GPU = "there is no NVIDIA GPU here that CUDA may use (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)."


class CudaError(RunError):
    """A CUDA call failed.

    Attributes:
        status: Its ``cudaError_t``.
    """

    def __init__(self, call: str, status: int, text: str) -> None:
        """``text`` is CUDA's own for ``status``."""
        # After a failed kernel or copy every call fails, so the process is of no more use.
        no_memory = status == _NO_MEMORY
        masked = OUT_OF_MEMORY if no_memory else None
        super().__init__(f"CUDA error {status} in {call}: {text}", signature=masked, poisoned=not no_memory)
        self.status = status


class Cuda:
    """The CUDA runtime of one process.

    Attributes:
        origin: Where it was found.
        stream: The stream that all is run on; 0 before :meth:`start`.
    """

    def __init__(self, library: Any, origin: str) -> None:
        """``library`` is libcudart, as ctypes loads it."""
        self.origin, self.stream, self._library = origin, 0, library
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *values: int) -> tuple[int, ...]:
        gives, takes = _SIGNATURES[name]
        given = [kind() for kind in gives]
        arguments = [kind(value) for kind, value in zip(takes, values, strict=True)]
        status = int(getattr(self._library, name)(*map(ctypes.byref, given), *arguments))
        if status:
            raise CudaError(name, status, bytes(self._library.cudaGetErrorString(status)).decode())
        return tuple(int(entry.value or 0) for entry in given)

    def start(self) -> None:
        """Make the stream.

        Raises:
            UnavailableError: There is no GPU, or none that this driver and this CUDA can use together.
        """
        if not self.device_count():
            raise RuntimeMissingError(NO_GPU)
        self.stream = self._call("cudaStreamCreate")[0]

    def device_count(self) -> int:
        """Return the number of GPUs.

        Raises:
            UnavailableError: As for :meth:`start`.
        """
        try:
            return self._call("cudaGetDeviceCount")[0]
        except CudaError as error:
            why = (
                f"CUDA cannot use the GPU: {error.message}; update the driver (`nvidia-smi` shows it), or install a TensorRT for "
                "an older CUDA."
            )
            why = NO_GPU if error.status == _NO_DEVICE else why
            raise RuntimeMissingError(why) from error

    def versions(self) -> tuple[int, int]:
        """Return the CUDA version that the driver supports, and the runtime's; 12040 is 12.4."""
        return self._call("cudaDriverGetVersion")[0], self._call("cudaRuntimeGetVersion")[0]

    def memory(self) -> tuple[int, int]:
        """Return the bytes of GPU memory: free, and in all."""
        free, total = self._call("cudaMemGetInfo")
        return free, total

    def synchronize(self) -> None:
        """Wait for the work on the stream.

        Raises:
            CudaError: Some of it failed.
        """
        self._call("cudaStreamSynchronize", self.stream)

    def malloc(self, size: int) -> int:
        """Return the address of that many bytes of GPU memory; at least one, since an engine takes no null pointer."""
        return self._call("cudaMalloc", max(size, 1))[0]

    def free(self, address: int) -> None:
        """Free memory. After a failed kernel that fails too; that error is dropped, since it would hide the first one."""
        try:
            self._call("cudaFree", address)
        except CudaError:
            return

    def upload(self, address: int, array: Any) -> None:
        """Copy a contiguous array to the GPU; it must stay alive until the stream is synchronised."""
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, _TO_DEVICE, self.stream)

    def download(self, address: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Return a copy of an array on the GPU."""
        array = np.empty(shape, dtype)
        if array.nbytes:
            self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, _TO_HOST, self.stream)
            self.synchronize()
        return array


def load_cuda() -> Cuda:
    """Load the CUDA runtime.

    Raises:
        UnavailableError: It is not found.
    """
    for place in _libraries():
        try:
            return Cuda(ctypes.CDLL(place), place)
        except OSError:
            continue
    raise RuntimeMissingError(
        "the CUDA runtime (libcudart.so) is not found; install it with `pip install nvidia-cuda-runtime-cu12`, or add its "
        "folder to LD_LIBRARY_PATH."
    )


def _libraries() -> Iterator[str]:
    """Yield where libcudart may be: the loader's path, NVIDIA's Python packages, the toolkit; newest first."""
    yield from ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
    for folder in map(pathlib.Path, sys.path):
        yield from sorted(map(str, folder.glob("nvidia/*/lib/libcudart.so*")), reverse=True)
    yield from sorted(map(str, pathlib.Path("/usr/local").glob("cuda*/lib64/libcudart.so*")), reverse=True)
