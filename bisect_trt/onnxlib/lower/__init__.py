"""Lowering an fp32 model to fp16 or bf16: by round trips for a CPU, by real nodes of that type for a GPU.

``lower_roundtrip`` says why a CPU needs another way.
"""

from bisect_trt.onnxlib.lower.fp16 import lower_fp16, lower_io, store_weights
from bisect_trt.onnxlib.lower.plan import LOW_TYPES, check_opset, first_output, plan_slots, tensor_dtypes
from bisect_trt.onnxlib.lower.roundtrip import emulate, lower_roundtrip

__all__ = [
    "LOW_TYPES",
    "check_opset",
    "emulate",
    "first_output",
    "lower_fp16",
    "lower_io",
    "lower_roundtrip",
    "plan_slots",
    "store_weights",
    "tensor_dtypes",
]
