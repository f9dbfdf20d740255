"""The values that a quantized type has, in NumPy: rounding to them, and the scale that fits a tensor.

The arithmetic is that of ONNX's QuantizeLinear and DequantizeLinear: divide by the scale, round half to even, add the zero
point, saturate; and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
_INTEGERS = {f"{sign}int{bits}": (bits, bool(sign)) for bits in (2, 4, 8, 16, 32) for sign in ("", "u")}
_FLOATS = {
    "float8e4m3fn": (3, -6, 448.0),
    "float8e4m3fnuz": (3, -7, 240.0),
    "float8e5m2": (2, -14, 57344.0),
    "float8e5m2fnuz": (2, -15, 57344.0),
    "float4e2m1": (1, 0, 6.0),
}
"""Bits of the fraction, least exponent, largest value (ONNX, "Float stored in 8 bits"; OCP, "Microscaling formats" 1.0)."""


@dataclass(frozen=True)
class Grid:
    """The values of a quantized type, before the scale.

    Attributes:
        name: ONNX's name of the type, in small letters.
        low: The least.
        high: The largest.
        fraction: Bits of the fraction of a floating-point type; ``None`` for integers.
        exponent: The least exponent of one.
    """

    name: str
    low: float
    high: float
    fraction: int | None = None
    exponent: int = 0

    @classmethod
    def of(cls, name: str) -> Grid | None:
        """That of a type; ``None`` for one that is not known."""
        if name in _INTEGERS:
            bits, unsigned = _INTEGERS[name]
            return cls(name, 0, 2**bits - 1) if unsigned else cls(name, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if name in _FLOATS:
            fraction, exponent, high = _FLOATS[name]
            return cls(name, -high, high, fraction, exponent)
        return None

    @property
    def signed(self) -> bool:
        """Whether it has negative values."""
        return self.low < 0

    def rounded(self, values: Array, scale: Array, zero: Array) -> Floats:
        """What becomes of values that are quantized and made floats again.

        Args:
            values: The values.
            scale: The scale, of a shape that goes with theirs.
            zero: The zero point, likewise.
        """
        with np.errstate(all="ignore"):  # a scale of 0 is one of the things to find
            steps = np.asarray(values, np.float64) / scale
            if self.fraction is None:
                return np.asarray((np.clip(np.rint(steps) + zero, self.low, self.high) - zero) * scale, np.float64)
            size = np.maximum(np.floor(np.log2(np.maximum(np.abs(steps), 2.0**-100))), self.exponent)
            step = 2.0 ** (size - self.fraction)
            return np.clip(np.rint(steps / step) * step, self.low, self.high) * scale

    def ends(self, scale: Array, zero: Array) -> tuple[Floats, Floats]:
        """The least and the largest value that there is."""
        return (self.low - zero) * np.asarray(scale, np.float64), (self.high - zero) * np.asarray(scale, np.float64)

    def fit(self, low: Array, high: Array, *, symmetric: bool) -> tuple[Floats, Floats]:
        """The scale and zero point that have room for values from ``low`` to ``high``, and for 0, and no more."""
        low, high = np.minimum(low, 0.0).astype(np.float64), np.maximum(high, 0.0).astype(np.float64)
        if self.fraction is not None or symmetric:
            scale = np.maximum(-low / -self.low if self.signed else 0 * low, high / self.high)
            return _positive(scale), np.zeros_like(scale)
        scale = _positive((high - low) / (self.high - self.low))
        return scale, np.clip(np.rint(self.low - low / scale), self.low, self.high)


def _positive(scale: Floats) -> Floats:
    return np.where(scale > 0, scale, 1.0)


def along(values: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale, or a zero point, spread over a tensor: of one value, of one for each slice, or of one for each block.

    Args:
        values: The scale.
        shape: The tensor's.
        axis: Along which slices or blocks lie.
        block: How many elements a block has; 0 for slices.

    Returns:
        Of a shape that goes with the tensor's; of no dimension where it is one value.
    """
    if values.size == 1:
        return values.reshape(())
    axis %= len(shape)
    if block:
        return np.take(values, np.arange(shape[axis]) // block, axis=axis)
    spread = [1] * len(shape)
    spread[axis] = values.size
    return values.reshape(spread)


def ranges(values: Array, axis: int | None, block: int = 0) -> tuple[Array, Array]:
    """The least and the largest value: of all, of each slice along an axis, or of each block along it.

    Args:
        values: A tensor.
        axis: Along which slices lie; ``None`` for all of it.
        block: How many elements a block has; 0 for slices.
    """
    if axis is None or not values.ndim:
        return np.asarray(values.min()), np.asarray(values.max())
    axis %= values.ndim
    if block:
        places = np.arange(0, values.shape[axis], block)
        return np.minimum.reduceat(values, places, axis=axis), np.maximum.reduceat(values, places, axis=axis)
    others = tuple(place for place in range(values.ndim) if place != axis)
    return values.min(axis=others), values.max(axis=others)
