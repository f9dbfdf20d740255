"""The comparison of a target's outputs with the reference's.

Before it, what was asked for is done to both: the largest elements taken, shapes brought together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Algorithm, ErrorStat, Measure
from bisect_trt.options.reading import TopK
from bisect_trt.tensors.compare_numbers import compare_indices, compare_numbers
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement
from bisect_trt.tensors.info import is_extension, is_string
from bisect_trt.tensors.measures import RULES, judge
from bisect_trt.tensors.method import Method
from bisect_trt.tensors.stats import count_nonfinite, finite_rms
from bisect_trt.tensors.tolerance import (
    DEFAULT_QUANTILE,
    RIPPLE,
    Precision,
    ResolvedTolerance,
    Step,
    Tolerance,
    ToleranceOptions,
    coarser,
)
from bisect_trt.tensors.user_script import compare_by_script

Array = NDArray[Any]


def postprocess(name: str, values: Array, method: Method) -> Array:
    """An output as it is to be compared: its top K, where they are asked for.

    Where they are asked for all outputs, one that has no such axis stays as it is.

    Raises:
        UsageError: They are asked for this output, and it has no such axis or holds strings.
    """
    wanted = method.top_k_of(name)
    if wanted is None:
        return values
    if is_string(values.dtype) or not -values.ndim <= wanted.axis < values.ndim:
        if name in method.top_k:
            kind = "holds strings" if is_string(values.dtype) else f"of shape {list(values.shape)} has no such axis"
            raise UsageError(
                f"--postprocess top-{wanted.k},axis={wanted.axis}: the output '{name}' {kind}; leave it out"
            )
        return values
    return top_k(values, wanted)


def top_k(values: Array, wanted: TopK) -> Array:
    """The indices of the largest elements, largest first; of equal ones the first comes first, NaN comes last."""
    if is_extension(values.dtype):
        values = values.astype(np.float32)
    if values.dtype.kind == "f":
        order = np.argsort(-values, axis=wanted.axis, kind="stable")
    else:  # the negative of an unsigned number is none
        length = values.shape[wanted.axis]
        rising = np.argsort(np.flip(values, wanted.axis), axis=wanted.axis, kind="stable")
        order = length - 1 - np.flip(rising, wanted.axis)
    return np.take(order, np.arange(min(wanted.k, order.shape[wanted.axis])), axis=wanted.axis)


def match_shape(values: Array, shape: tuple[int, ...]) -> Array:
    """Values permuted or reshaped to a shape, as far as that can be done.

    As Polygraphy does without shape checks (``util.try_match_shape``, Apache-2.0): with the same sizes in another order
    the axes are permuted, the first axis of a size to the first place that wants it; else elements keep their order.
    """
    if values.shape == shape or values.size != int(np.prod(shape, dtype=np.int64)):
        return values
    if values.ndim == len(shape) and sorted(values.shape) == sorted(shape):
        left = list(range(values.ndim))
        axes = []
        for size in shape:
            axis = next(axis for axis in left if values.shape[axis] == size)
            left.remove(axis)
            axes.append(axis)
        return np.transpose(values, axes)
    return values.reshape(shape)


__all__ = ["ComparisonKind", "TensorComparison", "WorstElement", "compare_all", "compare_output", "compare_tensor"]


def compare_all(
    reference: Mapping[str, Array],
    target: Mapping[str, Array],
    options: ToleranceOptions,
    *,
    fail_fast: bool = False,
    details: bool = False,
    steps: Mapping[str, Step] | None = None,
    lows: Mapping[str, Precision] | None = None,
) -> list[TensorComparison]:
    """Compare every tensor of the reference with the target's of the same name.

    Args:
        reference: Name to values; decides the order.
        target: Name to values; others than the reference's are ignored.
        options: How to compare, and tolerances by name.
        fail_fast: Whether to stop after the first that fails.
        details: Whether to work out the further numbers too.
        steps: Of quantized tensors, by name.
        lows: What tensors are rounded to by the model itself, by name.

    Returns:
        One comparison a tensor, in the reference's order; the failing one last if ``fail_fast``.

    Raises:
        UsageError: What is to be done to an output cannot be, or the user's script fails.
    """
    if options.method.script is not None:
        return compare_by_script(options.method.script, reference, target)
    comparisons = []
    for name, values in reference.items():
        step, precision = (steps or {}).get(name), coarser(options.precision, (lows or {}).get(name))
        comparisons.append(
            compare_output(name, values, target.get(name), options, details=details, step=step, precision=precision)
        )
        if fail_fast and not comparisons[-1].passed:
            break
    return comparisons


def compare_output(
    name: str,
    reference: Array,
    target: Array | None,
    options: ToleranceOptions,
    *,
    details: bool = False,
    step: Step | None = None,
    precision: Precision | None = None,
) -> TensorComparison:
    """Compare one tensor as the options say.

    Args:
        name: The tensor's name.
        reference: What it should be; any shape, any ONNX element type.
        target: What it is; None where the target did not give it.
        options: How to compare, and tolerances by name.
        details: Whether to work out the further numbers too.
        step: Of a quantized tensor: a tie in its rounding is no error, unless the user gives a tolerance.
        precision: What it was computed in, if not in what the options say.

    Raises:
        UsageError: What is to be done to this output cannot be.
    """
    method = options.method
    invalid = "" if target is None or not method.validate else _invalid(reference, target)
    if target is not None:
        reference, target = (postprocess(name, values, method) for values in (reference, target))
        if not method.shape_check:
            target = match_shape(target, reference.shape)
    tolerance, stat = options.for_output(name)
    comparison = compare_tensor(
        name,
        reference,
        target,
        tolerance,
        stat,
        precision=precision or options.precision,
        nonfinite_equal=options.nonfinite_equal,
        infinities_equal=options.infinities_equal,
        quantile=options.quantile_of(name),
        places=method.places(name) if method.algorithm is Algorithm.INDICES else None,
        details=details,
        step=step if tolerance == Tolerance() and options.method == Method() else None,
    )
    comparison = judge(comparison, reference, target, _thresholds(name, options))
    if not invalid:
        return comparison
    kind = ComparisonKind.NAN if "NaN" in invalid else ComparisonKind.INF
    return replace(comparison, passed=False, kind=kind, reason=invalid)


def _thresholds(name: str, options: ToleranceOptions) -> dict[Measure, float]:
    given = options.measures_of(name)
    found = {measure: RULES[measure].threshold if value is None else value for measure, value in given.items()}
    return {measure: value for measure, value in found.items() if value is not None}


def _invalid(reference: Array, target: Array) -> str:
    """What ``--validate`` has against two tensors, in words; empty if nothing."""
    found = []
    for side, values in (("target", target), ("reference", reference)):
        counts = zip(("NaN", "Inf"), count_nonfinite(values), strict=True)
        if said := " and ".join(f"{count} {word}" for word, count in counts if count):
            found.append(f"the {side} has {said} among {values.size} elements")
    return ", ".join(found)


def compare_tensor(
    name: str,
    reference: Array,
    target: Array | None,
    tolerance: Tolerance,
    stat: ErrorStat = ErrorStat.ELEMWISE,
    *,
    precision: Precision = Precision.FP32,
    nonfinite_equal: bool = False,
    infinities_equal: bool = False,
    quantile: float = DEFAULT_QUANTILE,
    places: int | None = None,
    details: bool = False,
    step: Step | None = None,
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
        infinities_equal: Whether the same Inf in the same place does.
        quantile: Which quantile is held against the tolerance, if that is the statistic.
        places: How many places an index may be away, for tensors that are lists of indices; else None.
        details: Whether to work out the further numbers too.
        step: Of a quantized tensor, where being one step off may be a tie.
    """
    known: dict[str, Any] = {"name": name, "stat": stat, "total": reference.size}
    known |= {"reference_shape": reference.shape, "reference_dtype": reference.dtype.name}
    if target is None:
        return TensorComparison(passed=False, kind=ComparisonKind.MISSING, **known)
    known |= {"target_shape": target.shape, "target_dtype": target.dtype.name}
    strings = is_string(reference.dtype)
    if strings != is_string(target.dtype) or reference.shape != target.shape:
        kind = ComparisonKind.DTYPE if strings != is_string(target.dtype) else ComparisonKind.SHAPE
        return TensorComparison(passed=False, kind=kind, **known)
    if strings:
        return _compare_strings(reference, target, known)
    if places is not None and reference.size:
        return compare_indices(reference, target, places, known)
    resolved = tolerance.resolve(reference, precision)
    if step is not None and step.size is None and reference.dtype.kind == "f":
        resolved = ResolvedTolerance(max(resolved.atol, RIPPLE * finite_rms(reference)), max(resolved.rtol, RIPPLE))
    known |= {"atol": resolved.atol, "rtol": resolved.rtol}
    if not reference.size:
        return TensorComparison(passed=True, kind=ComparisonKind.MATCH, **known)
    if stat is ErrorStat.QUANTILE:
        known |= {"quantile": quantile}
    # Inf - Inf, 0 / 0 and float32 overflow are findings here, not accidents.
    with np.errstate(all="ignore"):
        return compare_numbers(
            reference,
            target,
            resolved,
            known,
            nonfinite_equal=nonfinite_equal,
            infinities_equal=infinities_equal or nonfinite_equal,
            want_details=details,
            step=step,
        )


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
