"""Metrics of how near a signal comes to the reference's: cosine similarity, PSNR, SNR. No labels have a part in them.

Of a sample the worst of its floating-point outputs counts, and of the set the mean over samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.scores.terms import (
    Labels,
    Metric,
    Outputs,
    Terms,
    chosen_output,
    is_floating,
    to_float,
)

MOST_DB = 100.0
"""What a sample without any error counts, in decibels, for Inf has no mean; less error than this is the same as none."""
Vector = NDArray[np.float64]


def cosine(name: str, output: str | None) -> Metric:
    """The cosine similarity, from -1 to 1; 1 of two zero vectors."""
    of = partial(_worst, name, output, cosine_similarity, (-1.0, 1.0))
    return Metric(name, lower_is_better=False, of_sample=of)


def psnr(name: str, output: str | None) -> Metric:
    """The peak signal-to-noise ratio, ``10 log10(peak^2 / MSE)``; the peak is the reference's largest value."""
    of = partial(_worst, name, output, peak_signal_to_noise, (-MOST_DB, MOST_DB))
    return Metric(name, lower_is_better=False, of_sample=of, unit=" dB")


def snr(name: str, output: str | None) -> Metric:
    """The signal-to-noise ratio, ``10 log10(power of the reference / power of the difference)``."""
    of = partial(_worst, name, output, signal_to_noise, (-MOST_DB, MOST_DB))
    return Metric(name, lower_is_better=False, of_sample=of, unit=" dB")


def _worst(
    what: str,
    output: str | None,
    measure: Callable[[Vector, Vector], float],
    ends: tuple[float, float],
    seen: Outputs,
    reference: Outputs,
    labels: Labels,  # noqa: ARG001 - as all
) -> Terms:
    names = [chosen_output(output, reference, what)]
    if output is None:
        names = [name for name, values in reference.items() if is_floating(values)]
    low, high = ends
    found = high
    for name in names:
        ours, theirs = reference[name], seen.get(name)
        if theirs is None or theirs.shape != ours.shape:
            return Terms(low, 1.0, low, high)
        if ours.size:
            with np.errstate(all="ignore"):
                value = measure(to_float(ours).reshape(-1), to_float(theirs).reshape(-1))
            found = min(found, low if math.isnan(value) else max(value, low))
    return Terms(found, 1.0, low, high)


def cosine_similarity(reference: Vector, seen: Vector) -> float:
    """Of two vectors, as Polygraphy 0.53.6 defines it (``CosineSimilarityCompareFunc``): 1 for two zero vectors."""
    one, other = float(np.dot(reference, reference)), float(np.dot(seen, seen))
    if not one or not other:
        return float(one == other)
    return float(np.dot(reference / math.sqrt(one), seen / math.sqrt(other)))


def signal_to_noise(reference: Vector, seen: Vector) -> float:
    """In decibels; Inf without noise, minus Inf without a signal."""
    noise = float(np.square(seen - reference).sum())
    return _decibels(float(np.square(reference).sum()), noise)


def peak_signal_to_noise(reference: Vector, seen: Vector) -> float:
    """In decibels, over the reference's largest value, or 1 where that is not positive, as Polygraphy 0.53.6 has it."""
    peak = float(reference.max())
    peak = 1.0 if peak <= 0 else peak
    return _decibels(peak * peak, float(np.square(seen - reference).mean()))


def _decibels(power: float, noise: float) -> float:
    if math.isnan(noise) or math.isnan(power):
        return math.nan
    if not noise:
        return math.inf
    return 10 * (math.log10(power) - math.log10(noise)) if power > 0 and math.isfinite(noise) else -math.inf
