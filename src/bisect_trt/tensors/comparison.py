"""What a comparison of two tensors found, for people and for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from bisect_trt.tensors.tolerance import ErrorStat


class ComparisonKind(str, Enum):
    """How a tensor differs."""

    MATCH = "match"
    MISMATCH = "mismatch"
    NAN = "nan"
    """The target has NaN where the reference has none."""
    INF = "inf"
    """The target has no such NaN, but Inf where the reference is finite."""
    SHAPE = "shape"
    DTYPE = "dtype"
    """One holds strings and the other numbers; numbers of different types are compared by value."""
    MISSING = "missing"


@dataclass(frozen=True)
class WorstElement:
    """The element that differs most: new NaN before new Inf before the largest absolute error.

    Attributes:
        index: Its position, one entry a dimension.
        target: The target's value.
        reference: The reference's value.
        error: Their absolute difference; NaN where either is NaN.
    """

    index: tuple[int, ...]
    target: float | str | complex
    reference: float | str | complex
    error: float


@dataclass(frozen=True)
class TensorComparison:
    """One tensor of the target held against the reference's.

    Attributes:
        name: The tensor.
        passed: Whether the statistic is within the tolerance.
        kind: How it differs.
        stat: The statistic that decided.
        atol: The absolute tolerance used; None where there was nothing to compare.
        rtol: The relative tolerance used.
        max_abs: Largest absolute error, in the tensor's own unit; NaN if any error is.
        max_rel: Largest relative error; an error over a reference of 0 is over 2**-52 instead.
        mean_abs: Mean absolute error.
        median_abs: Median absolute error.
        mean_rel: Mean relative error; only where it decides.
        median_rel: Median relative error; only where it decides.
        worst: The element that differs most: of those beyond both tolerances, where there are any.
        mismatching: Number of elements beyond both tolerances.
        total: Number of elements.
        reference_shape: The reference's shape.
        target_shape: The target's shape; None where it is missing.
        reference_dtype: Name of the reference's element type.
        target_dtype: Name of the target's element type; None where it is missing.
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
    reference_shape: tuple[int, ...] | None = None
    target_shape: tuple[int, ...] | None = None
    reference_dtype: str | None = None
    target_dtype: str | None = None

    @property
    def required_atol(self) -> float | None:
        """The absolute tolerance that an elementwise comparison needs at least to pass with relative tolerance 0."""
        return self.max_abs

    def to_json(self) -> dict[str, Any]:
        """Plain values that ``json.dumps(allow_nan=False)`` takes: NaN and Inf become "nan", "inf" and "-inf"."""
        plain: dict[str, Any] = _plain({**asdict(self), "required_atol": self.required_atol})
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> TensorComparison:
        """What :meth:`to_json` wrote; a worst element that was a complex number stays text."""
        texts = ("name", "kind", "stat")  # a tensor may be called "nan"
        known: dict[str, Any] = {key: value if key in texts else _number(value) for key, value in plain.items()}
        del known["required_atol"]
        for shape in ("reference_shape", "target_shape"):
            known[shape] = None if known[shape] is None else tuple(known[shape])
        if known["worst"] is not None:
            worst = {key: _number(value) for key, value in known["worst"].items()}
            known["worst"] = WorstElement(**{**worst, "index": tuple(worst["index"])})
        return cls(**{**known, "kind": ComparisonKind(known["kind"]), "stat": ErrorStat(known["stat"])})

    def describe(self) -> str:
        """One line for people."""
        if self.kind is ComparisonKind.MISSING:
            return "the target has no such output"
        if self.kind is ComparisonKind.SHAPE:
            return f"shape {list(self.target_shape or ())} where the reference has {list(self.reference_shape or ())}"
        if self.kind is ComparisonKind.DTYPE:
            return f"type {self.target_dtype} where the reference has {self.reference_dtype}"
        if self.worst is None:
            return "no elements"
        text = f"max error {self.worst.error:.5g}"
        if self.stat in (ErrorStat.MEAN, ErrorStat.MEDIAN):
            error = self.mean_abs if self.stat is ErrorStat.MEAN else self.median_abs
            text = f"{self.stat.value} error {error:.5g}, {text}"
        if self.worst.error != 0:
            text += f" at {self.worst.index}: {_short(self.worst.reference)} became {_short(self.worst.target)}"
        return f"{text} (atol {self.atol:.3g}, rtol {self.rtol:.3g}; {self.mismatching} of {self.total} elements)"


def _short(value: float | str | complex) -> str:
    if isinstance(value, str):
        return repr(value)
    # Integers below a million million and bools in full; the rest to the digits that fp32 has.
    if isinstance(value, int) and abs(value) < 10**12:
        return str(value)
    return f"{value:.7g}"


def _number(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


_NOT_FINITE = ("nan", "inf", "-inf")


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
