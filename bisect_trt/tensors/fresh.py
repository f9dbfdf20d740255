"""Random samples of the same kind as the given ones and, as far as possible, with the same distribution.

:meth:`FreshSamples.describe` states what varies, because a fix that holds on such samples may fail
on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from bisect_trt.tensors.info import Array
from bisect_trt.tensors.inputs import Sample

_WAYS = (*["alike"] * 4, "permuted", "permuted", "rescaled", "renormed", "rows", "channels")
"""The variations of consecutive samples. Rows and channels differ in magnitude: one overflows or
vanishes before others."""
_STRETCH = 2.0
"""Values are rescaled by a factor between its inverse and it."""
_SPREAD = 3
"""Rows and channels are rescaled by factors from ``_STRETCH`` to the power of minus this up to plus
this."""
_UNEVEN = 3.0
"""The least ratio of the largest to the median root mean square of an axis's slices that are drawn
separately."""
_LARGEST_AXIS = 8192
_FEW = 8
_SMOOTH = 1.06
"""The fewest values to estimate a distribution from, and the bandwidth of Silverman's rule, in std
n**-1/5."""


class Kind(str, Enum):
    """The kind of an input's values."""

    FIXED = "as given"
    MASK = "other masks of the same two values"
    IDS = "ids"
    UNIT = "within [0, 1]"
    REAL = "real numbers"


@dataclass(frozen=True)
class Input:
    """Properties of one input: its values in each given sample, and the least and largest id.

    ``standard`` values look normalised to mean 0 and deviation 1. The distribution differs along
    ``axis``, if any.
    """

    kind: Kind
    given: tuple[Array, ...]
    low: int = 0
    high: int = 0
    standard: bool = False
    axis: int | None = None


@dataclass(frozen=True)
class FreshSamples:
    """Draws samples, varied in each of the ``ways`` in turn; the same number gives the same sample."""

    inputs: Mapping[str, Input]
    seed: int = 0
    ways: tuple[str, ...] = field(default=_WAYS)

    @classmethod
    def like(cls, given: Sequence[Sample], sizes: Mapping[str, int], seed: int = 0) -> FreshSamples:
        """Return samples with the properties of one or more given ones, each with the shapes of one of these.

        ``sizes`` has the number of entries of the table that an input of indices reads.
        """
        names = given[0]
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # the square of a number past 1e154 is Inf
            return cls(
                {
                    name: _learn([sample[name] for sample in given], sizes.get(name))
                    for name in names
                },
                seed,
            )

    def draw(self, number: int) -> Sample:
        """Return a sample; the same number, from 0, gives the same one."""
        rng = np.random.default_rng([self.seed, number])
        way = self.ways[number % len(self.ways)]
        # Where samples differ in shape, all inputs take those of one of them: a mask is as long as
        # its text.
        shared = None
        if any(len({value.shape for value in each.given}) > 1 for each in self.inputs.values()):
            shared = int(rng.integers(len(next(iter(self.inputs.values())).given)))
        with np.errstate(over="ignore", invalid="ignore"):  # callers drop samples with Inf
            return {name: _draw(each, way, rng, shared) for name, each in self.inputs.items()}

    @property
    def varies(self) -> bool:
        """Whether any input varies."""
        return any(each.kind is not Kind.FIXED for each in self.inputs.values())

    def describe(self) -> str:
        """Return a description of the samples, as text."""
        kinds: dict[str, list[str]] = {}
        for name, each in self.inputs.items():
            kinds.setdefault(_words(each, self.ways), []).append(f"'{name}'")
        return "; ".join(f"{', '.join(names)}: {words}" for words, names in kinds.items())


def _words(each: Input, ways: Sequence[str]) -> str:
    if each.kind in (Kind.FIXED, Kind.MASK):
        return str(each.kind.value)
    if each.kind is Kind.IDS:
        return f"other ids from {each.low} to {each.high}, and the same permuted"
    drawn = "random values with the same distribution, the given ones permuted"
    if "rescaled" not in ways:
        return drawn.replace(", the", " and the")
    if each.kind is Kind.UNIT:
        return f"{drawn}, rescaled within [0, 1] (by row and channel too), and N(0, 1), as normalised images"
    more = ", and uniform in [0, 1]" if each.standard else ""
    return f"{drawn}, rescaled by 1/{_STRETCH:g} to {_STRETCH:g} (by row and channel too){more}"


def _learn(given: Sequence[Array], size: int | None) -> Input:
    values = given[0]
    known = tuple(given)
    pooled = np.concatenate([each.reshape(-1) for each in given])
    if values.dtype.kind not in "fiub" or not pooled.size or not np.isfinite(pooled).all():
        return Input(Kind.FIXED, known)
    distinct = np.unique(pooled)
    two = len(distinct) == 2 and values.size > 2
    if values.dtype.kind == "b" or (two and size is None):
        return Input(Kind.MASK if two or values.ndim > 1 else Kind.FIXED, known)
    if values.dtype.kind in "iu":
        return _learn_ids(known, distinct, size)
    return Input(Kind.FIXED, known) if len(distinct) == 1 else _learn_numbers(known, pooled)


def _learn_numbers(known: tuple[Array, ...], pooled: Array) -> Input:
    low = float(pooled.min())
    high = float(pooled.max())
    std = float(pooled.std(dtype=np.float64))
    if low >= 0 and high <= 1 and pooled.size >= _FEW:
        return Input(Kind.UNIT, known, axis=_uneven_axis(known))
    standard = low < 0 and abs(float(pooled.mean(dtype=np.float64))) < std / 2 and 1 / 2 < std < 2
    return Input(
        Kind.REAL, known, standard=standard and pooled.size >= _FEW, axis=_uneven_axis(known)
    )


def _learn_ids(known: tuple[Array, ...], distinct: Array, size: int | None) -> Input:
    values = known[0]
    ones = size is None and values.ndim == 2 and len(distinct) == 1 and int(distinct[0]) == 1
    if ones:
        return Input(Kind.MASK, known)
    steps = (
        np.diff(values.astype(np.int64), axis=-1)
        if values.ndim and values.shape[-1] > 1
        else np.zeros(1)
    )
    positions = bool((steps == 1).all())  # 0, 1, 2, ... are positions, and no others would do
    low = int(distinct[0])
    high = int(distinct[-1])
    if positions or (size is None and len(distinct) <= 1) or high > np.iinfo(np.int64).max:
        return Input(Kind.FIXED, known)
    if size is None:
        return Input(Kind.IDS, known, low, high)
    if low < 0:
        return Input(Kind.IDS, known, -size, size - 1)
    types = high <= 1 < size and len(distinct) <= 2 and values.size > 2
    return Input(Kind.IDS, known, 0, 1 if types else size - 1)


def _uneven_axis(given: Sequence[Array]) -> int | None:
    """Return the axis along which values differ most in size, if they differ much."""
    values = given[0].astype(np.float64)
    if any(each.shape != values.shape for each in given):
        return None
    best = _UNEVEN
    found = None
    for axis, length in enumerate(values.shape):
        if not 1 < length <= _LARGEST_AXIS or values.size // length < _FEW:
            continue
        others = tuple(each for each in range(values.ndim) if each != axis)
        sizes = np.sqrt(np.square(values).mean(axis=others))
        middle = float(np.median(sizes))
        ratio = float(sizes.max()) / middle if middle > 0 else 1.0
        if ratio > best:
            best = ratio
            found = axis
    return found


def _draw(each: Input, way: str, rng: np.random.Generator, shared: int | None) -> Array:
    base = each.given[int(rng.integers(len(each.given))) if shared is None else shared]
    if each.kind is Kind.FIXED:
        return base
    if each.kind is Kind.MASK:
        return _other_mask(base, each, rng)
    if way == "permuted" and base.size > 1:
        return _permuted(base, rng)
    if each.kind is Kind.IDS:
        return rng.integers(each.low, each.high, size=base.shape, endpoint=True).astype(base.dtype)
    return _draw_numbers(each, base, way, rng)


def _draw_numbers(each: Input, base: Array, way: str, rng: np.random.Generator) -> Array:
    if way == "rescaled":
        factor = 1 / _STRETCH if each.kind is Kind.UNIT else _STRETCH ** float(rng.uniform(-1, 1))
        return np.asarray(base * base.dtype.type(factor))
    if way in ("rows", "channels") and base.ndim > 1:
        return _scaled_apart(each, base, way, rng)
    if way == "renormed" and each.kind is Kind.UNIT:
        return np.asarray(rng.standard_normal(base.shape)).astype(base.dtype)
    if way == "renormed" and each.standard:
        return np.asarray(rng.random(base.shape)).astype(base.dtype)
    return _alike(each, base, rng)


def _scaled_apart(each: Input, base: Array, way: str, rng: np.random.Generator) -> Array:
    """Rescale each row (all axes but the last) or channel (axis 1 of images, else the last) by its own factor."""
    shape = [*base.shape[:-1], 1]
    if way == "channels":
        axis = 1 if base.ndim > 3 else base.ndim - 1
        shape = [length if place == axis else 1 for place, length in enumerate(base.shape)]
    powers = np.clip(rng.standard_normal(shape), -_SPREAD, _SPREAD)
    factors = _STRETCH ** (-np.abs(powers) if each.kind is Kind.UNIT else powers)
    return np.asarray(base * factors.astype(base.dtype))


def _other_mask(base: Array, each: Input, rng: np.random.Generator) -> Array:
    """Return another mask: other lengths for rows of ones and then zeros (padding), else the rows in another order."""
    known = np.unique(np.concatenate([given.reshape(-1) for given in each.given]))
    low, high = (known[0], known[-1]) if len(known) > 1 else (known[0] * 0, known[0])
    if base.ndim and base.shape[-1] > 1:
        length = base.shape[-1]
        rows = base.reshape(-1, length) == high
        falling = not (np.diff(rows.astype(np.int8), axis=-1) > 0).any()
        if falling and rows[:, 0].all() and base.ndim <= 2:
            ends = rng.integers((length + 1) // 2, length, size=len(rows), endpoint=True)
            made = np.where(np.arange(length) < ends[:, None], high, low)
            return np.asarray(made, base.dtype).reshape(base.shape)
    if base.ndim > 1 and base.shape[-2] > 1:
        return np.take(base, rng.permutation(base.shape[-2]), axis=-2)
    return rng.permutation(base) if base.ndim == 1 else base


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
    if (order == np.arange(length)).all():  # the given sample
        order = np.roll(order, 1)
    return np.take(base, order, axis=axis)


def _alike(each: Input, base: Array, rng: np.random.Generator) -> Array:
    """Return values with the same distribution: a smoothed bootstrap, of each slice of an uneven axis for itself.

    B. Silverman and G. Young, "The bootstrap: to smooth or not to smooth?", 1987; the bandwidth is
    Silverman's rule.
    """
    if base.size < _FEW:
        factor = _STRETCH ** rng.uniform(-1, 1, size=base.shape)
        return np.asarray(base * factor).astype(base.dtype)
    axis = each.axis
    apart = [
        given[..., None] if axis is None else np.moveaxis(given, axis, -1) for given in each.given
    ]
    stacked = np.concatenate([values.reshape(-1, values.shape[-1]) for values in apart])
    count, length = stacked.shape
    rows = rng.integers(
        count, size=(base[..., None] if axis is None else np.moveaxis(base, axis, -1)).shape
    )
    made = stacked[rows, np.arange(length)].astype(np.float64)
    spread = stacked.std(axis=0, dtype=np.float64)
    spread = np.where(np.isfinite(spread), spread, 0.0)
    noise = rng.standard_normal(made.shape) * (_SMOOTH * spread * float(count) ** (-1 / 5))
    shrunk = 1 / np.sqrt(1 + (_SMOOTH * float(count) ** (-1 / 5)) ** 2)  # keeps the deviation
    middle = made.mean(axis=tuple(range(made.ndim - 1)))
    made = middle + (made - middle + noise) * shrunk
    made = made[..., 0] if axis is None else np.moveaxis(made, -1, axis)
    low = min(float(given.min()) for given in each.given)
    high = max(float(given.max()) for given in each.given)
    if each.kind is Kind.UNIT or low >= 0 or high <= 0:  # values keep their bounds
        made = np.clip(made, low if low >= 0 else -np.inf, high if high <= 1 else np.inf)
    return made.astype(base.dtype)
