"""Models that ONNX Runtime is given from memory: lowered ones, and candidates whose weights lie elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import onnx
import onnxruntime

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.externals import folder_with, has_external_data
from bisect_trt.graph.lower import lower_fp16, lower_roundtrip, tensor_dtypes
from bisect_trt.targets.base import ELSEWHERE
from bisect_trt.targets.interpreter import load_proto, low_type
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.opening import EXECUTION_PROVIDER, used
from bisect_trt.targets.onnxrt.runtime import open_session, said_as_ours
from bisect_trt.targets.onnxrt.settings import OFF, OnnxRuntimeSettings
from bisect_trt.targets.onnxrt.values import element_type
from bisect_trt.targets.settings import TargetSettings

_CPU = f"CPU{EXECUTION_PROVIDER}"
_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def target_model(
    path: Path, settings: TargetSettings, providers: Sequence[str] | None = None
) -> onnx.ModelProto | None:
    """The lowered form of a model that the target really runs; ``None`` if that is the model itself.

    On the CPU provider fp16 is emulated by round trips, because it would run fp16 nodes in fp32 (see
    ``graph.lower_roundtrip``), and so is bf16, which it would not run; other providers get real nodes of that type.

    Args:
        path: The ONNX file.
        settings: The target.
        providers: The providers that run it, if not those of this process.
    """
    low = low_type(settings)
    if low is None:
        return None
    model = load_proto(path)
    own = settings.of(OnnxRuntimeSettings)
    with said_as_ours():
        run_by = used(asdict(own)) if providers is None else list(providers)
    lower = lower_roundtrip if run_by == [_CPU] else lower_fp16
    kernels = OnnxRuntimeSettings(graph_optimization_level=OFF, custom_op_libraries=own.custom_op_libraries)
    return lower(model, settings.keep, _types_onnx_cannot_infer(model, path, kernels), low)


def _types_onnx_cannot_infer(model: onnx.ModelProto, path: Path, kernels: OnnxRuntimeSettings) -> dict[str, int]:
    """Element types of tensors behind operators that ONNX Runtime knows and ONNX does not, ``com.microsoft``'s first."""
    known = tensor_dtypes(model)
    unknown = {name for node in model.graph.node for name in node.output if name and name not in known}
    if not unknown:
        return {}
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    unknown -= {value.name for value in model.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(unknown))
    try:
        session = open_in_memory(marked, path, kernels)
    except BuildError:  # operators that it does not know either: their consumers stay in fp32
        return {}
    types = {value.name: element_type(value.type) for value in session.get_outputs()}
    return {name: element for name, element in types.items() if element is not None}


def open_in_memory(proto: onnx.ModelProto, path: Path, own: OnnxRuntimeSettings) -> onnxruntime.InferenceSession:
    """Open a model that has no file; weights outside it lie beside ``path``, or where candidates there have theirs."""
    try:
        content = proto.SerializeToString()
    except Exception as error:  # protobuf's own
        raise BuildError(f"{path} is over 2 GB with its weights inside: save them as external data") from error
    folder = _weights_folder(proto, path)
    if _VERSION >= (1, 21) or not has_external_data(proto):
        return open_session(content, own, weights=folder)
    # Its weights lie beside the original, so it has to lie there too; under a name that nothing else has.
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bisect_trt_", suffix=".onnx") as beside:
            beside.write(content)
            beside.flush()
            return open_session(beside.name, own)
    except OSError as error:
        raise UnavailableError(
            f"{folder} cannot be written ({error.strerror}), which ONNX Runtime {onnxruntime.__version__} needs for a "
            "model with weights in a file of their own; update it to 1.21 or later."
        ) from error


def _weights_folder(model: onnx.ModelProto, path: Path) -> Path:
    """Where the files of a model's weights are: beside its own, or, for a candidate, where they have been all along."""
    folder, note = path.absolute().parent, path.absolute().with_name(ELSEWHERE)
    noted = note.read_bytes().split(b"\0") if note.exists() else []
    return folder_with(model, [folder, *map(Path, map(os.fsdecode, noted))]) or folder
