"""``releases``: the release of a package in which a failure appeared, and the one in which it went.

The space is the releases in their order, each probed in an environment of its own; the strategy finds both boundaries.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bisect_trt.commands.call import Call
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.space import Series
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError, UnavailableError, UsageError
from bisect_trt.options.searches import Releases
from bisect_trt.options.shared import Data, Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import BuiltinCheck, ReleaseCheck
from bisect_trt.probe.prober import Check, DoesNotReproduce, Prober, Runner
from bisect_trt.probe.user_checks import PYTHON, CommandCheck
from bisect_trt.report.reproducer import MODEL, Since
from bisect_trt.report.result import Result
from bisect_trt.search.history import History, find_edges
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.environments import Environment, find_python, others, with_numpy
from bisect_trt.worker.environments import releases as list_index
from bisect_trt.worker.pool import WorkerPool

_REASON_LENGTH = 200
"""So much of a release's reason is repeated."""


@dataclass(frozen=True)
class ReleasesSettings:
    """Which releases are asked.

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


def list_releases(settings: ReleasesSettings) -> dict[str, str]:
    """The releases of the range, the oldest first, each with the interpreter that it is for; empty for this one.

    Where this interpreter has no releases as old, or as new, other interpreters that are installed are looked at, the nearest
    version first.

    Raises:
        UnavailableError: There are none, or the index does not answer.
    """
    found: dict[str, str] = {}
    for python in ("", *others()):
        try:
            if python:
                find_python(python)
        except UnavailableError:
            continue
        for release in list_index(settings.package, python or None):
            found.setdefault(release, python)
        versions = [Version(each) for each in found]
        older = not settings.oldest or any(each <= Version(settings.oldest) for each in versions)
        if versions and older and (not settings.newest or max(versions) >= Version(settings.newest)):
            break
    chosen = sorted(filter(settings.holds, found), key=Version)
    if chosen:
        return {release: found[release] for release in chosen}
    asked = "".join(f" {word} {end}" for word, end in (("from", settings.oldest), ("to", settings.newest)) if end)
    there = f"it has {_spread(sorted(found, key=Version))}" if found else "it has none at all"
    raise UnavailableError(f"the index has no release of {settings.package}{asked} for an interpreter here; {there}.")


def _spread(releases: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((releases[0], releases[-1])))


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
    releases: Sequence[str]
    history: History
    reasons: Mapping[str, str]

    def at(self, place: int | None) -> str | None:
        """The release at a place."""
        return None if place is None else self.releases[place]

    @property
    def first_failing(self) -> str | None:
        """The release in which the failure appeared: the oldest that fails, if the one before it passes."""
        edge = self.history.oldest
        return None if edge is None or edge.passing is None else self.releases[edge.failing]

    @property
    def first_passing(self) -> str | None:
        """The release in which it went: the next after the newest that fails."""
        return None if self.history.newest is None else self.at(self.history.newest.passing)

    def describe(self) -> str:
        """The boundaries in a sentence."""
        oldest, newest = self.history.oldest, self.history.newest
        assert oldest is not None
        assert newest is not None
        since, until = self.releases[oldest.failing], self.releases[newest.failing]
        begun = f"fails since {self.package} {since}, right in {self.at(oldest.passing)}"
        if oldest.passing is None:
            begun = f"fails in {self.package} {since} already, the oldest that says anything"
        ended = f"gone in {self.at(newest.passing)}"
        return (
            f"{begun}; {f'still there in {until}, the newest that says anything' if newest.passing is None else ended}"
        )

    def doubt(self) -> str | None:
        """Why it is not known exactly, if it is not."""
        for edge, what in ((self.history.oldest, "appeared"), (self.history.newest, "went")):
            if edge is not None and edge.between:
                names = [self.releases[place] for place in edge.between]
                silent = (
                    f"{', '.join(names)} says nothing ({names[0]}: {self.reasons.get(names[0], '')[:_REASON_LENGTH]})"
                )
                return f"in which release it {what} is not known exactly, because {silent}"
        return None

    def to_json(self) -> dict[str, object]:
        """The fields of the result."""
        return {
            "package": self.package,
            "releases": {self.releases[place]: verdict.value for place, verdict in sorted(self.history.seen.items())},
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
        UnavailableError: There are no such releases, or none says anything.
    """
    console, result = session.console, session.result
    console.step(f"Which releases of {settings.package} are there?")
    pythons = list_releases(settings)
    console.say(f"  {len(pythons)}: {_spread(list(pythons))}")
    how = "Ask each" if settings.every else "Bisect them"
    console.step(f"{how}: each in an environment of its own, made where it is not there yet")
    found = ask_releases(session, settings, pythons, session.subject.original)
    verdicts = found.history.seen
    if settings.every:
        rows = [(r, verdicts[place].value, found.reasons[r][:_REASON_LENGTH]) for place, r in enumerate(found.releases)]
        console.table(("release", "verdict", "reason"), rows, len(rows))
    if found.history.oldest is None:
        silent = [each for place, each in enumerate(found.releases) if verdicts[place] is Verdict.UNRESOLVED]
        said = f"{silent[0]} says nothing: {found.reasons[silent[0]][:_REASON_LENGTH]}" if silent else ""
        if len(silent) == len(found.releases):
            raise UnavailableError(f"no release of {found.package} says anything of this failure; {said}")
        raise DoesNotReproduce(
            f"no release of {found.package} from {found.releases[0]} to {found.releases[-1]} fails"
            + (f"; {len(silent)} of {len(found.releases)} say nothing ({said})." if silent else ".")
            + " The one that you saw fail may be older (--from); or it ran with other options or inputs."
        )
    result.status, result.why = "found", found.doubt()
    result.minimality = "1-minimal" if result.why is None else "unproven"
    console.answer(f"It {found.describe()}.")
    if found.first_passing is not None:
        console.answer(f"  To be rid of it: {found.package} {found.first_passing} or a newer one.")
    if result.why:
        console.answer(f"  {result.why}")
    return result


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

    def build(place: int) -> Candidate:
        release = releases[place]
        packages = str(settings.environment(release, pythons[release]))
        return replace(model, title=f"{settings.package} {release}", packages=packages, runs=settings.runs)

    series, check = Series(build), prober.runner.check
    if isinstance(check, ReleaseCheck) and check.expected is None:
        # The newest release defines the failure; of an older one, an operator that it lacks is a matter of its age.
        prober.runner.check = replace(check, newest=True)
        fails = series.probe(prober, len(releases) - 1) is Verdict.FAIL
        prober.runner.check = replace(check, expected=prober.ledger.original if fails else None)
    hint = releases.index(failing) if failing in releases else None
    history: History | None = None
    try:
        history = series.search(prober, lambda ask: find_edges(len(releases), ask, hint, every=settings.every))
    finally:
        records = series.seen(prober)
        seen = History({place: record.verdict for place, record in records.items()})
        reasons = {releases[place]: record.reason for place, record in sorted(records.items())}
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
        WorkerPool, subject.workspace.folder, memory_limit=subject.settings.data.memory_limit, timeout=check.timeout
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
    target, console = check.target, session.console
    package = None if target is None else target.target.package(target)
    if target is None or package is None:
        return None
    failing, older = _seen_failing(session.subject, package.name)
    settings = ReleasesSettings(package.name, failing if older else "")
    since = ["--from", settings.oldest] if settings.oldest else []
    command = shlex.join(["bisect-trt", "releases", str(folder), *target.flags(), *since, *check.tolerance.words()])
    if not asked:
        if not target.low_precisions:  # else precision is the first suspect, not a release
            console.answer(f"Since which release? Not looked for, because it installs releases: {command}")
        return None
    console.step(f"Since which release of {package.name}?")
    prober = session.prober
    runner = Runner(
        in_releases(prober.runner.check, session.subject, target, prober.ledger.original),
        session.subject.workspace,
        session.subject.reference,
    )
    runner.flakiness = prober.runner.flakiness
    elsewhere = replace(session, probing=Prober(runner, prober.ledger, prober.workers))
    try:
        found = ask_releases(elsewhere, settings, list_releases(settings), case, failing or None)
    except BudgetSpent as error:
        console.say(f"  {error} This goes on: {command}")
        return None
    except BisectError as error:
        console.say(f"  not found: {error}")
        return None
    if found.history.oldest is None:
        console.answer(f"No release of {package.name} fails in an environment of its own.")
        return None
    doubt, mended = found.doubt(), None
    said = f"It {found.describe()}." + (f" {doubt[0].upper()}{doubt[1:]}." if doubt else "")
    console.answer(said)
    if found.first_passing is not None:
        mended = f"{package.name} {found.first_passing} has it no more: update to that or a newer one"
        console.answer(f"{mended}, there is nothing left to report.")
    return Since(said, mended)


def _seen_failing(subject: Subject, package: str) -> tuple[str, bool]:
    """The release that the target was seen to fail with, empty if unknown; and whether it ran on an older Python than this."""
    here = Version(platform.python_version()).release[:2]
    for seen in subject.seen.values():
        older = Version(seen.found.get("Python", platform.python_version())).release[:2] < here
        return str(seen.found.get("packages", {}).get(package) or ""), older
    try:
        return metadata.version(package), False
    except metadata.PackageNotFoundError:
        return "", False


def releases_settings(
    own: Releases, target: TargetSettings | None, search: Search, *, has_check: bool
) -> ReleasesSettings:
    """Which releases are asked.

    Raises:
        UsageError: It is not said of what, or there are none between the two.
    """
    if own.package is not None and not has_check:
        raise UsageError("--package names the releases for a --check command; add one, or name a target instead.")
    package = None if target is None else target.target.package(target)
    name = own.package or (None if package is None else package.name)
    if name is None:
        raise UsageError(
            "releases of what? Name a target that is a package with releases, such as --onnxrt, or --package NAME with a "
            "--check command."
        )
    oldest, newest = _version("--from", own.from_), _version("--to", own.to)
    if oldest is not None and newest is not None and _beyond(oldest, newest):
        raise UsageError(f"--from {own.from_} is newer than --to {own.to}; swap them.")
    return ReleasesSettings(name, own.from_, own.to, own.find_all, tuple(own.beside), search.repeat or 1)


def run(call: Call) -> Result:
    """Find the release in which a failure appeared: of a model, or of a reproducer with its values.

    Raises:
        UsageError: An option is wrong.
        UnavailableError: A release cannot be installed.
    """
    own, search = call[Releases], call[Search]
    folder = own.model if call.source is None else call.source.named
    if (folder / MODEL).is_file():
        call.options.change(Releases, model=folder / MODEL)
        given = call[Data].given
        if call.source is not None:
            given = given or call.source.inputs is not None
            call.source = replace(call.source, model=folder / MODEL)
        if not given and (folder / "inputs.npz").is_file():
            call.options.change(Data, load_inputs=[folder / "inputs.npz"])
    target = call[Target].settings()
    settings = releases_settings(own, target, call[Search], has_check=call.has_check)
    check = call.check(target, used=True)
    job = call.open(check)
    check = replace(check, target=None) if check.argv else check
    with (
        job.subject(check.timeout, older=True) as subject,
        job.investigated(subject, check, search, target, lambda here: in_releases(here, subject, target)) as session,
    ):
        return find_releases(session, settings)
