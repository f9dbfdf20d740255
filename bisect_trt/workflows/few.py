"""Of many input samples, those that a diagnosis looks at: every tensor of each is computed, kept and compared.

With hundreds of samples that takes hours, and the worst few show what is wrong. So where there are many, the model is first run
on all of them as it is, its outputs alone compared.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from bisect_trt.probing.protocol import Compare, Compared, Failed, Sample, Series
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import reference_settings
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.subject import Subject

MANY, FEW = 16, 8
_SHOWN = 12
_CHOSEN = "samples.json"


def look_at_few(subject: Subject, check: CheckSettings, console: Console, result: Result) -> None:
    """Leave the samples that fail worst, where there are more than 16 and some fail; else all stay.

    Args:
        subject: The model; its samples are changed, before anything is computed of them.
        check: The target, its tolerances and the time that it may take.
        console: Who is told.
        result: Gets ``looked_at``: how many there were, and the numbers of those that ``fail`` and of those that ``stay``.
    """
    if len(subject.samples) <= MANY or check.target is None:
        return
    noted = subject.workspace.folder / _CHOSEN  # a run that goes on has to look at the same ones
    if noted.exists():
        found: dict[str, Any] = json.loads(noted.read_text("utf-8"))
    else:
        worst = _worst_first(subject, check)
        found = {"of": len(subject.samples), "fail": sorted(worst), "stay": sorted(worst[:FEW])}
        noted.write_text(json.dumps(found), "utf-8")
    if not found["stay"]:
        return
    named = ", ".join(map(str, found["stay"]))
    console.say(
        f"{len(found['fail'])} of {found['of']} samples fail; the worst are looked at, all else is about these: {named} "
        f"(1 to {len(found['stay'])} from here on)"
    )
    subject.samples = [subject.samples[number - 1] for number in found["stay"]]
    result.extra["looked_at"] = found


def _worst_first(subject: Subject, check: CheckSettings) -> list[int]:
    """The numbers of the samples that fail; none if that cannot be seen with one run after the other."""
    models, scratch = subject.models, subject.workspace.scratch
    assert check.target is not None
    inputs = tuple(models.feed(f"many-{place}", sample) for place, sample in enumerate(subject.samples))
    golden = tuple(scratch(f"many-{place}.golden.npz") for place in range(len(inputs)))
    made: list[Path] = [*inputs, *golden]
    try:
        right = Series(reference_settings(), models.write("many", subject.truth.proto), inputs, golden)
        if isinstance(models.ask(right, here=True), Failed):
            return []
        samples = tuple(Sample(*files) for files in zip(inputs, golden, strict=True))
        model = models.write("many", subject.network.proto)
        reply = models.ask(Compare(check.target, model, samples, check.tolerance, every=True), check.timeout)
        if not isinstance(reply, Compared):
            return []
    finally:
        for path in made:
            path.unlink(missing_ok=True)
    severity: defaultdict[int, float] = defaultdict(float)
    for each in reply.comparisons:
        if not each.passed:
            severity[each.sample or 1] = max(severity[each.sample or 1], each.severity)
    return sorted(severity, key=lambda number: (-severity[number], number))
