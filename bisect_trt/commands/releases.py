"""``releases``: the release of a package in which a failure appeared, and the one in which it went.

The space is the releases in their order, each probed in an environment of its own; the strategy finds both boundaries.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.space import Space
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError, UnavailableError, UsageError
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import BuiltinCheck, ReleaseCheck
from bisect_trt.probe.prober import DoesNotReproduce, Prober
from bisect_trt.probe.runner import Check, Runner
from bisect_trt.probe.user_checks import PYTHON, CommandCheck
from bisect_trt.report.reproducer import SCRIPT, Since
from bisect_trt.report.result import Result
from bisect_trt.search.history import Edge, History, find_edges
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.environments import Environment, find_python, interpreter, others, with_numpy
from bisect_trt.worker.environments import releases as list_index
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import run_to_end

_REASON_LENGTH = 200
"""So much of a release's reason is repeated."""
_SCRIPT_SECONDS = 600.0


class NothingTold(UnavailableError):  # noqa: N818 - an ending, not an error
    """No release can be installed, or knows the model."""


@dataclass(frozen=True)
class ReleasesSettings:
    """Parameters of ``releases``.

    Attributes:
        package: The package that has the releases.
        oldest: The first release; the oldest that there is for this interpreter if empty.
        newest: The last one, and all that begin with it: 1.31 goes up to 1.31.1; the newest that there is if empty.
        every: Whether each is probed, rather than those that bisection needs.
        beside: What else is installed in each environment, as pip takes it.
        runs: How often the failure may stay away in a release that has it, plus 1.
    """

    package: str
    oldest: str = ""
    newest: str = ""
    every: bool = False
    beside: tuple[str, ...] = ()
    runs: int = 1

    def check(self) -> None:
        """Find mistakes before anything else is done.

        Raises:
            UsageError: A version is none, or there is nothing between the two.
        """
        oldest, newest = (_version(option, text) for option, text in (("--from", self.oldest), ("--to", self.newest)))
        if oldest is not None and newest is not None and _beyond(oldest, newest):
            raise UsageError(f"--from {self.oldest} is newer than --to {self.newest}; swap them.")

    def holds(self, release: str) -> bool:
        """Whether a release is in the range."""
        oldest, newest, asked = _version("--from", self.oldest), _version("--to", self.newest), Version(release)
        return (oldest is None or asked >= oldest) and (newest is None or not _beyond(asked, newest))

    def environment(self, release: str, python: str) -> Environment:
        """The environment of a release; ``python`` is the interpreter that it is for."""
        return Environment(with_numpy((f"{self.package}=={release}", *self.beside)), python)


def _version(option: str, text: str) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion as error:
        raise UsageError(f"{option} {text}: that is no version; give one such as 1.18 or 1.18.1.") from error


def _beyond(release: Version, newest: Version) -> bool:
    """Whether a release is newer than another and all that begin like it."""
    return release > newest and release.release[: len(newest.release)] != newest.release


def package_of(target: TargetSettings | None, named: str | None) -> str:
    """The package whose releases are meant.

    Raises:
        UsageError: None is named, and the target does not come as one.
    """
    if named is not None:
        return named
    if target is None:
        raise UsageError(
            "releases of what? Name a target whose package comes by releases, such as --onnxrt, or --package NAME with a "
            "--check command."
        )
    package = target.target.package(target)
    if package is None:
        raise UsageError(
            f"{target.target.title} does not come as a package with releases; name one with --package, and a --check command."
        )
    return package.name


def list_releases(settings: ReleasesSettings) -> dict[str, str]:
    """The releases of the range, the oldest first, each with the interpreter that it is for; empty for this one.

    Where this interpreter has no releases as old, or as new, other interpreters that are installed are looked at, the nearest
    version first.

    Raises:
        UnavailableError: There are none, or the index does not answer.
    """
    found = dict.fromkeys(list_index(settings.package), "")

    def reached() -> bool:
        versions = list(map(Version, found))
        older = not settings.oldest or any(each <= Version(settings.oldest) for each in versions)
        return bool(found) and older and (not settings.newest or any(e >= Version(settings.newest) for e in versions))

    for python in others():
        if reached():
            break
        try:
            find_python(python)
        except UnavailableError:
            continue
        for release in list_index(settings.package, python):
            found.setdefault(release, python)
    chosen = sorted(filter(settings.holds, found), key=Version)
    if chosen:
        return {release: found[release] for release in chosen}
    asked = "".join(f" {word} {end}" for word, end in (("from", settings.oldest), ("to", settings.newest)) if end)
    there = f"it has {_spread(sorted(found, key=Version))}" if found else "it has none at all"
    raise UnavailableError(f"the index has no release of {settings.package}{asked} for an interpreter here; {there}.")


def _spread(releases: list[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


@dataclass(frozen=True)
class Boundaries:
    """What was found of a package's releases.

    Attributes:
        package: Its name.
        releases: Those of the range, the oldest first.
        history: The verdicts, by place, and the edges between them.
        reasons: The reason of each verdict, by release.
    """

    package: str
    releases: tuple[str, ...]
    history: History
    reasons: Mapping[str, str]

    def _passing(self, edge: Edge | None) -> str | None:
        return None if edge is None or edge.passing is None else self.releases[edge.passing]

    @property
    def first_failing(self) -> str | None:
        """The release in which the failure appeared: the oldest that fails, if the one before it passes."""
        edge = self.history.oldest
        return None if edge is None or edge.passing is None else self.releases[edge.failing]

    @property
    def first_passing(self) -> str | None:
        """The release in which it went: the next after the newest that fails."""
        return self._passing(self.history.newest)

    @property
    def ends(self) -> list[str]:
        """The newest release that fails, and the nearest that passes, as far as there are such."""
        failing = None if self.history.newest is None else self.releases[self.history.newest.failing]
        return list(filter(None, (failing, self.first_passing or self._passing(self.history.oldest))))

    def describe(self) -> str:
        """The boundaries in a sentence."""
        oldest, newest = self.history.oldest, self.history.newest
        assert oldest is not None
        assert newest is not None
        name, since, until = self.package, self.releases[oldest.failing], self.releases[newest.failing]
        if oldest.passing is not None:
            begun = f"fails since {name} {since}, right in {self.releases[oldest.passing]}"
        else:
            begun = f"fails in {name} {since} already, {self._end('oldest', range(oldest.failing))}"
        if newest.passing is not None:
            return f"{begun}; gone in {self.releases[newest.passing]}"
        after = range(newest.failing + 1, len(self.releases))
        return f"{begun}; still there in {until}, {self._end('newest', after)}"

    def _end(self, which: str, beyond: range) -> str:
        untold = any(self.history.seen.get(place) is Verdict.UNRESOLVED for place in beyond)
        return f"the {which} that says anything" if untold else f"the {which} that was asked"

    def doubt(self) -> str | None:
        """Why it is not known exactly, if it is not."""
        for edge, what in ((self.history.oldest, "appeared"), (self.history.newest, "went")):
            if edge is not None and edge.between:
                names = [self.releases[place] for place in edge.between]
                said = f"{self.package} {names[0]}: {self.reasons.get(names[0], '')[:_REASON_LENGTH]}"
                silent = f"{', '.join(names)} says nothing ({said})"
                return f"in which release it {what} is not known exactly, because {silent}"
        return None

    def more(self) -> str | None:
        """What else was seen, where the failure came and went more than once."""
        stretches = self.history.stretches
        if len(stretches) < 2:
            return None
        named = [dict.fromkeys((self.releases[first], self.releases[last])) for first, last in stretches]
        return f"it came and went more than once: it fails in {', '.join(map(' to '.join, named))}"

    def to_json(self) -> dict[str, object]:
        """The fields of the result."""
        seen = {self.releases[place]: verdict.value for place, verdict in sorted(self.history.seen.items())}
        return {
            "package": self.package,
            "releases": seen,
            "first_failing": self.first_failing,
            "first_passing": self.first_passing,
            "failing": [[self.releases[first], self.releases[last]] for first, last in self.history.stretches],
            "reasons": dict(self.reasons),
        }


def find_releases(session: Session, settings: ReleasesSettings) -> Result:
    """Probe releases until it is known where the failure appeared and where it went.

    Raises:
        DoesNotReproduce: None fails.
        BudgetSpent: What was seen so far is in the result.
        UnavailableError: There are no such releases.
    """
    console, result = session.console, session.result
    console.step(f"Which releases of {settings.package} are there?")
    pythons = list_releases(settings)
    console.say(f"  {len(pythons)}: {_spread(list(pythons))}")
    how = "Ask each" if settings.every else "Bisect them"
    console.step(f"{how}: each in an environment of its own, made where it is not there yet")
    found = ask_releases(session, settings, pythons, session.subject.original)
    if settings.every:
        for place, release in enumerate(found.releases):
            verdict, reason = found.history.seen[place].value, found.reasons[release][:_REASON_LENGTH]
            console.answer(f"  {release:<12} {verdict:<11} {reason}")
    if found.history.oldest is None:
        _refuse(found)
    doubt = found.doubt()
    result.status, result.minimality = "found", "1-minimal" if doubt is None else "unproven"
    result.why = "; ".join(filter(None, (doubt, found.more()))) or None
    console.answer(f"It {found.describe()}.")
    if found.first_passing is not None:
        console.answer(f"  To be rid of it: {found.package} {found.first_passing} or a newer one.")
    if result.why:
        console.answer(f"  {result.why}")
    return result


def _refuse(found: Boundaries) -> None:
    """Raise that none fails."""
    silent = [each for place, each in enumerate(found.releases) if found.history.seen[place] is Verdict.UNRESOLVED]
    said = f"{silent[0]} says nothing: {found.reasons[silent[0]][:_REASON_LENGTH]}" if silent else ""
    if len(silent) == len(found.releases):
        raise NothingTold(f"no release of {found.package} says anything of this failure; {said}")
    raise DoesNotReproduce(
        f"no release of {found.package} from {found.releases[0]} to {found.releases[-1]} fails"
        + (f"; {len(silent)} of {len(found.releases)} say nothing ({said})." if silent else ".")
        + " The one that you saw fail may be older (--from); or it ran with other options or inputs."
    )


def ask_releases(
    session: Session,
    settings: ReleasesSettings,
    pythons: Mapping[str, str],
    model: Candidate,
    failing: str | None = None,
) -> Boundaries:
    """Find the boundaries; what is known of them is in the result however it ends.

    Args:
        session: Its prober's check is a ``ReleaseCheck``.
        settings: Which releases.
        pythons: The releases, the oldest first, and the interpreter that each is for; see :func:`list_releases`.
        model: What is run.
        failing: A release that most likely fails.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    releases, prober = tuple(pythons), session.prober

    def build(units: Subset) -> Candidate:
        release = releases[next(iter(units))]
        packages = str(settings.environment(release, pythons[release]))
        return replace(model, title=f"{settings.package} {release}", packages=packages, runs=settings.runs)

    space, check = Space(build, model), prober.runner.check
    if isinstance(check, ReleaseCheck) and check.expected is None:
        # The newest release defines the failure; of an older one, an operator that it lacks is a matter of its age.
        prober.runner.check = replace(check, newest=True)
        fails = space.probe(prober, len(releases) - 1) is Verdict.FAIL
        prober.runner.check = replace(check, expected=prober.ledger.original if fails else None)
    hint = releases.index(failing) if failing in releases else None
    history: History | None = None
    try:
        history = space.search_units(prober, lambda ask: find_edges(len(releases), ask, hint, every=settings.every))
    finally:
        records = space.seen(prober)
        seen = History({place: record.verdict for place, record in records.items()})
        reasons = {releases[place]: record.reason for place, record in records.items()}
        found = Boundaries(settings.package, releases, history or seen, reasons)
        session.result.extra |= found.to_json()
    return found


def in_releases(
    check: Check, subject: Subject, target: TargetSettings | None, expected: str | None = None
) -> ReleaseCheck:
    """The same check, in the environment that a candidate names.

    Raises:
        UsageError: It cannot be run there.
    """
    if isinstance(check, CommandCheck) and not any(PYTHON in word for word in check.argv):
        raise UsageError(
            "the --check command does not say {python}, so each release would be asked alike; put {python} where the "
            "interpreter of the release belongs: --check {python} check.py {model}"
        )
    if not isinstance(check, BuiltinCheck | CommandCheck):
        raise UsageError("releases asks other interpreters: give a target such as --onnxrt, or a --check command.")
    workers = partial(
        WorkerPool, subject.workspace.folder, memory_limit=subject.settings.memory_limit, timeout=check.timeout
    )
    unknown = (lambda _, **__: False) if target is None else target.target.does_not_know
    return ReleaseCheck(check, workers, unknown, expected)


def since_when(session: Session, check: CheckSettings, case: Candidate, folder: Path, *, asked: bool) -> Since | None:
    """The last step of a diagnosis: since which release does the minimal case fail, and in which is it gone?

    Nothing is installed unless it was asked for; else the command is said that does it. An error is said, and does not end the
    diagnosis: the failure itself was found before.

    Returns:
        The answer, where there is one.
    """
    target, console, subject = check.target, session.console, session.subject
    package = None if target is None else target.target.package(target)
    if target is None or package is None:
        return None
    failing, pythons = _seen_failing(subject, package.name)
    here = Version(platform.python_version()).release[:2]
    # Of an older Python's releases this one may have none as old.
    oldest = failing if failing is not None and any(each.release[:2] < here for each in pythons) else ""
    since = ["--from", oldest] if oldest else []
    words = ["bisect-trt", "releases", str(folder), *target.flags(), *since, *check.tolerance.words()]
    if not asked:
        if not target.low_precisions:  # else precision is the first suspect, not a release
            console.answer(f"Since which release? Not looked for, because it installs releases: {shlex.join(words)}")
        return None
    settings = ReleasesSettings(package.name, oldest)
    console.step(f"Since which release of {package.name}?")
    try:
        available = list_releases(settings)
        found = ask_releases(_elsewhere(session, target), settings, available, case, failing)
    except BudgetSpent as error:
        console.say(f"  {error} This goes on: {shlex.join(words)}")
        return None
    except BisectError as error:
        console.say(f"  not found: {error}")
        return None
    if found.history.oldest is None:
        console.answer(f"No release of {package.name} fails in an environment of its own.")
        return None
    log, ends = subject.workspace.scratch("releases.log"), {}
    for release in found.ends:
        python = interpreter(settings.environment(release, available[release]))
        end = run_to_end([str(python), str(folder / SCRIPT)], log=log, environment={}, timeout=_SCRIPT_SECONDS)
        ends[release] = end.describe() if end.timed_out or end.code < 0 else str(end.code)
    sentences = [f"It {found.describe()}."]
    sentences += [f"{each[0].upper()}{each[1:]}." for each in (found.doubt(), found.more()) if each]
    sentences += [f"The exit status of {SCRIPT} is {', and '.join(f'{end} with {at}' for at, end in ends.items())}."]
    mended = None
    if found.first_passing is not None and ends[found.first_passing] == "0":
        mended = f"{package.name} {found.first_passing} has it no more: update to that or a newer one"
    for sentence in [*sentences, *([f"{mended}, there is nothing left to report."] if mended else [])]:
        console.answer(sentence)
    return Since(" ".join(sentences), mended)


def _elsewhere(session: Session, target: TargetSettings) -> Session:
    """The same failure, probed in environments of releases."""
    subject, prober = session.subject, session.prober
    check = in_releases(prober.runner.check, subject, target, prober.ledger.original)
    runner = Runner(check, subject.workspace, subject.reference)
    runner.flakiness = prober.runner.flakiness
    return replace(session, probing=Prober(runner, prober.ledger, prober.workers))


def _seen_failing(subject: Subject, package: str) -> tuple[str | None, list[Version]]:
    """The release that the target was seen to fail with, as far as it is known, and the Pythons of its places."""
    pythons = [Version(seen.found["Python"]) for seen in subject.seen.values() if "Python" in seen.found]
    for seen in subject.seen.values():
        version = seen.found.get("packages", {}).get(package)
        return None if version is None else str(version), pythons
    try:
        return metadata.version(package), pythons
    except metadata.PackageNotFoundError:
        return None, pythons
