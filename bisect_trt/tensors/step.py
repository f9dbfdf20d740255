"""Rounding to a grid: what one step of a quantized tensor is, and how many elements may be off by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TIES = 0.01
"""The share of elements that may be one step off, where what was rounded is the same but for its last digits. Cut off
instead of rounded, half of them are."""
_TIES_AFTER_TIES = 0.25
"""The same where what was rounded has ties behind it."""
SLACK = 1 + 1e-3
"""A step, as it is computed."""
RIPPLE = 2e-2
"""Of a tensor's root mean square, and of its values: how far off it may be where it was computed from tensors with ties. A
step of 8 bits is about as much."""


@dataclass(frozen=True)
class Step:
    """How far apart the values are that a tensor may have.

    A value next to the middle of two steps goes to either, by the last digit of what was rounded. Such a tie is no error.
    But a wrong zero point, or numbers cut off instead of rounded, move every element, or half of them.

    Attributes:
        size: One step for all, or one for each place along ``axis``; ``None`` for a tensor that is computed from quantized
            ones, where a tie shows as a ripple.
        after: Whether what is rounded was computed from other quantized tensors, so that their ties add to its own.
    """

    size: NDArray[np.float64] | None
    after: bool = False
    axis: int = 0

    def ties(self, absolute: NDArray[Any], mismatch: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which elements are one step off, as far as that is not systematic.

        Args:
            absolute: The absolute errors, flat.
            mismatch: Which of them are past the tolerance.
            shape: The tensor's.
        """
        none = np.zeros_like(mismatch)
        if self.size is None:
            return none
        size = self.size
        if size.size > 1:
            along = [1] * len(shape)
            along[self.axis] = size.size
            size = np.broadcast_to(size.reshape(along), shape).reshape(-1)
        one = mismatch & (absolute <= size * SLACK)
        return one if np.count_nonzero(one) <= self.most(mismatch.size) else none

    def most(self, total: int) -> int:
        """How many of so many elements may be ties."""
        return max(int((_TIES_AFTER_TIES if self.after else _TIES) * total), 1)
