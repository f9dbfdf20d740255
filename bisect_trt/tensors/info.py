"""Name, type and shape of a tensor, and statistics of its values.

NumPy alone cannot name or store the types of ``ml_dtypes`` (bfloat16, float8, int4). Statistics
are computed a block at a time, so that they need little memory; sums are in float64.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bisect_trt.aliases import Fields, Sizes
from bisect_trt.errors import PackageError

Array = NDArray[Any]
Vector = NDArray[np.float64]

FP16_MAX = 65504.0
FP16_NORMAL = 2.0**-14
"""The least normal number of fp16: smaller values lose digits, and those below 3e-8 become 0."""
_KINDS = ({"float64", "float32", "float16", "bfloat16"}, {"int64", "int32"})
"""Types that are cast into each other without a scale."""
_BLOCK = 1 << 20
"""Elements in a block: 8 MiB in float64."""
_LEAST_EXPONENT = -1100
_BINADES = 2200
"""The exponents of float64 are within these."""
_LEAST_MASK = 10
_MASK_BINADES = 3
"""The exponent of the smallest mask, 512, which is more than probabilities and normalized values
have; the width of what is under masks, one or a sum of them, and of the gap below it, in
binades."""
_CERTAIN_BITS = 24


def is_extension(dtype: np.dtype[Any]) -> bool:
    """Return whether another package registers the type with NumPy; for ONNX's types that is ``ml_dtypes``."""
    return dtype.isbuiltin == 2


def is_raw(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are bytes without a type, as plain NumPy saves types of ``ml_dtypes``."""
    return dtype.kind == "V" and not is_extension(dtype)


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type to write elements as: unsigned integers of the same size for ``ml_dtypes``, else the native one."""
    return np.dtype(f"u{dtype.itemsize}") if is_extension(dtype) else dtype.newbyteorder("=")


def dtype_from_name(name: str) -> np.dtype[Any]:
    """Return the type with this ``dtype.name``.

    Raises:
        UnavailableError: It is a type of ``ml_dtypes``, which is not installed, or it is unknown.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        extension: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError as err:
        raise PackageError(
            f"A tensor of type {name} needs the package ml_dtypes, which {sys.executable} lacks; install it there "
            "(in an environment of --on: env='... ml_dtypes')"
        ) from err
    except AttributeError as err:
        raise PackageError(
            f"The element type '{name}' is not known to numpy {np.__version__} or the installed ml_dtypes; "
            "update both packages"
        ) from err
    return extension


def members(name: str, value: object) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of an output: a tensor under its name, members as ``name[0]`` or, of maps, ``name[key]``.

    A sequence of maps, one for each row of a batch, yields one array for each key. An optional
    without a value yields nothing.
    """
    # Classifiers of scikit-learn give a map of scores for each row.
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        keys = dict.fromkeys(key for row in value for key in row)
        value = {key: np.array([row[key] for row in value if key in row]) for key in keys}
    if isinstance(value, (list, dict)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from members(f"{name}[{key}]", part)
    elif value is not None:
        array = np.asarray(value)
        yield name, array.astype(np.str_) if array.dtype.kind == "O" else array


def tensor_of(member: str) -> str:
    """Return the name of the sequence, map or optional of a member, which is called ``name[0]`` or ``name[key]``."""
    return member.partition("[")[0]


@dataclass(frozen=True)
class TensorInfo:
    """Name, type and shape of a tensor.

    Attributes:
        name: The tensor's name, as in the ONNX graph.
        dtype: NumPy type of its elements (``ml_dtypes`` ones for bfloat16 and float8).
        shape: One entry a dimension: an int where it is known, the dimension's name or ``None``
            where it is free. ``None`` in place of the tuple means that not even the rank is known.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...] | None

    @property
    def sizes(self) -> Sizes | None:
        """The shape, if every dimension is a known number."""
        sizes = tuple(dim for dim in self.shape or () if isinstance(dim, int))
        return None if self.shape is None or len(sizes) < len(self.shape) else sizes

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known number."""
        return self.sizes is not None

    @property
    def nbytes(self) -> int | None:
        """The number of bytes of its values; ``None`` where a dimension is not known."""
        sizes = self.sizes
        return None if sizes is None else self.dtype.itemsize * math.prod(sizes)


Value = TypeVar("Value")


class ByName(Mapping[str, Value]):
    """Values by name, each made on access: a Python object for each of 100,000 tensors takes half a kilobyte.

    A subclass fills ``_index``, with what it makes each value of, and has ``__getitem__``.
    """

    _index: Fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index


def common(one: TensorInfo, another: TensorInfo) -> TensorInfo:
    """Return the first with the dimensions that both have; others are free."""
    if one.shape == another.shape or one.shape is None:
        return one
    if another.shape is None or len(one.shape) != len(another.shape):
        return replace(one, shape=None)
    dims = zip(one.shape, another.shape, strict=True)
    return replace(one, shape=tuple(mine if mine == theirs else None for mine, theirs in dims))


def blocks(values: Array) -> Iterator[Array]:
    """Yield the elements in C order, about a million at a time: views, where the array is contiguous."""
    flat = values.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))


def to_float(values: Array) -> Vector:
    """Return numbers as float64."""
    return np.asarray(_plain(values), dtype=np.float64)


def is_floating(values: Array) -> bool:
    """Return whether an array holds floating-point numbers of any width."""
    return values.dtype.kind == "f" or (
        is_extension(values.dtype) and "int" not in values.dtype.name
    )


def is_castable(dtype: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Return whether a type is another one, or differs from it in width alone."""
    return dtype == to or any(kind.issuperset((dtype.name, to.name)) for kind in _KINDS)


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a type that differs in width alone, and other values as they are."""
    if not is_castable(values.dtype, dtype):
        return values
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def finite_range(values: Array, none: float = math.nan) -> tuple[float, float]:
    """Return the least and the largest finite value; ``none`` twice where there is none."""
    low = math.inf
    high = -math.inf
    if values.dtype.kind == "U":
        return none, none
    for elements in map(_plain, blocks(values)):
        if (
            finite := elements[np.isfinite(elements)] if elements.dtype.kind == "f" else elements
        ).size:
            low = min(low, float(finite.min()))
            high = max(high, float(finite.max()))
    return (low, high) if low <= high else (none, none)


def tensor_stats(values: Array) -> dict[str, float]:
    """Return the range of a real tensor of any shape.

    Returns:
        ``min``, ``max`` and ``absmax`` of the finite values, NaN where none is finite; the counts
        ``nan`` and ``inf``.
    """
    (low, high), (nan, inf) = finite_range(values), count_nonfinite(values)
    return {"min": low, "max": high, "absmax": max(abs(low), abs(high)), "nan": nan, "inf": inf}


def count_nonfinite(values: Array) -> tuple[int, int]:
    """Return the numbers of NaN, and of Inf and -Inf."""
    nan = inf = 0
    for elements in map(_plain, blocks(values)):
        if elements.dtype.kind == "f":
            nan += int(np.count_nonzero(np.isnan(elements)))
            inf += int(np.count_nonzero(np.isinf(elements)))
    return nan, inf


def _plain(values: Array) -> Array:
    return values.astype(np.float32) if is_extension(values.dtype) else values


def finite_rms(values: Array) -> float:
    """Return the root mean square of the finite elements; 0 where there are none, or where it is beyond float64.

    Elements under a mask (about -1e4, -65504 or -1e30) do not count: the rounding of the others
    does not depend on them.
    """
    count, total, _ = _unmasked(values)
    return math.sqrt(total / count) if count and math.isfinite(total) else 0.0


def mask_limit(values: Array) -> float:
    """Return the magnitude from which on elements are under a mask; Inf where none is."""
    return _unmasked(values)[2]


def _unmasked(values: Array) -> tuple[int, float, float]:
    """Return the number of finite elements under no mask, the sum of their squares, and the limit of their magnitudes."""
    counts = np.zeros((2, _BINADES), np.int64)
    squares = np.zeros(_BINADES)
    zeros = 0
    for block in blocks(values):
        numbers = block.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        nonzero = finite[finite != 0]
        zeros += finite.size - nonzero.size
        # A histogram by powers of two needs one pass, whatever the range is.
        binades = np.frexp(nonzero)[1] - _LEAST_EXPONENT
        for sign, chosen in enumerate((nonzero > 0, nonzero < 0)):
            counts[sign] += np.bincount(binades[chosen], minlength=_BINADES)
        with np.errstate(over="ignore"):
            squares += np.bincount(binades, nonzero * nonzero, _BINADES)
    end = _masked_from(counts)
    limit = math.ldexp(0.5, end + _LEAST_EXPONENT) if end < _BINADES else math.inf
    return zeros + int(counts[:, :end].sum()), float(squares[:end].sum()), limit


def _masked_from(counts: NDArray[np.int64]) -> int:
    """Return the binade from which on elements are under a mask.

    A mask adds one constant, so what is under it has one sign and a magnitude within some binades,
    with some empty ones below. That k elements of a smooth density all lie below n empty binades
    has a chance of about 2**-(k n).

    Args:
        counts: The number of positive and of negative elements in each binade, from the smallest
            number on.
    """
    end = _BINADES
    while True:
        used = np.flatnonzero(counts[:, :end].any(axis=0))
        if not used.size or used[-1] < _LEAST_MASK - _LEAST_EXPONENT:
            return end
        group = used[used > used[-1] - _MASK_BINADES]
        lower = used[: used.size - group.size]
        if not lower.size or counts[:, group].any(axis=1).all():
            return end
        gap = int(group[0] - lower[-1]) - 1
        # Without a gap of many binades below them, large values are the tail of one distribution.
        if gap < _MASK_BINADES or gap * int(counts[:, lower].sum()) < _CERTAIN_BITS:
            return end
        end = int(lower[-1]) + 1
