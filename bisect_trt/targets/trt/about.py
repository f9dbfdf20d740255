"""What ``doctor`` says of CUDA and TensorRT."""

from __future__ import annotations

from collections.abc import Iterator

Found = Iterator[tuple[str, str]]


def about_cuda() -> Found:
    """The CUDA runtime, and what the driver supports.

    Raises:
        UnavailableError: There is no CUDA runtime or no GPU.
    """
    from bisect_trt.targets.trt.cuda import load_cuda  # noqa: PLC0415 - as above

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
    from bisect_trt.targets.trt.api import load_tensorrt, tensorrt  # noqa: PLC0415 - as above

    yield "TensorRT", str(load_tensorrt().__version__)
    free, total = tensorrt().cuda.memory()
    yield "GPU memory", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
