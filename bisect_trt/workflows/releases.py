"""In which release a failure appeared, and in which it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from packaging.version import InvalidVersion, Version

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.command import PYTHON, CommandCheck
from bisect_trt.probing.journal import Record
from bisect_trt.probing.places import indexes
from bisect_trt.probing.places.environments import Environment, find_python, others, with_numpy
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.probing.release_check import ReleaseCheck
from bisect_trt.probing.runner import Check
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.reporting.result import Result
from bisect_trt.search.history import Edge, History, find_edges
from bisect_trt.search.oracle import Oracle, Search, Units, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.subject import Subject

_REASON_LENGTH = 200


@dataclass(frozen=True)
class ReleasesSettings:
    """Which releases are asked.

    Attributes:
        package: What has them.
        oldest: The first; the oldest that there is for this interpreter if empty.
        newest: The last, and all that begin with it: 1.31 goes up to 1.31.1; the newest that there is if empty.
        every: Whether each is asked, rather than those that bisection needs.
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
        """Whether a release is one of them."""
        return not (self.before(release) or self.after(release))

    def before(self, release: str) -> bool:
        """Whether a release is older than all of them."""
        oldest = _version("--from", self.oldest)
        return oldest is not None and Version(release) < oldest

    def after(self, release: str) -> bool:
        """Whether a release is newer than all of them."""
        newest = _version("--to", self.newest)
        return newest is not None and _beyond(Version(release), newest)


def _version(option: str, text: str) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion as error:
        raise UsageError(f"{option} {text}: that is no version; give one such as 1.18 or 1.18.1.") from error


def _beyond(release: Version, newest: Version) -> bool:
    """Whether a release is newer than another and all that begin like it."""
    return release > newest and release.release[: len(newest.release)] != newest.release


@dataclass(frozen=True)
class Boundaries:
    """What was found of a package's releases.

    Attributes:
        package: Its name.
        releases: Those that could be asked, the oldest first.
        history: What was seen of them, by place.
        reasons: What each of those said that were asked, by release.
    """

    package: str
    releases: tuple[str, ...]
    history: History
    reasons: Mapping[str, str]

    @property
    def first_failing(self) -> str | None:
        """The release in which the failure appeared: the oldest that fails, if the one before it passes."""
        edge = self.history.oldest
        return None if edge is None or edge.passing is None else self.releases[edge.failing]

    @property
    def first_passing(self) -> str | None:
        """The release in which it went: the next after the newest that fails."""
        edge = self.history.newest
        return None if edge is None or edge.passing is None else self.releases[edge.passing]

    @property
    def failing(self) -> str | None:
        """The newest that fails."""
        return None if self.history.newest is None else self.releases[self.history.newest.failing]

    @property
    def passing(self) -> str | None:
        """One that passes, the nearest: where it went, or else the last before it appeared."""
        oldest = self.history.oldest
        return self.first_passing or (
            self.releases[oldest.passing] if oldest is not None and oldest.passing is not None else None
        )

    def describe(self) -> str:
        """In a sentence."""
        oldest, newest = self.history.oldest, self.history.newest
        assert oldest is not None
        assert newest is not None
        name, since, until = self.package, self.releases[oldest.failing], self.releases[newest.failing]
        if oldest.passing is not None:
            begun = f"fails since {name} {since}, right in {self.releases[oldest.passing]}"
        else:
            begun = f"fails in {name} {since} already, {self._end(oldest, 'oldest', range(oldest.failing))}"
        if newest.passing is not None:
            return f"{begun}; gone in {self.releases[newest.passing]}"
        after = range(newest.failing + 1, len(self.releases))
        return f"{begun}; still there in {until}, {self._end(newest, 'newest', after)}"

    def _end(self, edge: Edge, which: str, beyond: Sequence[int]) -> str:
        asked = f"the {which} that was asked"
        untold = [place for place in beyond if self.history.seen.get(place) is Verdict.UNRESOLVED]
        return f"the {which} that says anything" if untold and edge.passing is None else asked

    def doubt(self) -> str | None:
        """Why it is not known exactly, if it is not."""
        for edge, what in ((self.history.oldest, "appeared"), (self.history.newest, "went")):
            if edge is not None and edge.between:
                names = [self.releases[place] for place in edge.between]
                said = f"{self.package} {names[0]}: {self.reasons.get(names[0], '')[:_REASON_LENGTH]}"
                return (
                    f"in which release it {what} is not known exactly, because {', '.join(names)} says nothing ({said})"
                )
        return None

    def more(self) -> str | None:
        """What else was seen, where the failure came and went more than once."""
        stretches = self.history.stretches
        if len(stretches) < 2:
            return None
        named = [tuple(dict.fromkeys((self.releases[first], self.releases[last]))) for first, last in stretches]
        return f"it came and went more than once: it fails in {', '.join(' to '.join(each) for each in named)}"

    def to_json(self) -> dict[str, object]:
        """What the result says."""
        seen = {self.releases[place]: verdict.value for place, verdict in sorted(self.history.seen.items())}
        return {
            "package": self.package,
            "releases": seen,
            "first_failing": self.first_failing,
            "first_passing": self.first_passing,
            "failing": [[self.releases[first], self.releases[last]] for first, last in self.history.stretches],
            "reasons": dict(self.reasons),
        }


def find_releases(investigation: Investigation, settings: ReleasesSettings) -> Result:
    """Ask releases, each in an environment of its own, until it is known where the failure appeared and where it went.

    Raises:
        DoesNotReproduce: None fails.
        BudgetSpent: What was asked so far is in the result.
        UnavailableError: There are no such releases.
    """
    subject, console, result = investigation.subject, investigation.console, investigation.result
    console.step(f"Which releases of {settings.package} are there?")
    pythons = list_releases(settings)
    console.say(f"  {len(pythons)}: {_spread(list(pythons))}")
    how = "Ask each" if settings.every else "Bisect them"
    console.step(f"{how}: each in an environment of its own, made where it is not there yet")
    found = ask_releases(investigation, settings, pythons, subject.original)
    if settings.every:
        for place, release in enumerate(found.releases):
            console.answer(
                f"  {release:<12} {found.history.seen[place].value:<11} {found.reasons[release][:_REASON_LENGTH]}"
            )
    if found.history.oldest is None:
        _refuse(found)
    result.status, doubt, more = "found", found.doubt(), found.more()
    result.minimality = "1-minimal" if doubt is None else "unproven"
    result.why = "; ".join(filter(None, (doubt, more))) or None
    console.answer(f"It {found.describe()}.")
    if result.why:
        console.answer(f"  {result.why}")
    return result


def _refuse(found: Boundaries) -> None:
    """Raise that none fails."""
    untold = [
        release for place, release in enumerate(found.releases) if found.history.seen[place] is Verdict.UNRESOLVED
    ]
    said = f"{untold[0]} says nothing: {found.reasons[untold[0]][:_REASON_LENGTH]}" if untold else ""
    if len(untold) == len(found.releases):
        raise NothingTold(f"no release of {found.package} says anything of this failure; {said}")
    raise DoesNotReproduce(
        f"no release of {found.package} from {found.releases[0]} to {found.releases[-1]} fails"
        + (f"; {len(untold)} of {len(found.releases)} say nothing ({said})." if untold else ".")
    )


class NothingTold(UnavailableError):  # noqa: N818 - an ending, not an error
    """No release can be installed, or knows the model."""


def ask_releases(
    investigation: Investigation, settings: ReleasesSettings, pythons: Mapping[str, str], model: Candidate
) -> Boundaries:
    """Find the boundaries; what is known of them is in the result however it ends.

    Args:
        investigation: Its prober's check is a ``ReleaseCheck``.
        settings: Which releases.
        pythons: The releases, the oldest first, and the interpreter that each is for; see :func:`list_releases`.
        model: What is run.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    releases, ledger = tuple(pythons), investigation.prober.ledger
    candidates = [_candidate(model, settings, release, python) for release, python in pythons.items()]
    known = {candidate.key: place for place, candidate in enumerate(candidates)}

    def story(oracle: Oracle) -> History:
        return find_edges(len(releases), lambda place: oracle(Units(frozenset({place}))), every=settings.every)

    history: History | None = None
    try:
        search = Search(Verdict.FAIL, story)
        history = investigation.prober.search(search, lambda units: candidates[next(iter(units))], model)
    finally:
        records = {known[record.key]: record for record in ledger.records if record.key in known}
        seen = History({place: record.verdict for place, record in records.items()})
        found = Boundaries(settings.package, releases, history or seen, _reasons(releases, records))
        investigation.result.extra |= found.to_json()
    return found


def _reasons(releases: Sequence[str], records: Mapping[int, Record]) -> dict[str, str]:
    return {releases[place]: record.reason for place, record in sorted(records.items())}


def _candidate(model: Candidate, settings: ReleasesSettings, release: str, python: str) -> Candidate:
    wanted = with_numpy((f"{settings.package}=={release}", *settings.beside))
    packages = str(Environment(wanted, python))
    return replace(model, title=f"{settings.package} {release}", packages=packages, runs=settings.runs)


def list_releases(settings: ReleasesSettings) -> dict[str, str]:
    """The releases that are asked, the oldest first, and of each the interpreter that it is for; empty for this one.

    Where this interpreter has no releases as old, or as new, as are asked for, others are looked at that are here or that uv
    can fetch, the nearest version first.

    Raises:
        UnavailableError: There are none, or the index does not answer.
    """
    found = dict.fromkeys(indexes.releases(settings.package), "")
    reached = _reached(found, settings)
    for python in others():
        if reached:
            break
        try:
            find_python(python, download=False)
        except UnavailableError:
            if indexes.uv() is None:
                continue
        for release in indexes.releases(settings.package, python):
            found.setdefault(release, python)
        reached = _reached(found, settings)
    chosen = sorted(filter(settings.holds, found), key=Version)
    if not chosen:
        there = f"it has {_spread(sorted(found, key=Version))}" if found else "it has none at all"
        raise UnavailableError(
            f"the index has no release of {settings.package}{_asked(settings)} for an interpreter here; {there}."
        )
    return {release: found[release] for release in chosen}


def _reached(found: Mapping[str, str], settings: ReleasesSettings) -> bool:
    """Whether both ends of what is asked for are among them."""
    older = not settings.oldest or any(Version(each) <= Version(settings.oldest) for each in found)
    newer = not settings.newest or any(Version(each) >= Version(settings.newest) for each in found)
    return bool(found) and older and newer


def _asked(settings: ReleasesSettings) -> str:
    return (f" from {settings.oldest}" if settings.oldest else "") + (
        f" to {settings.newest}" if settings.newest else ""
    )


def _spread(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


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
    unknown = (lambda _: False) if target is None else target.target.does_not_know
    return ReleaseCheck(check, workers, unknown, expected)
