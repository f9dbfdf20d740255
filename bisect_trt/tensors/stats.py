"""Statistics of one tensor, computed a block at a time, so that they need little memory; sums in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.info import is_extension

Array = NDArray[Any]
Vector = NDArray[np.float64]

_FP16_MAX = 65504.0
_BLOCK = 1 << 20
"""Elements in a block: 8 MiB in float64."""


def blocks(values: Array) -> Iterator[Array]:
    """The elements in C order, about a million at a time: views, where the array is contiguous."""
    flat = values.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))


def to_float(values: Array) -> Vector:
    """Numbers as float64."""
    return np.asarray(values.astype(np.float32) if is_extension(values.dtype) else values, dtype=np.float64)


def is_floating(values: Array) -> bool:
    """Whether it holds floating-point numbers of any width."""
    return values.dtype.kind == "f" or (is_extension(values.dtype) and "int" not in values.dtype.name)


def is_finite(values: Array) -> bool:
    """Whether there is neither NaN nor Inf among the values of any type."""
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


@dataclass(frozen=True)
class TensorStats:
    """The range of one tensor's values.

    Attributes:
        min: Smallest finite value; NaN where none is finite.
        max: Largest finite value; NaN where none is finite.
        absmax: Largest finite magnitude; NaN where none is finite.
        nan: How many elements are NaN.
        inf: How many are Inf or -Inf.
    """

    min: float
    max: float
    absmax: float
    nan: int = 0
    inf: int = 0


def tensor_stats(values: Array) -> TensorStats:
    """The range of the finite values of a real tensor, of any shape, and how many others are in it."""
    low, high, nan, inf = math.inf, -math.inf, 0, 0
    for block in blocks(values):
        elements = block.astype(np.float32) if is_extension(block.dtype) else block
        if elements.dtype.kind == "f" and not (finite := np.isfinite(elements)).all():
            nan += int(np.count_nonzero(np.isnan(elements)))
            inf += int(np.count_nonzero(np.isinf(elements)))
            elements = elements[finite]
        if elements.size:
            low, high = min(low, float(elements.min())), max(high, float(elements.max()))
    if low > high:
        low = high = math.nan
    return TensorStats(low, high, max(abs(low), abs(high)), nan, inf)


def count_nonfinite(values: Array) -> tuple[int, int]:
    """How many elements are NaN, and how many Inf or -Inf; none, of strings."""
    nan = inf = 0
    for block in blocks(values):
        elements = block.astype(np.float32) if is_extension(block.dtype) else block
        if elements.dtype.kind in "fc":
            nan += int(np.count_nonzero(np.isnan(elements)))
            inf += int(np.count_nonzero(np.isinf(elements)))
    return nan, inf


def finite_rms(values: Array) -> float:
    """Root mean square of the finite elements; 0 where there are none, or where it is beyond float64.

    Elements under a mask (about -1e30) do not count. They are past what fp16 holds, and 2**24 times larger than all others: a sum
    of fp32 keeps nothing of these beside them, so the rounding of the others does not depend on them.
    """
    largest, limit = max((float(block.max()) for block in _magnitudes(values)), default=0.0), math.inf
    if largest > _FP16_MAX:
        half = largest / 2
        rest = max(float(block.max(initial=0.0, where=block < half)) for block in _magnitudes(values))
        limit = half if 0 < rest < largest * 2.0**-24 else limit
    squares, count = 0.0, 0
    for block in _magnitudes(values):
        counted = block[block < limit]
        with np.errstate(over="ignore"):
            squares += float(np.dot(counted, counted))
        count += counted.size
    return math.sqrt(squares / count) if count and math.isfinite(squares) else 0.0


def _magnitudes(values: Array) -> Iterator[Vector]:
    """The magnitudes of the finite elements, block by block; no empty blocks."""
    for block in blocks(values):
        magnitudes = np.abs(block if block.dtype.kind == "c" else block.astype(np.float64)).astype(np.float64)
        finite = magnitudes[np.isfinite(magnitudes)]
        if finite.size:
            yield finite
