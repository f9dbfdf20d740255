"""``--check-average``: of each output, the mean over all samples of what is checked is held against its threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Algorithm, ErrorStat, Measure
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.tensors.measures import RULES, rejudged
from bisect_trt.tensors.tolerance import ToleranceOptions


def check_average(tolerance: ToleranceOptions, *, fail_fast: bool) -> None:
    """Make sure that there is something to average.

    Raises:
        UsageError: What is checked is no number for an output, or samples are to be left out.
    """
    method = tolerance.method
    if fail_fast:
        raise UsageError("--check-average looks at all samples, and --fail-fast stops at the first; drop one.")
    if method.algorithm is Algorithm.INDICES or method.script is not None:
        raise UsageError("--check-average is of numbers, and indices or a script of yours give none; drop one of both.")
    said = {**tolerance.stat, **tolerance.measures}
    stats = [*said.values(), *([] if "" in said else [ErrorStat.ELEMWISE])]
    if not method.algorithm.measures and ErrorStat.ELEMWISE in stats:
        raise UsageError(
            "--check-average: elemwise looks at each element and has no number to average; add --check-error-stat max, mean, "
            "median, quantile or another."
        )


def averaged(comparisons: Sequence[TensorComparison]) -> list[TensorComparison]:
    """One comparison for each output, in the order of the first sample, by the means over all its samples.

    As Polygraphy 0.53.6 averages: NaN stays NaN, and an output that could not be compared on a sample fails.
    """
    found: dict[str, list[TensorComparison]] = {}
    for comparison in comparisons:
        found.setdefault(comparison.name, []).append(comparison)
    return [_average(each) for each in found.values()]


def _average(comparisons: Sequence[TensorComparison]) -> TensorComparison:
    first = comparisons[0]
    numbers = [each for each in comparisons if each.measured or each.max_abs is not None]
    if len(numbers) < len(comparisons):
        broken = next(each for each in comparisons if each not in numbers)
        return first if all(each.passed for each in comparisons) else replace(broken, passed=False)
    said = f"on the average of {len(comparisons)} samples"
    if first.measured:
        judged = []
        for place, each in enumerate(first.measured):
            mean = fmean(comparison.measured[place].value for comparison in comparisons)
            judged.append(RULES[Measure(each.name)].judge(Measure(each.name), mean, each.threshold))
        result = rejudged(first, tuple(judged))
        return replace(result, sample=None, reason=f"{'; '.join(each.said for each in judged)}, {said}")
    absolute, relative = (_mean(comparisons, f"{first.stat.value}_{way}") for way in ("abs", "rel"))
    atol, rtol = (fmean(getattr(each, name) or 0.0 for each in comparisons) for name in ("atol", "rtol"))
    passed = absolute <= atol or relative <= rtol
    reason = (
        f"{first.stat.value} error {absolute:.5g}, relative {relative:.5g} {said} (atol {atol:.3g}, rtol {rtol:.3g})"
    )
    kind = ComparisonKind.MATCH if passed else ComparisonKind.MISMATCH
    return replace(first, sample=None, passed=passed, kind=kind, reason=reason)


def _mean(comparisons: Sequence[TensorComparison], name: str) -> float:
    values = [getattr(each, name) for each in comparisons]
    return math.nan if None in values else fmean(values)
