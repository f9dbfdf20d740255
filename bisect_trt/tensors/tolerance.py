"""Tolerances of a comparison: the options, automatic tolerances, and steps of quantized tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bisect_trt.errors import UnknownNameError, quoted
from bisect_trt.options.compare import CompareOptions, ErrorStat
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.info import (
    Array,
    finite_range,
    finite_rms,
    is_floating,
    mask_limit,
    to_float,
)

_TIES = 0.01
"""The share of elements of a quantized tensor that may be one step off. Truncation instead of
rounding moves half of them."""
_TIES_AFTER_TIES = 0.25
"""Share of ties for a tensor that is computed from other quantized tensors."""
SLACK = 1 + 1e-3
"""Rounding errors of a step."""
RIPPLE = 2e-2
"""Tolerance of a tensor that is computed from quantized ones, as a share of its root mean square
and of its values: about a step of 8 bits."""


class Step(Struct, frozen=True):
    """The distance between neighbouring values of a quantized tensor.

    A value near the middle of two steps is rounded to either, depending on its last digit. Such a
    tie is no error. A wrong zero point moves every element, and truncation instead of rounding half
    of them.

    Attributes:
        size: One step for all, or one for each place along ``axis``; ``None`` for a tensor that is
            computed from quantized ones, where a tie shows as a ripple.
        after: Whether the rounded values depend on other quantized tensors, so that their ties add
            up.
    """

    size: NDArray[np.float64] | None
    after: bool = False
    axis: int = 0

    def ties(
        self, absolute: Array, mismatch: NDArray[np.bool_], shape: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """Return the mismatching elements, all flat, that are one step off, unless so many are that it is systematic.

        Args:
            absolute: The absolute error of each element, flat.
            mismatch: Whether each element is beyond its tolerance, flat.
            shape: The shape of the tensor.

        Returns:
            A mask of the same length.
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
        """Return how many elements may be ties: a share of all and two standard deviations, but never all."""
        share = _TIES_AFTER_TIES if self.after else _TIES
        # Ties are independent, about binomial: two standard deviations cover 97.7% of cases.
        chance = 2 * math.sqrt(share * (1 - share) * total)
        return max(min(int(share * total + chance), total - 1), 1)


DEFAULT_QUANTILE = 0.99
"""Polygraphy's."""


class Precision(str, Enum):
    """The precision of a target's arithmetic, which determines its rounding errors."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"


def coarser(*precisions: Precision | None) -> Precision | None:
    """Return the coarsest of the known precisions; ``None`` if none is known."""
    return max(
        (precision for precision in precisions if precision is not None),
        key=list(Precision).index,
        default=None,
    )


def precision_of(dtype: np.dtype[Any]) -> Precision:
    """Return the precision of a tensor's type."""
    return (
        Precision.FP16
        if dtype == np.float16
        else Precision.BF16
        if dtype.name == "bfloat16"
        else Precision.FP32
    )


_FP32 = 1e-5
"""Polygraphy's, absolute and relative."""
_FP32_OF_RMS = 2e-4
_OF_INTEGERS = 1e-6
"""Relative: an index below a million is exact, and what a float of noise beyond that is cast to may differ."""


class ResolvedTolerance(NamedTuple):
    """Absolute and relative tolerance, as numbers."""

    atol: float
    rtol: float


class Tolerance(Struct, frozen=True):
    """Absolute and relative tolerance; ``None`` where it is chosen for each tensor.

    Attributes:
        atol: The absolute one.
        rtol: The relative one.
        peak: See :func:`automatic_tolerance`.
    """

    atol: float | None = None
    rtol: float | None = None
    peak: float | None = None

    def resolve(self, reference: Array, precision: Precision) -> ResolvedTolerance:
        """Fill in a missing one from :func:`automatic_tolerance`; in fp32 Polygraphy's default if the other one is given."""
        if self.atol is not None and self.rtol is not None:
            return ResolvedTolerance(self.atol, self.rtol)
        precision = coarser(precision, precision_of(reference.dtype)) or precision
        if precision is Precision.FP32 and (self.atol is not None or self.rtol is not None):
            # The user's own numbers are exact.
            automatic = ResolvedTolerance(_FP32, _FP32)
        else:
            automatic = automatic_tolerance(reference, precision, peak=self.peak)
        return ResolvedTolerance(
            automatic.atol if self.atol is None else self.atol,
            automatic.rtol if self.rtol is None else self.rtol,
        )


_OF_PEAK = 5e-2
"""A logit that is off by 1% of 20 moves a probability of one half by this."""


def automatic_tolerance(
    reference: Array, precision: Precision, *, peak: float | None = None
) -> ResolvedTolerance:
    """Return the tolerance of a tensor where the user gave none.

    A fixed absolute tolerance does not work: activations of one network range from 1e-4 to 1e4, and
    rounding to fp16 (unit roundoff 2**-11) alone moves a value of 1000 by 0.5. So the absolute one,
    which forgives elements near zero that come from cancelling larger ones, is a fraction of the
    root mean square of the reference's finite values: scaling a tensor does not change the verdict.

    - fp16: 1e-2 of the RMS, and 1e-2 of the value itself, about 20 roundings; bf16, with a unit roundoff 8 times larger, 8 times
      that. Below the smallest fp16 number nothing is left of a value, hence the floor.
    - fp32: 2e-4 of the RMS, but at least Polygraphy's 1e-5, and 1e-5 of the value itself. Rounding errors of sums add up like a
      random walk (N. Higham and T. Mary, "A new approach to probabilistic rounding error analysis",
      2019): after d layers of sums of n terms they are about u sqrt(d n), with u = 2**-24, which is
      1e-4 for 600 layers of 4608 terms; and twice that, for the largest of many. docs/benchmarks.md
      has what was measured.

    - With a ``peak``, in the low precisions: 5e-2 of the largest value (bf16: 8e-2). The RMS of a softmax over thousands of
      classes is far below its largest value, which alone is read. Within this tolerance that stays where it is, unless another
      is within twice the tolerance.

    Integers and bools are not rounded: those below a million have to be equal, for they may be indices.

    Args:
        reference: The reference's tensor, of any shape and numeric type.
        precision: The target's precision.
        peak: Of probabilities and heatmaps: the least value that matters, if the largest is below.
    """
    if not is_floating(reference):
        return ResolvedTolerance(_FP32, _OF_INTEGERS)
    fraction, floor, rtol = _fractions(precision)
    size = finite_rms(reference)
    if peak is not None and precision is not Precision.FP32:
        fraction = max(fraction, _OF_PEAK)
        size = max(peak, *map(abs, finite_range(reference, 0.0)))
    return ResolvedTolerance(max(fraction * size, floor), rtol)


def _fractions(precision: Precision) -> tuple[float, float, float]:
    """Return the absolute tolerance as a share of the root mean square, the smallest one, and the relative tolerance."""
    if precision is Precision.FP32:
        return _FP32_OF_RMS, _FP32, _FP32
    fraction = 8e-2 if precision is Precision.BF16 else 1e-2
    # Below the smallest fp16 number a value becomes 0, whatever its tolerance.
    return fraction, float(np.finfo(np.float16).smallest_subnormal), fraction


def channel_tolerances(
    reference: Array, precision: Precision, elements: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the absolute tolerances of some elements where few slices are far larger than the others.

    Slices are the rows, channels and so on of a tensor: all that has one index of one axis. The
    scale along an axis is the root mean square of the element's slice, but at least the median of
    those slices that are not zero: most channels after a Relu may be, and of an attention map most
    columns are small. Of the axes the one with the smallest scale counts, for a single large
    channel lifts each row.

    Args:
        reference: The reference's tensor, of any shape and a floating-point type.
        precision: The target's precision.
        elements: Flat indices in C order.
    """
    fraction, floor, _ = _fractions(precision)
    values = to_float(reference)
    counted = np.isfinite(values) & (np.abs(values) < mask_limit(reference))
    squares = np.square(np.where(counted, values, 0))
    scales = np.full(elements.shape, finite_rms(reference))
    for axis, places in enumerate(np.unravel_index(elements, reference.shape)):
        axes = tuple(dim for dim in range(reference.ndim) if dim != axis)
        counts = np.count_nonzero(counted, axis=axes)
        slices = np.sqrt(squares.sum(axis=axes) / np.maximum(counts, 1))
        if slices.any():
            scale = np.maximum(slices[places], np.median(slices[slices > 0]))
            scales = np.minimum(scales, scale)
    return np.maximum(fraction * scales, floor)


Value = TypeVar("Value")


def of_output(values: Mapping[str, Value], name: str, default: Value) -> Value:
    """Return the value for an output, else the one for all unnamed outputs, else the default.

    Args:
        values: Values by output name; the name ``''`` is for all other outputs.
        name: The name of the output.
        default: The value without any.
    """
    return values.get(name, values.get("", default))


@dataclass(frozen=True)
class ToleranceOptions(CompareOptions):
    """The user's options for comparisons, and the target's precision.

    Attributes:
        precision: The target's precision, for tolerances that were not given.
        nonfinite_equal: Whether the same Inf or NaN in the same place counts as no error; by
            default it fails, as in Polygraphy.
        by_channel: Whether tensors that match are compared by :func:`channel_tolerances` too.
        peaks: Outputs with a few large values among many tiny ones, with their ``peak``.
    """

    precision: Precision = Precision.FP32
    nonfinite_equal: bool = False
    by_channel: bool = False
    peaks: Mapping[str, float] = field(default_factory=dict)

    @property
    def explicit(self) -> bool:
        """Whether the user gives tolerances, which are meant to the letter."""
        return bool(self.atol or self.rtol)

    def for_output(self, name: str) -> tuple[Tolerance, ErrorStat]:
        """Return the tolerance, ``None`` where it is automatic, and the statistic for one output."""
        stat = of_output(self.check_error_stat, name, ErrorStat.ELEMWISE)
        atol, rtol = (values.get(name, values.get("")) for values in (self.atol, self.rtol))
        return Tolerance(atol, rtol, self.peaks.get(name)), stat

    def resolve(self, outputs: Values) -> dict[str, ResolvedTolerance]:
        """Return the tolerance of each of some outputs, by the reference's values."""
        return {
            name: self.for_output(name)[0].resolve(value, self.precision)
            for name, value in outputs.items()
        }

    def check_names(self, names: Collection[str]) -> None:
        """Check that every output that an option names is compared, as one of ``names``.

        Raises:
            UsageError: An option names another output.
        """
        by_name = (values for values in vars(self).values() if isinstance(values, dict))
        named = dict.fromkeys(name for values in by_name for name in values)
        unknown = [name for name in named if name and name not in names]
        if unknown:
            raise UnknownNameError(
                f"A tolerance or error statistic is given for {quoted(unknown)}, which is not compared; "
                f"the outputs are {quoted(names)}.",
                unknown[0],
                names,
            )
