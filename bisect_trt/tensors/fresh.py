"""Random samples of the same kind as the given ones and, as far as possible, with the same distribution.

A report states what varies, because a fix that holds on such samples may fail on others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct, field, structs

from bisect_trt.tensors.info import Array
from bisect_trt.tensors.inputs import Sample, resized

_WAYS = (*["alike"] * 4, "permuted", "permuted", "rescaled", "renormed", "rows", "channels")
"""The variations of consecutive samples. Rows and channels differ in magnitude: one overflows or
vanishes before others."""
STRETCH = 2.0
"""Values are rescaled by a factor between its inverse and it."""
_SPREAD = 3
"""Rows and channels are rescaled by factors from ``STRETCH`` to the power of minus this up to plus
this."""
_UNEVEN = 3.0
"""The least ratio of the largest to the median root mean square of an axis's slices that are drawn
separately."""
_LARGEST_AXIS = 8192
_BY_CHANCE = 0.7
"""The least share of the expected differences of neighbours of a mask that is drawn anew."""
_FEW = 8
_SMOOTH = 1.06
"""The fewest values to estimate a distribution from, and the bandwidth of Silverman's rule, in std
n**-1/5."""


class Kind(Enum):
    """The kind of an input's values."""

    FIXED = "fixed"
    MASK = "mask"
    IDS = "ids"
    UNIT = "unit"
    REAL = "real"


class Input(Struct, frozen=True):
    """Properties of one input: its values in each given sample, and the least and largest id.

    ``standard`` values look normalised to mean 0 and deviation 1. The distribution differs along
    ``axis``, if any.
    """

    kind: Kind
    samples: tuple[Array, ...]
    low: int = 0
    high: int = 0
    standard: bool = False
    axis: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it may count what differs in size between samples: one integer a row, not the same in each sample."""
        first = self.samples[0]
        a_row = first.dtype.kind in "iu" and first.size == (first.shape[0] if first.ndim else 1)
        return a_row and not all(np.array_equal(first, sample) for sample in self.samples)


class FreshSamples(Struct, frozen=True):
    """Draws samples, varied in each of the ``ways`` in turn; the same number gives the same sample.

    Where the given samples differ in size, so do these; ``between`` says whether in sizes between
    the given ones too.
    """

    inputs: Mapping[str, Input]
    seed: int = 0
    ways: tuple[str, ...] = field(default=_WAYS)
    between: bool = False

    @classmethod
    def like(
        cls, samples: Sequence[Sample], sizes: Mapping[str, int], seed: int = 0
    ) -> FreshSamples:
        """Return samples with the properties of one or more given ones, each with the shapes of one of these.

        Args:
            samples: The given samples, one or more: arrays by input name.
            sizes: The number of entries of the table that an input of indices reads, by input name.
            seed: The seed of the random values.
        """
        # The square of a number past 1e154 is Inf.
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = {
                name: _learn([sample[name] for sample in samples], sizes.get(name))
                for name in samples[0]
            }
        if not differ_in_size(inputs.values()):
            return cls(inputs, seed)
        counts = [name for name, source in inputs.items() if source.counts and name not in sizes]
        fixed = {name: structs.replace(inputs[name], kind=Kind.FIXED) for name in counts}
        return cls(inputs | fixed, seed, between=not counts)

    def draw(self, number: int) -> Sample:
        """Return a sample; the same number, from 0, gives the same one."""
        rng = np.random.default_rng([self.seed, number])
        variation = self.ways[number % len(self.ways)]
        bases = self._bases(rng)
        # Callers drop samples with Inf.
        with np.errstate(over="ignore", invalid="ignore"):
            return {
                name: _draw(source, variation, rng, bases.get(name))
                for name, source in self.inputs.items()
            }

    def _bases(self, rng: np.random.Generator) -> Sample:
        """Return the inputs in sizes between two given samples; empty where samples differ in values only.

        Each dimension goes the same part of the way, so a mask stays as long as its text, and a
        total the sum of its parts. A dimension stays a multiple of the common divisor of its sizes.
        """
        sources = self.inputs.values()
        if not differ_in_size(sources):
            return {}
        start, end = rng.integers(len(next(iter(sources)).samples), size=2)
        steps = 0
        for source in sources:
            shapes = [sample.shape for sample in source.samples]
            # Between two samples of other ranks there is no size.
            if not self.between or len(set(map(len, shapes))) > 1:
                return {name: source.samples[start] for name, source in self.inputs.items()}
            for sizes in zip(*shapes, strict=True):
                unit = math.gcd(*sizes) or 1
                steps = math.gcd(steps, abs(sizes[end] - sizes[start]) // unit)
        step = int(rng.integers(steps, endpoint=True))
        bases: Sample = {}
        for name, source in self.inputs.items():
            ends = (source.samples[start], source.samples[end])
            sizes_of_axes = zip(*(sample.shape for sample in ends), strict=True)
            shape = [
                first + (last - first) // max(steps, 1) * step for first, last in sizes_of_axes
            ]
            # The larger sample is cut, so that few values are repeated.
            bases[name] = resized(max(ends, key=np.size), shape)
        return bases

    @property
    def varies(self) -> bool:
        """Whether any input varies."""
        return any(source.kind is not Kind.FIXED for source in self.inputs.values())


def differ_in_size(sources: Iterable[Input]) -> bool:
    """Return whether the given samples of an input differ in size."""
    return any(len({value.shape for value in source.samples}) > 1 for source in sources)


def _learn(samples: Sequence[Array], size: int | None) -> Input:
    values = samples[0]
    arrays = tuple(samples)
    pooled = np.concatenate([sample.reshape(-1) for sample in samples])
    if values.dtype.kind not in "fiub" or not pooled.size or not np.isfinite(pooled).all():
        return Input(Kind.FIXED, arrays)
    distinct = np.unique(pooled)
    # Two values in a tensor are a mask, unless it is as short as two values.
    two = len(distinct) == 2 and values.size > 2
    if values.dtype.kind == "b" or (two and size is None):
        return Input(Kind.MASK if two or values.ndim > 1 else Kind.FIXED, arrays)
    if values.dtype.kind in "iu":
        return _learn_ids(arrays, distinct, size)
    return Input(Kind.FIXED, arrays) if len(distinct) == 1 else _learn_numbers(arrays, pooled)


def _learn_numbers(arrays: tuple[Array, ...], pooled: Array) -> Input:
    low = float(pooled.min())
    high = float(pooled.max())
    std = float(pooled.std(dtype=np.float64))
    # Images and probabilities must not leave the range that the model was trained on.
    if low >= 0 and high <= 1 and pooled.size >= _FEW:
        return Input(Kind.UNIT, arrays, axis=_uneven_axis(arrays))
    standard = low < 0 and abs(float(pooled.mean(dtype=np.float64))) < std / 2 and 1 / 2 < std < 2
    return Input(
        Kind.REAL, arrays, standard=standard and pooled.size >= _FEW, axis=_uneven_axis(arrays)
    )


def _learn_ids(arrays: tuple[Array, ...], distinct: Array, size: int | None) -> Input:
    values = max(arrays, key=np.size)
    ones = size is None and values.ndim == 2 and len(distinct) == 1 and int(distinct[0]) == 1
    if ones:
        return Input(Kind.MASK, arrays)
    steps = (
        np.diff(values.astype(np.int64), axis=-1)
        if values.ndim and values.shape[-1] > 1
        else np.zeros(1)
    )
    # 0, 1, 2, ... are positions, and no other values would be valid.
    positions = bool((steps == 1).all())
    low = int(distinct[0])
    high = int(distinct[-1])
    if positions or (size is None and len(distinct) <= 1) or high > np.iinfo(np.int64).max:
        return Input(Kind.FIXED, arrays)
    if size is None:
        return Input(Kind.IDS, arrays, low, high)
    if low < 0:
        return Input(Kind.IDS, arrays, -size, size - 1)
    types = high <= 1 < size and len(distinct) <= 2 and values.size > 2
    return Input(Kind.IDS, arrays, 0, 1 if types else size - 1)


def _uneven_axis(samples: Sequence[Array]) -> int | None:
    """Return the axis along which values differ most in size, if they differ much."""
    values = samples[0].astype(np.float64)
    if any(sample.shape != values.shape for sample in samples):
        return None
    best = _UNEVEN
    uneven = None
    for axis, length in enumerate(values.shape):
        # A long axis is one of positions, and a few values say nothing about a channel.
        if not 1 < length <= _LARGEST_AXIS or values.size // length < _FEW:
            continue
        remaining_axes = tuple(index for index in range(values.ndim) if index != axis)
        sizes = np.sqrt(np.square(values).mean(axis=remaining_axes))
        middle = float(np.median(sizes))
        ratio = float(sizes.max()) / middle if middle > 0 else 1.0
        if ratio > best:
            best = ratio
            uneven = axis
    return uneven


def _draw(source: Input, variation: str, rng: np.random.Generator, base: Array | None) -> Array:
    if base is None:
        base = source.samples[int(rng.integers(len(source.samples)))]
    if source.kind is Kind.FIXED:
        return base
    if source.kind is Kind.MASK:
        return _other_mask(base, source, rng)
    if variation == "permuted" and base.size > 1:
        return _permuted(base, rng)
    if source.kind is Kind.IDS:
        return rng.integers(source.low, source.high, size=base.shape, endpoint=True).astype(
            base.dtype
        )
    return _draw_numbers(source, base, variation, rng)


def _draw_numbers(source: Input, base: Array, variation: str, rng: np.random.Generator) -> Array:
    if variation == "rescaled":
        factor = 1 / STRETCH if source.kind is Kind.UNIT else STRETCH ** float(rng.uniform(-1, 1))
        return np.asarray(base * base.dtype.type(factor))
    if variation in ("rows", "channels") and base.ndim > 1:
        return _scaled_apart(source, base, variation, rng)
    # Inputs of other preprocessing: standardised for 0 to 1, and the other way round.
    if variation == "renormed" and source.kind is Kind.UNIT:
        return np.asarray(rng.standard_normal(base.shape)).astype(base.dtype)
    if variation == "renormed" and source.standard:
        return np.asarray(rng.random(base.shape)).astype(base.dtype)
    return _alike(source, base, rng)


def _scaled_apart(source: Input, base: Array, variation: str, rng: np.random.Generator) -> Array:
    """Rescale each row (all axes but the last) or channel (axis 1 of images, else the last) by its own factor."""
    shape = [*base.shape[:-1], 1]
    if variation == "channels":
        axis = 1 if base.ndim > 3 else base.ndim - 1
        shape = [length if place == axis else 1 for place, length in enumerate(base.shape)]
    powers = np.clip(rng.standard_normal(shape), -_SPREAD, _SPREAD)
    factors = STRETCH ** (-np.abs(powers) if source.kind is Kind.UNIT else powers)
    return np.asarray(base * factors.astype(base.dtype))


def _other_mask(base: Array, source: Input, rng: np.random.Generator) -> Array:
    """Return another mask: other lengths for padding (ones and then zeros), values without an order anew, else other rows."""
    distinct = np.unique(np.concatenate([sample.reshape(-1) for sample in source.samples]))
    low, high = (distinct[0], distinct[-1]) if len(distinct) > 1 else (distinct[0] * 0, distinct[0])
    if base.ndim and base.shape[-1] > 1:
        length = base.shape[-1]
        rows = base.reshape(-1, length) == high
        falling = not (np.diff(rows.astype(np.int8), axis=-1) > 0).any()
        if falling and rows[:, 0].all() and base.ndim <= 2:
            # At least half of the row stays: an empty text is no sample that a user has.
            ends = rng.integers((length + 1) // 2, length, size=len(rows), endpoint=True)
            mask = np.where(np.arange(length) < ends[:, None], high, low)
            return np.asarray(mask, base.dtype).reshape(base.shape)
    if base.ndim > 1 and base.shape[-2] > 1:
        if _is_irregular(base == high):
            drawn = rng.random(base.shape) < (base == high).mean()
            return np.asarray(np.where(drawn, high, low), base.dtype)
        return np.take(base, rng.permutation(base.shape[-2]), axis=-2)
    return rng.permutation(base) if base.ndim == 1 else base


def _is_irregular(ones: Array) -> bool:
    """Return whether neighbours in a mask differ about as often as by chance, along both axes, and counts differ.

    The edges of a graph are; causal masks, blocks and one-hot rows are not.
    """
    share = float(ones.mean())
    chance = 2 * share * (1 - share) * _BY_CHANCE
    differ = [
        float(np.diff(ones.astype(np.int8), axis=axis).astype(bool).mean()) for axis in (-1, -2)
    ]
    return min(differ) > chance and all(np.ptp(ones.sum(axis)) > 0 for axis in (-1, -2))


def _permuted(base: Array, rng: np.random.Generator) -> Array:
    """Return the values with one axis permuted or rolled."""
    axes = [axis for axis, length in enumerate(base.shape) if length > 1]
    if not axes:
        return base
    axis = axes[int(rng.integers(len(axes)))]
    length = base.shape[axis]
    order = (
        rng.permutation(length)
        if rng.random() < 1 / 2
        else np.roll(np.arange(length), int(rng.integers(1, length)))
    )
    # The identity would return the given sample.
    if (order == np.arange(length)).all():
        order = np.roll(order, 1)
    return np.take(base, order, axis=axis)


def _alike(source: Input, base: Array, rng: np.random.Generator) -> Array:
    """Return values with the same distribution: a smoothed bootstrap, of each slice of an uneven axis for itself.

    B. Silverman and G. Young, "The bootstrap: to smooth or not to smooth?", 1987; the bandwidth is
    Silverman's rule.
    """
    if base.size < _FEW:
        factor = STRETCH ** rng.uniform(-1, 1, size=base.shape)
        return np.asarray(base * factor).astype(base.dtype)
    axis = source.axis
    slices = [
        sample[..., None] if axis is None else np.moveaxis(sample, axis, -1)
        for sample in source.samples
    ]
    stacked = np.concatenate([values.reshape(-1, values.shape[-1]) for values in slices])
    count, length = stacked.shape
    rows = rng.integers(
        count, size=(base[..., None] if axis is None else np.moveaxis(base, axis, -1)).shape
    )
    drawn = stacked[rows, np.arange(length)].astype(np.float64)
    spread = stacked.std(axis=0, dtype=np.float64)
    spread = np.where(np.isfinite(spread), spread, 0.0)
    noise = rng.standard_normal(drawn.shape) * (_SMOOTH * spread * float(count) ** (-1 / 5))
    # The noise adds variance; shrinking towards the mean restores the deviation.
    shrunk = 1 / np.sqrt(1 + (_SMOOTH * float(count) ** (-1 / 5)) ** 2)
    middle = drawn.mean(axis=tuple(range(drawn.ndim - 1)))
    drawn = middle + (drawn - middle + noise) * shrunk
    drawn = drawn[..., 0] if axis is None else np.moveaxis(drawn, -1, axis)
    # A cache of one sample may be empty.
    low = float(stacked.min())
    high = float(stacked.max())
    # Values that are all positive, negative or in [0, 1] stay so.
    if source.kind is Kind.UNIT or low >= 0 or high <= 0:
        drawn = np.clip(drawn, low if low >= 0 else -np.inf, high if high <= 1 else np.inf)
    return drawn.astype(base.dtype)
