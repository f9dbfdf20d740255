"""``releases``: the release of a package in which a failure appeared, and the one in which it went.

The space is the releases in their order, each probed in an environment of its own; the strategy finds both boundaries.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from bisect_trt.options.spec import written
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Check, DoesNotReproduce
from bisect_trt.probe.user_checks import PYTHON, CommandCheck
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.report.reproducer import MODEL, Since
from bisect_trt.report.result import Result
from bisect_trt.search.history import History, find_edges
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.messages import error_class
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.environments import Environment, find_python, interpreter, others, with_numpy
from bisect_trt.worker.environments import releases as list_index
from bisect_trt.worker.place import make_place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import CANCELLED

_REASON_LENGTH = 200
"""So much of a release's reason is repeated."""


@dataclass(frozen=True)
class ReleaseCheck:
    """The built-in comparison, or a command, with the packages that a candidate names.

    What says nothing of the failure is never a verdict: a release that cannot be installed or started, or that does not know
    what the model is made of.

    Attributes:
        check: What says good or bad. A command has ``{python}`` in it, which becomes the environment's interpreter.
        subject: The model.
        target: The runtime, if one is compared.
        expected: The signature of the failure that is looked for, where it is known already.
        newest: Whether it is about the newest release, in which a missing operator is no matter of age.
    """

    check: BuiltinCheck | CommandCheck
    subject: Subject
    target: TargetSettings | None
    expected: str | None = None
    newest: bool = False

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.check.parallel

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate; its environment is made first, where it is not there yet."""
        began = time.monotonic()
        try:
            return self._judged(self._run(files, cancel))
        except (UnavailableError, UsageError) as error:  # of this release alone: others go on
            signature = CANCELLED if cancel is not None and cancel.is_set else "no environment"
            files.log.write_text(f"{error}\n", encoding="utf-8", errors="replace")
            return Outcome(Ending.OTHER, signature, str(error), time.monotonic() - began)

    def _run(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        python = interpreter(Environment.parse(files.packages), cancel=cancel)
        if isinstance(self.check, CommandCheck):
            return self.check.run(replace(files, python=python), cancel)
        place, subject = make_place(f"env={files.packages}", lambda _: str(python)), self.subject
        limit = subject.settings.data.memory_limit
        with WorkerPool(
            subject.workspace.folder, memory_limit=limit, timeout=self.check.timeout, places=(place,)
        ) as pool:
            outcome = replace(self.check, workers=pool).run(files, cancel)
        # How far it is off is the release's matter; that it is beyond tolerance is the failure.
        return replace(outcome, severity=None)

    def _judged(self, outcome: Outcome) -> Outcome:
        """The same failure in the words of another release has the same signature."""
        if outcome.ending is not Ending.BROKEN:
            return outcome
        kind = error_class(outcome.signature)
        if self.expected is not None and error_class(self.expected) == kind:
            return replace(outcome, signature=self.expected)
        if self.target is not None and self.target.target.does_not_know(outcome.reason, newest=self.newest):
            return replace(outcome, ending=Ending.OTHER, reason=f"it does not know the model: {outcome.reason}")
        return replace(outcome, signature=kind)


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
    return ReleaseCheck(check, subject, target, expected)


Range = tuple[Version | None, Version | None]
"""The first release; and the last one with all that begin with it: 1.31 goes up to 1.31.1. ``None`` for no limit."""


def read_range(oldest: str, newest: str) -> Range:
    """The range from one version to another.

    Raises:
        UsageError: One is no version, or there is nothing between the two.
    """
    ends: list[Version | None] = []
    for option, text in (("--from", oldest), ("--to", newest)):
        try:
            ends.append(Version(text) if text else None)
        except InvalidVersion as error:
            raise UsageError(f"{option} {text}: that is no version; give one such as 1.18 or 1.18.1.") from error
    low, high = ends
    if low is not None and high is not None and _beyond(low, high):
        raise UsageError(f"--from {oldest} is newer than --to {newest}; swap them.")
    return low, high


def _beyond(release: Version, newest: Version) -> bool:
    """Whether a release is newer than another and all that begin like it."""
    return release > newest and release.release[: len(newest.release)] != newest.release


def list_releases(package: str, wanted: Range) -> dict[str, str]:
    """The releases of a range, the oldest first, each with the interpreter that it is for; empty for this one.

    Where this interpreter has no releases as old, or as new, other interpreters that are installed are looked at, the nearest
    version first.

    Raises:
        UnavailableError: There are none, or the index does not answer.
    """
    low, high = wanted
    found: dict[str, str] = {}
    for python in ("", *others()):
        try:
            if python:
                find_python(python)
        except UnavailableError:
            continue
        for release in list_index(package, python or None):
            found.setdefault(release, python)
        versions = [Version(each) for each in found]
        if versions and (low is None or min(versions) <= low) and (high is None or max(versions) >= high):
            break
    ordered = sorted(found, key=Version)
    some = [each for each in ordered if low is None or Version(each) >= low]
    some = [each for each in some if high is None or not _beyond(Version(each), high)]
    if some:
        return {release: found[release] for release in some}
    asked = "".join(f" {word} {end}" for word, end in (("from", low), ("to", high)) if end is not None)
    there = f"it has {_spread(ordered)}" if found else "it has none at all"
    raise UnavailableError(f"the index has no release of {package}{asked} for an interpreter here; {there}.")


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

    def _at(self, place: int | None) -> str | None:
        return None if place is None else self.releases[place]

    @property
    def first_failing(self) -> str | None:
        """The release in which the failure appeared: the oldest that fails, if the one before it passes."""
        edge = self.history.oldest
        return None if edge is None or edge.passing is None else self._at(edge.failing)

    @property
    def first_passing(self) -> str | None:
        """The release in which it went: the next after the newest that fails."""
        return None if self.history.newest is None else self._at(self.history.newest.passing)

    def describe(self) -> str:
        """The boundaries in a sentence."""
        oldest, newest = self.history.oldest, self.history.newest
        assert oldest is not None
        assert newest is not None
        since = self._at(oldest.failing)
        begun = f"fails since {self.package} {since}, right in {self._at(oldest.passing)}"
        if oldest.passing is None:
            begun = f"fails in {self.package} {since} already, the oldest that says anything"
        if newest.passing is None:
            return f"{begun}; still there in {self._at(newest.failing)}, the newest that says anything"
        return f"{begun}; gone in {self.first_passing}"

    def doubt(self) -> str | None:
        """Why it is not known exactly, if it is not."""
        for edge, what in ((self.history.oldest, "appeared"), (self.history.newest, "went")):
            if edge is not None and edge.between:
                names = [self.releases[place] for place in edge.between]
                silent = f"{', '.join(names)} says nothing ({names[0]}: {self._reason(names[0])})"
                return f"in which release it {what} is not known exactly, because {silent}"
        return None

    def _reason(self, release: str) -> str:
        return self.reasons.get(release, "")[:_REASON_LENGTH]

    def rows(self) -> list[tuple[str, str, str]]:
        """What was seen: release, verdict and reason."""
        seen = sorted(self.history.seen.items())
        return [(self.releases[place], verdict.value, self._reason(self.releases[place])) for place, verdict in seen]

    def to_json(self) -> dict[str, object]:
        """The fields of the result."""
        return {
            "package": self.package,
            "releases": {release: verdict for release, verdict, _ in self.rows()},
            "first_failing": self.first_failing,
            "first_passing": self.first_passing,
            "failing": [[self.releases[first], self.releases[last]] for first, last in self.history.stretches],
            "reasons": dict(self.reasons),
        }


def find_releases(session: Session, own: Releases, package: str, wanted: Range, runs: int) -> Result:
    """Probe releases until it is known where the failure appeared and where it went.

    Args:
        session: Its prober's check is a :class:`ReleaseCheck`.
        own: The options of the command.
        package: The package that has the releases.
        wanted: Their range.
        runs: How often the failure may stay away in a release that has it, plus 1.

    Raises:
        DoesNotReproduce: None fails.
        BudgetSpent: What was seen so far is in the result.
        UnavailableError: There are no such releases, or none says anything.
    """
    console, result = session.console, session.result
    console.step(f"Which releases of {package} are there?")
    pythons = list_releases(package, wanted)
    console.say(f"  {len(pythons)}: {_spread(list(pythons))}")
    how = "Ask each" if own.find_all else "Bisect them"
    console.step(f"{how}: each in an environment of its own, made where it is not there yet")
    model = replace(session.subject.original, runs=runs)
    found = ask_releases(session, package, pythons, model, beside=own.beside, every=own.find_all)
    if own.find_all:
        console.table(("release", "verdict", "reason"), found.rows(), len(pythons))
    if found.history.oldest is None:
        silent = [row for row in found.rows() if row[1] == Verdict.UNRESOLVED.value]
        said = f"{silent[0][0]} says nothing: {silent[0][2]}" if silent else ""
        if len(silent) == len(found.releases):
            raise UnavailableError(f"no release of {package} says anything of this failure; {said}")
        raise DoesNotReproduce(
            f"no release of {package} from {found.releases[0]} to {found.releases[-1]} fails"
            + (f"; {len(silent)} of {len(found.releases)} say nothing ({said})." if silent else ".")
            + " The one that you saw fail may be older (--from); or it ran with other options or inputs."
        )
    result.status, result.why = "found", found.doubt()
    result.minimality = "1-minimal" if result.why is None else "unproven"
    console.answer(f"It {found.describe()}.")
    if found.first_passing is not None:
        console.answer(f"  To be rid of it: {package} {found.first_passing} or a newer one.")
    if result.why:
        console.answer(f"  {result.why}")
    return result


def ask_releases(
    session: Session,
    package: str,
    pythons: Mapping[str, str],
    model: Candidate,
    *,
    failing: str = "",
    beside: Sequence[str] = (),
    every: bool = False,
) -> Boundaries:
    """Find the boundaries; what is known of them is in the result however it ends.

    Args:
        session: Its prober's check is a :class:`ReleaseCheck`.
        package: The package that has the releases.
        pythons: The releases, the oldest first, and the interpreter that each is for; see :func:`list_releases`.
        model: What is run.
        failing: A release that most likely fails.
        beside: What else is installed in each environment, as pip takes it.
        every: Whether each is probed, rather than those that bisection needs.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    releases, prober = tuple(pythons), session.prober

    def build(place: int) -> Candidate:
        release = releases[place]
        environment = Environment(with_numpy((f"{package}=={release}", *beside)), pythons[release])
        return replace(model, title=f"{package} {release}", packages=str(environment))

    series, check = Series(build), prober.runner.check
    assert isinstance(check, ReleaseCheck)
    if check.expected is None:
        # The newest release defines the failure; of an older one, an operator that it lacks is a matter of its age.
        prober.runner.check = replace(check, newest=True)
        fails = series.probe(prober, len(releases) - 1) is Verdict.FAIL
        prober.runner.check = replace(check, expected=prober.ledger.original if fails else None)
    hint = releases.index(failing) if failing in releases else None
    history: History | None = None
    try:
        history = series.search(prober, lambda ask: find_edges(len(releases), ask, hint, every=every))
    finally:
        records = series.seen(prober)
        seen = History({place: record.verdict for place, record in records.items()})
        reasons = {releases[place]: record.reason for place, record in sorted(records.items())}
        found = Boundaries(package, releases, history or seen, reasons)
        session.result.extra |= found.to_json()
    return found


def since_when(session: Session, check: CheckSettings, case: Candidate, folder: Path, *, asked: bool) -> Since | None:
    """The last step of a diagnosis: since which release does the minimal case fail, and in which is it gone?

    Nothing is installed unless it was asked for; else the command is said that does it. An error is said, and does not end the
    diagnosis: the failure itself was found before.

    Returns:
        The answer, where there is one.
    """
    target, console, prober = check.target, session.console, session.prober
    package = None if target is None else target.target.package(target)
    if target is None or package is None:
        return None
    command = shlex.join(["bisect-trt", "releases", str(folder), *target.flags(), *written(check.tolerance)])
    if not asked:
        if not target.low_precisions:  # else precision is the first suspect, not a release
            console.answer(f"Since which release? Not looked for, because it installs releases: {command}")
        return None
    console.step(f"Since which release of {package.name}?")
    there = in_releases(prober.runner.check, session.subject, target, prober.ledger.original)
    elsewhere = replace(session, probing=prober.beside(there))
    try:
        failing = _seen_failing(session.subject, package.name)
        pythons = list_releases(package.name, (None, None))
        found = ask_releases(elsewhere, package.name, pythons, replace(case, runs=1), failing=failing)
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


def _seen_failing(subject: Subject, package: str) -> str:
    """The release that the target was seen to fail with, in its place or here; empty if unknown."""
    for seen in subject.seen.values():
        return str(seen.found.get("packages", {}).get(package) or "")
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _package(own: Releases, target: TargetSettings | None, *, has_check: bool) -> str:
    """The package that has the releases.

    Raises:
        UsageError: It is not said.
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
    return name


def run(call: Call) -> Result:
    """Find the release in which a failure appeared: of a model, or of a reproducer with its values.

    Raises:
        UsageError: An option is wrong.
        UnavailableError: A release cannot be installed.
    """
    own = call[Releases]
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
    package, wanted = _package(own, target, has_check=call.has_check), read_range(own.from_, own.to)
    check = call.check(target, used=True)
    call.open(check)
    check = replace(check, target=None) if check.argv else check
    with (
        call.subject(check.timeout, older=True) as subject,
        call.investigated(subject, check, target, lambda here: in_releases(here, subject, target)) as session,
    ):
        return find_releases(session, own, package, wanted, call[Search].repeat or 1)
