"""``releases``: the release of a package in which a failure appeared, and the one in which it went.

The space is the releases in their order, each probed in an environment of its own; the strategy is
:func:`~bisect_trt.search.history.find_edges`, which finds both boundaries.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import onnx
from packaging.version import InvalidVersion, Version

from bisect_trt.commands.call import Call
from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.session import Session
from bisect_trt.commands.space import Series
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import (
    BisectError,
    ConflictError,
    MissingOptionError,
    PlaceError,
    UnavailableError,
    UsageError,
    ValueRefusedError,
)
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.options.searches import Releases
from bisect_trt.options.shared import Data, Search
from bisect_trt.options.spec import written
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent, Record
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Check, DoesNotReproduce
from bisect_trt.probe.user_checks import PYTHON, CommandCheck
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.report.reproducer import MODEL, Since
from bisect_trt.report.result import Result
from bisect_trt.search.history import Edge, History, find_edges
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import Package
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
        failure: The failure that is looked for, where it is known already.
        newest: Whether it is about the newest release, in which a missing operator is no matter of age.
    """

    check: BuiltinCheck | CommandCheck
    subject: Subject
    target: TargetSettings | None
    failure: Record | None = None
    newest: bool = False

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.check.parallel

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate; its environment is made first, where it is not there yet."""
        began = time.monotonic()
        try:
            return self._judged(self._run(files, cancel), files.model)
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

    def _judged(self, outcome: Outcome, model: Path) -> Outcome:
        """The same failure in the words of another release has the same signature."""
        if outcome.ending is not Ending.BROKEN:
            return outcome
        refusal = refusal_of(outcome, model)
        if self.failure is not None and refusal_of(self.failure, model) == refusal:
            return replace(outcome, signature=self.failure.signature)
        if self.target is not None and self.target.target.does_not_know(outcome.reason, newest=self.newest):
            return replace(outcome, ending=Ending.OTHER, reason=f"it does not know the model: {outcome.reason}")
        return replace(outcome, signature=refusal)


def refusal_of(failure: Outcome | Record, model: Path) -> str:
    """The kind of a failure with the node and the operator that its message names first.

    The words of a message change from release to release; the text, without operands, counts only where no node is named.
    """
    kind = failure.signature.partition(":")[0]
    nodes = list(all_nodes(onnx.load(str(model), load_external_data=False)))
    for words in ({node.name: f"{node.op_type} {node.name}" for node in nodes}, {n.op_type: n.op_type for n in nodes}):
        found = {at: words[word] for word in words if word and (at := _place_of(word, failure.reason)) >= 0}
        if found:
            return f"{kind}: {found[min(found)]}"
    return error_class(failure.signature)


def _place_of(word: str, text: str) -> int:
    """Where a text has a name, as a word of its own; -1 where it has not."""
    found = re.search(rf"(?<![\w/.]){re.escape(word)}(?![\w/])", text)
    return -1 if found is None else found.start()


def in_releases(
    check: Check, subject: Subject, target: TargetSettings | None, failure: Record | None = None
) -> ReleaseCheck:
    """The same check, in the environment that a candidate names.

    Raises:
        UsageError: It cannot be run there.
    """
    if isinstance(check, CommandCheck) and not any(PYTHON in word for word in check.argv):
        raise MissingOptionError(
            "the --check command does not say {python}, so each release would be asked alike; put {python} where the "
            "interpreter of the release belongs: --check {python} check.py {model}"
        )
    if not isinstance(check, BuiltinCheck | CommandCheck):
        raise MissingOptionError(
            "releases asks other interpreters: give a target such as --onnxrt, or a --check command."
        )
    return ReleaseCheck(check, subject, target, failure)


@dataclass(frozen=True)
class Range:
    """The releases from one version to another, with all that begin like the newest; ``None`` is no limit."""

    oldest: Version | None = None
    newest: Version | None = None

    @classmethod
    def read(cls, oldest: str, newest: str) -> Range:
        """The range between two options.

        Raises:
            UsageError: One is no version, or there is nothing between the two.
        """
        try:
            read = cls(*(Version(text) if text else None for text in (oldest, newest)))
        except InvalidVersion as error:
            raise ValueRefusedError(f"--from or --to: {error}; give a version such as 1.18 or 1.18.1.") from error
        if read.oldest is not None and read.newest is not None and not replace(read, oldest=None).has(read.oldest):
            raise ConflictError(f"--from {oldest} is newer than --to {newest}; swap them.")
        return read

    def has(self, release: Version) -> bool:
        """Whether a release is in it."""
        if self.oldest is not None and release < self.oldest:
            return False
        newest = self.newest
        return newest is None or release <= newest or release.release[: len(newest.release)] == newest.release

    def is_covered(self, releases: Sequence[Version]) -> bool:
        """Whether releases, the oldest first, reach from one end to the other."""
        low, high = self.oldest or releases[0], self.newest or releases[-1]
        return releases[0] <= low and high <= releases[-1]

    def __str__(self) -> str:
        ends = (("from", self.oldest), ("to", self.newest))
        return "".join(f" {word} {end}" for word, end in ends if end is not None)


def list_releases(package: str, wanted: Range) -> dict[str, str]:
    """The releases of a range, the oldest first, each with the interpreter that it is for; empty for this one.

    Where this interpreter has no releases as old, or as new, other interpreters that are installed are looked at, the nearest
    version first.

    Raises:
        UnavailableError: There are none, or the index does not answer.
    """
    found: dict[Version, str] = {}
    for python in ("", *others()):
        try:
            if python:
                find_python(python)
        except UnavailableError:
            continue
        for release in list_index(package, python or None):
            found.setdefault(Version(release), python)
        if found and wanted.is_covered(sorted(found)):
            break
    ordered = sorted(found)
    if some := [release for release in ordered if wanted.has(release)]:
        return {str(release): found[release] for release in some}
    there = f"it has {ordered[0]} to {ordered[-1]}" if found else "it has none at all"
    raise PlaceError(f"the index has no release of {package}{wanted} for an interpreter here; {there}.")


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

    def passing(self, edge: Edge | None) -> str | None:
        """The release that passes at an edge; ``None`` if the failures go on there."""
        return None if edge is None or edge.passing is None else self.releases[edge.passing]

    def describe(self) -> str:
        """The boundaries in a sentence, and why they are not known exactly, if so."""
        oldest, newest = self.history.oldest, self.history.newest
        assert oldest is not None
        assert newest is not None
        since, before, after = self.releases[oldest.failing], self.passing(oldest), self.passing(newest)
        begun = f"fails since {self.package} {since}, right in {before}"
        if before is None:
            begun = f"fails in {self.package} {since} already, the oldest that says anything"
        still = f"still there in {self.releases[newest.failing]}, the newest that says anything"
        return f"{begun}; {still if after is None else f'gone in {after}'}"

    def doubt(self) -> str | None:
        """Why a boundary is not known exactly, if so."""
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
        oldest, newest = self.history.oldest, self.history.newest
        appeared = oldest is not None and oldest.passing is not None
        return {
            "package": self.package,
            "releases": {release: verdict for release, verdict, _ in self.rows()},
            "first_failing": self.releases[oldest.failing] if oldest is not None and appeared else None,
            "first_passing": self.passing(newest),
            "failing": [[self.releases[first], self.releases[last]] for first, last in self.history.stretches],
            "reasons": dict(self.reasons),
        }


def ask_releases(
    session: Session,
    package: Package,
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
        wanted = with_numpy((*package.requirements(release), *beside))
        environment = Environment(wanted, pythons[release], alone=bool(package.parts))
        return replace(model, title=f"{package.name} {release}", packages=str(environment))

    space, check = Series(build), prober.runner.check
    assert isinstance(check, ReleaseCheck)
    if check.failure is None:
        # The newest release defines the failure; of an older one, an operator that it lacks is a matter of its age.
        prober.runner.check = replace(check, newest=True)
        fails = space.probe(prober, len(releases) - 1) is Verdict.FAIL
        prober.runner.check = replace(check, failure=space.seen(prober)[len(releases) - 1] if fails else None)
    hint = releases.index(failing) if failing in releases else None
    history: History | None = None
    try:
        history = space.search(prober, lambda ask: find_edges(len(releases), ask, hint, every=every))
    finally:
        records = space.seen(prober)
        seen = History({place: record.verdict for place, record in records.items()})
        reasons = {releases[place]: record.reason for place, record in sorted(records.items())}
        found = Boundaries(package.name, releases, history or seen, reasons)
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
            session.result.suggest(command)
        return None
    console.step(f"Since which release of {package.name}?")
    original = prober.ledger.original
    failure = next((record for record in reversed(prober.ledger.records) if record.signature == original), None)
    elsewhere = in_releases(prober.runner.check, session.subject, target, failure)
    try:
        found = ask_releases(
            replace(session, probing=prober.beside(elsewhere)),
            package,
            list_releases(package.index_name, Range()),
            replace(case, runs=1),
            failing=_seen_failing(session.subject, package.name),
        )
    except (BisectError, BudgetSpent) as error:
        console.say(f"  not found: {error}" + (f" This goes on: {command}" if isinstance(error, BudgetSpent) else ""))
        return None
    if found.history.oldest is None:
        console.answer(f"No release of {package.name} fails in an environment of its own.")
        return None
    doubt, gone = found.doubt(), found.passing(found.history.newest)
    sentence = f"It {found.describe()}." + (f" {doubt[0].upper()}{doubt[1:]}." if doubt else "")
    fixed = None if gone is None else f"{package.name} {gone} has it no more: update to that or a newer one"
    console.answer(sentence)
    if fixed is not None:
        console.answer(f"{fixed}, there is nothing left to report.")
    return Since(sentence, fixed)


def _seen_failing(subject: Subject, package: str) -> str:
    """The release that the target was seen to fail with, in its place or here; empty if unknown."""
    for seen in subject.seen.values():
        return str(seen.found.get("packages", {}).get(package) or "")
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def run(call: Call) -> Result:
    """Find the release in which a failure appeared: of a model, or of a reproducer with its values.

    Raises:
        BudgetSpent: What was seen so far is in the result.
        DoesNotReproduce: No release fails.
        UnavailableError: There are no such releases, or none says anything.
        UsageError: An option is wrong.
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
    if own.package is not None and not call.has_check:
        raise MissingOptionError(
            "--package names the releases for a --check command; add one, or name a target instead."
        )
    package = Package(own.package) if own.package else None if target is None else target.target.package(target)
    if package is None:
        raise MissingOptionError(
            "releases of what? Name a target that is a package with releases, such as --onnxrt, or --package NAME with a "
            "--check command."
        )
    wanted = Range.read(own.from_, own.to)
    check = call.check(target)
    call.open(check)
    check = replace(check, target=None) if check.argv else check
    with (
        call.subject(check.timeout, older=True) as subject,
        call.investigated(subject, check, target, lambda here: in_releases(here, subject, target)) as session,
    ):
        return find_releases(session, own, package, wanted, call[Search].repeat or 1)


def find_releases(session: Session, own: Releases, package: Package, wanted: Range, runs: int) -> Result:
    """Probe releases until it is known where the failure appeared and where it went; ``runs`` times each, while it stays away."""
    console, result = session.console, session.result
    console.step(f"Which releases of {package.name} are there?")
    pythons = list_releases(package.index_name, wanted)
    console.say(f"  {len(pythons)}: {next(iter(pythons))} to {[*pythons][-1]}")
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
            raise PlaceError(f"no release of {package.name} says anything of this failure; {said}")
        raise DoesNotReproduce(
            f"no release of {package.name} from {found.releases[0]} to {found.releases[-1]} fails"
            + (f"; {len(silent)} of {len(found.releases)} say nothing ({said})." if silent else ".")
            + " The one that you saw fail may be older (--from); or it ran with other options or inputs."
        )
    result.status, result.why = "found", found.doubt()
    result.minimality = "1-minimal" if result.why is None else "unproven"
    console.answer(f"It {found.describe()}.")
    if (gone := found.passing(found.history.newest)) is not None:
        console.answer(f"  To be rid of it: {package.name} {gone} or a newer one.")
    if result.why:
        console.answer(f"  {result.why}")
    return result
