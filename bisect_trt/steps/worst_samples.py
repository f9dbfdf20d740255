"""Keep the samples that fail worst, of many."""

from __future__ import annotations

from typing import Any

from bisect_trt.report.parts import WorstSamples
from bisect_trt.report.result import Result
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.subject import Subject
from bisect_trt.worker.protocol import Collect, Compare, Compared, Failed, Sample

MANY = 16
FEW = 8
"""Limits: of more than 16 samples the 8 that fail worst are diagnosed; every tensor of each is
computed and compared."""


def keep_worst_samples(subject: Subject, check: CheckSettings, result: Result) -> None:
    """Keep the samples that fail worst, if there are more than 16 and some fail; else keep all.

    The model is run once on all of them, and only its outputs are compared. A resumed run finds the
    same samples.
    """
    if len(subject.samples) <= MANY or check.target is None:
        return
    models = subject.models
    inputs = tuple(subject.feeds())
    golden = tuple(
        subject.workspace.scratch(f"many-{place}.golden.npz") for place in range(len(inputs))
    )
    reply: Any = None
    try:
        truth = models.write("many", subject.truth.proto)
        if not isinstance(models.ask(Collect(models.reference, truth, inputs, golden)), Failed):
            samples = tuple(Sample(*files) for files in zip(inputs, golden, strict=True))
            model = models.write("many", subject.network.proto)
            reply = models.workers.ask(
                Compare(check.target, model, samples, check.tolerance, every=True), check.timeout
            )
    finally:
        # Activations of many samples would fill the disk that the search needs.
        for path in (*inputs, *golden):
            path.unlink(missing_ok=True)
    severity: dict[int, float] = {}
    for comparison in reply.comparisons if isinstance(reply, Compared) else ():
        if not comparison.passed:
            severity[comparison.sample or 1] = max(
                severity.get(comparison.sample or 1, 0.0), comparison.severity
            )
    if severity:
        # The worst, in the order of the files, so that their new numbers ascend.
        stay = sorted(sorted(severity, key=lambda number: (-severity[number], number))[:FEW])
        subject.console.say(
            f"{len(severity)} of {len(subject.samples)} samples fail; the worst are diagnosed: {', '.join(map(str, stay))} "
            f"(samples 1 to {len(stay)} below)"
        )
        result.looked_at = WorstSamples(
            of=len(subject.samples), fail=tuple(sorted(severity)), stay=tuple(stay)
        )
        subject.samples = [subject.samples[number - 1] for number in stay]
