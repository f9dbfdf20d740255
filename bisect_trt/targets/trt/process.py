"""The parts of TensorRT that a process keeps: the package, the log with signatures of its errors, and the CUDA runtime.

Source of the signatures of CUDA's functions, which are called by ctypes: CUDA Runtime API, "Memory
Management", "Event Management", "Stream Management", "Device Management".
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bisect_trt.aliases import Sizes
from bisect_trt.errors import RuntimeMissingError, UnavailableError
from bisect_trt.targets.messages import (
    OUT_OF_MEMORY,
    RunError,
    RuntimeFailure,
    clean_message,
    is_out_of_memory,
    load_package,
    mask_names,
    mask_values,
)


@dataclass(frozen=True)
class Api:
    """Differences between the packages TensorRT and TensorRT-RTX.

    Differences between versions of one package are read from its enumerations (:func:`member`), not
    from its number.

    Attributes:
        module: The name of the Python module.
        install: What installs it.
        portable: Whether it chooses kernels when an engine runs, as TensorRT-RTX does. Its builds
            then need no GPU, measure no kernels and leave no timing cache, and it refuses the flags
            for types of layers, which its release 1.4 still has.
    """

    module: str
    title: str
    install: str
    oldest: Sizes
    portable: bool = False


APIS = {
    "trt": Api("tensorrt", "TensorRT", "pip install tensorrt", (8, 6, 0)),
    "trt-rtx": Api(
        "tensorrt_rtx_bindings",
        "TensorRT-RTX",
        "pip install tensorrt-rtx-cu12-libs tensorrt-rtx-cu12-bindings",
        (1, 4, 0),
        portable=True,
    ),
}
"""The packages, by the name of the target."""


def describe(trt: Any) -> str:
    """Return the name and the version of a package."""
    title = next((api.title for api in APIS.values() if api.module == trt.__name__), "TensorRT")
    return f"{title} {trt.__version__}"


_PLACE = re.compile(
    r"^(?:\d+: )?(?:\[[\w./]+(?:::[\w~<>:, ]+)?(?:::|:)\d+\]\s*|\w+(?:::\w+)+: (?=Error Code))?"
)
"""``[optimizer.cpp::computeCosts::3869]``, maybe after the error's number; since 10 the method that
was called (``IBuilder::buildSerializedNetwork: ``)."""
_CODE = re.compile(r"^Error Code \d+: (?P<kind>[\w ]+?)? ?\((?P<text>.*)\)$", re.DOTALL)
"""``Error Code 10: Internal Error (text)``."""
_SOURCE = re.compile(r"\s*In \S+ at \S+:\d+$")
"""Follows the text since 10."""
_SAYS_NOTHING = "no further information"
_DRIVER = re.compile(r" ?\[checkMacros\.cpp::catchCudaError::\d+\].*", re.DOTALL)
"""The parser appends CUDA's last error to its own: without a GPU, that there is no driver."""
_INVALID_NODE = re.compile(r"^Invalid Node - [^\n]*\n")
_CONDITION = re.compile(
    r"^(?:Assertion failed: .*?(?<![ :]): (?=\S)|Assertion failed: |.*&& (?=\"))", re.DOTALL
)
"""The condition that the parser has checked, before its explanation."""
_BUILDER_GAVE_UP = re.compile(r"Assertion engine != nullptr failed|Builder failed", re.IGNORECASE)
"""Follows the reason of every failed build."""
_POISON = re.compile(
    r"Cuda Runtime|cuda(?:Error|Stream|Event|Launch)|illegal|misaligned|launch failure",
    re.IGNORECASE,
)
_IN_BRACES = re.compile(r"\{[^{}]*\}")
UNNAMED_LAYER = re.compile(r"\(Unnamed Layer\* \d+\) \[[^\]]*\]")
_FUSED = re.compile(r"PWN\(#(?:, #)*\)|#(?: \+ #)+|#(?:\|\|#)+|#(?:, #)+")
"""Several layers that became one, their names masked."""
Failure = TypeVar("Failure", bound=RuntimeFailure)


def clean(message: str) -> str:
    """One message without its place in TensorRT's source and its number."""
    text = _PLACE.sub("", message.strip())
    match = _CODE.match(text)
    if match is None:
        return _SOURCE.sub("", text).strip()
    inner = _SOURCE.sub("", match["text"]).strip()
    return match["kind"] if match["kind"] and inner in ("", _SAYS_NOTHING) else inner


def clean_parser(message: str) -> str:
    """Return the explanation in a message of the ONNX parser, without the condition that it has checked."""
    text = clean(_INVALID_NODE.sub("", _DRIVER.sub("", message).strip()))
    return _CONDITION.sub("", _CONDITION.sub("", text)).strip().strip('"')


def reason(errors: Sequence[str], otherwise: str) -> str:
    """Why something failed: the first error with a reason."""
    telling = [error for error in errors if not _BUILDER_GAVE_UP.search(error)]
    return clean((telling or list(errors) or [otherwise])[0])


def signature(message: str, names: Iterable[str]) -> str:
    """A message with numbers, addresses, paths, and the names of the model's nodes and tensors masked.

    The same failure of a smaller model has the same signature, although it names another region of
    nodes.
    """
    if is_out_of_memory(message):
        return OUT_OF_MEMORY
    text = mask_names(UNNAMED_LAYER.sub("#", _IN_BRACES.sub("#", message)), names)
    while (shorter := _FUSED.sub("#", text)) != text:
        text = shorter
    return mask_values(text)


class Log:
    """The logger of TensorRT: prints all messages, and keeps the last errors and warnings (that CUDA does not start is one).

    ``layers`` is the list of layers that the last build logged, as TensorRT-RTX does.
    """

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self.errors: deque[str] = deque(maxlen=50)
        self.layers = ""
        self.warnings: deque[str] = deque(maxlen=5)

    def failure(self, kind: type[Failure], otherwise: str, names: Iterable[str] = ()) -> Failure:
        """Return the errors since they were last cleared as one to raise, and clear them; ``otherwise`` if there are none.

        Args:
            kind: The class of the failure.
            otherwise: The message if no error was logged.
            names: The names of the model's nodes and tensors, which the signature masks.
        """
        errors = list(self.errors)
        self.errors.clear()
        message = reason(errors, otherwise)
        if any(map(is_out_of_memory, errors)):
            message = f"{OUT_OF_MEMORY}: {message}"
        # A failed kernel fails every later call of the process too; lack of memory does not.
        poisoned = any(_POISON.search(error) and not is_out_of_memory(error) for error in errors)
        return kind(message, signature=signature(message, names), poisoned=poisoned)

    def make_logger(self, trt: Any) -> Any:
        """Return a logger of TensorRT's, which keeps the first one of a process for good."""
        # Looked up now: TensorRT still logs at the interpreter's end, when its module has been
        # emptied.
        base = trt.ILogger
        bad = (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
        doubtful = trt.ILogger.WARNING
        much = trt.ILogger.VERBOSE
        log = self

        class Logger(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
            def __init__(self) -> None:
                base.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if severity == much:
                    if message.startswith("Layers:\n"):
                        log.layers = message
                    return
                if severity in bad:
                    log.errors.append(message)
                elif severity == doubtful:
                    log.warnings.append(message)
                print(f"TensorRT {severity.name}: {message}", flush=True)

        return Logger()


_POINTER = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_INT = ctypes.c_int
_SIGNATURES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "cudaMalloc": ((_POINTER,), (_SIZE,)),
    "cudaFree": ((), (_POINTER,)),
    "cudaMemcpyAsync": ((), (_POINTER, _POINTER, _SIZE, _INT, _POINTER)),
    "cudaStreamCreate": ((_POINTER,), ()),
    "cudaStreamSynchronize": ((), (_POINTER,)),
    "cudaEventCreate": ((_POINTER,), ()),
    "cudaEventRecord": ((), (_POINTER, _POINTER)),
    "cudaEventElapsedTime": ((ctypes.c_float,), (_POINTER, _POINTER)),
    "cudaGetDeviceCount": ((_INT,), ()),
    "cudaMemGetInfo": ((_SIZE, _SIZE), ()),
}
"""The results and the arguments of each function; in C the results come first, by pointer."""
_NO_MEMORY = 2
_NO_DEVICE = 100
"""Values of ``cudaError_t``."""
_TO_DEVICE = 1
_TO_HOST = 2
"""Values of ``cudaMemcpyKind``."""
NO_GPU = "there is no NVIDIA GPU here that CUDA may use (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)."


class CudaError(RunError):
    """A CUDA call failed; its status is a ``cudaError_t``."""

    def __init__(self, call: str, status: int, text: str) -> None:
        """``text`` is CUDA's own for ``status``."""
        # After a failed kernel or copy every call fails, so the process is of no more use.
        no_memory = status == _NO_MEMORY
        masked = OUT_OF_MEMORY if no_memory else None
        super().__init__(
            f"CUDA error {status} in {call}: {text}", signature=masked, poisoned=not no_memory
        )
        self.status = status


class Cuda:
    """The CUDA runtime of one process; all is run on one stream, which is 0 before :meth:`start`."""

    def __init__(self, library: Any) -> None:
        """``library`` is libcudart, as ctypes loads it."""
        self.stream = 0
        self._library = library
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *values: int) -> tuple[Any, ...]:
        gives, takes = _SIGNATURES[name]
        results = [kind() for kind in gives]
        arguments = [kind(value) for kind, value in zip(takes, values, strict=True)]
        status = int(getattr(self._library, name)(*map(ctypes.byref, results), *arguments))
        if status:
            raise CudaError(name, status, bytes(self._library.cudaGetErrorString(status)).decode())
        return tuple(entry.value or 0 for entry in results)

    def start(self) -> None:
        """Make the stream, and two events.

        Raises:
            UnavailableError: There is no GPU, or none that this driver and this CUDA can use
                together.
        """
        try:
            count = self._call("cudaGetDeviceCount")[0]
        except CudaError as error:
            unusable = (
                f"CUDA cannot use the GPU: {error.message}; update the driver (`nvidia-smi` shows it), or install a TensorRT for "
                "an older CUDA."
            )
            raise RuntimeMissingError(NO_GPU if error.status == _NO_DEVICE else unusable) from error
        if not count:
            raise RuntimeMissingError(NO_GPU)
        self.stream = self._call("cudaStreamCreate")[0]
        self._events = [self._call("cudaEventCreate")[0] for _ in range(2)]

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

    def record(self, event: int) -> None:
        """Record event 0 or 1 on the stream."""
        self._call("cudaEventRecord", self._events[event], self.stream)

    def elapsed(self) -> float:
        """Return the seconds from event 0 to event 1, once the stream is synchronised."""
        return float(self._call("cudaEventElapsedTime", *self._events)[0]) / 1e3

    def malloc(self, size: int) -> int:
        """Return the address of that many bytes of GPU memory; at least one, since an engine takes no null pointer."""
        return int(self._call("cudaMalloc", max(size, 1))[0])

    def free(self, address: int) -> None:
        """Free memory.

        After a failed kernel that fails too; that error is dropped, since it would hide the first
        one.
        """
        try:
            self._call("cudaFree", address)
        except CudaError:
            return

    def upload(self, address: int, array: Any) -> None:
        """Copy a contiguous array to the GPU; it must stay alive until the stream is synchronised."""
        self._call(
            "cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, _TO_DEVICE, self.stream
        )

    def download(self, address: int, dtype: Any, shape: Sizes) -> Any:
        """Return a copy of an array on the GPU.

        Args:
            address: Its address on the GPU.
            dtype: NumPy's type of its elements.
            shape: Its shape.
        """
        array = np.empty(shape, dtype)
        if array.nbytes:
            self._call(
                "cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, _TO_HOST, self.stream
            )
            self.synchronize()
        return array


def load_cuda() -> Cuda:
    """Load the CUDA runtime.

    Raises:
        UnavailableError: It is not found.
    """
    for place in _libraries():
        try:
            return Cuda(ctypes.CDLL(place))
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
    yield from sorted(
        map(str, pathlib.Path("/usr/local").glob("cuda*/lib64/libcudart.so*")), reverse=True
    )


@dataclass
class TensorRt:
    """The objects of TensorRT that a process makes once and keeps: 8 seconds of start-up, then nothing.

    Attributes:
        trt: The module.
        logger: Its logger, which writes the log.
        runtime: Deserialises engines; ``None`` without a GPU, as is ``cuda``.
        timing_caches: What its builds have measured so far, by the file that they began with.
    """

    trt: Any
    log: Log
    logger: Any
    builder: Any
    runtime: Any
    cuda: Any
    timing_caches: dict[str | None, Any] = field(default_factory=dict)


@functools.lru_cache(maxsize=2)
def tensorrt(name: str = "trt") -> TensorRt:
    """Start TensorRT or TensorRT-RTX, once a process; ``name`` is the target's.

    Raises:
        UnavailableError: It is not installed, or there is no GPU that it needs, or they do not fit
            each other.
    """
    api = APIS[name]
    trt = load_package(
        api.module,
        api.title,
        f"install it there ({api.install}), on a Jetson use a Python that sees the system's packages, and add the folder of a "
        "library that is missing to LD_LIBRARY_PATH",
    )
    if tuple(int(part) for part in str(trt.__version__).split(".")[:3]) < api.oldest:
        oldest = ".".join(map(str, api.oldest[:2]))
        raise RuntimeMissingError(f"{describe(trt)} is too old; install {oldest} or later.")
    # Kernels are loaded when they are first used, not all at once: CUDA before 12.2 does the latter
    # unless told. Source: CUDA C++ Programming Guide, "Lazy Loading".
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    cuda: Cuda | None = None
    try:
        cuda = load_cuda()
        cuda.start()
    except UnavailableError:
        if not api.portable:
            raise
        cuda = None
    log = Log()
    logger = log.make_logger(trt)
    trt.init_libnvinfer_plugins(logger, "")
    try:
        builder = trt.Builder(logger)
        runtime = trt.Runtime(logger) if cuda is not None else None
    except Exception as error:
        # The exception has no reason; the log has.
        message = clean_message([str(error), *log.warnings, *log.errors][-1])
        raise RuntimeMissingError(
            f"{describe(trt)} cannot use this GPU: {message}; update the driver, or install the release that was made for it."
        ) from error
    return TensorRt(trt, log, logger, builder, runtime, cuda)
