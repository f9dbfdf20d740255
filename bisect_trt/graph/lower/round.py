"""Values of float32 tensors, rounded to fp16 or bf16 and back."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper


def round_to_half(values: np.ndarray) -> np.ndarray:
    """Rounds to fp16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity without a word."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounds float32 to bfloat16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity.

    Returns:
        The upper 16 bits of each float32, as uint16: NumPy itself has no bfloat16.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Half of what is cut off, less one where the last bit that stays is 0; uint32 wraps for no number but NaN.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def lower_tensor(tensor: TensorProto, name: str, low: int, *, back: bool) -> TensorProto:
    """Rounds a float32 tensor that is inside the model.

    Args:
        tensor: Its values.
        name: The result's name.
        low: The precision to round to, an ONNX element type.
        back: Whether the result is float32 again.
    """
    values = numpy_helper.to_array(tensor)
    if low == TensorProto.FLOAT16:
        half = round_to_half(values)
        return numpy_helper.from_array(half.astype(np.float32) if back else half, name)
    bits = round_to_bfloat16(values)
    if back:
        return numpy_helper.from_array((bits.astype(np.uint32) << np.uint32(16)).view(np.float32), name)
    raw = bits.astype("<u2").tobytes()
    return TensorProto(name=name, data_type=low, dims=values.shape, raw_data=raw)


def widen_tensor(tensor: TensorProto, name: str) -> TensorProto:
    """Returns the float32 tensor of the same values as an fp16 or bf16 one that is inside the model."""
    if tensor.data_type == TensorProto.FLOAT16:
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), name)
    bits = TensorProto(data_type=TensorProto.UINT16, dims=tensor.dims, raw_data=tensor.raw_data)
    if not tensor.raw_data:
        bits.int32_data.extend(tensor.int32_data)
    values = numpy_helper.to_array(bits).astype(np.uint32) << np.uint32(16)
    return numpy_helper.from_array(values.view(np.float32), name)
