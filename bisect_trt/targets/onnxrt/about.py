"""What ``doctor`` says of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from onnx import TensorProto, helper

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
