"""How often a build, or a run, fails; what the bad ones chose; and the proof."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.engine_check import EngineCheck
from bisect_trt.probing.journal import Record
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.repeat_check import RepeatCheck
from bisect_trt.reporting.result import Result
from bisect_trt.search.exact import INTERVAL_METHOD, rate_interval
from bisect_trt.search.oracle import Ask, Subset, Verdict, over_units
from bisect_trt.targets.chosen import Choice
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.builds.compared import Build, Table, compare_builds, tell_table
from bisect_trt.workflows.builds.proof import MOST_REASONS, Bench, Held, Reason, find_reasons
from bisect_trt.workflows.builds.record import FOLDERS, BuildSorter, ProbedBuilds, recorded_choices
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.settings import RepeatSettings

_WANTED: dict[str, tuple[Verdict, ...]] = {
    "good": (Verdict.PASS,),
    "bad": (Verdict.FAIL,),
    "both": (Verdict.PASS, Verdict.FAIL),
}
_SHARED = "build"
"""The folder of the one build that is run again and again."""
_TRIED, _TRIED_COSTLY = 10, 2
"""How many builds are held to what was found and to nothing else."""
_MOST_TRIED, _MOST_TRIED_COSTLY = 10, 3
"""How often a build that is kept from what was found is made, to see that it is good."""


@dataclass(frozen=True)
class _Story:
    """What every step works with."""

    investigation: Investigation
    settings: RepeatSettings
    target: TargetSettings | None
    search: str
    """The command that finds the reason of what fails always, by whoever says good or bad."""

    @property
    def what(self) -> str:
        """What is repeated, in the singular."""
        return "run" if self.target is None or self.settings.same_engine else "build"

    def candidate(self, units: Subset) -> Candidate:
        """One repetition; its number is the only unit."""
        number = max(units, default=0)
        original = self.investigation.subject.original
        return replace(original, title=f"{self.what} {number}", target=self.target, repetition=number)


def repeat(investigation: Investigation, settings: RepeatSettings) -> Result:
    """Build or run the model again and again, and say what the bad ones have in common.

    Raises:
        BudgetSpent: What was seen until then is in the result.
        KeyboardInterrupt: The same.
    """
    console, result, prober = investigation.console, investigation.result, investigation.prober
    workspace = investigation.subject.workspace
    shared = (workspace.folder / _SHARED).absolute() if settings.same_engine else None
    inner, target = prober.runner.check, None
    if isinstance(inner, BuiltinCheck | EngineCheck):
        prober.runner.check, target = RepeatCheck.of(inner, shared), inner.target
        prober.workers = prober.workers if prober.runner.check.parallel else 1
    search = "diagnose" if isinstance(inner, BuiltinCheck) else "reduce"
    story = _Story(investigation, settings, target, search)
    until = (
        f", until {settings.until} {'have' if settings.until == 'both' else 'has'} been seen" if settings.until else ""
    )
    how = "Run one build" if settings.same_engine and story.target is not None else f"{story.what.capitalize()}"
    console.step(f"1. {how} {'up to ' if settings.until else ''}{settings.most} times{until}")
    sorter = BuildSorter(workspace, settings.folder or workspace.folder)
    result.extra |= {"choices": [], "reasons": [], "avoid": None}
    try:
        prober.search(over_units(Verdict.FAIL, lambda ask: _runs(settings, ask)), story.candidate)
    except (BudgetSpent, KeyboardInterrupt):
        if seen := len(_summarise(story, sorter)):
            console.answer(f"So far it fails in {result.extra['bad']} of {seen}: {result.extra['rate']:.1%}.")
        raise
    builds = _summarise(story, sorter)
    table = compare_builds(builds)
    result.extra |= table.to_json()
    _conclude(story, table)
    if settings.same_engine or not any(build.choices for build in builds):
        _say_why_not(story, builds)
        return result
    if table.good and table.bad:
        console.step("2. What did the bad builds choose that the good ones did not?")
        tell_table(table, console)
        _prove(story, builds, table)
    return result


def _runs(settings: RepeatSettings, ask: Ask) -> int:
    """Ask for one after the other; how many that were."""
    missing = set(_WANTED.get(settings.until or "", ()))
    for number in range(1, settings.most + 1):
        missing.discard(ask(frozenset({number})))
        if settings.until is not None and not missing:
            return number
    return settings.most


def _summarise(story: _Story, sorter: BuildSorter) -> list[Build]:
    """Put into the result what was seen of each, and the rate; sort what they left.

    Returns:
        The builds that are good or bad.
    """
    investigation, settings, result = story.investigation, story.settings, story.investigation.result
    records = {record.key: record for record in investigation.prober.ledger.records}
    builds, said = [], []
    for number in range(1, settings.most + 1):
        candidate = story.candidate(frozenset({number}))
        record = records.get(candidate.key)
        if record is None:
            break
        choices = frozenset[Choice]() if settings.same_engine else recorded_choices(investigation, candidate)
        left = {} if story.target is None or settings.same_engine else sorter.sort(record, number, choices)
        said.append({**_plain(record), "number": number, "files": dict(left)})
        if record.verdict is not Verdict.UNRESOLVED:
            builds.append(Build(f"{story.what} {number}", record.verdict is Verdict.PASS, choices))
    counts = {name: sum(each["verdict"] == verdict.value for each in said) for verdict, name in FOLDERS.items()}
    judged = counts["good"] + counts["bad"]
    result.extra |= {
        "runs": len(said),
        **counts,
        "rate": counts["bad"] / judged if judged else None,
        "interval": list(rate_interval(counts["bad"], judged, settings.confidence)) if judged else None,
        "confidence": settings.confidence,
        "method": INTERVAL_METHOD,
        "until": settings.until,
        "same_engine": settings.same_engine,
        "builds": said,
    }
    folder = settings.folder or investigation.subject.workspace.folder
    for name in FOLDERS.values():
        if (folder / name).is_dir():
            result.artifacts[name] = str(folder / name)
    return builds


def _plain(record: Record) -> dict[str, Any]:
    return {
        "verdict": record.verdict.value,
        "reason": record.reason,
        "signature": record.signature,
        "seconds": record.seconds,
        "probe": record.number,
    }


def _conclude(story: _Story, table: Table) -> None:
    """Say how often it fails, and what that makes of the result."""
    result, console, settings, what = (
        story.investigation.result,
        story.investigation.console,
        story.settings,
        story.what,
    )
    extra = result.extra
    runs, broke = extra["runs"], extra["unresolved"]
    other = next((each["reason"] for each in extra["builds"] if each["verdict"] == Verdict.UNRESOLVED.value), "")
    odd = f" {broke} broke in another way: {other}" if broke else ""
    result.minimality = "1-minimal"
    if not table.good + table.bad:
        result.status, result.minimality = "inconclusive", "unproven"
        result.why = f"none of {runs} {what}s was good or bad: all broke in another way; `bisect-trt log` says how"
        console.answer(f"Not known: {result.why}.")
        return
    low, high = extra["interval"]
    interval = f"{low:.1%} to {high:.1%} with {settings.confidence:g} confidence, {INTERVAL_METHOD}"
    console.answer(
        f"It fails in {table.bad} of {table.good + table.bad} {what}s: {extra['rate']:.1%} ({interval}).{odd}"
    )
    if result.artifacts.get("good") or result.artifacts.get("bad"):
        names = [result.artifacts[name] for name in FOLDERS.values() if result.artifacts.get(name)]
        console.say(f"  what they left lies in {', '.join(map(str, names))}")
    if not table.bad:
        result.status = "not_reproduced"
        result.why = f"it passed in all of {table.good} {what}s; it may still fail in up to {high:.1%} of them"
        return
    result.status = "found"
    missing = [name for name, verdict in (("good", Verdict.PASS), ("bad", Verdict.FAIL)) if _lacks(story, verdict)]
    if missing:
        result.status, result.minimality = "inconclusive", "unproven"
        result.why = f"no {' or '.join(missing)} {what} was seen in {runs}"
        console.answer(f"Stopped before --until {settings.until}: {result.why}; -n allows more.")
    elif table.bad == 1 and not table.good:
        result.why = f"the only {what} that was judged fails, so whether all do is not known"
        console.answer(f"{result.why[0].upper()}{result.why[1:]}; `--until both` goes on until one passes.")
    elif not table.good:
        result.why = f"it fails in every {what}: that is no matter of chance"
        console.answer(
            f"{result.why[0].upper()}{result.why[1:]}, so `bisect-trt {story.search}` is what finds the reason."
        )


def _lacks(story: _Story, verdict: Verdict) -> bool:
    """Whether a verdict was waited for, and was not given."""
    settings, extra = story.settings, story.investigation.result.extra
    return verdict in _WANTED.get(settings.until or "", ()) and not extra[FOLDERS[verdict]]


def _say_why_not(story: _Story, builds: Sequence[Build]) -> None:
    """Why nothing is said of choices, where some fail and others do not."""
    if len({build.good for build in builds}) < 2:
        return
    if story.target is None:
        why = "a check command alone says nothing of builds; with a target whose builds it is given, their choices are compared"
    elif story.settings.same_engine:
        why = "one build was run, so no choice of a build decides: look for what else changes (`bisect-trt run --self-check`)"
    else:
        why = f"{story.target.target.title} does not say what its builds choose, so whether one of them decides is not known"
    story.investigation.result.extra["note"] = why
    story.investigation.console.say(f"  {why}")


def _prove(story: _Story, builds: Sequence[Build], table: Table) -> None:
    """Step 3: builds that are held to a choice and kept from it."""
    investigation, console, result = story.investigation, story.investigation.console, story.investigation.result
    target = story.target
    assert target is not None, "something was built"
    result.minimality = "unproven"
    if not target.target.capabilities.pins or not any(c.pins for build in builds for c in build.choices):
        result.why = f"{target.target.title} cannot be held to a choice, so none is proven to be the reason"
        console.answer(f"Not proven: {result.why}.")
        _tell_evidence(story, table)
        return
    console.step("3. Which of them is the reason? Build with it pinned and with it forbidden, all else alike")
    bench = ProbedBuilds(investigation, target, [choice for build in builds for choice in sorted(build.choices)])
    tries = _TRIED_COSTLY if target.target.capabilities.costly else _TRIED
    reasons = find_reasons(bench, builds, tries)
    more: list[Build] = []
    while reasons and all(reason.proven for reason in reasons):
        tried = _without(story, bench, reasons)
        if all(build.good for build in tried) or len(reasons) == MOST_REASONS:
            break
        more += tried  # another reason than those that were seen until now
        reasons = find_reasons(bench, [*builds, *more], tries, reasons)
    proven = frozenset(choice for reason in reasons if reason.proven for choice in reason.choices)
    result.extra |= table.proven(proven, builds).to_json()
    result.extra["reasons"] = [
        {"choices": [_said(each) for each in sorted(reason.choices)], "proven": reason.proven, "why": reason.why}
        for reason in reasons
    ]
    for reason in reasons:
        _tell(story, reason)
    if reasons and all(reason.proven for reason in reasons):
        result.minimality = "1-minimal"
    else:
        result.why = next((reason.why for reason in reasons if not reason.proven), None)
        result.extra["avoid"] = None
        _tell_evidence(story, table)
    if result.extra["avoid"] is not None:
        avoid = result.extra["avoid"]
        console.answer(f"Without {'it' if len(proven) == 1 else 'them'}: {shlex.join(avoid['options'])}")
        console.answer(
            f"  {avoid['bad']} of {avoid['runs']} builds so are bad; {table.bad} of {table.good + table.bad} are else"
        )


def _tell_evidence(story: _Story, table: Table) -> None:
    """What counting alone says, where nothing is proven: it is sure that the builds differ in it, not that it is the reason."""
    result, console = story.investigation.result, story.investigation.console
    rows = [row for row in table.rows if row.bad * table.good > row.good * table.bad]
    if not rows:
        return
    best, more = rows[0], sum((row.good, row.bad) == (rows[0].good, rows[0].bad) for row in rows[1:])
    evidence = (
        f"'{best.choice.layer}' with {best.choice.said} is in {best.bad} of {table.bad} bad builds and in {best.good} of "
        f"{table.good} good ones (p = {best.p:.2g})" + f", and so are {more} other choices" * bool(more)
    )
    if best.p > 1 - story.settings.confidence:
        evidence += f", which may be chance: -n {2 * (table.good + table.bad)} tells more"
    result.why = f"{result.why}; but {evidence}"
    console.answer(f"  But {evidence}.")


def _said(choice: Choice) -> dict[str, str]:
    return {"layer": choice.layer, "choice": choice.said, "kind": choice.kind, "value": choice.value}


def _tell(story: _Story, reason: Reason) -> None:
    console = story.investigation.console
    named = " and ".join(f"'{each.layer}' with {each.said}" for each in sorted(reason.choices))
    if reason.proven:
        console.answer(f"The reason: {named}. Pinned in an otherwise good build it is bad, forbidden it is good.")
    elif reason.choices:
        console.answer(f"Perhaps: {named}. Not proven: {reason.why}.")
    else:
        console.answer(f"No choice is proven to be the reason: {reason.why}.")


def _without(story: _Story, bench: Bench, reasons: Sequence[Reason]) -> list[Build]:
    """Build without what was found, all else free, as a user will; as often as it takes to be sure, within reason.

    Of each reason the first choice is forbidden: without that the others do no harm.
    """
    result, target = story.investigation.result, story.target
    assert target is not None, "something was built"
    bans = tuple(min(reason.choices) for reason in reasons)
    most = _MOST_TRIED_COSTLY if target.target.capabilities.costly else _MOST_TRIED
    rate = result.extra["rate"]
    enough = 1 if rate >= 1 else math.ceil(math.log(1 - story.settings.confidence) / math.log(1 - rate))
    builds: list[Build] = []
    for number in range(1, max(1, min(most, enough)) + 1):
        verdict, choices = bench.build(Held(f"build {number} without what was found", bans=bans, repetition=number))
        if verdict is not Verdict.UNRESOLVED:
            builds.append(Build(f"build {number} without {len(bans)}", verdict is Verdict.PASS, choices))
        if verdict is Verdict.FAIL:
            break
    if builds:
        bad = sum(not build.good for build in builds)
        options = target.target.flags(target.target.pinned(target, (), bans))
        result.extra["avoid"] = {"options": options, "runs": len(builds), "bad": bad}
    return builds
