"""Types and shapes of tensors, between ONNX's messages and ``TensorInfo``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from sys import intern

import numpy as np
import onnx
from onnx import TensorProto, helper

from bisect_trt.errors import UnavailableError
from bisect_trt.tensors.info import TensorInfo, dtype_from_name, is_string

_EXTENSIONS = {
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
    "INT4": "int4",
    "UINT4": "uint4",
    "INT2": "int2",
    "UINT2": "uint2",
}
"""ONNX's name and ``ml_dtypes``' of the types that NumPy lacks; before 1.19 ``onnx.helper`` says float32 or int8."""


def element_dtype(element_type: int) -> np.dtype[np.generic]:
    """NumPy's type for an ONNX element type; strings are ``object``.

    Raises:
        UnavailableError: NumPy has no such type, nor has ``ml_dtypes``, if that is installed.
    """
    if element_type == TensorProto.STRING:
        return np.dtype(object)
    try:
        name = str(TensorProto.DataType.Name(element_type))
        extension = _EXTENSIONS.get(name)
        return (
            np.dtype(helper.tensor_dtype_to_np_dtype(element_type)) if extension is None else dtype_from_name(extension)
        )
    except (KeyError, ValueError) as error:
        raise UnavailableError(
            f"the element type {element_type} is not known to ONNX {onnx.__version__}; update the package."
        ) from error


@cache
def element_type(dtype: np.dtype[np.generic]) -> int:
    """ONNX's element type for a NumPy type."""
    if is_string(dtype):
        return int(TensorProto.STRING)
    for name, extension in _EXTENSIONS.items():
        if dtype.name == extension:
            return int(TensorProto.DataType.Value(name))
    return int(helper.np_dtype_to_tensor_dtype(dtype))


class Declarations(Mapping[str, onnx.ValueInfoProto]):
    """What is declared of tensors, by name; a message of its own for each of 100,000 tensors takes hundreds of bytes.

    All but the name is kept as bytes, which tensors of the same type share.

    Attributes:
        kinds: These bytes, by name.
    """

    def __init__(self, values: Iterable[onnx.ValueInfoProto] = ()) -> None:
        """Of a name that comes twice the last counts."""
        self.kinds: dict[str, bytes] = {}
        self._shared: dict[bytes, bytes] = {}
        for value in values:
            self.put(value)

    def put(self, value: onnx.ValueInfoProto) -> None:
        """Declare a tensor as this does."""
        bare = onnx.ValueInfoProto()
        bare.CopyFrom(value)
        bare.ClearField("name")
        self.add(value.name, bare)

    def add(self, name: str, bare: onnx.ValueInfoProto) -> None:
        """Declare a tensor by a declaration without a name."""
        kind = bare.SerializeToString()
        self.kinds[intern(name)] = self._shared.setdefault(kind, kind)  # a network has the same name

    def __or__(self, other: Declarations) -> Declarations:
        """Both; the other is believed where they differ."""
        both = Declarations()
        both.kinds = self.kinds | other.kinds
        return both

    def __getitem__(self, name: str) -> onnx.ValueInfoProto:
        return _declaration(name, self.kinds[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def __contains__(self, name: object) -> bool:
        return name in self.kinds


def _declaration(name: str, kind: bytes) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto()
    value.ParseFromString(kind)
    value.name = name
    return value


def known_infos(declared: Declarations) -> dict[str, TensorInfo]:
    """Types and shapes of tensors; those without an element type are missing."""
    known = {kind: to_info(_declaration("", kind)) for kind in set(declared.kinds.values())}
    return {
        name: TensorInfo(name, info.dtype, info.shape)
        for name, kind in declared.kinds.items()
        if (info := known[kind]) is not None
    }


def to_info(value: onnx.ValueInfoProto) -> TensorInfo | None:
    """What a declaration says of a tensor; ``None`` where it says no element type or it is no tensor."""
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.elem_type:
        return None
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(_dimension(dim) for dim in tensor.shape.dim)
    try:
        return TensorInfo(value.name, element_dtype(tensor.elem_type), shape)
    except UnavailableError:
        return None


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def from_info(info: TensorInfo) -> onnx.ValueInfoProto:
    """A declaration of a tensor."""
    return helper.make_tensor_value_info(info.name, element_type(info.dtype), info.shape)


def value_info(
    name: str, infos: Mapping[str, TensorInfo], declared: Mapping[str, onnx.ValueInfoProto]
) -> onnx.ValueInfoProto:
    """The best declaration there is: what was seen when it ran, else what the model says, else the bare name.

    ONNX Runtime finds the type of an output by itself, so that a bare name will do there.
    """
    if name in infos:
        return from_info(infos[name])
    return declared.get(name) or onnx.ValueInfoProto(name=name)
