"""What a runtime finds on this machine; run as a process of its own, so that a library that crashes is a finding.

``python -m bisect_trt.targets.about NAME FILE`` writes JSON: what was found, by name, and why the rest is not there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from onnx import TensorProto, helper

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings

Found = Iterator[tuple[str, str]]


def about_onnxruntime() -> Found:
    """Its version and its execution providers."""
    import onnxruntime  # noqa: PLC0415 - it may crash, and other runtimes may not

    yield "ONNX Runtime", onnxruntime.__version__
    yield "execution providers", ", ".join(onnxruntime.get_available_providers())


def about_cuda_provider() -> Found:
    """Whether ONNX Runtime runs a model on a GPU.

    Raises:
        UnavailableError: It does not.
    """
    from bisect_trt.targets.onnxrt.runtime import OnnxRuntime  # noqa: PLC0415 - as above

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "tiny", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.onnx"
        path.write_bytes(model.SerializeToString())
        OnnxRuntime(TargetSettings(own=OnnxRuntimeSettings(("cuda",)))).load(path)
    yield from ()


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


ABOUT: dict[str, Callable[[], Found]] = {
    "onnxruntime": about_onnxruntime,
    "cuda-provider": about_cuda_provider,
    "cuda": about_cuda,
    "tensorrt": about_tensorrt,
}


def main() -> None:
    """Write down what there is of the runtime named on the command line."""
    found: dict[str, str] = {}
    missing = None
    try:
        found.update(ABOUT[sys.argv[1]]())  # what comes before an error stays
    except UnavailableError as error:
        missing = str(error)
    except Exception as error:
        missing = f"{type(error).__name__}: {error}."
    Path(sys.argv[2]).write_text(json.dumps({"found": found, "missing": missing}))
    os._exit(0)  # some libraries crash when they are taken down


if __name__ == "__main__":
    main()
