"""``diff``: the choices of builders that bad builds have and good ones lack."""

from __future__ import annotations

from bisect_trt.options.commands import Diff
from bisect_trt.report.parts import BuildVerdict
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import CHOICES_OF_BAD, NO_CHOICE
from bisect_trt.session.call import Call
from bisect_trt.steps.build_choices import compare_builds, count_verdicts, gather, tell_choices


def run(call: Call) -> Result:
    """Show the layers, tactics, precisions, formats and fusions that bad builds have and good ones lack."""
    console = call.console
    result = call.result
    builds = gather(call[Diff].paths, console.warn)
    goods, bads = count_verdicts(builds)
    good, bad = (
        {choice.layer for b in builds if b.good is side for choice in b.choices}
        for side in (True, False)
    )
    # Layers of other models would all count as choices of one side.
    if good and bad and not good & bad:
        console.warn("good and bad builds have no layer in common; are they of one model?")
    rows = compare_builds(builds)
    console.step(f"{goods} good and {bads} bad builds")
    tell_choices(builds, rows, console)
    only = [row for row in rows if row.bad and not row.good]
    result.runs = len(builds)
    result.good = goods
    result.bad = bads
    result.choices = rows
    result.builds = [
        BuildVerdict(file=build.name, verdict="PASS" if build.good else "FAIL") for build in builds
    ]
    if not only:
        console.answer(f"{NO_CHOICE.capitalize()}.")
        return result.end("not_reproduced", NO_CHOICE)
    every = sum(row.bad == bads for row in only)
    console.answer(CHOICES_OF_BAD.format(len(only), every))
    return result.end()
