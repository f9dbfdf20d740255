"""What is known of a tensor before it has a value: its name, its shape, its element type.

NumPy alone cannot name or store some element types: strings, and the ``ml_dtypes`` ones (bfloat16, float8, int4).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import PackageError


def is_string(dtype: np.dtype[Any]) -> bool:
    """Whether elements are strings: ONNX's are Python objects, NumPy's own are of fixed width."""
    return dtype.kind in "OUST"


def value_bytes(value: NDArray[Any]) -> bytes:
    """What is equal for equal values of one type and shape alone: for strings their text, because the memory holds pointers."""
    return repr(value.tolist()).encode() if is_string(value.dtype) else value.tobytes()


def is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether the type is registered with NumPy by another package, which is ``ml_dtypes`` for all that ONNX has."""
    return dtype.isbuiltin == 2


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type to write elements as: unsigned integers of the same size for ``ml_dtypes``, else the native one."""
    return np.dtype(f"u{dtype.itemsize}") if is_extension(dtype) else dtype.newbyteorder("=")


def dtype_from_name(name: str) -> np.dtype[Any]:
    """The type that ``dtype.name`` was read from.

    Raises:
        UnavailableError: If it is an ``ml_dtypes`` type and that package is not installed, or no known type.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        extension: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError as err:
        raise PackageError(
            f"A tensor of type {name} needs the package ml_dtypes, which is not installed; run: pip install ml_dtypes"
        ) from err
    except AttributeError as err:
        raise PackageError(
            f"The element type '{name}' is not known to numpy {np.__version__} or the installed ml_dtypes; "
            "update both packages"
        ) from err
    return extension


@dataclass(frozen=True)
class TensorInfo:
    """Name, type and shape of a graph input or output.

    Attributes:
        name: The tensor's name, as in the ONNX graph.
        dtype: NumPy type of its elements (``ml_dtypes`` ones for bfloat16 and float8; ``object`` for strings).
        shape: One entry a dimension: an int where it is known, the dimension's name or ``None`` where it is free.
            ``None`` in place of the tuple means that not even the rank is known.
    """

    __slots__ = ("dtype", "name", "shape")  # a large network has 100,000 of them, and a dict each would triple it

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...] | None

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    @property
    def nbytes(self) -> int | None:
        """How many bytes its values take; ``None`` where a dimension is not known."""
        if self.shape is None or not self.is_static:
            return None
        return self.dtype.itemsize * math.prod(int(dim or 0) for dim in self.shape)


class Infos(Mapping[str, TensorInfo]):
    """Types and shapes of tensors by name, each made on access: a network has 100,000 tensors of some ten kinds."""

    def __init__(self, kinds: Mapping[str, Hashable], known: Mapping[Any, TensorInfo]) -> None:
        """``kinds`` name which of the ``known`` a tensor is like; one of another kind is not in it."""
        self._kinds, self._known = kinds, known

    def __getitem__(self, name: str) -> TensorInfo:
        info = self._known.get(self._kinds[name])
        if info is None:
            raise KeyError(name)
        return TensorInfo(name, info.dtype, info.shape)

    def __iter__(self) -> Iterator[str]:
        return (name for name, kind in self._kinds.items() if kind in self._known)

    def __len__(self) -> int:
        return sum(kind in self._known for kind in self._kinds.values())


def common(one: TensorInfo, other: TensorInfo) -> TensorInfo:
    """What is true of both."""
    if one.shape == other.shape or one.shape is None:
        return one
    if other.shape is None or len(one.shape) != len(other.shape):
        return replace(one, shape=None)
    dims = zip(one.shape, other.shape, strict=True)
    return replace(one, shape=tuple(mine if mine == theirs else None for mine, theirs in dims))
