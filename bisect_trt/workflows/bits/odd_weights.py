"""What can be told of weights that are stored quantized where nothing is known of what they were made of: suspicions.

A wrong scale of such a weight is in the model with floats too, so no probe sees it. But a quantizer fills its type: integers
that use a part of it had too large a scale, many at its ends too small a one; and a scale that was changed afterwards
makes a weight, or one slice of it, out of line with the model's others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bisect_trt.tensors.grid import Array, Grid, along
from bisect_trt.workflows.bits.misfit import Misfit, Problem
from bisect_trt.workflows.bits.plain import Plain
from bisect_trt.workflows.bits.stored import constant_of
from bisect_trt.workflows.subject import Subject

_UNUSED = 1 / 4
"""Of what this model's weights usually use of their type: two bits are lost."""
_SATURATED, _SATURATED_COARSE, _TIMES = 0.05, 0.25, 4.0
"""The share of elements at the ends, one a slice aside; of types under 8 bits, which have few others; and so many times what is
usual in the model, whose quantizer may have clipped on purpose."""
_BITS, _SIGMAS = 3.0, 6.0
"""Out of line is what is so many bits from the middle one, and so many times as far as the others are."""
_LEAST = 5
"""Of fewer nothing is usual."""


@dataclass(frozen=True)
class _Weight:
    """A stored weight.

    Attributes:
        misfit: Its nodes and scale.
        use: The share of its type's room that each slice uses; of slices that are not all zero.
        ends: The share of elements at the ends.
        size: Root mean square of the dequantized values, times the square root of how many are added up; ``None`` of a vector.
    """

    misfit: Misfit
    use: Array
    ends: float
    size: float | None


def with_suspicions(subject: Subject, plain: Plain, misfits: Sequence[Sequence[Misfit]]) -> list[list[Misfit]]:
    """Add to the stored weights, by group, what looks odd about them."""
    taken = plain.taken or {}
    names = subject.network.nodes
    unknown = [
        each
        for found in misfits
        for each in found
        if each.pair.kind == "weight"
        and not each.pair.quantize
        and not any(names[index].output[0] in taken for index in each.pair.dequantize)
    ]
    weights = [weight for each in unknown if (weight := _look(subject, each)) is not None]
    usual = float(np.median([weight.use.max() for weight in weights])) if weights else 1.0
    ends = float(np.median([weight.ends for weight in weights])) if weights else 0.0
    sized = [weight for weight in weights if weight.size]
    sizes = np.log2([weight.size for weight in sized if weight.size])
    odd: dict[int, list[Problem]] = {}
    for weight in weights:
        odd[id(weight.misfit)] = [*_of_integers(weight, usual, ends), *_of_scales(weight)]
    for place, weight in enumerate(sized):
        odd[id(weight.misfit)] += _of_size(sizes, place)
    return [[replace(each, problems=(*each.problems, *odd.get(id(each), ()))) for each in found] for found in misfits]


def _look(subject: Subject, misfit: Misfit) -> _Weight | None:
    pair, scale, zero, grid = misfit.pair, misfit.scale, misfit.zero, Grid.of(misfit.pair.type_name)
    stored = constant_of(subject, pair.tensor)
    if stored is None or scale is None or zero is None or grid is None or grid.fraction is not None or stored.size < 2:
        return None  # a single number fills its type however its scale is
    steps = stored.astype(np.float64)
    offset = steps - along(zero, steps.shape, pair.axis, pair.block)
    room = max(grid.high - float(zero.min()), float(zero.max()) - grid.low)
    per_slice = _largest(np.abs(offset), None if scale.size == 1 else pair.axis, pair.block) / room
    if not (per_slice > 0).any():
        return None
    low = -grid.high if grid.signed and not zero.any() else grid.low  # -128 is used by few
    by_design = per_slice.size * (
        1 if grid.signed and not zero.any() else 2
    )  # the largest, and the least with a zero point
    at_ends = int(np.count_nonzero((steps >= grid.high) | (steps <= low))) - by_design
    floats = offset * along(np.abs(scale), steps.shape, pair.axis, pair.block)
    added = steps.size / max(steps.shape[pair.axis % steps.ndim] if scale.size > 1 else steps.shape[0], 1)
    size = float(np.sqrt(np.mean(np.square(floats)) * added)) if sum(each > 1 for each in steps.shape) > 1 else None
    if np.unique(offset[offset != 0]).size == 1:  # a mask, or a gain that is the same for all
        return _Weight(misfit, per_slice[per_slice > 0], 0.0, None)
    return _Weight(misfit, per_slice[per_slice > 0], max(at_ends, 0) / steps.size, size)


def _largest(values: Array, axis: int | None, block: int) -> Array:
    """The largest value of all, of each slice, or of each block of a slice's places."""
    if axis is None:
        return np.atleast_1d(values.max())
    axis %= values.ndim
    if block:
        starts = np.arange(0, values.shape[axis], block)
        return np.maximum.reduceat(values, starts, axis=axis).reshape(-1)
    return np.asarray(values.max(axis=tuple(place for place in range(values.ndim) if place != axis)))


def _of_integers(weight: _Weight, usual: float, ends: float) -> Iterator[Problem]:
    """How the integers fill their type."""
    name = weight.misfit.pair.type_name
    narrow = int(np.count_nonzero(weight.use < _UNUSED * usual))
    if narrow:
        which = "the integers" if weight.use.size == 1 else f"the integers of {narrow} of {weight.use.size} slices"
        yield (
            "range use",
            f"{which} use {weight.use.min():.1%} of {name}, where {usual:.0%} is usual in this model: the scale may be too large",
        )
    coarse = name in ("int4", "uint4", "int2", "uint2")
    if weight.ends > max(_SATURATED_COARSE if coarse else _SATURATED, _TIMES * ends):
        yield "saturated", f"{weight.ends:.1%} of the integers are at the ends of {name}: the scale may be too small"


def _of_scales(weight: _Weight) -> Iterator[Problem]:
    """One slice's scale beside the others'."""
    scale = weight.misfit.scale
    if scale is None or scale.size < _LEAST or weight.misfit.problems or not (scale > 0).all():
        return
    bits = np.log2(scale.reshape(-1))
    place = int(np.argmax(np.abs(bits - np.median(bits))))
    if _is_out_of_line(bits, place):
        yield (
            "out of line",
            f"the scale of slice {place} is {2 ** (bits[place] - np.median(bits)):.3g} times the middle one",
        )


def _of_size(sizes: Array, place: int) -> Iterator[Problem]:
    """One weight beside the model's others."""
    if len(sizes) >= _LEAST and _is_out_of_line(sizes, place):
        times = 2 ** (sizes[place] - np.median(sizes))
        yield (
            "out of line",
            f"its values are {times:.3g} times as large, for how many are added up, as this model's usually are",
        )


def _is_out_of_line(bits: Array, place: int) -> bool:
    off = np.abs(bits - np.median(bits))
    others = np.delete(off, place)
    return bool(off[place] > max(_BITS, _SIGMAS * 1.4826 * float(np.median(others))))


def suspicions(groups: Sequence[str], misfits: Sequence[Sequence[Misfit]]) -> list[dict[str, str]]:
    """For the result: the stored weights that look odd, each with its group, rule and sentence."""
    return [
        {"group": name, "tensor": each.pair.tensor, "scale": each.pair.scale, "rule": rule, "sentence": sentence}
        for name, found in zip(groups, misfits, strict=True)
        for each in found
        if each.pair.kind == "weight" and not each.pair.quantize and each.fitted_scale is None
        for rule, sentence in each.problems
    ]
