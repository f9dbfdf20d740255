"""How well each scale and zero point fits, measured on what the reference computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.graph.qdq import Pair
from bisect_trt.probing.activations import Reference
from bisect_trt.tensors.grid import Grid, along, ranges
from bisect_trt.workflows.bits.counting import what_counts
from bisect_trt.workflows.bits.misfit import BIT, Misfit, Problem, lost_among, pair_outputs, problems, stored_problems
from bisect_trt.workflows.bits.plain import Plain
from bisect_trt.workflows.bits.stored import constant_of
from bisect_trt.workflows.subject import Subject

_OTHERWISE = 0.3
"""Bits that a slice of a stored weight is larger or smaller than rounding by its scale makes it."""
_BYTE, _ENOUGH_DB = 255, 44.0
"""With more steps than these a value past the calibrated range costs many bits, and does no harm while what is left is as much as
8 bits make of values of both signs: 127 steps for four deviations."""


def find_misfits(
    subject: Subject, plain: Plain, pairs: Iterable[Pair], references: Sequence[Reference]
) -> list[Misfit]:
    """Look at every pair."""
    return [_look(subject, plain, pair, references) for pair in pairs]


def _look(subject: Subject, plain: Plain, pair: Pair, references: Sequence[Reference]) -> Misfit:
    network, grid = subject.network, Grid.of(pair.type_name)
    scale = constant_of(subject, pair.scale)
    zero = constant_of(subject, pair.zero_point) if pair.zero_point is not None else None
    if scale is None or grid is None or (zero is None and pair.zero_point is not None):
        return Misfit(pair)
    scale = np.atleast_1d(scale.astype(np.float64))
    zero = np.zeros_like(scale) if zero is None else np.atleast_1d(zero.astype(np.float64))
    values = list(_values(subject, plain, pair, references))
    if pair.kind == "bias" or not values:
        return Misfit(pair, scale, zero, problems=tuple(stored_problems(subject, pair, scale)))
    axis = None if scale.size == 1 else pair.axis
    lows, highs = zip(*(ranges(value, axis, pair.block) for value in values), strict=True)
    low, high = np.minimum.reduce(lows), np.maximum.reduce(highs)
    symmetric = grid.signed and not zero.any()
    fitted, fitted_zero = grid.fit(low, high, symmetric=symmetric)
    fitted, fitted_zero = fitted.reshape(scale.shape), fitted_zero.reshape(scale.shape)
    signal = own = fit = clipped = among = 0.0
    for value in values:
        spread = [along(each, value.shape, pair.axis, pair.block) for each in (scale, zero, fitted, fitted_zero)]
        exact = value.astype(np.float64)
        signal += float(np.mean(np.square(exact)))
        mine = grid.rounded(exact, spread[0], spread[1])
        own += float(np.mean(np.square(mine - exact)))
        best = grid.rounded(exact, spread[2], spread[3])
        fit += float(np.mean(np.square(best - exact)))
        if scale.size == 1:
            among += lost_among(network, pair, value, best) / len(values)
        bottom, top = grid.ends(np.abs(spread[0]), spread[1])
        slack = np.abs(spread[0]) * 0.5000001
        clipped += float(np.mean((exact < bottom - slack) | (exact > top + slack))) / len(values)
    off = _stored_otherwise(subject, pair, (scale, zero), values[0], mine)
    own = own if off is None else off[0]
    own_db, fit_db = _decibels(signal, own), _decibels(signal, fit)
    could = min(fit_db, _ENOUGH_DB) if grid.high - grid.low > _BYTE else fit_db
    lost = 0.0 if not signal else min(max((could - own_db) / BIT, 0.0), 32.0) if math.isfinite(own) else 32.0
    seen = Misfit(
        pair,
        scale,
        zero,
        fitted,
        fitted_zero,
        float(low.min()),
        float(high.max()),
        clipped,
        min(lost + among, 32.0),
        own_db,
        fit_db,
        drowned=among > 0,
    )
    others = problems(network, seen, grid, values, symmetric=symmetric)
    return replace(seen, problems=(*(() if off is None else (off[1],)), *others))


def _stored_otherwise(
    subject: Subject, pair: Pair, by: tuple[NDArray[Any], NDArray[Any]], value: NDArray[Any], rounded: NDArray[Any]
) -> tuple[float, Problem] | None:
    """What is wrong with a weight that is stored as another one than the original has, and the mean square of what it is off by.

    Its integers were made by the scale that it had: with another one they are no longer the weight, however well that fits.
    A quantizer that lets one weight make up for another leaves each slice as large as rounding does.

    Args:
        subject: The model.
        pair: Where the weight is dequantized.
        by: Its scale and zero point.
        value: The weight in the original.
        rounded: The same rounded by that scale.
    """
    steps = constant_of(subject, pair.tensor) if not pair.quantize else None
    if steps is None or steps.shape != value.shape:
        return None
    scale, zero = (along(each, value.shape, pair.axis, pair.block) for each in by)
    made = (steps.astype(np.float64) - zero) * scale
    slices = 1 if by[0].size == 1 or pair.block else value.shape[pair.axis]
    exact, right, stored = (
        np.moveaxis(each.astype(np.float64), 0 if slices == 1 else pair.axis, 0).reshape(slices, -1)
        for each in (value, rounded, made)
    )
    wanted, found = (np.abs((exact * each).sum(axis=1)) for each in (right, stored))
    live = (wanted > 0) & (found > 0)
    off = np.where(live, np.abs(np.log2(np.where(live, found, 1) / np.where(live, wanted, 1))), 0)
    worst = int(off.argmax())
    if off[worst] < _OTHERWISE:
        return None
    where = "the weight" if (off[live] >= _OTHERWISE).all() else f"slice {worst} of the weight"
    sentence = (
        f"{where} is {found[worst] / np.square(exact[worst]).sum():.3g} times what it is in the model from before quantization: "
        "the scale is wrong, or what is stored was made by another one"
    )
    return float(np.mean(np.square(stored - exact))), ("weight scale", sentence)


def _values(subject: Subject, plain: Plain, pair: Pair, references: Sequence[Reference]) -> Iterator[NDArray[Any]]:
    """The floats that are quantized, as far as they are known."""
    if pair.kind == "weight" and not pair.quantize:
        for name in pair_outputs(subject.network, pair)[:1]:
            if plain.taken and name in plain.taken:
                yield plain.taken[name]
        return
    stored = constant_of(subject, pair.tensor)
    if stored is not None and pair.tensor in subject.network.producer:  # it may be made of what is dequantized
        stored = constant_of(subject, pair.tensor, plain.network)
    if stored is not None:
        yield stored
        return
    for reference in references:
        value = reference.select([pair.tensor]).get(pair.tensor)
        if value is not None and value.dtype.kind in "fV" and value.size:
            plainly = value.astype(np.float32)
            if pair.clip is not None:
                plainly = np.clip(plainly, pair.clip[0], pair.clip[1])
            if np.isfinite(plainly).all():
                yield what_counts(subject.network, pair, plainly)


def _decibels(signal: float, noise: float) -> float:
    """Signal to noise; 120 dB where there is none, -60 where it is not a number."""
    if not math.isfinite(noise):
        return -60.0
    return 10 * math.log10(max(signal, 1e-30) / max(noise, signal * 1e-12, 1e-42))
