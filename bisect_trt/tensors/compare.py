"""The comparison of a target's outputs with the reference's: element by element, or by a user's script.

Numbers and verdict are the same as in Polygraphy 0.53.6's ``CompareFunc.simple`` with the target
first and the reference second (``polygraphy/comparator/compare.py``, Apache-2.0): absolute error
``|t - r|``, relative error ``|t - r| / |r|`` with 2**-52 in place of a floating-point ``r`` of 0,
means accumulated in float32. An error that is NaN, also from the same Inf or NaN on both sides, is
beyond any tolerance.

There are three deliberate differences: tensors without elements match whatever the statistic (in
Polygraphy their mean is NaN), the error of distant integers never wraps around, and bfloat16 and
float8 tensors can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from bisect_trt.aliases import Fields, Plain, Sizes
from bisect_trt.errors import InputValuesError, ScriptError, quoted
from bisect_trt.options.compare import ErrorStat
from bisect_trt.tensors.comparison import (
    ComparisonKind,
    Details,
    TensorComparison,
    ValueRange,
    WorstElement,
    required_severity,
    severity_weight,
)
from bisect_trt.tensors.info import (
    Array,
    count_nonfinite,
    finite_rms,
    is_extension,
    is_floating,
    is_raw,
    tensor_stats,
)
from bisect_trt.tensors.inputs import NamedOutputs, script_attribute, split_script, user_code
from bisect_trt.tensors.signals import cosine_similarity, signal_to_noise
from bisect_trt.tensors.tolerance import (
    DEFAULT_QUANTILE,
    RIPPLE,
    Precision,
    ResolvedTolerance,
    Step,
    Tolerance,
    ToleranceOptions,
    automatic_tolerance,
    channel_tolerances,
    coarser,
    of_output,
    precision_of,
)

COMPARE_FUNCTION = "compare_outputs"
_KIND = "comparison"
_EPSILON = 2.0**-52
_WIDER = dict.fromkeys(("int8", "uint8", "int16", "uint16"), "int32")
_WIDER |= {"float16": "float32", "uint32": "int64"}


def compare_all(
    reference: Mapping[str, Array],
    target: Mapping[str, Array],
    options: ToleranceOptions,
    names: Iterable[str] | None = None,
    *,
    details: bool = False,
    steps: Mapping[str, Step] | None = None,
    lows: Mapping[str, Precision] | None = None,
) -> list[TensorComparison]:
    """Compare tensors of the reference, all or those in ``names``, with the target's of the same name, in this order.

    Args:
        reference: Name to values.
        target: Name to values.
        options: How to compare, and tolerances by name.
        names: The tensors to compare.
        details: Whether to compute :class:`Details` too.
        steps: Steps of quantized tensors, by name.
        lows: The lowest precision that the model itself rounds a tensor to, by name.

    Raises:
        UsageError: The user's script fails.
    """
    names = reference if names is None else list(names)
    if options.compare_func_script is not None:
        return compare_by_script(
            options.compare_func_script,
            {name: reference[name] for name in names if name in reference},
            target,
        )
    comparisons = []
    for name in names:
        if name not in reference:
            comparisons.append(TensorComparison(name, False, ComparisonKind.MISSING))
            continue
        step = (steps or {}).get(name)
        precision = coarser(options.precision, (lows or {}).get(name))
        comparison = compare_tensor(
            name,
            reference[name],
            target.get(name),
            options,
            details=details,
            step=step,
            precision=precision,
        )
        comparisons.append(comparison)
    return comparisons


_WIDE = (np.int16, np.uint16)
"""The quantized types with steps that a low precision rounds away."""


def compare_tensor(
    name: str,
    reference: Array,
    target: Array | None,
    options: ToleranceOptions,
    *,
    details: bool = False,
    step: Step | None = None,
    precision: Precision | None = None,
) -> TensorComparison:
    """Compare one tensor, of any shape and ONNX element type; a target of ``None`` has no such output.

    A tie in the rounding of a quantized tensor, with its ``step``, is no error, unless the user
    gives a tolerance. ``precision`` is the computation's, if not the options'.
    """
    if target is not None:
        reference, target = (
            _typed(name, reference, target.dtype),
            _typed(name, target, reference.dtype),
        )
    invalid = (
        _describe_nonfinite(reference, target) if options.validate and target is not None else ""
    )
    tolerance, stat = options.for_output(name)
    facts: Fields = {"name": name, "stat": stat, "total": reference.size}
    facts |= {"reference_shape": reference.shape, "reference_dtype": _dtype_name(reference)}
    if target is None:
        return TensorComparison(passed=False, kind=ComparisonKind.MISSING, **facts)
    facts |= {"target_shape": target.shape, "target_dtype": _dtype_name(target)}
    if reference.shape != target.shape:
        return TensorComparison(passed=False, kind=ComparisonKind.SHAPE, **facts)
    if "U" in (reference.dtype.kind, target.dtype.kind):
        return _compare_strings(reference, target, facts)
    # Either side may be rounded to fewer digits.
    types = map(precision_of, (reference.dtype, target.dtype))
    low = coarser(precision or options.precision, *types) or options.precision
    resolved = tolerance.resolve(reference, low)
    # A tolerance of the user holds as it is written, without an allowance for ties.
    step = None if tolerance != Tolerance() or options.validate else step
    # Behind a quantized tensor, one tie of rounding moves all values that depend on it a little.
    if step is not None and step.size is None and reference.dtype.kind == "f":
        ripple = max(resolved.atol, RIPPLE * finite_rms(reference))
        resolved = ResolvedTolerance(ripple, max(resolved.rtol, RIPPLE))
    elif step is not None and reference.dtype in _WIDE and low is not Precision.FP32:
        # A step of 16 bits is less than the rounding of fp16. How far a value is from zero is not
        # known without the zero point: at most as far as the ends are.
        reach = np.ptp(reference.reshape(-1).astype(np.float64)) if reference.size else 0.0
        atol = automatic_tolerance(np.full(1, reach), low).atol
        resolved = ResolvedTolerance(atol, resolved.rtol)
    facts |= {"atol": resolved.atol, "rtol": resolved.rtol}
    if reference.size:
        comparison = _compare_numbers(
            reference, target, resolved, facts, options, details=details, step=step
        )
    else:
        comparison = TensorComparison(passed=True, kind=ComparisonKind.MATCH, **facts)
    if not invalid:
        # One wrong channel of many is lost in the scale of the whole tensor.
        automatic = tolerance == Tolerance() and stat is ErrorStat.ELEMWISE and step is None
        if options.by_channel and automatic and comparison.passed and is_floating(reference):
            return _with_channels(comparison, reference, target, low)
        return comparison
    kind = ComparisonKind.NAN if "NaN" in invalid else ComparisonKind.INF
    return replace(comparison, passed=False, kind=kind, reason=invalid)


@np.errstate(all="ignore")
def _with_channels(
    comparison: TensorComparison, reference: Array, target: Array, precision: Precision
) -> TensorComparison:
    """Return the comparison of a tensor that matches, with ``by_channel`` where some channels are clearly wrong."""
    if reference.ndim < 2:
        return comparison
    ours = _promote(reference.reshape(-1))
    theirs = _promote(target.reshape(-1))
    absolute = np.abs(theirs - ours)
    rtol = comparison.rtol or 0.0
    required = required_severity(math.inf) / severity_weight(precision)
    floor = automatic_tolerance(reference[:0], precision).atol
    # Rounding stays below this in nearly every tensor, which then needs no statistics of channels.
    places = np.flatnonzero(absolute > required * (floor + rtol * np.abs(ours)))
    if not places.size:
        return comparison
    atols = channel_tolerances(reference, precision, places)
    past = absolute[places] / (atols + rtol * np.abs(ours[places]))
    peak = int(past.argmax())
    if past[peak] < required:
        return comparison
    flat = places[peak]
    index = tuple(map(int, np.unravel_index(flat, reference.shape)))
    by_channel = replace(
        comparison,
        passed=False,
        kind=ComparisonKind.MISMATCH,
        atol=float(atols[peak]),
        worst=WorstElement(index, theirs[flat].item(), ours[flat].item(), float(absolute[flat])),
        mismatching=int(np.count_nonzero(past >= required)),
        past_tolerance=float(past[peak]),
        of_tolerance=float(absolute[flat] / atols[peak]),
    )
    return replace(comparison, by_channel=by_channel)


def _dtype_name(values: Array) -> str:
    """Return the name of an element type; NumPy names strings after the longest one."""
    return "string" if values.dtype.kind == "U" else values.dtype.name


def _compare_strings(reference: Array, target: Array, facts: Plain) -> TensorComparison:
    """Compare tensors of one shape exactly, one at least of strings; ``facts`` is ``known`` of :func:`_compare_numbers`."""
    mismatch = np.asarray(reference.astype(np.str_) != target.astype(np.str_))
    count = int(np.count_nonzero(mismatch))
    if not count:
        reason = f"all {mismatch.size} strings are equal"
        return TensorComparison(
            passed=True, kind=ComparisonKind.MATCH, max_abs=0.0, reason=reason, **facts
        )
    index = tuple(map(int, np.unravel_index(int(mismatch.argmax()), mismatch.shape)))
    worst = WorstElement(index, target[index].item(), reference[index].item(), math.inf)
    location = f"the first at {index}: expected {worst.reference!r}, got {worst.target!r}"
    reason = f"{count} of {mismatch.size} strings differ, {location}"
    return TensorComparison(
        passed=False,
        kind=ComparisonKind.MISMATCH,
        worst=worst,
        mismatching=count,
        reason=reason,
        **facts,
    )


def _typed(name: str, values: Array, dtype: np.dtype[Any]) -> Array:
    """Return saved values in the type of those that they are compared with, if their file has lost it.

    Raises:
        UsageError: Neither has a type.
    """
    if not is_raw(values.dtype):
        return values
    if is_raw(dtype) or dtype.itemsize != values.dtype.itemsize:
        raise InputValuesError(
            f"'{name}' is saved as raw bytes ({values.dtype}), so its type is unknown; save it as numbers."
        )
    return values.view(dtype)


def _describe_nonfinite(reference: Array, target: Array) -> str:
    """Return the reason for which ``--validate`` fails two tensors; empty if it passes them."""
    reasons = []
    for side, values in (("target", target), ("reference", reference)):
        counts = zip(("NaN", "Inf"), count_nonfinite(values), strict=True)
        if words := " and ".join(f"{count} {word}" for word, count in counts if count):
            reasons.append(f"the {side} has {words} among {values.size} elements")
    return ", ".join(reasons)


def _quantile(errors: Array, quantile: float) -> float:
    """Return a quantile of errors, which are booleans where the tensors are."""
    numbers = errors.astype(np.float32) if errors.dtype.kind == "b" else errors
    return float(np.quantile(numbers, quantile))


# Inf - Inf, 0 / 0 and float32 overflow are results here.
@np.errstate(all="ignore")
def _compare_numbers(
    reference: Array,
    target: Array,
    tolerance: ResolvedTolerance,
    known: Fields,
    options: ToleranceOptions,
    *,
    details: bool,
    step: Step | None,
) -> TensorComparison:
    """Compare two tensors of numbers, of the same shape and not empty; ``known`` has ``name`` and ``stat`` of the result."""
    # Flat, so that a 0-d tensor is an array as well, and not the scalar that NumPy's arithmetic
    # would make of it.
    shape = reference.shape
    ours = _promote(reference.reshape(-1))
    theirs = _promote(target.reshape(-1))
    absolute, relative = _errors(theirs, ours)
    # A finite maximum means that both tensors are finite throughout, the usual case: no need to
    # look for NaN and Inf.
    finite = math.isfinite(absolute.max())
    if not finite:
        known |= {"reference_nonfinite": sum(count_nonfinite(ours))}
        equal = _same_nonfinite(theirs, ours, options)
        absolute[equal] = 0
        relative[equal] = 0

    stat: ErrorStat = known["stat"]
    result: Fields = {
        "max_abs": float(absolute.max()),
        "max_rel": float(relative.max()),
        "mean_abs": float(absolute.mean(dtype=np.float32)),
        "mean_rel": float(relative.mean(dtype=np.float32)) if stat is ErrorStat.MEAN else None,
        "target_range": msgspec.convert(tensor_stats(theirs), ValueRange),
    }
    # "Not within" rather than "beyond", which NaN would not be.
    within_abs = absolute <= tolerance.atol
    within_rel = relative <= tolerance.rtol
    mismatch = ~(within_abs | within_rel)
    if stat is ErrorStat.ELEMWISE:
        result["of_tolerance"] = _of_tolerance(absolute, relative, tolerance)
        if step is not None:
            result |= _forgive_ties(step, absolute, mismatch, shape)
        if mismatch.any():
            result["past_tolerance"] = _past_tolerance(
                absolute[mismatch], ours[mismatch], tolerance
            )
    result["mismatching"] = int(np.count_nonzero(mismatch))
    kind, flat = _worst(theirs, ours, absolute, mismatch, finite)
    index = tuple(map(int, np.unravel_index(flat, shape)))
    result["worst"] = WorstElement(
        index, theirs[flat].item(), ours[flat].item(), float(absolute[flat])
    )
    needed = (
        (_largest(absolute, within_rel), _largest(relative, within_abs)) if details else (0.0, 0.0)
    )
    if stat is ErrorStat.QUANTILE:
        quantile = of_output(options.error_quantile, known["name"], DEFAULT_QUANTILE)
        result |= {
            "quantile": quantile,
            "quantile_abs": _quantile(absolute, quantile),
            "quantile_rel": _quantile(relative, quantile),
        }
    # Last, for they sort in place rather than in a copy.
    result["median_abs"] = float(np.median(absolute, overwrite_input=True))
    if stat is ErrorStat.MEDIAN:
        result["median_rel"] = float(np.median(relative, overwrite_input=True))
    passed = not result["mismatching"]
    if stat is not ErrorStat.ELEMWISE:
        needed = result[f"{stat.value}_abs"], result[f"{stat.value}_rel"]
        # NaN fails, for comparisons with it are false
        passed = needed[0] <= tolerance.atol or needed[1] <= tolerance.rtol
        result["of_tolerance"] = _of_tolerance(
            np.array(needed[:1]), np.array(needed[1:]), tolerance
        )
    if details:
        result["details"] = replace(
            _details(needed, ours, theirs), argmax=argmax_agreement(reference, target)
        )
    return TensorComparison(
        passed=passed, kind=ComparisonKind.MATCH if passed else kind, **known, **result
    )


def _details(needed: tuple[float, float], reference: Array, target: Array) -> Details:
    """Return the tolerances that would have passed, with the similarity of the tensors."""
    vectors = reference.astype(np.float64), target.astype(np.float64)
    return Details(*needed, cosine_similarity(*vectors), signal_to_noise(*vectors))


def argmax_agreement(reference: Array, target: Array) -> float | None:
    """Return the share of rows in which two tensors of one shape have the largest value at the same place.

    Rows run along axis 1 of images, from four dimensions on, and else along the last axis.
    """
    axis = 1 if reference.ndim > 3 else -1
    if not reference.ndim or reference.shape[axis] == 1:
        return None
    return float(np.mean(reference.argmax(axis) == target.argmax(axis)))


def _same_nonfinite(target: Array, reference: Array, options: ToleranceOptions) -> Array:
    """Return where both have the same Inf or NaN and the options count that as no error."""
    equal = np.zeros(reference.shape, bool)
    if options.infinities_compare_equal or options.nonfinite_equal:
        equal |= np.isinf(reference) & (target == reference)
    if options.nonfinite_equal:
        equal |= np.isnan(reference) & np.isnan(target)
    return equal


def _promote(values: Array) -> Array:
    """Widen as Polygraphy does: fp16 to fp32, integers below 32 bits to int32, uint32 to int64."""
    if is_extension(values.dtype):
        return values.astype(np.int32 if "int" in values.dtype.name else np.float32)
    return values.astype(_WIDER.get(values.dtype.name, values.dtype), copy=False)


def _errors(target: Array, reference: Array) -> tuple[Array, Array]:
    """Return absolute and relative errors of flat arrays, in two new arrays."""
    common = np.result_type(target, reference)
    if common.kind in "iu":
        # Larger less smaller, read as unsigned, is exact; a signed difference can wrap around,
        # |int64 min| does.
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


def _forgive_ties(step: Step, absolute: Array, mismatch: Array, shape: Sizes) -> Fields:
    """Remove ties from the mismatching elements in place; return the result's fields that describe them."""
    ties = step.ties(absolute, mismatch, shape)
    mismatch &= ~ties
    fields: Fields = {"ties": int(np.count_nonzero(ties))}
    if step.size is not None and step.size.size == 1:
        fields |= {"step": float(step.size[0]), "most_ties": step.most(mismatch.size)}
    return fields


def _of_tolerance(absolute: Array, relative: Array, tolerance: ResolvedTolerance) -> float:
    """Return the largest error over the tolerance of its element, absolute or relative, whichever is wider."""
    share = np.divide(absolute, tolerance.atol)
    np.fmin(share, np.divide(relative, tolerance.rtol), out=share)
    largest = float(share.max())
    if math.isnan(largest):
        # An error of NaN, or one of 0 with a tolerance of 0.
        largest = float(np.where(absolute == 0, 0, np.where(np.isnan(share), np.inf, share)).max())
    return largest


def _past_tolerance(absolute: Array, reference: Array, tolerance: ResolvedTolerance) -> float:
    """Return the largest of some errors over the sum of both tolerances; Inf if none is finite or the tolerance is 0."""
    past = np.divide(
        absolute, tolerance.atol + tolerance.rtol * np.abs(reference), dtype=np.float64
    )
    finite = past[np.isfinite(absolute)]
    return float(finite.max()) if finite.size else math.inf


def _largest(errors: Array, within: Array) -> float:
    """Return the largest of the errors that the other tolerance does not allow; NaN if one of them is."""
    excluded = errors[~within]
    return float(excluded.max()) if excluded.size else 0.0


def _worst(
    target: Array, reference: Array, absolute: Array, mismatch: Array, finite: bool
) -> tuple[ComparisonKind, int]:
    """Return the kind of a failure, should it be one, and the flat index of the element that shows it best."""
    if not finite:
        # A NaN or Inf of one side alone is the worst: first what the target made, then what it
        # lost.
        for kind, has in ((ComparisonKind.NAN, np.isnan), (ComparisonKind.INF, np.isinf)):
            appeared = has(target) & ~has(reference)
            lost = has(reference) & ~has(target)
            # NaN is beyond any tolerance; Inf is not beyond an infinite one.
            for single in (appeared & mismatch, lost & mismatch):
                if single.any():
                    return kind, int(single.argmax())
    if not mismatch.any():
        return ComparisonKind.MISMATCH, int(absolute.argmax())
    # Only among the mismatching, for an error that the relative tolerance allows explains nothing;
    # and NaN, left over from the same Inf or NaN on both sides, only if there is no plain error.
    plain = mismatch if finite else mismatch & ~np.isnan(absolute)
    if not plain.any():
        return ComparisonKind.MISMATCH, int(mismatch.argmax())
    return ComparisonKind.MISMATCH, int(np.where(plain, absolute, absolute.dtype.type(0)).argmax())


def check_script(script: str) -> Path:
    """Return the file of a comparison script, which has to exist."""
    return split_script(script, COMPARE_FUNCTION, _KIND)[0]


def compare_by_script(
    script: str, reference: Mapping[str, Array], target: Mapping[str, Array]
) -> list[TensorComparison]:
    """Compare the outputs by a user's function.

    As Polygraphy's ``--compare-func-script``, it takes the target's and the reference's outputs
    (two mappings of name to array, with a ``runner_name``), and returns a mapping of output name to
    whether it matches.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``; without a function, ``compare_outputs``.
        reference: Name to values.
        target: Name to values.

    Raises:
        UsageError: There is no such file or function, it raises, or it returns no such mapping.
    """
    path, function = split_script(script, COMPARE_FUNCTION, _KIND)
    with user_code(path, _KIND):
        compare = script_attribute(path, function, _KIND)
        verdicts = compare(NamedOutputs(target, "target"), NamedOutputs(reference, "reference"))
        if not isinstance(verdicts, Mapping) or not verdicts:
            raise ScriptError(
                f"'{function}' of {path} gives {verdicts!r:.60}; it must return a dict of output name to whether it matches"
            )
        judged = {str(name): bool(verdict) for name, verdict in verdicts.items()}
    if unknown := [name for name in judged if name not in reference]:
        raise ScriptError(
            f"'{function}' of {path} judges {quoted(unknown)}; the outputs are {quoted(reference)}"
        )
    return [
        TensorComparison(
            name=name,
            passed=passed,
            kind=ComparisonKind.MATCH if passed else ComparisonKind.MISMATCH,
            reason=f"{path.name} returns {passed}",
            total=int(np.size(reference[name])),
        )
        for name, passed in judged.items()
    ]
