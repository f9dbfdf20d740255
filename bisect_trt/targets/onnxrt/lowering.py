"""Lowers models for ONNX Runtime: nodes of the low precision, or round trips where its CPU provider has no such kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from bisect_trt.onnxlib.emulation import lower_roundtrip
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.lower_plan import tensor_dtypes
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt import OFF, OnnxRuntimeSettings
from bisect_trt.targets.onnxrt.runner import EXECUTION_PROVIDER, OrtRunner, element_type
from bisect_trt.targets.runtime import content_of, load_proto, low_type
from bisect_trt.targets.settings import TargetSettings

_CPU = f"CPU{EXECUTION_PROVIDER}"


def target_model(path: Path, settings: TargetSettings, providers: Sequence[str]) -> onnx.ModelProto | None:
    """Return the lowered form of a model that the target really runs; ``None`` if that is the model itself.

    On the CPU provider fp16 is emulated by round trips, because it would run fp16 nodes in fp32 (see
    ``onnxlib.lower.lower_roundtrip``), and so is bf16, which it would not run; other providers get real nodes of that type.

    Args:
        path: The ONNX file.
        settings: The target.
        providers: The execution providers that run it, by ONNX Runtime's names.
    """
    low = low_type(settings)
    if low is None:
        return None
    model = load_proto(path)
    lower = lower_roundtrip if list(providers) == [_CPU] else lower_fp16
    libraries = settings.of(OnnxRuntimeSettings).custom_op_libraries
    return lower(model, settings.keep, _types_onnx_cannot_infer(model, path, libraries), low)


def _types_onnx_cannot_infer(model: onnx.ModelProto, path: Path, libraries: tuple[str, ...]) -> dict[str, int]:
    """Return element types of tensors behind operators that ONNX Runtime knows and ONNX does not (``com.microsoft``)."""
    known = tensor_dtypes(model)
    unknown = {name for node in model.graph.node for name in node.output if name and name not in known}
    if not unknown:
        return {}
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    unknown -= {value.name for value in model.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(unknown))
    kernels = TargetSettings(own=OnnxRuntimeSettings(graph_optimization_level=OFF, custom_op_libraries=libraries))
    try:
        session = OrtRunner(kernels.target.plain(kernels)).load(path, {}, content_of(marked, path), False)
    except BuildError:  # operators that it does not know either: their consumers stay in fp32
        return {}
    assert session is not None  # it is only where nothing shall be fused
    types = {name: element_type(kind) for name, kind in session.types.items()}
    return {name: element for name, element in types.items() if element is not None}
