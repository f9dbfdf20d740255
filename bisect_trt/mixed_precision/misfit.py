"""The fit of scales and zero points to the values of quantized tensors, and the problems of those that do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.commands.subject import Subject
from bisect_trt.mixed_precision.grid import Array, Grid, along, ranges
from bisect_trt.mixed_precision.plain import Plain, clip_bound, constant_of
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import label
from bisect_trt.onnxlib.qdq import Pair
from bisect_trt.probe.reference import Reference

_BIT = 6.0206
"""Decibels of noise that a bit is worth."""
_LARGE, _SMALL, _MANY = 2.0, 0.6, 0.05
"""A scale so many times the fitted one is wrong; so few times; and one that clips this share of the values."""
_MOST_VALUES = 4096
_BYTE, _ENOUGH_DB = 255, 44.0
"""With more steps than these a value past the calibrated range costs many bits, and does no harm as long as 8 bits are left."""
Problem = tuple[str, str]
"""A rule, and a sentence."""


@dataclass(frozen=True)
class Misfit:
    """A quantized tensor, and how its values fit.

    Attributes:
        pair: Its nodes.
        scale: The scale; ``None`` where it is computed as the model runs.
        zero: The zero point, of the same shape.
        fitted_scale: A scale that has room for the values that were seen, and no more; ``None`` where they are not known.
        fitted_zero: Its zero point.
        low: The least value seen.
        high: The largest.
        clipped: The share of values for which there is no room.
        bits_lost: By how many bits the rounding is coarser than it would be with the fitted scale.
        snr_db: Signal to noise of the tensor as it is quantized.
        fitted_db: The same with the fitted scale.
        problems: What is wrong.
    """

    pair: Pair
    scale: Array | None = None
    zero: Array | None = None
    fitted_scale: Array | None = None
    fitted_zero: Array | None = None
    low: float = 0.0
    high: float = 0.0
    clipped: float = 0.0
    bits_lost: float = 0.0
    snr_db: float | None = None
    fitted_db: float | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether it is wrong, and not just calibrated on other values: a few of these past its range cost bits too."""
        if any(rule == "scale" for rule, _ in self.problems):
            return True
        ratios = self.ratios
        if ratios is None or self.bits_lost <= 1:
            return False
        wide = bool((ratios > _LARGE).any() or (ratios < _SMALL).any())
        return wide or self.clipped > _MANY or any(rule == "zero point" for rule, _ in self.problems)

    @property
    def ratios(self) -> Array | None:
        """Each scale over the fitted one."""
        if self.scale is None or self.fitted_scale is None or self.scale.shape != self.fitted_scale.shape:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.scale) / self.fitted_scale)

    def to_json(self, network: Network) -> dict[str, Any]:
        """Plain values, nodes by their labels."""
        pair, single = self.pair, self.scale is not None and self.scale.size == 1
        kind = (
            "dynamic" if self.scale is None else "blocked" if pair.block else "per-tensor" if single else "per-channel"
        )
        return {
            "tensor": pair.tensor,
            "kind": pair.kind,
            "type": pair.type_name,
            "granularity": kind,
            "axis": None if self.scale is None or single else pair.axis,
            "block_size": pair.block or None,
            "scale": pair.scale,
            "scale_value": _numbers(self.scale),
            "zero_point": pair.zero_point,
            "zero_point_value": _numbers(self.zero),
            "fitted_scale": _numbers(self.fitted_scale),
            "fitted_zero_point": _numbers(self.fitted_zero),
            "quantize": [label(network.nodes[index]) for index in pair.quantize],
            "dequantize": [label(network.nodes[index]) for index in pair.dequantize],
            "seen": None if self.fitted_scale is None else [self.low, self.high],
            "clipped": round(self.clipped, 6),
            "bits_lost": round(self.bits_lost, 3),
            "snr_db": self.snr_db,
            "fitted_snr_db": self.fitted_db,
            "bad": self.bad,
            "problems": [{"rule": rule, "sentence": sentence} for rule, sentence in self.problems],
        }


def _numbers(values: Array | None) -> float | list[float | None] | None:
    if values is None:
        return None
    flat = [float(each) if math.isfinite(each) else None for each in np.asarray(values, np.float64).reshape(-1)]
    return flat[0] if len(flat) == 1 else flat[:_MOST_VALUES]


def usual_ratio(misfits: Sequence[Misfit]) -> float:
    """The usual ratio of the scales of a model to the fitted ones, at least 1: they were calibrated on other data.

    The lower third counts, so that it is usual even where most of what is left is bad.
    """
    ratios = [
        float(np.median(each.ratios)) for each in misfits if each.pair.kind == "activation" and each.ratios is not None
    ]
    known = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    return min(max(float(np.quantile(known, 1 / 3)), 1.0), 8.0) if known else 1.0


def find_misfit(subject: Subject, plain: Plain, pair: Pair, references: Sequence[Reference]) -> Misfit:
    """Hold the scale and zero point of a pair against the values that the reference has there."""
    grid = Grid.of(pair.type_name)
    scale = constant_of(subject, pair.scale)
    zero = constant_of(subject, pair.zero_point) if pair.zero_point is not None else None
    if scale is None or grid is None or (zero is None and pair.zero_point is not None):
        return Misfit(pair)
    scale = np.atleast_1d(scale.astype(np.float64))
    zero = np.zeros_like(scale) if zero is None else np.atleast_1d(zero.astype(np.float64))
    values = list(_values(subject, plain, pair, references))
    if pair.kind == "bias" or not values:
        return Misfit(pair, scale, zero, problems=() if _is_positive(scale) else (_no_scale(scale),))
    axis = None if scale.size == 1 else pair.axis
    lows, highs = zip(*(ranges(value, axis, pair.block) for value in values), strict=True)
    low, high = np.minimum.reduce(lows), np.maximum.reduce(highs)
    symmetric = grid.signed and not zero.any()
    fitted, fitted_zero = (each.reshape(scale.shape) for each in grid.fit(low, high, symmetric=symmetric))
    signal = own = fit = clipped = 0.0
    for value in values:
        spread = [along(each, value.shape, pair.axis, pair.block) for each in (scale, zero, fitted, fitted_zero)]
        exact = value.astype(np.float64)
        signal += float(np.mean(np.square(exact)))
        own += float(np.mean(np.square(grid.rounded(exact, spread[0], spread[1]) - exact)))
        fit += float(np.mean(np.square(grid.rounded(exact, spread[2], spread[3]) - exact)))
        bottom, top = grid.ends(np.abs(spread[0]), spread[1])
        slack = np.abs(spread[0]) * 0.5000001
        clipped += float(np.mean((exact < bottom - slack) | (exact > top + slack))) / len(values)
    own_db, fit_db = _decibels(signal, own), _decibels(signal, fit)
    could = min(fit_db, _ENOUGH_DB) if grid.high - grid.low > _BYTE else fit_db
    lost = 0.0 if not signal else min(max((could - own_db) / _BIT, 0.0), 32.0) if math.isfinite(own) else 32.0
    ends = float(low.min()), float(high.max())
    seen = Misfit(pair, scale, zero, fitted, fitted_zero, *ends, clipped, lost, own_db, fit_db)
    return replace(seen, problems=tuple(_problems(seen, grid, scale, zero, fitted)))


def _values(subject: Subject, plain: Plain, pair: Pair, references: Sequence[Reference]) -> Iterator[NDArray[Any]]:
    """The floats that are quantized, as far as they are known."""
    network = subject.network
    if pair.kind == "weight" and not pair.quantize:
        for index in pair.dequantize[:1]:
            if plain.taken and network.nodes[index].output[0] in plain.taken:
                yield plain.taken[network.nodes[index].output[0]]
        return
    stored = constant_of(subject, pair.tensor)
    if stored is not None and pair.tensor in network.producer:  # it may be made of what is dequantized
        stored = constant_of(subject, pair.tensor, plain.network)
    if stored is not None:
        yield stored
        return
    low, high = pair.clip or _bounds(network, pair)
    for reference in references:
        value = reference.select([pair.tensor]).get(pair.tensor)
        if value is not None and value.dtype.kind in "fV" and value.size:
            floats = value.astype(np.float32)
            if low is not None or high is not None:
                floats = np.clip(floats, low, high)
            if np.isfinite(floats).all():
                yield floats


def _bounds(network: Network, pair: Pair) -> tuple[float | None, float | None]:
    """The bounds between which all readers let values through: quantizers leave no room for what a Relu or Clip cuts off."""
    names = [network.nodes[index].output[0] for index in pair.dequantize]
    readers = [network.nodes[reader] for name in names for reader in network.consumers.get(name, ())]
    if not readers or any(name in network.outputs for name in names):
        return None, None
    if all(node.op_type == "Relu" for node in readers):
        return 0.0, None
    if len(readers) == 1 and readers[0].op_type == "Clip":
        return clip_bound(network, readers[0], 1, "min"), clip_bound(network, readers[0], 2, "max")
    return None, None


def _decibels(signal: float, noise: float) -> float:
    """Signal to noise; 120 dB where there is none, -60 where it is not a number."""
    if not math.isfinite(noise):
        return -60.0
    return 10 * math.log10(max(signal, 1e-30) / max(noise, signal * 1e-12, 1e-42))


def _problems(seen: Misfit, grid: Grid, scale: Array, zero: Array, fitted: Array) -> Iterator[Problem]:
    """The problems of a tensor, the worst first."""
    if not _is_positive(scale):
        yield _no_scale(scale)
        return
    bottom, top = grid.ends(scale, zero)
    room, had = f"[{float(bottom.min()):.4g}, {float(top.max()):.4g}]", f"[{seen.low:.4g}, {seen.high:.4g}]"
    worst = int(np.argmax(np.abs(np.log2(scale.reshape(-1) / fitted.reshape(-1)))))
    ratio = float(scale.reshape(-1)[worst] / fitted.reshape(-1)[worst])
    where = "" if scale.size == 1 else f" of slice {worst}"
    which = f"the scale{where} ({scale.reshape(-1)[worst]:.4g})"
    clips = f"{seen.clipped:.1%} of the values are clipped: there is room for {room}, values are in {had}"
    if seen.bits_lost > 1 and 1 / 2 < ratio < 2 and seen.clipped and (zero != seen.fitted_zero).any():
        assert seen.fitted_zero is not None
        yield "zero point", f"{clips}; instead of the zero point {_short(zero)}, {_short(seen.fitted_zero)} would fit"
    elif seen.bits_lost > 1 and ratio >= 1:
        used = max(1, round((grid.high - grid.low + 1) / ratio)) if grid.fraction is None else None
        steps = "" if used is None else f", which leaves about {used} of {int(grid.high - grid.low + 1)} steps"
        yield "scale too large", f"{which} is {ratio:.3g} times what values in {had} need{steps}"
    elif seen.bits_lost > 1:
        yield "clipping", f"{clips}; {which} is {1 / ratio:.3g} times too small"
    elif seen.clipped > 1e-3:
        yield "clipping", clips


def _is_positive(scale: Array) -> bool:
    return bool(np.isfinite(scale).all() and (scale > 0).all())


def _no_scale(scale: Array) -> Problem:
    return "scale", f"the scale {_short(scale)} is invalid: it has to be above 0"


def _short(values: Array) -> str:
    """A number, or the ends of many."""
    flat = np.asarray(values, np.float64).reshape(-1)
    return f"{flat[0]:.4g}" if flat.size == 1 or (flat == flat[0]).all() else f"{flat.min():.4g} to {flat.max():.4g}"
