"""ONNX Runtime's types of tensors; those that NumPy itself lacks (bfloat16, float8) go to and fro as ``OrtValue``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.values import element_dtype
from bisect_trt.tensors.info import is_extension, storage_dtype

_TYPES = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "bool": "BOOL",
    "string": "STRING",
}
CAN_FEED = hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type")
"""Whether this version of ONNX Runtime takes such tensors; 1.18 does not."""


def has_raw_bits(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a type are whole bytes that go through an ``OrtValue``."""
    return CAN_FEED and is_extension(dtype) and not dtype.name.endswith(("int2", "int4", "float4_e2m1fn"))


def element_type(kind: str) -> int | None:
    """ONNX's element type for ONNX Runtime's ``tensor(float)``; ``None`` for what is no tensor."""
    if not kind.startswith("tensor("):
        return None
    name = kind.removeprefix("tensor(").removesuffix(")")
    return int(onnx.TensorProto.DataType.Value(_TYPES.get(name, name.upper())))


def is_raw(kind: str) -> bool:
    """Whether a value of this type goes to and from ONNX Runtime by its bits."""
    try:
        element = element_type(kind)
        return element is not None and has_raw_bits(element_dtype(element))
    except (ValueError, UnavailableError):  # newer than this ONNX; of a package that is not installed
        return False


def is_numpy(kind: str) -> bool:
    """Whether ONNX Runtime hands a value of this type over as an array: older ones not types that NumPy itself lacks."""
    try:
        element = element_type(kind)
        return element is not None and (not is_extension(element_dtype(element)) or is_raw(kind))
    except (ValueError, UnavailableError):  # newer than this ONNX; of a package that is not installed
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
    return [
        _to_array(value, dtypes[name]) if name in dtypes else value.numpy()
        for name, value in zip(names, made, strict=True)
    ]


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
