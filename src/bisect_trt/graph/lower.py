"""Lowering an fp32 model to fp16: by round trips for a CPU, by real fp16 nodes for a GPU.

``lower_roundtrip`` says why a CPU needs another way.
"""

from bisect_trt.graph.lower_common import tensor_dtypes
from bisect_trt.graph.lower_fp16 import lower_fp16
from bisect_trt.graph.lower_plan import first_output
from bisect_trt.graph.lower_roundtrip import lower_roundtrip

__all__ = ["first_output", "lower_fp16", "lower_roundtrip", "tensor_dtypes"]
