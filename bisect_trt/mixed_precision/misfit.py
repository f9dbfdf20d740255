"""The fit of scales and zero points to the values of quantized tensors, and the problems of those that do not fit.

The arithmetic follows ONNX's QuantizeLinear and DequantizeLinear: divide by the scale, round half
to even, add the zero point, saturate; and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct, structs

from bisect_trt.mixed_precision.plain import Plain, clip_bound, constant_of
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import label
from bisect_trt.onnxlib.qdq import Pair
from bisect_trt.probe.reference import Reference
from bisect_trt.report.mixed import BETTER_ZERO, CLIPPED, INVALID_SCALE, LARGE_SCALE
from bisect_trt.report.parts import QuantizedTensor, ScaleProblem
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.info import Array


class ScaleRule(str, Enum):
    """The problems of a scale and its zero point."""

    SCALE = "scale"
    TOO_LARGE = "scale too large"
    ZERO_POINT = "zero point"
    CLIPPING = "clipping"


Problem = tuple[ScaleRule, str]
"""A rule, and a sentence."""
_BIT = 6.0206
"""Decibels of noise that a bit is worth."""
_LARGE = 2.0
_SMALL = 0.6
_MANY = 0.05
"""A scale so many times the fitted one is wrong; so few times; and one that clips this share of the
values."""
_MOST_VALUES = 4096
_BYTE = 255
_ENOUGH_DB = 44.0
"""With more steps than these a value past the calibrated range costs many bits, and does no harm as
long as 8 bits are left."""


class Grid(Struct, frozen=True):
    """The values of a quantized type, before the scale; a floating-point type has bits of a fraction and a least exponent."""

    low: float
    high: float
    fraction: int | None = None
    exponent: int = 0

    def rounded(self, values: Array, scale: Array, zero: Array) -> Array:
        """Values after quantizing and dequantizing; the scale and the zero point broadcast to them.

        Args:
            values: Floats of any shape.
            scale: Positive floats that broadcast to the values.
            zero: Zero points as floats, of the scale's shape; 0 in a float type.
        """
        # A scale of 0 is one of the things to find.
        with np.errstate(all="ignore"):
            steps = np.asarray(values, np.float64) / scale
            if self.fraction is None:
                return np.asarray(
                    (np.clip(np.rint(steps) + zero, self.low, self.high) - zero) * scale
                )
            size = np.maximum(
                np.floor(np.log2(np.maximum(np.abs(steps), 2.0**-100))), self.exponent
            )
            step = 2.0 ** (size - self.fraction)
            return np.asarray(np.clip(np.rint(steps / step) * step, self.low, self.high) * scale)

    def fit(self, low: Array, high: Array, *, symmetric: bool) -> tuple[Array, Array]:
        """The scale and zero point that have room for values from ``low`` to ``high``, and for 0, and no more.

        Args:
            low: The smallest value of each slice, one element a scale.
            high: The largest, of the same shape.
            symmetric: Whether the zero point has to be 0.
        """
        low = np.minimum(low, 0.0).astype(np.float64)
        high = np.maximum(high, 0.0).astype(np.float64)
        if self.fraction is not None or symmetric:
            scale = np.maximum(low / self.low if self.low < 0 else 0 * low, high / self.high)
            return np.where(scale > 0, scale, 1.0), np.zeros_like(scale)
        scale = (high - low) / (self.high - self.low)
        scale = np.where(scale > 0, scale, 1.0)
        return scale, np.clip(np.rint(self.low - low / scale), self.low, self.high)


_GRIDS = {
    **{f"uint{bits}": Grid(0, 2**bits - 1) for bits in (2, 4, 8, 16, 32)},
    **{f"int{bits}": Grid(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (2, 4, 8, 16, 32)},
    "float8e4m3fn": Grid(-448.0, 448.0, 3, -6),
    "float8e4m3fnuz": Grid(-240.0, 240.0, 3, -7),
    "float8e5m2": Grid(-57344.0, 57344.0, 2, -14),
    "float8e5m2fnuz": Grid(-57344.0, 57344.0, 2, -15),
    "float4e2m1": Grid(-6.0, 6.0, 1, 0),
}
"""The grids of types, by ONNX's names (ONNX, "Float stored in 8 bits"; OCP, "Microscaling formats"
1.0)."""


class Misfit(Struct, frozen=True):
    """A quantized tensor, and how its values fit.

    Attributes:
        pair: Its nodes.
        scale: The scale; ``None`` where it is computed as the model runs.
        zero: The zero point, of the same shape.
        fitted_scale: A scale that has room for the values that were seen, and no more; ``None``
            where they are not known.
        fitted_zero: Its zero point.
        low: The least value seen.
        high: The largest.
        clipped: The share of values for which there is no room.
        bits_lost: By how many bits the rounding is coarser than it would be with the fitted scale.
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
    problems: tuple[Problem, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether it is wrong, and not just calibrated on other values: a few of these past its range cost bits too."""
        rules = {rule for rule, _ in self.problems}
        if (
            ScaleRule.SCALE in rules
            or self.scale is None
            or self.fitted_scale is None
            or self.bits_lost <= 1
        ):
            return ScaleRule.SCALE in rules
        with np.errstate(all="ignore"):
            ratios = np.abs(self.scale) / self.fitted_scale
        wide = bool((ratios > _LARGE).any() or (ratios < _SMALL).any())
        return wide or self.clipped > _MANY or ScaleRule.ZERO_POINT in rules

    def to_part(self, network: Network) -> QuantizedTensor:
        """The tensor as results have it, nodes by their labels."""
        pair = self.pair
        return QuantizedTensor(
            tensor=pair.tensor,
            kind=pair.kind,
            type=pair.type_name,
            scale=pair.scale,
            scale_value=_numbers(self.scale),
            zero_point=pair.zero_point,
            zero_point_value=_numbers(self.zero),
            fitted_scale=_numbers(self.fitted_scale),
            fitted_zero_point=_numbers(self.fitted_zero),
            quantize=tuple(label(network.nodes[index]) for index in pair.quantize),
            dequantize=tuple(label(network.nodes[index]) for index in pair.dequantize),
            seen=None if self.fitted_scale is None else (self.low, self.high),
            clipped=round(self.clipped, 6),
            bits_lost=round(self.bits_lost, 3),
            bad=self.bad,
            problems=tuple(
                ScaleProblem(rule=rule.value, sentence=sentence) for rule, sentence in self.problems
            ),
        )


def _numbers(values: Array | None) -> float | list[float | None] | None:
    if values is None:
        return None
    flat = [
        float(number) if math.isfinite(number) else None
        for number in np.asarray(values, np.float64).reshape(-1)
    ]
    return flat[0] if len(flat) == 1 else flat[:_MOST_VALUES]


def find_misfit(
    subject: Subject, plain: Plain, pair: Pair, references: Sequence[Reference]
) -> Misfit:
    """Compare the scale and zero point of a pair with the values that the reference has there."""
    grid = _GRIDS.get(pair.type_name)
    scale, zero = (constant_of(subject, name) for name in (pair.scale, pair.zero_point))
    if scale is None or grid is None or (zero is None and pair.zero_point is not None):
        return Misfit(pair)
    scale = scale.astype(np.float64).reshape(-1)
    zero = np.zeros_like(scale) if zero is None else zero.astype(np.float64).reshape(-1)
    invalid = not (np.isfinite(scale).all() and (scale > 0).all())
    problems = ((ScaleRule.SCALE, INVALID_SCALE.format(_short(scale))),) if invalid else ()
    values = [_rows(value, scale.size, pair) for value in _values(subject, plain, pair, references)]
    # The scale of a bias follows from its product's, so no range of its values fits better.
    if pair.kind == "bias" or not values:
        return Misfit(pair, scale, zero, problems=problems)
    low = np.min([value.min(axis=1) for value in values], axis=0)
    high = np.max([value.max(axis=1) for value in values], axis=0)
    fitted, fitted_zero = grid.fit(low, high, symmetric=grid.low < 0 and not zero.any())
    step = np.abs(scale)[:, None]
    # Powers: their ratios are decibels, and decibels are bits.
    signal = 0.0
    own = 0.0
    fit = 0.0
    clipped = 0.0
    bottom, top = ((end - zero[:, None]) * step for end in (grid.low, grid.high))
    for value in values:
        exact = value.astype(np.float64)
        signal += float(np.mean(np.square(exact)))
        own += float(np.mean(np.square(grid.rounded(exact, scale[:, None], zero[:, None]) - exact)))
        fit += float(
            np.mean(np.square(grid.rounded(exact, fitted[:, None], fitted_zero[:, None]) - exact))
        )
        # Values up to half a step past the last level still round to it.
        slack = step * 0.5000001
        clipped += float(np.mean((exact < bottom - slack) | (exact > top + slack))) / len(values)
    own_db = _decibels(signal, own)
    could = _decibels(signal, fit)
    # 16 bits resolve more than the float model's own rounding, so digits lost up there are no
    # loss.
    could = min(could, _ENOUGH_DB) if grid.high - grid.low > _BYTE else could
    lost = (
        0.0
        if not signal
        else min(max((could - own_db) / _BIT, 0.0), 32.0)
        if math.isfinite(own)
        else 32.0
    )
    seen = Misfit(
        pair,
        scale,
        zero,
        fitted,
        fitted_zero,
        float(low.min()),
        float(high.max()),
        clipped,
        lost,
        problems,
    )
    return (
        seen
        if invalid
        else structs.replace(seen, problems=tuple(_problems(seen, grid, scale, zero, fitted)))
    )


def _rows(values: Array, count: int, pair: Pair) -> Array:
    """The values that share a scale, a row for each of ``count`` scales; the last value fills a block that is not full."""
    if count == 1 or not values.ndim:
        return values.reshape(1, -1)
    axis = pair.axis % values.ndim
    if pair.block:
        missing = -values.shape[axis] % pair.block
        values = np.pad(
            values, [(0, missing * (place == axis)) for place in range(values.ndim)], mode="edge"
        )
        before = values.shape[:axis]
        after = values.shape[axis + 1 :]
        return np.moveaxis(values.reshape(*before, -1, pair.block, *after), axis + 1, -1).reshape(
            count, -1
        )
    return np.moveaxis(values, axis, 0).reshape(count, -1)


def _values(
    subject: Subject, plain: Plain, pair: Pair, references: Sequence[Reference]
) -> Iterator[Array]:
    """The floats that are quantized, as far as they are known."""
    network = subject.network.flat
    if pair.kind == "weight" and not pair.quantize:
        for index in pair.dequantize[:1]:
            if plain.taken and network.nodes[index].output[0] in plain.taken:
                yield plain.taken[network.nodes[index].output[0]]
        return
    stored = constant_of(subject, pair.tensor)
    if (
        stored is not None and pair.tensor in network.producer
    ):  # it may be made of what is dequantized
        stored = constant_of(subject, pair.tensor, plain.network)
    if stored is not None:
        yield stored
        return
    # A clip between the tensor and its quantizer is a part of the quantized range.
    low, high = _bounds(network, pair) if pair.clip is None else (0.0, pair.clip)
    for reference in references:
        floats = _floats(reference.select([pair.tensor]).get(pair.tensor), low, high)
        if floats is not None and np.isfinite(floats).all():
            yield floats


def _floats(value: Array | None, low: float | None, high: float | None) -> Array | None:
    """Floats in single precision within bounds; ``None`` for other values."""
    # Kind V is bfloat16 and the 8-bit floats, which NumPy does not know.
    if value is None or value.dtype.kind not in "fV" or not value.size:
        return None
    floats = value.astype(np.float32)
    return floats if low is None and high is None else np.clip(floats, low, high)


def _bounds(network: Network, pair: Pair) -> tuple[float | None, float | None]:
    """The bounds between which all readers let values through: quantizers leave no room for what a Relu or Clip cuts off."""
    names = [network.nodes[index].output[0] for index in pair.dequantize]
    readers = [network.nodes[reader] for reader in network.readers_of(names)]
    # Another reader, or the user, sees the values that a Relu would cut off.
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


def _problems(
    misfit: Misfit, grid: Grid, scale: Array, zero: Array, fitted: Array
) -> Iterator[Problem]:
    """The problem of a tensor with a valid scale, if there is one."""
    room = f"[{float(((grid.low - zero) * scale).min()):.4g}, {float(((grid.high - zero) * scale).max()):.4g}]"
    had = f"[{misfit.low:.4g}, {misfit.high:.4g}]"
    # In octaves: a channel that is half is as bad as one that is twice as large.
    worst = int(np.argmax(np.abs(np.log2(scale / fitted))))
    ratio = float(scale[worst] / fitted[worst])
    clips = CLIPPED.format(misfit.clipped, room, had)
    if (
        misfit.bits_lost > 1
        and 1 / 2 < ratio < 2
        and misfit.clipped
        and (zero != misfit.fitted_zero).any()
    ):
        assert misfit.fitted_zero is not None
        yield (
            ScaleRule.ZERO_POINT,
            clips + BETTER_ZERO.format(_short(zero), _short(misfit.fitted_zero)),
        )
    elif misfit.bits_lost > 1 and ratio >= 1:
        place = "" if scale.size == 1 else f" of slice {worst}"
        yield (
            ScaleRule.TOO_LARGE,
            LARGE_SCALE.format(place, scale[worst], ratio, had),
        )
    elif misfit.bits_lost > 1 or misfit.clipped > 1e-3:
        yield ScaleRule.CLIPPING, clips


def _short(values: Array) -> str:
    """A number, or the ends of many."""
    low = float(values.min())
    high = float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
