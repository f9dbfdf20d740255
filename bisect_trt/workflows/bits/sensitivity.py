"""What each group costs: the error with it alone in floats, and with it alone quantized.

Both are measured on ONNX Runtime's CPU provider with optimisations off, which computes what QuantizeLinear and
DequantizeLinear say, whichever target the search is for: for a table of all groups a target that builds engines would take
hours. Neither decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from bisect_trt.probing.fresh_check import error_of
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.bits.group_lowering import GroupLowering
from bisect_trt.workflows.subject import Subject

_SAMPLES = 2


@dataclass(frozen=True)
class Sensitivity:
    """Errors in units of the tolerance: past 1 the model fails.

    Attributes:
        removed: By group: with it alone in floats, all others quantized; ``None`` where that does not run.
        quantized: By group: with it alone quantized.
        everything: With all groups quantized.
    """

    removed: Sequence[float | None]
    quantized: Sequence[float | None]
    everything: float | None


class Errors:
    """Runs models for how far they are off."""

    def __init__(self, subject: Subject, tolerance: ToleranceOptions) -> None:
        """Take the samples of the search."""
        self._subject = subject
        self._tolerance = tolerance
        references = [subject.reference, *subject.reference.more][:_SAMPLES]
        self._samples = tuple(
            Sample(
                subject.models.feed(f"sensitivity-in-{place}", reference.inputs),
                subject.models.feed(f"sensitivity-out-{place}", reference.select(subject.network.outputs)),
            )
            for place, reference in enumerate(references)
        )

    def of(self, model: onnx.ModelProto) -> float | None:
        """The largest error of any output over its tolerance; infinite for a NaN; ``None`` where the model does not run."""
        subject = self._subject
        path = subject.models.write("sensitivity", model)
        names = tuple(subject.network.outputs)
        request = Compare(reference_settings(), path, self._samples, self._tolerance, names=names, every=True)
        reply = subject.models.ask(request, here=True)
        if isinstance(reply, Failed):
            return None
        # What passes by another rule than its statistic's counts as the statistic says.
        return max((_over(comparison) for comparison in reply.comparisons), default=None)


def _over(comparison: TensorComparison) -> float:
    if comparison.mean_abs is not None and comparison.atol and comparison.stat.value == "mean":
        return math.inf if math.isnan(comparison.mean_abs) else comparison.mean_abs / comparison.atol
    return error_of(comparison)


def measure_sensitivity(errors: Errors, lowering: GroupLowering) -> Sensitivity:
    """Measure every group alone, both ways."""
    everything = frozenset(lowering.units)
    removed = [errors.of(lowering.candidate(frozenset({unit})).proto) for unit in lowering.units]
    quantized = [errors.of(lowering.candidate(everything - {unit}).proto) for unit in lowering.units]
    return Sensitivity(removed, quantized, errors.of(lowering.candidate(frozenset()).proto))
