"""``diagnose``: names the nodes of a failure, the side that is wrong, the cause and the fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bisect_trt.options.searches import Diagnose
from bisect_trt.options.shared import Search
from bisect_trt.report.parts import WorstSamples
from bisect_trt.report.reproducer import GOLDEN, INPUTS, ISSUE, MIXED, MODEL, NOTES, WRITTEN
from bisect_trt.report.result import Result
from bisect_trt.session.call import Call
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.subject import Subject
from bisect_trt.steps.diagnosis import (
    Diagnosis,
    archive_of,
    diagnose_whole,
    folder_of,
    inner_check,
)
from bisect_trt.steps.minimal_case import (
    MOST_FAILURES,
)
from bisect_trt.steps.placement import record_placement
from bisect_trt.steps.reproducer import check_folder
from bisect_trt.targets.options import Target
from bisect_trt.worker.protocol import Collect, Compare, Compared, Failed, Sample


def run(call: Call) -> Result:
    """Find why the target is wrong, and write a reproducer.

    Raises:
        UsageError: An option is wrong, or the reproducer cannot be written.
        UnavailableError: The target or the reference cannot run the model.
    """
    options = call[Diagnose]
    target = call[Target].required()
    check = inner_check(call, target, options.timeout)
    folder = options.output or Path(f"{options.model.stem.lstrip('-')}-reproducer".lstrip("-"))
    archive = archive_of(folder) if options.archive else None
    _check_outputs(call, folder, archive)
    opened = call.open()
    # The latency of the original is measured here, so that a fix is compared with it without
    # another build.
    compares = check.metric is None and check.limits is None
    check = replace(check, timed=target.target.compiles and compares)
    with opened.subject(
        check.timeout, target, older=options.releases, judges_export=True
    ) as subject:
        if compares:
            keep_worst_samples(subject, check, call.result)
        with opened.searching(check, subject) as session:
            if compares and (eager := call.eager(subject)):
                from bisect_trt.steps.export import judge_export  # noqa: PLC0415 - of references in Python or in another file

                fault = judge_export(session, eager, check.tolerance)
                if fault and fault.whose == "export":
                    return call.result.end()
            record_placement(session, target)
            diagnosis = Diagnosis(session, check, call[Search], options, folder)
            return diagnosis.run() if compares else diagnose_whole(diagnosis)


def _check_outputs(call: Call, folder: Path, archive: Path | None) -> None:
    """Check that the folders of all reproducers can be written.

    Raises:
        UsageError: One cannot be written.
    """
    options = call[Diagnose]
    packed = list(filter(None, [archive]))
    call.paths.add_outputs(packed)
    for number in range(1, MOST_FAILURES + 1 if options.find_all else 2):
        place = folder_of(folder, number)
        call.paths.add_outputs([place / name for name in (*WRITTEN, ISSUE, NOTES, MIXED)])
        # A resumed run may replace what it has written, and nothing else.
        ours = call.paths.wrote([place / MODEL, place / INPUTS, place / GOLDEN, *packed])
        check_folder(place, archive if number == 1 else None, overwrite=options.overwrite or ours)


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
