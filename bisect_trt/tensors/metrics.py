"""Further numbers on how two tensors differ: cosine similarity, signal-to-noise ratio, ULP distance, percentiles.

They are worked out a block at a time in float64, so they need little memory and lose no digits of large tensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.comparison import Details
from bisect_trt.tensors.info import is_extension
from bisect_trt.tensors.stats import blocks

PERCENTILES = (50, 90, 95, 99)

Array = NDArray[Any]


def details(reference: Array, target: Array, absolute: Array, needed: tuple[float, float]) -> Details:
    """What is told of a comparison beside its verdict.

    Args:
        reference: What the tensor should be, as the runtime gave it; of any numeric type, not empty.
        target: What it is, of the same shape.
        absolute: Their absolute errors, of any shape. Is sorted in place.
        needed: The absolute and the relative tolerance that would have passed, each with the other as it is.
    """
    atol, rtol = needed
    cosine, snr = _similarity(reference.reshape(-1), target.reshape(-1))
    # An error that occurs, so that Inf is not interpolated to NaN.
    errors = np.percentile(absolute.astype(np.float64), PERCENTILES, method="higher")
    return Details(
        atol_needed=atol,
        rtol_needed=rtol,
        percentiles={str(percent): float(error) for percent, error in zip(PERCENTILES, errors, strict=True)},
        cosine=cosine,
        snr_db=snr,
        max_ulp=ulp_distance(reference, target),
    )


def _similarity(reference: Array, target: Array) -> tuple[float | None, float | None]:
    """Cosine similarity, and the signal-to-noise ratio in dB with the reference as the signal.

    Both as Polygraphy 0.53.6 defines them (``CosineSimilarityCompareFunc``, and ``SnrCompareFunc`` with the reference
    first): two zero vectors have similarity 1, a zero and another one 0; without noise the ratio is Inf, without a signal
    -Inf. NaN where a value is; ``None`` for complex numbers.
    """
    if "c" in (reference.dtype.kind, target.dtype.kind):
        return None, None
    product = reference_squares = target_squares = noise = 0.0
    for ours, theirs in zip(blocks(reference), blocks(target), strict=True):
        signal, seen = ours.astype(np.float64), theirs.astype(np.float64)
        product += float(np.dot(signal, seen))
        reference_squares += float(np.dot(signal, signal))
        target_squares += float(np.dot(seen, seen))
        seen -= signal
        noise += float(np.dot(seen, seen))
    if not reference_squares or not target_squares:
        cosine = float(reference_squares == target_squares)
    else:
        cosine = product / (math.sqrt(reference_squares) * math.sqrt(target_squares))
        cosine = cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine))
    if not noise:
        return cosine, math.inf
    return cosine, 10 * (_log10(reference_squares) - _log10(noise))


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf if value == 0 else value


def ulp_distance(reference: Array, target: Array) -> float | None:
    """The most numbers of the narrower of two floating-point types that lie between two elements.

    Of two types the wider is rounded first. Pairs with a NaN are left out, Inf is the number after the largest one.
    ``None`` where a type is no IEEE-like one of 16, 32 or 64 bits, or where every pair has a NaN.

    The bits of a floating-point number, read as an integer of sign and magnitude, count its neighbours (B. Dawson,
    "Comparing floating point numbers", 2012).
    """
    if not (_is_float(reference.dtype) and _is_float(target.dtype)):
        return None
    narrow = min(reference.dtype, target.dtype, key=lambda dtype: (dtype.itemsize, not is_extension(dtype)))
    farthest: int | None = None
    for ours, theirs in zip(blocks(reference), blocks(target), strict=True):
        one, other = ours.astype(narrow, copy=False), theirs.astype(narrow, copy=False)
        known = ~(np.isnan(one) | np.isnan(other))
        if known.any():
            first, second = _ordered(one[known]), _ordered(other[known])
            # Larger less smaller, read as unsigned, cannot wrap around.
            apart = np.subtract(np.maximum(first, second), np.minimum(first, second)).view(np.uint64)
            farthest = max(farthest or 0, int(apart.max()))
    return None if farthest is None else float(farthest)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return (dtype.kind == "f" and dtype.itemsize <= 8) or dtype.name == "bfloat16"


def _ordered(values: Array) -> Array:
    """Integers in the order of the numbers, neighbours one apart, and 0 for both zeros."""
    bits = values.view(f"i{values.itemsize}").astype(np.int64)
    lowest = np.int64(-(2 ** (8 * values.itemsize - 1)))
    return np.where(bits < 0, lowest - bits, bits)
