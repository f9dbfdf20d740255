"""Builds that were kept, good ones beside bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.builds.compared import compare_builds, tell_table
from bisect_trt.workflows.builds.replay import gather


def diff_builds(
    paths: Sequence[Path], good: Sequence[Path], bad: Sequence[Path], console: Console, result: Result
) -> Result:
    """Say which layers, tactics, precisions, formats and fusions the bad builds have and the good ones do not.

    Raises:
        UnavailableError: A file is not there, or says nothing of builds.
        UsageError: Whether one is good or bad is not said.
    """
    builds = gather(paths, good, bad, console.warn)
    layers = [
        {choice.layer for build in builds if build.good is side for choice in build.choices} for side in (True, False)
    ]
    if all(layers) and not set.intersection(*layers):
        console.warn("no layer is in good builds and in bad ones: are they of one model?")
    table = compare_builds(builds)
    console.step(f"{table.good} good and {table.bad} bad builds")
    tell_table(table, console)
    only = [row for row in table.rows if row.bad and not row.good]
    always = [row for row in only if row.bad == table.bad]
    result.extra |= {"runs": len(builds), "good": table.good, "bad": table.bad, **table.to_json()}
    result.extra["builds"] = [{"file": build.name, "verdict": "PASS" if build.good else "FAIL"} for build in builds]
    result.status, result.minimality = ("found" if only else "not_reproduced"), "1-minimal"
    if not only:
        result.why = "no choice is made by bad builds alone"
        console.answer(f"{result.why[0].upper()}{result.why[1:]}.")
    else:
        what = "choice" if len(only) == 1 else "choices"
        every = f", {len(always)} of them in every one" if len(only) > 1 else " in every one" if always else ""
        console.answer(
            f"{len(only)} {what} in bad builds alone{every}. That is no proof: `bisect-trt repeat` builds with one pinned and "
            "forbidden."
        )
    return result
