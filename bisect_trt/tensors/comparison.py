"""The result of comparing two tensors.

In JSON NaN and Inf are text.
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, Context
from enum import Enum
from typing import Any

import msgspec

from bisect_trt.aliases import Sizes
from bisect_trt.options.compare import ErrorStat
from bisect_trt.tensors.tolerance import Precision

_NOT_FINITE = ("nan", "inf", "-inf")


def to_plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return values for ``json.dumps(allow_nan=False)``: NaN and Inf become "nan", "inf" and "-inf".

    ``msgspec.convert(..., strict=False)`` reads them again.
    """
    return _finite(msgspec.to_builtins(value, enc_hook=_number))


def _number(value: object) -> float:
    """Return a number of NumPy as one of Python."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return list(map(_finite, value)) if isinstance(value, list | tuple) else value


def strict_json(content: str | bytes) -> Any:  # noqa: ANN401 - plain values
    """Read JSON (RFC 8259) without the numbers that Python adds to it and no other file of a run holds: NaN, Infinity, 1e999.

    Raises:
        ValueError: It is no JSON.
    """

    def number(word: str) -> float:
        if not math.isfinite(float(word)):
            raise ValueError(f"{word} is no number of JSON")
        return float(word) if set(word) & set(".eE") else int(word)

    return json.loads(content, parse_constant=number, parse_float=number, parse_int=number)


class ComparisonKind(str, Enum):
    """The kinds of difference of a tensor."""

    MATCH = "match"
    MISMATCH = "mismatch"
    NAN = "nan"
    """One side has NaN where the other has none."""
    INF = "inf"
    """No such NaN, but one side has Inf where the other has none."""
    SHAPE = "shape"
    MISSING = "missing"


class ValueRange(msgspec.Struct, frozen=True):
    """The finite elements of a tensor, and the numbers of others.

    Attributes:
        min: The smallest; NaN where none is finite.
        max: The largest.
        absmax: The largest absolute one.
        nan: Number of NaN.
        inf: Number of Inf and -Inf.
    """

    min: int | float
    max: int | float
    absmax: int | float
    nan: int
    inf: int


class WorstElement(msgspec.Struct, frozen=True):
    """The element that differs most: NaN of one side alone before such Inf before the largest absolute error.

    Attributes:
        index: Its position, one entry a dimension.
        target: The target's value.
        reference: The reference's value.
        error: Their absolute difference; NaN where either is NaN.
    """

    index: Sizes
    target: bool | int | float | str
    reference: bool | int | float | str
    error: float

    def __post_init__(self) -> None:
        # In JSON these are text, which is a type that a value may have.
        for side, value in (("target", self.target), ("reference", self.reference)):
            if value in _NOT_FINITE and isinstance(value, str):
                msgspec.structs.force_setattr(self, side, float(value))


class Details(msgspec.Struct, frozen=True):
    """The tolerances that a comparison would have passed with, and how alike the tensors are.

    Attributes:
        atol_needed: The smallest absolute tolerance that would have passed, with the relative one
            as it was; NaN if none.
        rtol_needed: The smallest relative tolerance that would have passed, with the absolute one
            as it was; NaN if none.
        cosine: Cosine similarity with the reference, from -1 to 1.
        snr_db: Ratio of the reference to the error in dB.
        argmax: Share of rows, along the last axis or along channels of images, in which both have
            the largest value at the same place; ``None`` where rows have one value.
    """

    atol_needed: float
    rtol_needed: float
    cosine: float | None = None
    snr_db: float | None = None
    argmax: float | None = None


class TensorComparison(msgspec.Struct, frozen=True):
    """The comparison of one tensor of the target with the reference's.

    Attributes:
        name: The tensor.
        passed: Whether the statistic is within the tolerance.
        kind: How it differs.
        stat: The statistic that was compared with the tolerance.
        atol: The absolute tolerance used; None where there was nothing to compare.
        rtol: The relative tolerance used.
        max_abs: Largest absolute error, in the tensor's own unit; NaN if any error is.
        max_rel: Largest relative error; an error over a reference of 0 is over 2**-52 instead.
        mean_abs: Mean absolute error.
        median_abs: Median absolute error.
        mean_rel: Mean relative error; only where this statistic decides.
        median_rel: Median relative error; only where this statistic decides.
        worst: The element that differs most, among those beyond both tolerances if there are any.
        mismatching: Number of elements beyond both tolerances.
        total: Number of elements.
        reference_shape: The reference's shape.
        target_shape: The target's shape; None where it is missing.
        reference_dtype: Name of the reference's element type.
        target_dtype: Name of the target's element type; None where it is missing.
        quantile: The quantile of the errors that was compared with the tolerance; only where one
            was.
        quantile_abs: That quantile of the absolute errors.
        quantile_rel: That quantile of the relative errors.
        reference_nonfinite: Number of elements of the reference that are NaN or Inf.
        target_range: The range of the target's elements.
        reason: Why it passed or failed, where errors and tolerances do not decide.
        details: Further numbers, if requested.
        sample: The number of the input sample, from 1, where there are several.
        ties: Number of elements of a quantized tensor that are one step off and count as ties in
            rounding.
        step: The step of a quantized tensor, where all elements have the same.
        most_ties: The most elements that may be one step off.
        of_tolerance: The deciding error, of an element or by the statistic, over the wider of both
            tolerances: past 1 is a mismatch except for ties, and Inf is a NaN or Inf of one side
            alone.
        past_tolerance: The largest error of elements beyond both tolerances, over the sum of both;
            ``None`` where there are no such elements, or a statistic decides.
        by_channel: The comparison by the tolerances of channels, where the tensor matches and some
            channels are clearly wrong by these. No verdict, so it is not in a result.
    """

    name: str
    passed: bool
    kind: ComparisonKind
    stat: ErrorStat = ErrorStat.ELEMWISE
    atol: float | None = None
    rtol: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    mean_abs: float | None = None
    median_abs: float | None = None
    mean_rel: float | None = None
    median_rel: float | None = None
    worst: WorstElement | None = None
    mismatching: int = 0
    total: int = 0
    reference_shape: Sizes | None = None
    target_shape: Sizes | None = None
    reference_dtype: str | None = None
    target_dtype: str | None = None
    quantile: float | None = None
    quantile_abs: float | None = None
    quantile_rel: float | None = None
    reference_nonfinite: int = 0
    target_range: ValueRange | None = None
    reason: str | None = None
    details: Details | None = None
    sample: int | None = None
    ties: int = 0
    step: float | None = None
    most_ties: int = 0
    of_tolerance: float | None = None
    past_tolerance: float | None = None
    by_channel: TensorComparison | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_suspect(self) -> bool:
        """Whether the tensor mismatches, or some of its channels are clearly wrong."""
        return not self.passed or bool(self.by_channel)

    @property
    def severity(self) -> float:
        """The largest ratio of an element's error to its tolerance; Inf for NaN or Inf of one side alone, or another shape.

        The element with the largest error need not have the largest ratio. A failure by a statistic
        over all elements has no such element, and is Inf too.
        """
        if self.passed:
            return 0.0
        if self.kind is not ComparisonKind.MISMATCH or self.past_tolerance is None:
            return math.inf
        return self.past_tolerance

    @property
    def distance(self) -> float:
        """The largest error in steps, where the tensor is quantized; else the severity."""
        return self.max_abs / self.step if self.step and self.max_abs is not None else self.severity

    @property
    def tolerance_ratio(self) -> float:
        """The error over its tolerance: at most 1 if it passes, more if not, infinite for a NaN."""
        ratio = self.of_tolerance
        compared = self.kind in (ComparisonKind.MATCH, ComparisonKind.MISMATCH)
        if ratio is None or not compared or math.isnan(ratio):
            ratio = 0.0 if self.passed else math.inf
        # Rounding must not contradict the verdict: past 1 means failed.
        return min(ratio, 1.0) if self.passed else max(ratio, math.nextafter(1, 2))


def rounded_up(value: float) -> str:
    """Return a tolerance rounded up to three digits, so that it passes."""
    context = Context(prec=3, rounding=ROUND_CEILING)
    return f"{float(context.create_decimal_from_float(value)):g}"


def required_severity(original: float) -> float:
    """Return the least severity at which a mismatch counts as the original's, and not as rounding beside it.

    A cut through a half-precision network is off by a little everywhere. The geometric mean of a
    bare mismatch and the original's severity separates the two; ten times the tolerance is enough
    in any case.
    """
    return min(math.sqrt(max(original, 1.0)), 10.0)


def severity_weight(precision: Precision) -> float:
    """Return the factor of severities for a target that computes in this precision.

    In half precision an error of less than ten times the tolerance may be the rounding of all
    layers before. The tolerance of fp32 allows for that at any depth, so three times counts as much
    there.
    """
    return 10 / 3 if precision is Precision.FP32 else 1.0
