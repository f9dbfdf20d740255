"""Compare saved outputs with each other, and print the comparisons and averages of any ``run``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bisect_trt.errors import UsageError, quoted
from bisect_trt.options.choices import Algorithm, ErrorStat, Measure
from bisect_trt.options.shared import Plots
from bisect_trt.report.console import Console
from bisect_trt.report.plots import draw_plots
from bisect_trt.report.result import Result
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import RULES, ComparisonKind, TensorComparison, rejudged
from bisect_trt.tensors.saved import SavedRun, Selected, load_runs, same_samples
from bisect_trt.tensors.tolerance import ToleranceOptions


def compare_saved(
    paths: Sequence[Path],
    tolerance: ToleranceOptions,
    wanted: Sequence[str],
    console: Console,
    result: Result,
    *,
    fail_fast: bool = False,
    average: bool = False,
    plots: Plots | None = None,
) -> Result:
    """Compare each saved run with the last one, which stands for the reference.

    Args:
        paths: The files, of two runs at least.
        tolerance: How to compare.
        wanted: The outputs to compare; all that both sides have, where empty.
        console: Prints the comparisons.
        result: Is filled in.
        fail_fast: Whether to stop at the first output that does not match.
        average: Whether the averages over samples decide.
        plots: Which plots to draw.

    Raises:
        UsageError: There are not two runs to compare, or they do not fit each other.
    """
    runs, right = saved_runs(paths)
    comparisons: list[TensorComparison] = []
    averages: list[TensorComparison] | None = [] if average else None
    for run in runs:
        before, prefix = len(comparisons), f"{run.name}: " if len(runs) > 1 else ""
        same_samples(run, len(right.samples), f"{right.name} holds")
        names = list(wanted) or list(right.samples[0])
        console.step(f"{run.name} against {right.name}, {len(names)} output(s)")
        samples = list(zip(run.samples, right.samples, strict=True))
        for number, (target, reference) in enumerate(samples, 1):
            known = same_outputs(right.name, reference, names, console)
            shared = same_outputs(run.name, target, known, console)
            tolerance.check_names(shared)
            seen = compare_all(Selected(reference, shared), target, tolerance, fail_fast=fail_fast, details=True)
            if len(samples) > 1:
                seen = [comparison.of_sample(number) for comparison in seen]
            tell(seen, prefix, console)
            comparisons += seen
            draw_plots(plots or Plots(), seen, samples, console, result)
            if fail_fast and not all(comparison.passed for comparison in seen):
                return conclude(comparisons, console, result)
        if averages is not None:
            averages += tell_average(comparisons[before:], prefix, console)
    return conclude(comparisons, console, result, averages)


def saved_runs(paths: Sequence[Path]) -> tuple[list[SavedRun], SavedRun]:
    """Saved runs, and the last one, which stands for the reference.

    Raises:
        UsageError: There are not two runs to compare.
    """
    *runs, right = [run for path in paths for run in load_runs(path)]
    if not runs:
        raise UsageError(
            f"{right.name} is one saved result, and comparing takes two; name another after --load-outputs, or a model "
            "and a target to run it on."
        )
    return runs, right


def same_outputs(name: str, sample: Mapping[str, Any], wanted: Sequence[str], console: Console) -> list[str]:
    """The wanted outputs that a saved sample has; warns of others.

    Raises:
        UsageError: It has none of them.
    """
    shared = [output for output in wanted if output in sample]
    if not shared:
        raise UsageError(f"{name} has none of the outputs to compare, {quoted(wanted)}; it has {quoted(sample)}.")
    if missing := [output for output in wanted if output not in sample]:
        console.warn(f"{name} has no {quoted(missing)}, so that is not compared")
    return shared


def tell(comparisons: Sequence[TensorComparison], prefix: str, console: Console) -> None:
    """Print a line for each output, and details of those that do not match; with ``-v`` of all."""
    for comparison in comparisons:
        sample = "" if comparison.sample is None else f"sample {comparison.sample}: "
        word = "match   " if comparison.passed else "MISMATCH"
        console.say(f"  {prefix}{sample}{word} '{comparison.name}': {comparison.describe()}")
        if comparison.details is not None and (not comparison.passed or console.verbosity > 0):
            console.say(f"    {comparison.details.describe(comparison.measured)}")
        if comparison.reference_nonfinite:
            console.warn(
                f"{prefix}{sample}'{comparison.name}' is NaN or Inf in {comparison.reference_nonfinite} of "
                f"{comparison.total} elements of what it is compared with; --infinities-compare-equal lets the same Inf "
                "match, nothing NaN"
            )
        types = comparison.target_dtype, comparison.reference_dtype
        if None not in types and types[0] != types[1]:
            console.say(f"    {types[0]} is compared with {types[1]}, by value")


def conclude(
    comparisons: Sequence[TensorComparison],
    console: Console,
    result: Result,
    averages: Sequence[TensorComparison] | None = None,
) -> Result:
    """Print how many match, and fill in the result; ``averages`` decide, where they are asked for."""
    result.extra["comparisons"] = [comparison.to_json() for comparison in comparisons]
    if averages is not None:
        result.extra["averages"] = [comparison.to_json() for comparison in averages]
        comparisons = averages
    failed = sum(not comparison.passed for comparison in comparisons)
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    console.answer(f"{failed} of {len(comparisons)} do not match." if failed else f"All {len(comparisons)} match.")
    return result


def check_average(tolerance: ToleranceOptions, *, fail_fast: bool) -> None:
    """Make sure that there is a number to average.

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


def tell_average(comparisons: Sequence[TensorComparison], prefix: str, console: Console) -> list[TensorComparison]:
    """One comparison for each output, by the means over all its samples, with a line for each.

    As Polygraphy 0.53.6 averages: NaN stays NaN, and an output that could not be compared on a sample fails.
    """
    grouped: dict[str, list[TensorComparison]] = {}
    for comparison in comparisons:
        grouped.setdefault(comparison.name, []).append(comparison)
    found = list(map(_average, grouped.values()))
    for comparison in found:
        word = "match   " if comparison.passed else "MISMATCH"
        console.say(f"  {prefix}average {word} '{comparison.name}': {comparison.describe()}")
    return found


def _average(comparisons: Sequence[TensorComparison]) -> TensorComparison:
    first = comparisons[0]
    broken = [each for each in comparisons if not each.measured and each.max_abs is None]
    if broken:
        return first if all(each.passed for each in comparisons) else replace(broken[0], passed=False)
    said = f"on the average of {len(comparisons)} samples"
    if first.measured:
        judged = []
        for place, each in enumerate(first.measured):
            mean = fmean(comparison.measured[place].value for comparison in comparisons)
            judged.append(RULES[Measure(each.name)].judge(Measure(each.name), mean, each.threshold))
        result = rejudged(first, tuple(judged))
        return replace(result, sample=None, reason=f"{'; '.join(each.said for each in judged)}, {said}")

    def mean_of(name: str) -> float:
        values = [getattr(each, name) for each in comparisons]
        return math.nan if None in values else fmean(values)

    absolute, relative = (mean_of(f"{first.stat.value}_{way}") for way in ("abs", "rel"))
    atol, rtol = (fmean(getattr(each, name) or 0.0 for each in comparisons) for name in ("atol", "rtol"))
    passed = absolute <= atol or relative <= rtol
    reason = (
        f"{first.stat.value} error {absolute:.5g}, relative {relative:.5g} {said} (atol {atol:.3g}, rtol {rtol:.3g})"
    )
    kind = ComparisonKind.MATCH if passed else ComparisonKind.MISMATCH
    return replace(first, sample=None, passed=passed, kind=kind, reason=reason)
