"""Numbers that sum up one tensor, taken a block at a time so that they need little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.info import is_extension

_BLOCK = 1 << 20
"""Elements in a block: 8 MiB in float64."""


def is_finite(values: NDArray[Any]) -> bool:
    """Whether there is neither NaN nor Inf among the values of any type."""
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


@dataclass(frozen=True)
class TensorStats:
    """The range of one tensor's values.

    Attributes:
        min: Smallest finite value; NaN where none is finite.
        max: Largest finite value; NaN where none is finite.
        absmax: Largest finite magnitude; NaN where none is finite.
        has_nan: Whether some element is NaN.
        has_inf: Whether some element is Inf or -Inf.
    """

    min: float
    max: float
    absmax: float
    has_nan: bool
    has_inf: bool


def tensor_stats(values: NDArray[Any]) -> TensorStats:
    """The range of the finite values of a real tensor, of any shape, and what else is in it."""
    low, high, has_nan, has_inf = math.inf, -math.inf, False, False
    for block in blocks(values):
        elements = block.astype(np.float32) if is_extension(block.dtype) else block
        if elements.dtype.kind == "f" and not (finite := np.isfinite(elements)).all():
            has_nan = has_nan or bool(np.isnan(elements).any())
            has_inf = has_inf or bool(np.isinf(elements).any())
            elements = elements[finite]
        if elements.size:
            low, high = min(low, float(elements.min())), max(high, float(elements.max()))
    if low > high:
        low = high = math.nan
    return TensorStats(low, high, max(abs(low), abs(high)), has_nan, has_inf)


def count_nonfinite(values: NDArray[Any]) -> tuple[int, int]:
    """How many elements are NaN, and how many Inf or -Inf; none, of strings."""
    nan = inf = 0
    for block in blocks(values):
        elements = block.astype(np.float32) if is_extension(block.dtype) else block
        if elements.dtype.kind in "fc":
            nan += int(np.count_nonzero(np.isnan(elements)))
            inf += int(np.count_nonzero(np.isinf(elements)))
    return nan, inf


def finite_rms(values: NDArray[Any]) -> float:
    """Root mean square of the finite elements; 0 where there are none, or where it is beyond float64."""
    squares, count = 0.0, 0
    for block in blocks(values):
        magnitudes = np.abs(block if block.dtype.kind == "c" else block.astype(np.float64)).astype(np.float64)
        magnitudes = magnitudes[np.isfinite(magnitudes)]
        with np.errstate(over="ignore"):
            squares += float(np.dot(magnitudes, magnitudes))
        count += magnitudes.size
    return math.sqrt(squares / count) if count and math.isfinite(squares) else 0.0


def blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The elements in C order, about a million at a time: views, where the array is contiguous."""
    flat = values.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
