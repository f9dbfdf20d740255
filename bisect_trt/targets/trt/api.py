"""TensorRT itself: imported, logging, with what a process makes of it once, and what ``doctor`` says of it and CUDA."""

from __future__ import annotations

import importlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.messages import clean_message
from bisect_trt.targets.trt.cuda import Cuda, load_cuda
from bisect_trt.targets.trt.tuned import listen

Version = tuple[int, int, int]


def load_tensorrt() -> Any:
    """The package ``tensorrt``.

    Raises:
        UnavailableError: It is not installed, or one of its libraries is missing.
    """
    try:
        return importlib.import_module("tensorrt")
    except ModuleNotFoundError as error:
        if error.name != "tensorrt":
            raise _cannot_load(error) from error
        raise UnavailableError(
            f"TensorRT is not installed for {sys.executable}; install it there (pip install tensorrt), or on a Jetson "
            "use a Python that sees the system's packages."
        ) from error
    except (ImportError, OSError) as error:
        raise _cannot_load(error) from error


def _cannot_load(error: Exception) -> UnavailableError:
    return UnavailableError(
        f"TensorRT is installed and cannot be loaded: {error}. Install that library (pip install tensorrt brings its "
        "own), or add its folder to LD_LIBRARY_PATH."
    )


def version_of(trt: Any) -> Version:
    """Major, minor and patch."""
    major, minor, patch = (int(part) for part in str(trt.__version__).split(".")[:3])
    return major, minor, patch


@dataclass
class Log:
    """What TensorRT says: all of it goes to the log, and errors are kept for whoever asks why.

    Attributes:
        errors: The last ones.
        warnings: The last ones; that CUDA does not start is one of them.
    """

    errors: deque[str] = field(default_factory=lambda: deque(maxlen=50))
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=5))

    def take(self) -> list[str]:
        """The errors since this was last asked."""
        taken = list(self.errors)
        self.errors.clear()
        return taken


def make_logger(trt: Any, log: Log) -> Any:
    """TensorRT's logger that tells ours; TensorRT keeps the first of a process for good."""
    # Looked up now: at the interpreter's end TensorRT still speaks, when its module has been emptied.
    base, bad = trt.ILogger, (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
    doubtful, much, hear = trt.ILogger.WARNING, trt.ILogger.VERBOSE, listen

    class Logger(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in bad:
                log.errors.append(message)
            if severity == doubtful:
                log.warnings.append(message)
            if severity == much:
                hear(message)
            else:
                print(f"TensorRT {severity.name}: {message}", flush=True)

    return Logger()


@dataclass
class TensorRt:
    """What a process makes of TensorRT once and keeps: 8 seconds of start-up, then nothing.

    Attributes:
        trt: The module.
        version: Its version.
        log: What it says.
        builder: Its builder.
        runtime: What deserialises engines.
        cuda: The CUDA runtime.
        stream: The stream that all is run on.
        timing_caches: What its builds have measured so far, by the file that they were told to begin with.
        edited: The timing cache of the last build that had one of its own, see :mod:`bisect_trt.targets.trt.tuned`.
        memory: What it keeps of its builds, see :class:`~bisect_trt.targets.trt.plans.Memory`; ``None`` before the first.
    """

    trt: Any
    version: Version
    log: Log
    builder: Any
    runtime: Any
    cuda: Cuda
    stream: int
    timing_caches: dict[str | None, Any] = field(default_factory=dict)
    edited: Any = None
    memory: Any = None
    _logger: Any = None

    def parser(self, network: Any) -> Any:
        """A parser that fills a network."""
        return self.trt.OnnxParser(network, self._logger)

    def has(self, enum: str, name: str) -> bool:
        """Whether this version's enumeration has an entry."""
        return hasattr(getattr(self.trt, enum, None), name)


@lru_cache(maxsize=1)
def tensorrt() -> TensorRt:
    """This process's TensorRT.

    Raises:
        UnavailableError: There is no TensorRT, no GPU, or they do not fit each other.
    """
    trt = load_tensorrt()
    version = version_of(trt)
    if version < (8, 6, 0):
        raise UnavailableError(f"TensorRT {trt.__version__} is too old; install 8.6 or later.")
    # Kernels are loaded when they are first used, not all at once: CUDA before 12.2 does the latter unless told. Source:
    # CUDA C++ Programming Guide, "Lazy Loading"; TensorRT warns of it by itself.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    cuda = load_cuda()
    if cuda.device_count() == 0:
        raise UnavailableError(
            "there is no NVIDIA GPU here that CUDA may use (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)."
        )
    log = Log()
    logger = make_logger(trt, log)
    trt.init_libnvinfer_plugins(logger, "")
    try:
        builder, runtime = trt.Builder(logger), trt.Runtime(logger)
    except Exception as error:  # it says why in its log alone
        why = clean_message([str(error), *log.warnings, *log.errors][-1])
        raise UnavailableError(
            f"TensorRT {trt.__version__} cannot use this GPU: {why}; update the driver, or install the TensorRT that was made "
            "for it."
        ) from error
    return TensorRt(trt, version, log, builder, runtime, cuda, cuda.stream(), _logger=logger)


Found = Iterator[tuple[str, str]]


def about_cuda() -> Found:
    """The CUDA runtime, and what the driver supports.

    Raises:
        UnavailableError: There is no CUDA runtime or no GPU.
    """
    cuda = load_cuda()
    driver, runtime = (f"{version // 1000}.{version % 1000 // 10}" for version in cuda.versions())
    yield "CUDA runtime", f"{runtime} ({cuda.origin})"
    yield "CUDA that the driver supports", driver if driver != "0.0" else "none: there is no driver"
    yield "GPUs that CUDA may use", str(cuda.device_count())


def about_tensorrt() -> Found:
    """TensorRT's version, and the memory of the GPU that it builds for.

    Raises:
        UnavailableError: It is not installed, or cannot be used.
    """
    yield "TensorRT", str(load_tensorrt().__version__)
    free, total = tensorrt().cuda.memory()
    yield "GPU memory", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
