"""What makes the whole model pass with the least loss, in this order: a switch, barriers, another form, layers in fp32."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisect_trt.errors import BisectError
from bisect_trt.graph.save import check_output
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.fault.fault import Fault
from bisect_trt.workflows.investigation import Case, Investigation
from bisect_trt.workflows.precision.fix import MIXED
from bisect_trt.workflows.precision.validation import in_tolerances
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.workaround.proof import Prover, Way
from bisect_trt.workflows.workaround.ways import FAILS_BARRED, UNKNOWN, Culprit, bar, rewrite, turn

PATCHED = "patched.onnx"
_IN_A_DIAGNOSIS, _FRESH_IN_A_DIAGNOSIS = 8, 4
"""What a diagnosis may spend on it: questions a way, and fresh inputs; the command that goes on is said."""


@dataclass(frozen=True)
class WorkaroundSettings:
    """How to look for a way around.

    Attributes:
        check: The target, and how it is compared.
        output: Where the patched model goes.
        fresh: On how many fresh inputs a way has to hold.
        most: How many questions each way may ask.
        everywhere: Whether barriers are looked for outside of the culprit too, and all ways are tried after one that passes.
    """

    check: CheckSettings
    output: Path
    fresh: int = 20
    most: int = 24
    everywhere: bool = True

    def check_output(self, *, overwrite: bool) -> None:
        """Make sure that the patched model, and what may come beside it, can be written.

        Raises:
            UsageError: It cannot.
        """
        for path in (self.output, beside(self.output), self.output.parent / MIXED):
            check_output(path, overwrite=overwrite)


def beside(output: Path) -> Path:
    """Where a second patched model goes."""
    return output.with_name(f"{output.stem}-rewrite{output.suffix}")


def work_around(investigation: Investigation, settings: WorkaroundSettings, case: Case, fault: Fault) -> list[Way]:
    """Look for ways around a failure whose minimal case is known; they are told, and put into the result."""
    subject, console = investigation.subject, investigation.console
    # How long an emulation takes says little, and a diagnosis does not wait for it.
    prover = Prover(
        investigation, settings.check, settings.fresh, timed=settings.everywhere or not _emulated(settings.check.target)
    )
    culprit = Culprit(
        frozenset(subject.network.order[unit] for unit in case.minimum.units), ranged=fault.whose == "precision"
    )
    ways: list[Way] = []
    try:
        if culprit.ranged:
            ways.append(
                Way(
                    "barrier",
                    "behind tensors of the culprit",
                    None,
                    why="rounding alone makes the error, so none helps",
                )
            )
        else:
            ways += turn(prover)
            ways.append(bar(prover, culprit, settings.output, settings.most, everywhere=settings.everywhere))
        passing = any(way.passes for way in ways)
        if settings.everywhere or not passing:
            output = beside(settings.output) if passing else settings.output
            ways.append(rewrite(prover, culprit, output, settings.most))
    except BudgetSpent as error:
        console.say(f"  {error}")
    _leave_no_failing(ways)
    _record(investigation, prover, ways)
    return ways


def _leave_no_failing(ways: list[Way]) -> None:
    """Take away what was written and does not pass."""
    for place, way in enumerate(ways):
        if way.file is not None and not way.passes:
            Path(way.file).unlink(missing_ok=True)
            ways[place] = replace(way, file=None)


def _record(investigation: Investigation, prover: Prover, ways: list[Way]) -> None:
    result = investigation.result
    patched = next((way.file for way in ways if way.passes and way.file is not None), None)
    result.artifacts["patched"] = patched
    result.extra["workarounds"] = [way.to_json() for way in ways]
    wanted = prover.timed and any(way.passes for way in ways)
    result.extra["workaround_baseline"] = _baseline(prover) if wanted else None


def _emulated(target: TargetSettings | None) -> bool:
    """Whether a low precision is emulated on a target, by more work than it would be."""
    return target is not None and bool(target.low_precisions) and target.target.emulates_low(target)


def _baseline(prover: Prover) -> Mapping[str, Any]:
    """How long the failing model runs, and that with all of it in fp32."""
    network, target = prover.investigation.subject.network, prover.target
    failing = prover.measure(network.proto)
    full: dict[str, Any] = dict.fromkeys(target.low_precisions, False)
    plain: TargetSettings | None = replace(target, **full, keep=(), held=False) if full else None
    right = None if plain is None else prover.measure(network.proto, plain)
    return {
        "failing_ms": None if failing is None else failing.latency_ms,
        "fp32_ms": None if right is None else right.latency_ms,
        "target": target.describe(),
        "emulated": _emulated(target),
    }


def add_precision(result: Result) -> None:
    """The last way: layers that stay in fp32, as the search for precision found them."""
    ways = result.extra.get("workarounds")
    nodes = result.extra.get("keep_fp32")
    if ways is None or not nodes or result.artifacts.get("mixed") is None:
        return
    uses = result.extra.get("uses") or []
    latency = (result.extra.get("latency_ms") or {}).get("mixed")
    seen = result.extra.get("validation") or {}
    way = Way(
        "precision",
        f"{len(nodes)} nodes in fp32",
        any(use["passed"] for use in uses),
        result.artifacts["mixed"],
        worst_error=seen.get("worst_error"),
        latency_ms=latency,
        fresh=(seen.get("samples", 0), seen.get("passed", 0)),
        why=f"held on {seen['passed']} of {seen['samples']} fresh inputs" if seen else "on the inputs given",
    )
    ways.append(way.to_json())


def tell(result: Result, console: Console) -> None:
    """The table of what was tried."""
    ways = result.extra.get("workarounds") or []
    passing = sorted((way for way in ways if way["passes"]), key=_missed)
    if not passing:
        console.answer("No way around it was found:" if ways else "No way around it was looked for.")
    else:
        first = passing[0]
        where = f" ({first['file']})" if first["file"] else ""
        but = ", which does not hold on all fresh inputs" if _missed(first) else ""
        console.answer(f"A way around it: {first['what']}{where}{but}.")
    for way in sorted(ways, key=lambda way: _missed(way) if way["passes"] else 0.0):
        console.answer(f"  {_row(way)}")
    baseline = result.extra.get("workaround_baseline") or {}
    times = [
        f"{words} {baseline[key]:.3f} ms"
        for key, words in (("failing_ms", "as it fails"), ("fp32_ms", "all in fp32"))
        if baseline.get(key) is not None
    ]
    if times:
        how = ", emulated: a target that computes in it takes other times" if baseline["emulated"] else ""
        console.answer(f"  beside them: {', '.join(times)} on {baseline['target']}{how}")


def _missed(way: Mapping[str, Any]) -> float:
    """The share of fresh inputs that a way fails on; 0 where none were tried."""
    fresh = way["fresh"]
    return 1 - fresh["passed"] / fresh["samples"] if fresh["samples"] else 0.0


def _row(way: Mapping[str, Any]) -> str:
    verdict = {True: "passes", False: "does not pass", None: "not tried"}[way["passes"]]
    if way["passes"] and _missed(way):
        verdict = "passes on the inputs given, does not hold on fresh ones"
    parts = [f"{way['kind']}: {way['what']}: {verdict}"]
    if isinstance(way["worst_error"], float):
        parts.append(f"worst error {in_tolerances(way['worst_error'])}")
    if way["latency_ms"] is not None:
        parts.append(f"{way['latency_ms']:.3f} ms")
    if way["file"]:
        parts.append(way["file"])
    return "; ".join([*parts, *([way["why"]] if way["why"] else [])])


def command(investigation: Investigation, check: CheckSettings) -> str:
    """The command that looks further."""
    subject, target = investigation.subject, check.target
    assert target is not None, "a diagnosis has one"
    words = ["bisect-trt", "workaround", str(subject.settings.path), *target.flags(), *investigation.place_words]
    return shlex.join([*words, *subject.settings.words(), *check.tolerance.words()])


def after_diagnosis(
    investigation: Investigation, check: CheckSettings, case: Case, fault: Fault, folder: Path, *, steady: bool
) -> None:
    """The last step of a diagnosis: a few questions, and the command that asks more.

    None where the failure is not ``steady``: a pass may be luck then.
    """
    console, target = investigation.console, check.target
    assert target is not None, "a diagnosis has one"
    result = investigation.result
    result.extra |= {"workarounds": [], "workaround_baseline": None}
    console.step("What makes the whole model pass?")
    if fault.whose in ("reference", "tie", "random"):
        console.say("  the target is not wrong, so there is nothing to work around")
        return
    if not steady:
        add_precision(result)
        console.say("  not looked for: what was found passed when it was probed once more, so a pass may be luck")
        return
    if target.target.capabilities.costly:
        add_precision(result)
        console.say(f"  not looked for, since each probe is a build; this does: {command(investigation, check)}")
        return
    settings = WorkaroundSettings(check, folder / PATCHED, _FRESH_IN_A_DIAGNOSIS, _IN_A_DIAGNOSIS, everywhere=False)
    try:
        ways = work_around(investigation, settings, case, fault)
    except BisectError as error:  # the failure itself was found before
        console.say(f"  no way around was found: {error}")
        ways = []
    add_precision(result)
    tell(result, investigation.console)
    if any(way.passes for way in ways):
        return
    if ways and len(case.minimum.units) == 1 and all(way.why in (FAILS_BARRED, UNKNOWN) for way in ways):
        console.answer(
            "  it fails alone, whatever is around it: another operator in its place may do, or another release"
        )
    else:
        console.answer(f"  this looks further: {command(investigation, check)}")
