"""The comparison of a target's tensors with the reference's.

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

from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement
from bisect_trt.tensors.dtypes import is_extension, is_string
from bisect_trt.tensors.tolerance import ErrorStat, Precision, ResolvedTolerance, Tolerance, ToleranceOptions

__all__ = ["ComparisonKind", "TensorComparison", "WorstElement", "compare_all", "compare_tensor"]

_EPSILON = 2.0**-52

Array = NDArray[Any]


def compare_all(
    reference: Mapping[str, Array], target: Mapping[str, Array], options: ToleranceOptions, *, fail_fast: bool = False
) -> list[TensorComparison]:
    """Compare every tensor of the reference with the target's of the same name.

    Args:
        reference: Name to values; decides the order.
        target: Name to values; others than the reference's are ignored.
        options: Tolerances by name.
        fail_fast: Whether to stop after the first that fails.

    Returns:
        One comparison a tensor, in the reference's order; the failing one last if ``fail_fast``.
    """
    comparisons = []
    for name, values in reference.items():
        tolerance, stat = options.for_output(name)
        comparisons.append(
            compare_tensor(
                name,
                values,
                target.get(name),
                tolerance,
                stat,
                precision=options.precision,
                nonfinite_equal=options.nonfinite_equal,
            )
        )
        if fail_fast and not comparisons[-1].passed:
            break
    return comparisons


def compare_tensor(
    name: str,
    reference: Array,
    target: Array | None,
    tolerance: Tolerance,
    stat: ErrorStat = ErrorStat.ELEMWISE,
    *,
    precision: Precision = Precision.FP32,
    nonfinite_equal: bool = False,
) -> TensorComparison:
    """Compare one tensor.

    Args:
        name: The tensor's name, for the result.
        reference: What it should be; any shape, any ONNX element type.
        target: What it is; None where the target did not give it.
        tolerance: Absolute and relative; automatic where None.
        stat: What is held against the tolerance.
        precision: What the target computes in, for automatic tolerances.
        nonfinite_equal: Whether the same Inf or NaN in the same place counts as no error.
    """
    known: dict[str, Any] = {"name": name, "stat": stat, "total": reference.size}
    known |= {"reference_shape": reference.shape, "reference_dtype": reference.dtype.name}
    if target is None:
        return TensorComparison(passed=False, kind=ComparisonKind.MISSING, **known)
    known |= {"target_shape": target.shape, "target_dtype": target.dtype.name}
    if is_string(reference.dtype) != is_string(target.dtype):
        return TensorComparison(passed=False, kind=ComparisonKind.DTYPE, **known)
    if reference.shape != target.shape:
        return TensorComparison(passed=False, kind=ComparisonKind.SHAPE, **known)
    if is_string(reference.dtype):
        return _compare_strings(reference, target, known)
    resolved = tolerance.resolve(reference, precision)
    known |= {"atol": resolved.atol, "rtol": resolved.rtol}
    if not reference.size:
        return TensorComparison(passed=True, kind=ComparisonKind.MATCH, **known)
    # Inf - Inf, 0 / 0 and float32 overflow are findings here, not accidents.
    with np.errstate(all="ignore"):
        return _compare_numbers(reference, target, resolved, nonfinite_equal, known)


def _compare_numbers(
    reference: Array, target: Array, tolerance: ResolvedTolerance, nonfinite_equal: bool, known: dict[str, Any]
) -> TensorComparison:
    # Flat, so that a 0-d tensor is an array as well, and not the scalar that NumPy's arithmetic would make of it.
    shape, reference, target = reference.shape, _promote(reference.reshape(-1)), _promote(target.reshape(-1))
    absolute, relative = _errors(target, reference)
    # A finite maximum means that both tensors are finite throughout, the usual case: no need to look for NaN and Inf.
    finite = math.isfinite(absolute.max())
    if nonfinite_equal and not finite:
        same = (np.isinf(reference) & (target == reference)) | (np.isnan(reference) & np.isnan(target))
        absolute[same] = 0
        relative[same] = 0

    statistics: dict[str, Any] = {
        "max_abs": float(absolute.max()),
        "max_rel": float(relative.max()),
        "mean_abs": float(absolute.mean(dtype=np.float32)),
        "mean_rel": float(relative.mean(dtype=np.float32)) if known["stat"] is ErrorStat.MEAN else None,
    }
    # "Not within" rather than "beyond", which NaN would not be.
    mismatch = absolute <= tolerance.atol
    mismatch |= relative <= tolerance.rtol
    np.logical_not(mismatch, out=mismatch)
    statistics["mismatching"] = int(np.count_nonzero(mismatch))
    kind, flat_index = _worst(target, reference, absolute, mismatch, finite)
    statistics["worst"] = WorstElement(
        index=tuple(int(i) for i in np.unravel_index(flat_index, shape)),
        target=target[flat_index].item(),
        reference=reference[flat_index].item(),
        error=float(absolute[flat_index]),
    )
    # Last, for they sort in place rather than in a copy.
    statistics["median_abs"] = float(np.median(absolute, overwrite_input=True))
    if known["stat"] is ErrorStat.MEDIAN:
        statistics["median_rel"] = float(np.median(relative, overwrite_input=True))

    passed = _passes(known["stat"], statistics, tolerance)
    return TensorComparison(passed=passed, kind=ComparisonKind.MATCH if passed else kind, **known, **statistics)


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
        if (new_nan := np.isnan(target) & ~np.isnan(reference)).any():
            return ComparisonKind.NAN, int(new_nan.argmax())
        # NaN is beyond any tolerance; Inf is not beyond an infinite one.
        if (new_inf := np.isinf(target) & np.isfinite(reference) & mismatch).any():
            return ComparisonKind.INF, int(new_inf.argmax())
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
    within_abs = statistics[f"{stat.value}_abs"] <= tolerance.atol
    return bool(within_abs or statistics[f"{stat.value}_rel"] <= tolerance.rtol)


def _compare_strings(reference: Array, target: Array, known: dict[str, Any]) -> TensorComparison:
    """Strings are equal or not, whatever the statistic; their errors are 0 or Inf."""
    mismatch = np.asarray(reference.astype(object) != target.astype(object), dtype=bool).reshape(-1)
    count = int(np.count_nonzero(mismatch))
    worst = None
    if reference.size:
        index = tuple(int(i) for i in np.unravel_index(int(mismatch.argmax()), reference.shape))
        worst = WorstElement(index, str(target[index]), str(reference[index]), math.inf if count else 0.0)
    largest = math.inf if count else 0.0
    return TensorComparison(
        passed=not count,
        kind=ComparisonKind.MISMATCH if count else ComparisonKind.MATCH,
        **{**known, "stat": ErrorStat.ELEMWISE},
        atol=0.0,
        rtol=0.0,
        max_abs=largest,
        max_rel=largest,
        worst=worst,
        mismatching=count,
    )
