"""The comparison of numbers, and of lists of indices such as TopK makes.

The numbers and the verdict are those of Polygraphy 0.53.6's ``CompareFunc.simple`` with the target first and the
reference second (``polygraphy/comparator/compare.py``, Apache-2.0): absolute error ``|t - r|``, relative error
``|t - r| / |r|`` with 2**-52 in place of a floating-point ``r`` of 0, means accumulated in float32. An error that is
NaN, also from the same Inf or NaN on both sides, is beyond any tolerance.

Three deliberate differences, each where Polygraphy's answer is an accident: tensors without elements match whatever the
statistic (its mean of nothing is NaN), integers far apart never wrap around to a small error, and bfloat16, float8 and
string tensors can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.options.choices import ErrorStat
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement
from bisect_trt.tensors.info import is_extension
from bisect_trt.tensors.metrics import details
from bisect_trt.tensors.stats import count_nonfinite, tensor_stats
from bisect_trt.tensors.tolerance import ResolvedTolerance, Step

_EPSILON = 2.0**-52

Array = NDArray[Any]


def compare_numbers(
    reference: Array,
    target: Array,
    tolerance: ResolvedTolerance,
    known: dict[str, Any],
    *,
    nonfinite_equal: bool,
    infinities_equal: bool,
    want_details: bool,
    step: Step | None = None,
) -> TensorComparison:
    """Compare two tensors of numbers.

    Args:
        reference: What it should be; not empty.
        target: What it is, of the same shape.
        tolerance: Absolute and relative.
        known: What is known of the comparison already: ``stat``, and the ``quantile`` if that is it.
        nonfinite_equal: Whether the same NaN in the same place counts as no error.
        infinities_equal: Whether the same Inf does.
        want_details: Whether to work out the further numbers too.
        step: Of a quantized tensor, where being one step off may be a tie.
    """
    # Flat, so that a 0-d tensor is an array as well, and not the scalar that NumPy's arithmetic would make of it.
    shape, ours, theirs = reference.shape, _promote(reference.reshape(-1)), _promote(target.reshape(-1))
    absolute, relative = _errors(theirs, ours)
    # A finite maximum means that both tensors are finite throughout, the usual case: no need to look for NaN and Inf.
    finite = math.isfinite(absolute.max())
    if not finite:
        known |= {"reference_nonfinite": sum(count_nonfinite(ours))}
        same = _same_nonfinite(theirs, ours, nan=nonfinite_equal, inf=infinities_equal)
        absolute[same] = 0
        relative[same] = 0

    stat: ErrorStat = known["stat"]
    statistics: dict[str, Any] = {
        "max_abs": float(absolute.max()),
        "max_rel": float(relative.max()),
        "mean_abs": float(absolute.mean(dtype=np.float32)),
        "mean_rel": float(relative.mean(dtype=np.float32)) if stat is ErrorStat.MEAN else None,
    }
    if stat is ErrorStat.ELEMWISE:
        statistics["of_tolerance"] = _of_tolerance(absolute, relative, tolerance)
    # "Not within" rather than "beyond", which NaN would not be.
    within_abs, within_rel = absolute <= tolerance.atol, relative <= tolerance.rtol
    mismatch = ~(within_abs | within_rel)
    if step is not None and stat is ErrorStat.ELEMWISE:
        ties = step.ties(absolute, mismatch, shape)
        mismatch &= ~ties
        statistics["ties"] = int(np.count_nonzero(ties))
        if step.size is not None and step.size.size == 1:
            known |= {"step": float(step.size[0]), "most_ties": step.most(mismatch.size)}
    statistics["mismatching"] = int(np.count_nonzero(mismatch))
    if stat is ErrorStat.ELEMWISE and statistics["mismatching"]:
        statistics["past_tolerance"] = _past_tolerance(absolute[mismatch], ours[mismatch], tolerance)
    kind, flat_index = _worst(theirs, ours, absolute, mismatch, finite)
    statistics["worst"] = WorstElement(
        index=tuple(int(i) for i in np.unravel_index(flat_index, shape)),
        target=theirs[flat_index].item(),
        reference=ours[flat_index].item(),
        error=float(absolute[flat_index]),
    )
    statistics["target_range"] = _range(theirs, finite=finite)
    elementwise = (_largest(absolute, within_rel), _largest(relative, within_abs)) if want_details else None
    if stat is ErrorStat.QUANTILE:
        statistics |= {f"quantile_{way}": _quantile(errors, known) for way, errors in _ways(absolute, relative)}
    # Last, for they sort in place rather than in a copy.
    statistics["median_abs"] = float(np.median(absolute, overwrite_input=True))
    if stat is ErrorStat.MEDIAN:
        statistics["median_rel"] = float(np.median(relative, overwrite_input=True))
    if elementwise is not None:
        needed = elementwise if stat is ErrorStat.ELEMWISE else _statistic(stat, statistics)
        statistics["details"] = details(reference, target, absolute, needed)

    passed = _passes(stat, statistics, tolerance)
    return TensorComparison(passed=passed, kind=ComparisonKind.MATCH if passed else kind, **known, **statistics)


def _same_nonfinite(target: Array, reference: Array, *, nan: bool, inf: bool) -> Array:
    """Where both have the same Inf or NaN, as far as that counts as no error."""
    same = np.zeros(reference.shape, bool)
    if inf:
        same |= np.isinf(reference) & (target == reference)
    if nan:
        same |= np.isnan(reference) & np.isnan(target)
    return same


def _range(values: Array, *, finite: bool) -> dict[str, float] | None:
    """What the target's values lie between, for the report; complex numbers are in no order."""
    if values.dtype.kind == "c":
        return None
    stats = tensor_stats(values)
    nan, inf = (0, 0) if finite else count_nonfinite(values)
    return {"min": stats.min, "max": stats.max, "absmax": stats.absmax, "nan": nan, "inf": inf}


def _ways(absolute: Array, relative: Array) -> tuple[tuple[str, Array], tuple[str, Array]]:
    return ("abs", absolute), ("rel", relative)


def _of_tolerance(absolute: Array, relative: Array, tolerance: ResolvedTolerance) -> float:
    """The largest error over the tolerance of its element, absolute or relative, whichever forgives it more."""
    share = np.divide(absolute, tolerance.atol)
    np.fmin(share, np.divide(relative, tolerance.rtol), out=share)
    largest = float(share.max())
    if math.isnan(largest):  # an error of NaN, or one of 0 where nothing is forgiven
        share[absolute == 0] = 0
        share[np.isnan(share)] = np.inf
        largest = float(share.max())
    return largest


def _past_tolerance(absolute: Array, reference: Array, tolerance: ResolvedTolerance) -> float:
    """The largest of some errors over the sum of both tolerances; infinite if none is finite, or nothing is forgiven."""
    past = np.divide(absolute, tolerance.atol + tolerance.rtol * np.abs(reference), dtype=np.float64)
    known = past[np.isfinite(absolute)]
    return float(known.max()) if known.size else math.inf


def _quantile(errors: Array, known: Mapping[str, Any]) -> float:
    return float(np.quantile(errors.astype(np.float32) if errors.dtype.kind == "b" else errors, known["quantile"]))


def _largest(errors: Array, forgiven: Array) -> float:
    """The largest of the errors that are not forgiven; NaN if one of them is."""
    left = errors[~forgiven]
    return float(left.max()) if left.size else 0.0


def _promote(values: Array) -> Array:
    """Widen as Polygraphy does: fp16 to fp32, integers below 32 bits to int32, uint32 to int64."""
    if is_extension(values.dtype):
        return values.astype(np.int32 if "int" in values.dtype.name else np.float32)
    wider = {"float16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32"}
    return values.astype({**wider, "uint32": "int64"}.get(values.dtype.name, values.dtype), copy=False)


def _errors(target: Array, reference: Array) -> tuple[Array, Array]:
    """Absolute and relative errors of flat arrays, in two new arrays."""
    common = np.result_type(target, reference)
    if common.kind in "iu":
        # Larger less smaller, read as unsigned, is exact; a signed difference can wrap around, |int64 min| does.
        unsigned = common.str.replace("i", "u")
        absolute: Array = np.maximum(target, reference)
        np.subtract(absolute, np.minimum(target, reference), out=absolute)
        absolute = absolute.view(unsigned)
        divisor: Array = np.abs(reference.astype(common, copy=False)).view(unsigned)
    else:
        absolute = target != reference if common.kind == "b" else np.abs(target - reference)
        divisor = np.abs(reference)
    if divisor.dtype.kind == "f":
        divisor[divisor == 0] = _EPSILON
        if divisor.dtype == absolute.dtype:
            return absolute, np.divide(absolute, divisor, out=divisor)
    return absolute, absolute / divisor


def _worst(
    target: Array, reference: Array, absolute: Array, mismatch: Array, finite: bool
) -> tuple[ComparisonKind, int]:
    """How the tensor fails, should it fail, and the flat index of the element that shows it best."""
    if not finite:
        # What only one side has is the worst, on whichever side: first what the target made, then what it lost.
        for kind, has in ((ComparisonKind.NAN, np.isnan), (ComparisonKind.INF, np.isinf)):
            made, lost = has(target) & ~has(reference), has(reference) & ~has(target)
            # NaN is beyond any tolerance; Inf is not beyond an infinite one.
            for alone in (made & mismatch, lost & mismatch):
                if alone.any():
                    return kind, int(alone.argmax())
    if not mismatch.any():
        return ComparisonKind.MISMATCH, int(absolute.argmax())
    # Only among the mismatching, for an error that the relative tolerance forgives explains nothing; and NaN, left over
    # from the same Inf or NaN on both sides, only if there is no plain error.
    plain = mismatch if finite else mismatch & ~np.isnan(absolute)
    if not plain.any():
        return ComparisonKind.MISMATCH, int(mismatch.argmax())
    return ComparisonKind.MISMATCH, int(np.where(plain, absolute, absolute.dtype.type(0)).argmax())


def _passes(stat: ErrorStat, statistics: Mapping[str, Any], tolerance: ResolvedTolerance) -> bool:
    if stat is ErrorStat.ELEMWISE:
        return not statistics["mismatching"]
    # Comparisons with NaN are false, so NaN fails.
    absolute, relative = _statistic(stat, statistics)
    return bool(absolute <= tolerance.atol or relative <= tolerance.rtol)


def _statistic(stat: ErrorStat, statistics: Mapping[str, Any]) -> tuple[float, float]:
    """The absolute and the relative error that a statistic other than elementwise looks at."""
    return statistics[f"{stat.value}_abs"], statistics[f"{stat.value}_rel"]


def compare_indices(reference: Array, target: Array, places: int, known: dict[str, Any]) -> TensorComparison:
    """Compare lists of indices by how far each is from its place.

    The verdict is that of Polygraphy 0.53.6's ``IndicesCompareFunc`` (``polygraphy/comparator/compare.py``, Apache-2.0):
    lists lie along the last axis; each element of the target must be in the reference's list, at most ``places`` away; the
    last ``places`` elements of the target are not looked at.

    Args:
        reference: What the tensor should be.
        target: What it is, of the same shape.
        places: How many places an index may be away.
        known: What is known of the comparison already.
    """
    rows = reference.reshape(-1, reference.shape[-1] if reference.ndim else 1)
    seen = target.reshape(rows.shape)
    looked_at = max(rows.shape[1] - places, 0)
    failed: list[tuple[int, int, float]] = []
    for row in np.unique(np.nonzero(seen[:, :looked_at] != rows[:, :looked_at])[0]).tolist():
        where: dict[Any, int] = {}
        for place, value in enumerate(rows[row].tolist()):
            where.setdefault(value, place)
        for place, value in enumerate(seen[row, :looked_at].tolist()):
            away = abs(where[value] - place) if value in where else np.inf
            if value != rows[row, place] and away > places:
                failed.append((row, place, float(away)))
    if not failed:
        return TensorComparison(passed=True, kind=ComparisonKind.MATCH, **known)
    row, place, away = max(failed, key=lambda entry: entry[2])
    index = tuple(int(i) for i in np.unravel_index(row * rows.shape[1] + place, reference.shape))
    worst = WorstElement(index, seen[row, place].item(), rows[row, place].item(), away)
    moved = "is missing from the reference's list" if away == np.inf else f"is {away:.0f} places away"
    reason = f"{worst.target} at {index} {moved} (index tolerance {places}; {len(failed)} of {seen.size} elements)"
    return TensorComparison(
        passed=False, kind=ComparisonKind.MISMATCH, worst=worst, mismatching=len(failed), reason=reason, **known
    )
