"""Tell what a comparison of outputs found, and end with it."""

from __future__ import annotations

from collections.abc import Sequence

from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.comparison import TensorComparison


def tell(comparisons: Sequence[TensorComparison], prefix: str, console: Console) -> None:
    """A line for each output, and what more is known of those that do not match; with ``-v`` of all."""
    for comparison in comparisons:
        sample = "" if comparison.sample is None else f"sample {comparison.sample}: "
        word = "match   " if comparison.passed else "MISMATCH"
        console.say(f"  {prefix}{sample}{word} '{comparison.name}': {comparison.describe()}")
        if comparison.details is not None and (not comparison.passed or console.verbosity > 0):
            console.say(f"    {comparison.details.describe()}")
        if comparison.reference_nonfinite:
            console.warn(
                f"{prefix}{sample}'{comparison.name}' is NaN or Inf in {comparison.reference_nonfinite} of "
                f"{comparison.total} elements of what it is compared with; --infinities-compare-equal lets the same Inf "
                "match, nothing NaN"
            )
        types = comparison.target_dtype, comparison.reference_dtype
        if None not in types and types[0] != types[1]:
            console.say(f"    {types[0]} is compared with {types[1]}, by value")


def conclude(comparisons: Sequence[TensorComparison], console: Console, result: Result) -> Result:
    """Say how many match, and put all into the result."""
    failed = sum(not comparison.passed for comparison in comparisons)
    result.extra["comparisons"] = [comparison.to_json() for comparison in comparisons]
    result.status = "not_reproduced" if failed else "found"
    result.minimality = "1-minimal"
    console.answer(f"{failed} of {len(comparisons)} do not match." if failed else f"All {len(comparisons)} match.")
    return result
