"""``repeat``: how often a build, or a run, fails; the choices that bad builds make and good ones do not; and the proof."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from bisect_trt.commands.build_choices import Build, Table, compare_builds, tell_table
from bisect_trt.commands.build_proof import MOST_REASONS, Held, Reason, find_reasons
from bisect_trt.commands.call import Call
from bisect_trt.commands.checks import tell_unused
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import RepeatSettings, Until
from bisect_trt.commands.space import Series, Space
from bisect_trt.errors import UsageError
from bisect_trt.options.searches import Repeat
from bisect_trt.options.shared import Check, Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.journal import Record
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import ENGINE, BuiltinCheck, EngineCheck, RepeatCheck
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Ask, Subset, Verdict
from bisect_trt.search.statistics import INTERVAL_METHOD, rate_interval
from bisect_trt.targets.choices import (
    LAYERS,
    RECORD,
    REPLAY,
    TIMINGS,
    Choice,
    choices_of_layers,
    read_choices,
    write_choices,
)
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings

T = TypeVar("T")

FOLDERS = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNRESOLVED: "unresolved"}
"""The folders that files of builds go to, by verdict."""
_WANTED = {"good": {Verdict.PASS}, "bad": {Verdict.FAIL}, "both": {Verdict.PASS, Verdict.FAIL}}
_SHARED = "build"
"""The folder of the one build that is run again and again."""
_LEFT = (RECORD, REPLAY, LAYERS, TIMINGS, ENGINE)
_TRIED, _TRIED_COSTLY = 10, 2
"""How many builds are pinned to what was found and to nothing else."""
_MOST_TRIED, _MOST_TRIED_COSTLY = 10, 3
"""How many builds are kept from what was found, to see that they are good."""


@dataclass(frozen=True)
class _Repetition:
    """The space of repetitions: a unit is the number of a build, or of a run. It builds what a proof asks for too."""

    session: Session
    settings: RepeatSettings
    target: TargetSettings | None
    search_command: str
    """The command that finds the reason of what always fails."""
    known: Sequence[Choice] = ()
    """Choices of builds that were seen."""

    @property
    def what(self) -> str:
        """What is repeated, in the singular."""
        return "run" if self.target is None or self.settings.same_engine else "build"

    @property
    def folder(self) -> Path:
        """Where files of builds are sorted to."""
        return self.settings.folder or self.session.subject.workspace.folder

    def candidate(self, number: int) -> Candidate:
        """One repetition."""
        original = self.session.subject.original
        return replace(original, title=f"{self.what} {number}", target=self.target, repetition=number)

    def runs(self, ask: Callable[[int], Verdict]) -> None:
        """Ask for one after the other, until what is waited for was seen."""
        missing = set(_WANTED.get(self.settings.until or "", ()))
        for number in range(1, self.settings.most + 1):
            missing.discard(ask(number))
            if self.settings.until is not None and not missing:
                return

    def choices(self, candidate: Candidate) -> frozenset[Choice]:
        """What the build of a probed candidate chose, as far as the target says."""
        file = self.session.subject.workspace.files(candidate.key).folder / RECORD
        if file.is_file():
            return frozenset(read_choices(json.loads(file.read_text(encoding="utf-8"))) or ())
        outcome = self.session.prober.ledger.outcome(candidate.key)
        return frozenset(choices_of_layers(outcome.layers if outcome is not None else ()))

    def build(self, held: Held) -> tuple[Verdict, frozenset[Choice]]:
        """Returns the verdict of a build that is held to choices, and what it chose."""
        candidate = self._held(held)
        return self.session.prober.probe(candidate).verdict, self.choices(candidate)

    def search(self, algorithm: Callable[[Ask], T], held: Callable[[Subset], Held]) -> T:
        """Run a search over the choices that builds are held to."""
        space = Space(lambda units: self._held(held(units)), self.session.subject.original)
        return space.search(self.session.prober, algorithm)

    def _held(self, held: Held) -> Candidate:
        assert self.target is not None, "something was built"
        turned = self.target.target.pinned(self.target, held.pins, held.bans, self.known)
        original, units = self.session.subject.original, held.units or frozenset({0})
        return replace(original, title=held.title, target=turned, units=units, repetition=held.repetition)

    def sort(self, record: Record, number: int, choices: frozenset[Choice]) -> Mapping[str, str]:
        """Move the files of a build to ``good/``, ``bad/`` or ``unresolved/``; returns their paths by what they are.

        Raises:
            UsageError: A file cannot be moved.
        """
        source = self.session.subject.workspace.files(record.key).folder
        to, left = self.folder / FOLDERS[record.verdict], {}
        try:
            if choices and not (source / RECORD).exists():
                write_choices(source / RECORD, sorted(choices))
            for name in _LEFT:
                file, target = source / name, to / f"{number:04d}_{name}"
                if file.is_file():
                    to.mkdir(parents=True, exist_ok=True)
                    # The choices are read again when the run is resumed.
                    (shutil.copyfile if name == RECORD else shutil.move)(file, target)
                if target.is_file():
                    left[name.partition(".")[0]] = str(target)
        except OSError as error:
            raise UsageError(
                f"what build {number} left cannot be moved to {to}: {error.strerror}; make room, or name another folder "
                "(--artifacts-dir)."
            ) from error
        return left


def repeat(session: Session, settings: RepeatSettings) -> Result:
    """Build or run the model again and again, and say what the bad ones have in common.

    Raises:
        BudgetSpent: What was seen until then is in the result.
        KeyboardInterrupt: The same.
    """
    console, result, prober = session.console, session.result, session.prober
    inner, target = prober.runner.check, None
    if isinstance(inner, BuiltinCheck | EngineCheck):
        shared = (session.subject.workspace.folder / _SHARED).absolute() if settings.same_engine else None
        prober.runner.check, target = RepeatCheck.of(inner, shared), inner.target
        prober.workers = prober.workers if prober.runner.check.parallel else 1
    story = _Repetition(session, settings, target, "diagnose" if isinstance(inner, BuiltinCheck) else "reduce")
    have = "have" if settings.until == "both" else "has"
    until = f", until {settings.until} {have} been seen" if settings.until else ""
    how = "Run one build" if settings.same_engine and target is not None else story.what.capitalize()
    console.step(f"1. {how} {'up to ' if settings.until else ''}{settings.most} times{until}")
    result.extra |= {"choices": [], "reasons": [], "avoid": None}
    space = Series(story.candidate)
    try:
        space.search(prober, story.runs)
    except (BudgetSpent, KeyboardInterrupt):
        if seen := len(_summarise(story, space)):
            console.answer(f"So far it fails in {result.extra['bad']} of {seen}: {result.extra['rate']:.1%}.")
        raise
    builds = _summarise(story, space)
    table = compare_builds(builds)
    result.extra |= table.to_json()
    _conclude(story, table)
    if settings.same_engine or not any(build.choices for build in builds):
        _say_why_not(story, table)
    elif table.good and table.bad:
        console.step("2. What did the bad builds choose that the good ones did not?")
        tell_table(table, console)
        _prove(story, builds, table)
    return result


def _summarise(story: _Repetition, space: Series[int]) -> list[Build]:
    """Put into the result what was seen of each, and the rate; returns the builds that are good or bad."""
    settings, result = story.settings, story.session.result
    builds, said = [], []
    for number, record in space.seen(story.session.prober).items():
        choices, left = frozenset[Choice](), dict[str, str]()
        if not settings.same_engine:
            choices = story.choices(story.candidate(number))
            left = {} if story.target is None else dict(story.sort(record, number, choices))
        said.append(
            {
                "verdict": record.verdict.value,
                "reason": record.reason,
                "signature": record.signature,
                "seconds": record.seconds,
                "probe": record.number,
                "number": number,
                "files": left,
            }
        )
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
    folders = {name: story.folder / name for name in FOLDERS.values()}
    result.artifacts |= {name: str(folder) for name, folder in folders.items() if folder.is_dir()}
    return builds


def _conclude(story: _Repetition, table: Table) -> None:
    """Say how often it fails, and what that makes of the result."""
    result, console = story.session.result, story.session.console
    settings, what, extra = story.settings, story.what, result.extra
    runs, broke, judged = extra["runs"], extra["unresolved"], table.good + table.bad
    result.minimality = "1-minimal"
    if not judged:
        result.status, result.minimality = "inconclusive", "unproven"
        result.why = f"none of {runs} {what}s was good or bad: all broke in another way; `bisect-trt log` says how"
        console.answer(f"Not known: {result.why}.")
        return
    low, high = extra["interval"]
    other = next((each["reason"] for each in extra["builds"] if each["verdict"] == Verdict.UNRESOLVED.value), "")
    odd = f" {broke} broke in another way: {other}" if broke else ""
    interval = f"{low:.1%} to {high:.1%} with {settings.confidence:g} confidence, {INTERVAL_METHOD}"
    console.answer(f"It fails in {table.bad} of {judged} {what}s: {extra['rate']:.1%} ({interval}).{odd}")
    names = [result.artifacts[name] for name in FOLDERS.values() if result.artifacts.get(name)]
    if names:
        console.say(f"  what they left lies in {', '.join(map(str, names))}")
    if not table.bad:
        result.status = "not_reproduced"
        result.why = f"it passed in all of {table.good} {what}s; it may still fail in up to {high:.1%} of them"
        return
    result.status = "found"
    wanted = _WANTED.get(settings.until or "", set())
    missing = [name for verdict, name in FOLDERS.items() if verdict in wanted and not extra[name]]
    if missing:
        result.status, result.minimality = "inconclusive", "unproven"
        result.why = f"no {' or '.join(missing)} {what} was seen in {runs}"
        console.answer(f"Stopped before --until {settings.until}: {result.why}; -n allows more.")
    elif judged == 1:
        result.why = f"the only {what} that was judged fails, so whether all do is not known"
        console.answer(f"{result.why[0].upper()}{result.why[1:]}; `--until both` goes on until one passes.")
    elif not table.good:
        result.why = f"it fails in every {what}: that is no matter of chance"
        command = f"so `bisect-trt {story.search_command}` is what finds the reason"
        console.answer(f"{result.why[0].upper()}{result.why[1:]}, {command}.")


def _say_why_not(story: _Repetition, table: Table) -> None:
    """Say why choices are not compared, where some fail and others do not."""
    if not (table.good and table.bad):
        return
    if story.target is None:
        why = "a check command alone says nothing of builds; with a target whose builds it is given, their choices are compared"
    elif story.settings.same_engine:
        why = "one build was run, so no choice of a build decides: look for what else changes (`bisect-trt run --self-check`)"
    else:
        why = f"{story.target.target.title} does not say what its builds choose, so whether one of them decides is not known"
    story.session.result.extra["note"] = why
    story.session.console.say(f"  {why}")


def _prove(story: _Repetition, builds: Sequence[Build], table: Table) -> None:
    """Step 3: builds that are held to a choice and kept from it."""
    console, result, target = story.session.console, story.session.result, story.target
    assert target is not None, "something was built"
    result.minimality = "unproven"
    if not target.target.capabilities.pins or not any(c.pins for build in builds for c in build.choices):
        result.why = f"{target.target.title} cannot be held to a choice, so none is proven to be the reason"
        console.answer(f"Not proven: {result.why}.")
        _tell_evidence(story, table)
        return
    console.step("3. Which of them is the reason? Build with it pinned and with it forbidden, all else alike")
    bench = replace(story, known=[choice for build in builds for choice in sorted(build.choices)])
    tries = _TRIED_COSTLY if target.target.capabilities.costly else _TRIED
    reasons, more = find_reasons(bench, builds, tries), list[Build]()
    while reasons and all(reason.proven for reason in reasons):
        tried = _without(bench, reasons)
        if all(build.good for build in tried) or len(reasons) == MOST_REASONS:
            break
        more += tried  # another reason than those that were seen until now
        reasons = find_reasons(bench, [*builds, *more], tries, reasons)
    proven = frozenset(choice for reason in reasons if reason.proven for choice in reason.choices)
    result.extra |= table.proven(proven, builds).to_json()
    result.extra["reasons"] = [_told(story, reason) for reason in reasons]
    if not reasons or not all(reason.proven for reason in reasons):
        result.why = next((reason.why for reason in reasons if not reason.proven), None)
        result.extra["avoid"] = None
        _tell_evidence(story, table)
        return
    result.minimality = "1-minimal"
    if (avoid := result.extra["avoid"]) is not None:
        console.answer(f"Without {'it' if len(proven) == 1 else 'them'}: {shlex.join(avoid['options'])}")
        before = f"{table.bad} of {table.good + table.bad} are else"
        console.answer(f"  {avoid['bad']} of {avoid['runs']} builds so are bad; {before}")


def _told(story: _Repetition, reason: Reason) -> dict[str, Any]:
    """Say a reason; returns what the result says of it."""
    console, choices = story.session.console, sorted(reason.choices)
    named = " and ".join(f"'{each.layer}' with {each.said}" for each in choices)
    if reason.proven:
        console.answer(f"The reason: {named}. Pinned in an otherwise good build it is bad, forbidden it is good.")
    elif reason.choices:
        console.answer(f"Perhaps: {named}. Not proven: {reason.why}.")
    else:
        console.answer(f"No choice is proven to be the reason: {reason.why}.")
    plain = [{"layer": c.layer, "choice": c.said, "kind": c.kind, "value": c.value} for c in choices]
    return {"choices": plain, "proven": reason.proven, "why": reason.why}


def _tell_evidence(story: _Repetition, table: Table) -> None:
    """Say the choice that speaks most against bad builds, where none is proven."""
    result, console = story.session.result, story.session.console
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


def _without(story: _Repetition, reasons: Sequence[Reason]) -> list[Build]:
    """Build without the first choice of each reason, all else free; as often as it takes to be sure, within limits."""
    result, target = story.session.result, story.target
    assert target is not None, "something was built"
    bans = tuple(min(reason.choices) for reason in reasons)
    most = _MOST_TRIED_COSTLY if target.target.capabilities.costly else _MOST_TRIED
    rate = result.extra["rate"]
    enough = 1 if rate >= 1 else math.ceil(math.log(1 - story.settings.confidence) / math.log(1 - rate))
    builds: list[Build] = []
    for number in range(1, max(1, min(most, enough)) + 1):
        verdict, choices = story.build(Held(f"build {number} without what was found", bans=bans, repetition=number))
        if verdict is not Verdict.UNRESOLVED:
            builds.append(Build(f"build {number} without {len(bans)}", verdict is Verdict.PASS, choices))
        if verdict is Verdict.FAIL:
            break
    if builds:
        options = target.target.flags(target.target.pinned(target, (), bans))
        bad = sum(not build.good for build in builds)
        result.extra["avoid"] = {"options": options, "runs": len(builds), "bad": bad}
    return builds


def repeat_settings(own: Repeat, search: Search, check: Check) -> RepeatSettings:
    """How often a model is built or run, and where what that leaves goes.

    Raises:
        UsageError: How often is said twice.
    """
    if search.repeat is not None:
        raise UsageError("--repeat measures how often a search's original fails; here say how often with -n.")
    if search.pin:
        raise UsageError("--pin holds builds to one that failed, and repeat is about builds that differ; drop it.")
    most, wanted = own.limits()
    sorts = bool(check.artifacts) or check.artifacts_dir != Check().artifacts_dir
    folder = check.artifacts_dir if sorts else None
    return RepeatSettings(most, cast("Until | None", wanted), own.same_engine, folder, search.confidence)


def run(call: Call) -> Result:
    """Build or run a model again and again.

    Raises:
        UsageError: An option is wrong.
        UnavailableError: The target or the reference cannot run the model.
    """
    search, console = call.search, call.console
    settings = repeat_settings(call[Repeat], call[Search], call[Check])
    check = call.check(call[Target].settings(), used=True)
    job, target = call.open(check), check.target
    if check.argv and target is not None and target.target.engines is None:
        tell_unused(target, console)
        check = replace(check, target=None)
    elif check.argv and target is not None:  # the command judges what is built
        check = replace(check, by_layer=True)
    alike = target is not None and target.target.capabilities.remembers_builds and not settings.same_engine
    job = replace(job, fresh_process=job.fresh_process or alike)
    with job.subject(check.timeout, check.target) as subject, job.investigated(subject, check, search) as session:
        return repeat(session, settings)
