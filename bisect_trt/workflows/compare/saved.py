"""Compare saved results, without a model or a runtime; and tell what any comparison of outputs found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_trt.errors import UsageError, quoted
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.saved import SavedRun, Selected, load_runs
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.compare.average import averaged
from bisect_trt.workflows.pictures import Pictures


def tell(comparisons: Sequence[TensorComparison], prefix: str, console: Console) -> None:
    """A line for each output, and what more is known of those that do not match; with ``-v`` of all."""
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


def tell_average(comparisons: Sequence[TensorComparison], prefix: str, console: Console) -> list[TensorComparison]:
    """The averages over samples, with a line for each output."""
    found = averaged(comparisons)
    for comparison in found:
        word = "match   " if comparison.passed else "MISMATCH"
        console.say(f"  {prefix}average {word} '{comparison.name}': {comparison.describe()}")
    return found


def conclude(
    comparisons: Sequence[TensorComparison],
    console: Console,
    result: Result,
    averages: Sequence[TensorComparison] | None = None,
) -> Result:
    """Say how many match, and put all into the result; ``averages`` decide, where they are asked for."""
    result.extra["comparisons"] = [comparison.to_json() for comparison in comparisons]
    if averages is not None:
        result.extra["averages"] = [comparison.to_json() for comparison in averages]
        comparisons = averages
    failed = sum(not comparison.passed for comparison in comparisons)
    result.status = "not_reproduced" if failed else "found"
    result.minimality = "1-minimal"
    console.answer(f"{failed} of {len(comparisons)} do not match." if failed else f"All {len(comparisons)} match.")
    return result


def compare_saved(
    paths: Sequence[Path],
    tolerance: ToleranceOptions,
    wanted: Sequence[str],
    console: Console,
    result: Result,
    *,
    fail_fast: bool = False,
    average: bool = False,
    pictures: Pictures | None = None,
) -> Result:
    """Compare each saved run with the last one, which stands for what is right.

    Args:
        paths: The files, of two runs at least.
        tolerance: How to compare.
        wanted: The outputs to compare; all that both sides have, where empty.
        console: Who is told.
        result: Is filled in.
        fail_fast: Whether to stop at the first output that does not match.
        average: Whether the averages over samples decide.
        pictures: Which pictures to draw.

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
        for number, (target, reference) in enumerate(zip(run.samples, right.samples, strict=True), 1):
            known = [name for name in names if name in same_outputs(right.name, reference, names, console)]
            shared = same_outputs(run.name, target, known, console)
            tolerance.check_names(shared)
            chosen = Selected(reference, shared)
            seen = compare_all(chosen, target, tolerance, fail_fast=fail_fast, details=True)
            if len(right.samples) > 1:
                seen = [comparison.of_sample(number) for comparison in seen]
            tell(seen, prefix, console)
            comparisons += seen
            samples = list(zip(run.samples, right.samples, strict=True))
            (pictures or Pictures()).draw(seen, samples, console, result)
            if fail_fast and not all(comparison.passed for comparison in seen):
                return conclude(comparisons, console, result)
        if averages is not None:
            averages += tell_average(comparisons[before:], prefix, console)
    return conclude(comparisons, console, result, averages)


def saved_runs(paths: Sequence[Path]) -> tuple[list[SavedRun], SavedRun]:
    """Saved runs, and the last one, which stands for what is right.

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


def same_samples(run: SavedRun, number: int, other: str) -> None:
    """Make sure that a saved run has as many samples as another.

    Raises:
        UsageError: It does not.
    """
    if len(run.samples) != number:
        raise UsageError(
            f"{run.name} holds {len(run.samples)} sample(s) where {other} {number}; save both from the same inputs."
        )


def same_outputs(name: str, sample: Mapping[str, Any], wanted: Sequence[str], console: Console) -> list[str]:
    """Those of the wanted outputs that a saved sample has; the user is told of others.

    Raises:
        UsageError: It has none of them.
    """
    shared = [output for output in wanted if output in sample]
    if not shared:
        raise UsageError(f"{name} has none of the outputs to compare, {quoted(wanted)}; it has {quoted(sample)}.")
    if missing := [output for output in wanted if output not in sample]:
        console.warn(f"{name} has no {quoted(missing)}, so that is not compared")
    return shared
