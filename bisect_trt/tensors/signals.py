"""Measures of how alike two vectors are: cosine similarity and ratios of signal to noise."""

from __future__ import annotations

import math

import numpy as np

from bisect_trt.tensors.info import Vector


def cosine_similarity(reference: Vector, outputs: Vector) -> float:
    """Return a number from -1 to 1: 1 for two zero vectors, 0 for one zero vector, NaN for a NaN in either.

    As Polygraphy 0.53.6 defines it (``CosineSimilarityCompareFunc``).
    """
    reference_square = float(np.dot(reference, reference))
    outputs_square = float(np.dot(outputs, outputs))
    if not reference_square or not outputs_square:
        return float(reference_square == outputs_square)
    # Each vector is scaled first: the product of both norms may overflow or underflow.
    cosine = float(
        np.dot(reference / math.sqrt(reference_square), outputs / math.sqrt(outputs_square))
    )
    return cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine))


def scale_similarity(reference: Vector, outputs: Vector) -> float:
    """Return the smaller over the larger norm of two vectors: 1 where both are equal, 0 where one is 0, NaN for a NaN."""
    norms = [float(np.linalg.norm(vector)) for vector in (reference, outputs)]
    return min(norms) / max(norms) if max(norms) else 1.0


def peak_signal_to_noise(reference: Vector, outputs: Vector) -> float:
    """Return ``10 log10(peak^2 / MSE)`` in dB; the peak is the reference's largest value, or 1 where that is not positive.

    As Polygraphy 0.53.6 defines it (``PsnrCompareFunc``).
    """
    peak = float(reference.max())
    peak = 1.0 if peak <= 0 else peak
    noise = float(np.square(outputs - reference).mean())
    if not math.isfinite(noise):
        return math.nan if math.isnan(noise) else -math.inf
    return 20 * math.log10(peak) - 10 * math.log10(noise) if noise else math.inf


def signal_to_noise(reference: Vector, outputs: Vector) -> float:
    """Return ``10 log10(sum(reference^2) / sum(error^2))`` in dB: infinite without an error, NaN where a value is.

    Args:
        reference: Float64 values of the reference.
        outputs: Float64 values of the target, of the same shape.
    """
    signal = float(np.square(reference).sum())
    noise = float(np.square(outputs - reference).sum())
    if not noise:
        return math.inf
    # Any noise in a silent signal is all there is.
    if not (signal and math.isfinite(noise)):
        return math.nan if math.isnan(noise) else -math.inf
    return 10 * math.log10(signal / noise)
