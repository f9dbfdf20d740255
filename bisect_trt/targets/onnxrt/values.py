"""ONNX Runtime's types of tensors; those that NumPy itself lacks (bfloat16, float8) go to and fro as ``OrtValue``.

It is sent to places, so it has Python 3.8's syntax and does without ONNX.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np
import onnxruntime

from bisect_trt.errors import UnavailableError
from bisect_trt.tensors.info import dtype_from_name, is_extension, storage_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES = {
    "float": (1, "float32"),
    "uint8": (2, "uint8"),
    "int8": (3, "int8"),
    "uint16": (4, "uint16"),
    "int16": (5, "int16"),
    "int32": (6, "int32"),
    "int64": (7, "int64"),
    "string": (8, "object"),
    "bool": (9, "bool"),
    "float16": (10, "float16"),
    "double": (11, "float64"),
    "uint32": (12, "uint32"),
    "uint64": (13, "uint64"),
    "complex64": (14, "complex64"),
    "complex128": (15, "complex128"),
    "bfloat16": (16, "bfloat16"),
    "float8e4m3fn": (17, "float8_e4m3fn"),
    "float8e4m3fnuz": (18, "float8_e4m3fnuz"),
    "float8e5m2": (19, "float8_e5m2"),
    "float8e5m2fnuz": (20, "float8_e5m2fnuz"),
    "uint4": (21, "uint4"),
    "int4": (22, "int4"),
    "float4e2m1": (23, "float4_e2m1fn"),
    "float8e8m0": (24, "float8_e8m0fnu"),
    "uint2": (25, "uint2"),
    "int2": (26, "int2"),
}
"""ONNX Runtime's name of an element type: ONNX's number of it (onnx.proto, ``TensorProto.DataType``), and NumPy's or
``ml_dtypes``' name."""
CAN_FEED = hasattr(getattr(onnxruntime, "OrtValue", None), "ortvalue_from_numpy_with_onnx_type")
"""Whether this version of ONNX Runtime takes such tensors; 1.18 does not."""


def has_raw_bits(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a type are whole bytes that go through an ``OrtValue``."""
    return CAN_FEED and is_extension(dtype) and not dtype.name.endswith(("int2", "int4", "float4_e2m1fn"))


def element_type(kind: str) -> int | None:
    """ONNX's element type for ONNX Runtime's ``tensor(float)``; ``None`` for what is no tensor."""
    known = _known(kind)
    return None if known is None else known[0]


def dtype_of(kind: str) -> np.dtype[Any]:
    """NumPy's type for ONNX Runtime's ``tensor(float)``.

    Raises:
        ValueError: It is no tensor, or of a type that is not known here.
        UnavailableError: It needs ``ml_dtypes``, which is not installed.
    """
    known = _known(kind)
    if known is None:
        raise ValueError(f"a {kind} is no tensor")
    return dtype_from_name(known[1])


def _known(kind: str) -> tuple[int, str] | None:
    if not kind.startswith("tensor("):
        return None
    name = kind[len("tensor(") :].rstrip(")").lower()
    if name not in _TYPES:
        raise ValueError(f"the element type {name} is not known")
    return _TYPES[name]


def is_raw(kind: str) -> bool:
    """Whether a value of this type goes to and from ONNX Runtime by its bits."""
    try:
        return has_raw_bits(dtype_of(kind))
    except (ValueError, UnavailableError):  # newer than this release; of a package that is not installed; no tensor
        return False


def is_numpy(kind: str) -> bool:
    """Whether ONNX Runtime hands a value of this type over as an array: older ones not types that NumPy itself lacks."""
    try:
        return not is_extension(dtype_of(kind)) or is_raw(kind)
    except (ValueError, UnavailableError):  # as above
        return False


def run_with_values(
    session: onnxruntime.InferenceSession,
    names: Sequence[str],
    inputs: Mapping[str, NDArray[Any]],
    elements: Mapping[str, int],
    dtypes: Mapping[str, np.dtype[Any]],
) -> list[NDArray[Any]]:
    """Run a model some of whose ends have such types.

    Args:
        session: ONNX Runtime's own.
        names: The outputs to give back.
        inputs: Input name to values.
        elements: ONNX's element type of each input of such a type.
        dtypes: NumPy's type of each output of such a type.

    Returns:
        The outputs, in the order of ``names``.
    """
    # What an OrtValue is made of has to stay alive until the model has run.
    given = {name: np.asarray(values, order="C") for name, values in inputs.items()}
    bits = {name: values.view(storage_dtype(values.dtype)) for name, values in given.items() if name in elements}
    make, make_raw = onnxruntime.OrtValue.ortvalue_from_numpy, _from_bits
    fed = {name: make_raw(bits[name], elements[name]) if name in bits else make(v) for name, v in given.items()}
    made = session.run_with_ort_values(list(names), fed)
    return [_to_array(value, dtypes[name]) if name in dtypes else value.numpy() for name, value in zip(names, made)]


def _from_bits(bits: NDArray[Any], element: int) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, element)


def _to_array(value: onnxruntime.OrtValue, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A copy of a tensor on the CPU."""
    shape = tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    copy = bytearray(ctypes.string_at(value.data_ptr(), size))
    array: NDArray[Any] = np.frombuffer(copy, np.uint8).view(dtype).reshape(shape)
    return array
