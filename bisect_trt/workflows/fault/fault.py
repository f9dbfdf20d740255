"""The answer to whose fault a failure is, and how far off values are, on which it rests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bisect_trt.graph.halves import lows_of
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.workflows.fault.evidence import Evidence, Values

Whose = Literal["target", "reference", "precision", "rounding", "tie", "random", "unknown"]
MUCH_WORSE = 4.0
"""How many times the error of rounding alone, or of the reference, a target may make before it is a bug: it may round more
often."""


@dataclass(frozen=True)
class Fault:
    """Whose fault a failure is.

    Attributes:
        whose: The target's, the reference's, the low precision's; ``rounding`` where fp32 itself must be so far
            off; ``tie`` where a decision is too near to its edge for either
            to be wrong; ``random`` where a node draws its numbers; ``unknown`` where that cannot be told.
        sentence: Why, with the figures.
        figures: The same as numbers: errors by who makes them, in units of the tolerance and absolute.
    """

    whose: Whose
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        """Whether it is worth a report to those who make the target; what is not known may be."""
        return self.whose in ("target", "unknown")

    @property
    def is_nobodys(self) -> bool:
        """Whether two correct roundings differ, so that nothing of the model or of a runtime is to be mended."""
        return self.whose in ("rounding", "tie")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = to_plain({"whose": self.whose, "sentence": self.sentence, **self.figures})
        return plain


@dataclass(frozen=True)
class Error:
    """How far values are from others.

    Attributes:
        passed: Whether that is within the tolerance.
        severity: How many times the tolerance at the element that is furthest past it, which need not be the one of the
            largest error; infinite for NaN and Inf of one side alone.
        largest: The largest absolute error.
    """

    passed: bool
    severity: float
    largest: float

    def words(self) -> str:
        """The largest error."""
        if not math.isfinite(self.severity) or not math.isfinite(self.largest):
            return "NaN or Inf"
        return f"{self.largest:.3g}"


EVALUATOR = "ONNX's reference evaluator"


def who_arbitrates(evidence: Evidence) -> str:
    """Who says what is right, in words."""
    return f"{EVALUATOR} in float64" if not isinstance(evidence.wide, str) else EVALUATOR


def times_worse(one: Error, other: Error) -> float:
    """How many times worse, by the largest errors or beside the tolerance; equally bad where both make NaN or Inf."""
    if not math.isfinite(other.severity):
        return 1.0
    if not math.isfinite(one.severity):
        return math.inf
    absolute = one.largest / other.largest if 0 < other.largest < math.inf else 0.0
    return max(absolute, one.severity / max(other.severity, 1.0))


def of_the_types(tolerance: ToleranceOptions, evidence: Evidence) -> ToleranceOptions:
    """How far two that compute exactly may be apart: the rounding of the types that the model itself has."""
    low = any(value.dtype == np.float16 for value in evidence.reference.values())
    precision = Precision.FP16 if low else Precision.FP32
    return replace(tolerance, atol={}, rtol={}, stat={}, precision=precision)


def how_far(evidence: Evidence, right: Values, values: Values, tolerance: ToleranceOptions) -> Error:
    """How far values are from what they should be, on the outputs that are compared."""
    expected = {name: right[name] for name in evidence.outputs if name in right}
    comparisons: list[TensorComparison] = compare_all(expected, values, tolerance, lows=lows_of(evidence.model.graph))
    failed = [comparison for comparison in comparisons if not comparison.passed]
    largest = max((_largest(comparison) for comparison in comparisons), default=0.0)
    return Error(not failed, max((comparison.severity for comparison in failed), default=0.0), largest)


def _largest(comparison: TensorComparison) -> float:
    value = comparison.max_abs if comparison.max_abs is not None else math.inf
    return math.inf if math.isnan(value) else value
