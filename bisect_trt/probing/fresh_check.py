"""The built-in check on input samples of its own, which the search has not seen; it says of each how far it is off."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bisect_trt.options.choices import ErrorStat, Measure
from bisect_trt.probing.builtin import BuiltinCheck, outcome_of_failure
from bisect_trt.probing.models import ask
from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.tensors.comparison import Measured, TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions

SEVERE = 10.0
"""An error of more than so many times its tolerance is no matter of rounding."""


@dataclass(frozen=True)
class FreshCheck:
    """Runs a candidate on all samples, whatever it does on the first.

    Attributes:
        check: The comparison.
        samples: On what.
        tolerance: How far it may be off; what is not given follows from the values of each sample.
    """

    check: BuiltinCheck
    samples: tuple[Sample, ...]
    tolerance: ToleranceOptions
    parallel: bool = True
    finds_weights: bool = True

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate; ``Outcome.errors`` has one number for each sample."""
        target = self.check.target_of(files)
        request = Compare(target, files.model, self.samples, self.tolerance, every=True)
        timeout = None if self.check.timeout is None else self.check.timeout * len(self.samples)
        began = time.monotonic()
        reply = ask(self.check.workers, request, timeout, cancel, log=files.log)
        seconds = time.monotonic() - began
        if isinstance(reply, Failed):
            return outcome_of_failure(reply, seconds)
        return outcome_of_samples(reply.comparisons, len(self.samples), seconds)


def outcome_of_samples(comparisons: Sequence[TensorComparison], samples: int, seconds: float) -> Outcome:
    """What it means how far a candidate is off on each sample."""
    seen: dict[int, list[TensorComparison]] = {}
    for comparison in comparisons:
        seen.setdefault(comparison.sample or 1, []).append(comparison)
    errors = tuple(max(map(error_of, found), default=0.0) for _, found in sorted(seen.items()))
    failing = {number: found for number, found in seen.items() if not all(each.passed for each in found)}
    worst = max(errors, default=0.0)
    if not failing:
        said = f"{samples} {'sample matches' if samples == 1 else 'samples match'}, worst error {worst:.2g} of the tolerance"
        return Outcome(Ending.PASSED, "match", said, seconds, errors=errors)
    number = max(failing, key=lambda each: max(map(error_of, failing[each])))
    output = max((each for each in failing[number] if not each.passed), key=error_of)
    reason = f"{len(failing)} of {samples} samples fail, worst sample {number}: '{output.name}': {output.describe()}"
    return Outcome(
        Ending.MISMATCHED,
        output.kind.value,
        reason,
        seconds,
        comparisons=tuple(failing[number]),
        sample=number,
        errors=errors,
    )


def error_of(comparison: TensorComparison) -> float:
    """The largest error over its tolerance: up to 1 for what passes, more for what does not, infinite for a NaN."""
    if comparison.reason is not None and not comparison.passed:
        return math.inf
    error = comparison.of_tolerance if comparison.stat is ErrorStat.ELEMWISE else _statistic(comparison)
    if comparison.measured:
        error = max(map(_of_threshold, comparison.measured))
    if error is None:
        error = 0.0 if comparison.passed else math.inf
    return min(error, 1.0) if comparison.passed else max(error, math.nextafter(1.0, 2.0))


def _of_threshold(measured: Measured) -> float:
    """How far a number for the whole tensor is from perfect, over how far it may be: of decibels the ratio of amplitudes."""
    value, threshold = measured.value, measured.threshold
    if math.isnan(value):
        return math.inf
    if measured.name in (Measure.PSNR.value, Measure.SNR.value):
        return float(10 ** min((threshold - value) / 20, _MOST))
    if measured.name == Measure.COSINE.value:
        value, threshold = 1 - value, 1 - threshold
    if value <= 0:
        return 0.0
    return value / threshold if threshold > 0 else math.inf


_MOST = 300
"""Powers of ten; as good as infinite."""


def _statistic(comparison: TensorComparison) -> float | None:
    """The statistic that decides, over its tolerance."""
    stat = comparison.stat.value
    found = []
    for way, allowed in (("abs", comparison.atol), ("rel", comparison.rtol)):
        value = getattr(comparison, f"{stat}_{way}", None)
        if value is not None and allowed:
            found.append(math.inf if math.isnan(value) else float(value) / allowed)
    return min(found, default=None)
