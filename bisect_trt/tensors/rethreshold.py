"""What another tolerance would say of a comparison that was made: from the figures that were kept of it, without its tensors."""

from __future__ import annotations

import math

from bisect_trt.options.choices import ErrorStat
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement


def would_pass(comparison: TensorComparison, atol: float | None, rtol: float | None) -> bool | None:
    """Whether a comparison would pass with other tolerances.

    Args:
        comparison: As it was made.
        atol: The absolute tolerance; as it was where ``None``.
        rtol: The relative one, alike.

    Returns:
        ``None`` where the figures do not say: elementwise, some elements may be forgiven by one tolerance and some by the
        other, and only the largest errors are kept.
    """
    if comparison.reason is not None or comparison.atol is None or comparison.rtol is None or not comparison.total:
        return comparison.passed  # not a matter of tolerances
    if comparison.kind in (ComparisonKind.MISSING, ComparisonKind.SHAPE, ComparisonKind.DTYPE):
        return False
    atol, rtol = comparison.atol if atol is None else atol, comparison.rtol if rtol is None else rtol
    if comparison.stat is ErrorStat.ELEMWISE:
        return _elementwise(comparison, comparison.atol, comparison.rtol, atol, rtol)
    absolute = getattr(comparison, f"{comparison.stat.value}_abs", None)
    relative = getattr(comparison, f"{comparison.stat.value}_rel", None)
    if absolute is None or relative is None:
        return None
    return bool(absolute <= atol or relative <= rtol)  # NaN is within nothing


def _elementwise(seen: TensorComparison, was_atol: float, was_rtol: float, atol: float, rtol: float) -> bool | None:
    # What is forgiven stays so with larger tolerances, and what is not with smaller ones: ties in rounding included.
    wider, narrower = atol >= was_atol and rtol >= was_rtol, atol <= was_atol and rtol <= was_rtol
    within = any(error is not None and error <= most for error, most in ((seen.max_abs, atol), (seen.max_rel, rtol)))
    if (seen.passed and wider) or within:
        return True
    if not seen.passed and narrower:
        return False
    if seen.step is not None or seen.ties:
        return None  # how many elements are one step off is known for the old tolerance alone
    if seen.worst is not None and _is_beyond(seen.worst, atol, rtol):
        return False
    return _needed(seen, was_atol, was_rtol, atol, rtol)


def _needed(seen: TensorComparison, was_atol: float, was_rtol: float, atol: float, rtol: float) -> bool | None:
    """By the smallest tolerance of either kind that would have passed, where the other one stays."""
    if seen.details is not None:
        if rtol == was_rtol and math.isfinite(seen.details.atol_needed):
            return atol >= seen.details.atol_needed
        if atol == was_atol and not math.isnan(seen.details.rtol_needed):  # infinite where it is past the type
            return rtol >= seen.details.rtol_needed
    return _scaled(seen.of_tolerance, was_atol, was_rtol, atol, rtol)


def _scaled(share: float | None, was_atol: float, was_rtol: float, atol: float, rtol: float) -> bool | None:
    """By the largest error in tolerances: the element that has it is beyond both where both are smaller than so many of old."""
    if share is None or not math.isfinite(share):
        return None
    if atol > share * was_atol and rtol > share * was_rtol:
        return True
    if atol < share * was_atol and rtol < share * was_rtol:
        return False
    return None


def _is_beyond(worst: WorstElement, atol: float, rtol: float) -> bool:
    """Whether the element that was told is beyond both."""
    reference = worst.reference
    if isinstance(reference, str | complex):
        return False
    if math.isnan(worst.error):
        return True
    scale = abs(reference) or 2.0**-52
    # A margin of the last digits: the relative error was computed in the tensor's own type.
    return worst.error > atol and worst.error / scale > rtol * (1 + 1e-6)
