"""``repeat``: how often a build, or a run, fails, and which choices of the bad builds are the reason.

The space is repetitions of the original. Where the target reports the choices of its builds, builds
with pinned choices prove which of them are the reason (:mod:`bisect_trt.steps.build_choices`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import Struct, structs

from bisect_trt.errors import ConflictError, RunFolderError
from bisect_trt.onnxlib.nodes import drawing_nodes
from bisect_trt.options.searches import Repeat
from bisect_trt.options.shared import CheckOptions, Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.engine_cache import ENGINE
from bisect_trt.probe.ledger import Record
from bisect_trt.report.parts import Avoided, BuildReason, BuildVerdict
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import (
    Unexplained,
    describe_reason,
    rate_so_far,
    tell_avoided,
    tell_rate,
    why_not_compared,
    why_rate,
)
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.statistics import INTERVAL_METHOD, rate_interval
from bisect_trt.session.call import Call
from bisect_trt.session.checks import FOLDERS, sort_file
from bisect_trt.session.session import Session, saving_best
from bisect_trt.session.space import Series
from bisect_trt.steps.build_choices import (
    Build,
    Choices,
    Held,
    compare_builds,
    find_reasons,
    read_build,
    tell_choices,
)
from bisect_trt.steps.switches import explain_fusions, make_counters, switchable
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.choices import (
    LAYERS,
    RECORD,
    TIMINGS,
    Choice,
    choices_of_layers,
    write_choices,
)
from bisect_trt.targets.options import Target

_WANTED = {None: [], "good": ["good"], "bad": ["bad"], "both": ["good", "bad"]}
_LEFT = (RECORD, LAYERS, TIMINGS, ENGINE)
_TRIED = 10
_TRIED_COSTLY = 2
"""The number of builds with only a reason pinned, and with all reasons forbidden; the second where
a probe is a build."""


class Repetition(Struct, frozen=True):
    """The repeated builds, or runs, of a model.

    Attributes:
        session: The model.
        target: The runtime that builds; ``None`` where the user's check does everything.
        until: The verdicts to wait for: ``good``, ``bad`` or ``both``.
        folder: The folder for the files of builds.
        confidence: The confidence of the interval of the rate.
        same_engine: Whether one build runs repeatedly.
        engine: That build, where the target makes engines.
        explain: Finds the fusion that bad builds need, in so many builds a value of a counter of
            the compiler, if one is given; returns why there is none.
    """

    session: Session
    target: TargetSettings | None
    until: str | None
    folder: Path
    confidence: float
    same_engine: bool = False
    engine: Path | None = None
    explain: Callable[[int], str | None] | None = None

    @property
    def what(self) -> str:
        """``run`` or ``build``."""
        return "run" if self.target is None or self.same_engine else "build"

    def candidate(self, number: int) -> Candidate:
        """One repetition."""
        original = self.session.subject.original
        title = f"{self.what} {number}"
        return replace(
            original, title=title, target=self.target, repetition=number, engine=self.engine
        )

    def choices(self, key: str) -> Choices:
        """The choices of a probed build that the target reports."""
        file = self.session.subject.workspace.files(key).folder / RECORD
        if file.is_file():
            choices = read_build(file.parent, file.name)
            if choices is None:
                raise RunFolderError(f"{file} is damaged; start a new run.")
            return choices
        outcome = self.session.prober.ledger.outcome(key)
        return frozenset(choices_of_layers(outcome.layers if outcome is not None else ()))

    def build(self, choices: Held) -> tuple[Verdict, Choices]:
        """Return the verdict and the choices of a build with pinned and forbidden choices."""
        assert self.target is not None, "something was built"
        pinned = self.target.target.pinned(self.target, choices.pins, choices.bans)
        original = self.session.subject.original
        units = choices.units or frozenset({0})
        candidate = replace(
            original, title=choices.title, target=pinned, units=units, repetition=choices.repetition
        )
        return self.session.prober.probe(candidate).verdict, self.choices(candidate.key)

    def sort(self, record: Record, number: int, choices: Choices) -> dict[str, str]:
        """Move the files of a build to ``good/``, ``bad/`` or ``unresolved/``; return their paths by kind."""
        source = self.session.subject.workspace.files(record.key).folder
        if choices and not (source / RECORD).exists():
            write_choices(source / RECORD, sorted(choices))
        # The choices are read again when the run is resumed.
        files = [
            sort_file(source / name, self.folder, record.verdict, number, copy=name == RECORD)
            for name in _LEFT
        ]
        return {
            Path(name).stem: str(file)
            for name, file in zip(_LEFT, files, strict=True)
            if file.is_file()
        }


def repeat(story: Repetition, limit: int) -> Result:
    """Build or run the model up to ``limit`` times, and report what the bad builds have in common.

    The builds so far are in the result however it ends.
    """
    console = story.session.console
    result = story.session.result
    until = f", until {story.until} has been seen" if story.until else ""
    console.step(
        f"1. {story.what.capitalize()} {'up to ' if story.until else ''}{limit} times{until}"
    )
    console.progress.expect(None, None if story.until else limit)
    result.choices = []
    result.reasons = []
    result.avoid = None
    series: Series[int] = Series(story.candidate)
    missing = {verdict for verdict, name in FOLDERS.items() if name in _WANTED[story.until]}

    def strategy(ask: Callable[[int], Verdict]) -> None:
        seen = set()
        for number in range(1, limit + 1):
            seen.add(ask(number))
            if story.until is not None and seen >= missing:
                return

    def so_far() -> None:
        if _summarise(story, series):
            console.answer(rate_so_far(result))

    with saving_best(so_far):
        series.search(story.session.prober, strategy)
    builds = _summarise(story, series)
    result.choices = rows = compare_builds(builds)
    _conclude(story)
    if result.bad and story.explain is not None:
        console.step("2. Which fusion do bad builds need?")
        return result.end(why=story.explain(_enough(story)))
    # Choices can be compared only between builds of both kinds.
    if not (result.good and result.bad):
        return result
    if note := _why_not_compared(story, builds):
        result.note = note
        console.say(f"  {note}")
        return result
    console.step("2. Which choices are in bad builds only?")
    tell_choices(builds, rows, console)
    return result.end(why=_prove(story, builds))


def _why_not_compared(story: Repetition, builds: Sequence[Build]) -> str | None:
    """Return why the builds have no choices to compare; ``None`` if they have."""
    if not story.same_engine and any(build.choices for build in builds):
        return None
    title = None if story.target is None else story.target.target.title
    return why_not_compared(title, same_engine=story.same_engine)


def _summarise(story: Repetition, series: Series[int]) -> list[Build]:
    """Put each build and the failure rate into the result; return the builds that are good or bad."""
    result = story.session.result
    builds = list[Build]()
    build_verdicts = list[BuildVerdict]()
    verdicts = series.verdicts(story.session.prober)
    for number, record in series.seen(story.session.prober).items():
        choices = story.choices(record.key) if story.what == "build" else frozenset()
        build_verdicts.append(
            BuildVerdict(
                **verdicts[number],
                seconds=record.seconds,
                probe=record.number,
                number=number,
                files=story.sort(record, number, choices) if story.what == "build" else {},
            )
        )
        # A build that broke in another way says nothing about the rate of this failure.
        if record.verdict is not Verdict.UNRESOLVED:
            builds.append(Build(f"{story.what} {number}", record.passes, choices))
    counts = Counter(build.verdict for build in build_verdicts)
    bad = counts[Verdict.FAIL.value]
    result.runs = len(build_verdicts)
    result.good = counts[Verdict.PASS.value]
    result.bad = bad
    result.unresolved = counts[Verdict.UNRESOLVED.value]
    result.rate = bad / len(builds) if builds else None
    result.interval = rate_interval(bad, len(builds), story.confidence) if builds else None
    result.confidence = story.confidence
    result.method = INTERVAL_METHOD
    result.until = story.until
    result.same_engine = story.same_engine
    result.builds = build_verdicts
    folders = {name: story.folder / name for name in FOLDERS.values()}
    result.artifacts |= {name: str(folder) for name, folder in folders.items() if folder.is_dir()}
    return builds


def _conclude(story: Repetition) -> None:
    """Print the failure rate, and set the status of the result."""
    result = story.session.result
    missing = [name for name in _WANTED[story.until] if not getattr(result, name)]
    network = story.session.subject.network
    drawing = drawing_nodes(network.proto) if result.bad else []
    why = why_rate(result, story.what, missing, random=bool(drawing))
    if not result.interval or (result.bad and missing):
        result.end("inconclusive", why)
    elif result.bad:
        result.end().why = why
    else:
        result.end("not_reproduced", why)
    command = "diagnose" if story.session.prober.check.judges_runtime else "reduce"
    node = network.describe(drawing[0]) if drawing else None
    tell_rate(result, story.what, node, command, story.session.console)


def _prove(story: Repetition, builds: Sequence[Build]) -> str | None:
    """Find the choices that are the reason, by builds with choices pinned and forbidden; return why that is not proven."""
    result = story.session.result
    console = story.session.console
    target = story.target
    assert target is not None, "something was built"
    if not target.target.engines or not any(c.pins for build in builds for c in build.choices):
        why = Unexplained.UNSUPPORTED.value.format(target.target.title)
        console.answer(describe_reason(BuildReason((), proven=False, why=why)))
        return why
    console.step("3. Which of them is the reason? Build with it pinned and with it forbidden")
    tries = _TRIED_COSTLY if target.target.compiles else _TRIED
    reasons = find_reasons(story.build, builds, tries)
    result.choices = compare_builds(
        builds, frozenset().union(*(each.choices for each in reasons if each.proven))
    )
    result.reasons = [reason.to_part() for reason in reasons]
    for part in result.reasons:
        console.answer(describe_reason(part))
    if unproven := [part.why for part in result.reasons if not part.proven]:
        return unproven[0]
    # Without one of its choices a reason does not hold, so one of each is forbidden.
    bans = tuple(min(reason.choices) for reason in reasons)
    verdicts = _build_without(story, bans, min(tries, _enough(story)))
    bad = verdicts[Verdict.FAIL]
    options = target.target.flags(target.target.pinned(target, (), bans))
    runs = bad + verdicts[Verdict.PASS]
    result.avoid = Avoided(options=tuple(options), runs=runs, bad=bad)
    tell_avoided(result.avoid, console)
    return Unexplained.ANOTHER.value if bad else None


def _build_without(story: Repetition, bans: tuple[Choice, ...], most: int) -> Counter[Verdict]:
    """Build without some choices until a build is bad; return the number of builds with each verdict."""
    verdicts = Counter[Verdict]()
    for number in range(1, most + 1):
        held = Held(f"build {number} without it", bans=bans, repetition=number)
        verdicts[story.build(held)[0]] += 1
        if verdicts[Verdict.FAIL]:
            break
    return verdicts


def _enough(story: Repetition) -> int:
    """Return the number of builds of which one is bad, at the rate that was seen."""
    rate = story.session.result.rate or 0.0
    return (
        1 if rate == 1 else max(math.ceil(math.log(1 - story.confidence) / math.log(1 - rate)), 1)
    )


def _build_once(session: Session, target: TargetSettings) -> Path | None:
    """Build the engine for repeated runs; return ``None`` if the target makes no engines or the build fails."""
    subject = session.subject
    original = subject.original
    engine = (subject.workspace.folder / ENGINE).absolute()
    if not target.target.engines:
        return None
    if not engine.is_file():
        inputs = subject.values(original, original.inputs)
        if subject.models.build("once", original.proto, inputs, engine, target) is not None:
            # A probe reports the error.
            return None
    return engine


def run(call: Call) -> Result:
    """Build or run a model repeatedly."""
    options = call[Repeat]
    search = call[Search]
    check_options = call[CheckOptions]
    if search.repeat is not None:
        raise ConflictError(
            "--repeat conflicts with `repeat`, which measures the rate itself; use -n."
        )
    limit, until = options.limits()
    check = call.check(call[Target].settings())
    target = check.target
    rebuilds = target is not None and target.target.compiles and not options.same_engine
    opened = call.open(check, fresh_process=rebuilds)
    if check.argv and target is not None:
        # The command judges what is built, if something is.
        check = (
            replace(check, by_layer=True)
            if target.target.engines
            else check.without_target(call.console)
        )
    if options.compiler_switch:
        check = switchable(check)
    with opened.searching(check) as session:
        explain = None
        if options.compiler_switch:
            counters = make_counters(session, check, options.compiler_switch)
            explain = partial(explain_fusions, session, counters)
        prober = session.prober
        engine = None
        inner = prober.check
        builder = inner.runtime
        if builder is not None:
            if options.same_engine:
                prober.workers = 1
                engine = _build_once(session, builder)
            recording = inner.under(
                layers=True, same=options.same_engine, records=not options.same_engine
            )
            session = structs.replace(session, probing=replace(prober, check=recording))  # noqa: PLW2901
        sorted_to = (
            check_options.artifacts or check_options.artifacts_dir != CheckOptions().artifacts_dir
        )
        folder = check_options.artifacts_dir if sorted_to else session.subject.workspace.folder
        return repeat(
            Repetition(
                session,
                builder,
                until,
                folder,
                search.confidence,
                options.same_engine,
                engine,
                explain,
            ),
            limit,
        )
