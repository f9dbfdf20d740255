"""``releases``: the release of a package in which a failure appeared, and the one in which it was fixed.

The space is the releases in their order, each probed in an environment of its own. The strategy is
:func:`~bisect_trt.search.ordered.find_edges`, which finds both boundaries.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import Struct, structs
from packaging.version import InvalidVersion, Version

from bisect_trt.aliases import Names
from bisect_trt.errors import (
    BisectError,
    ConflictError,
    PlaceError,
    UnavailableError,
    UsageError,
    ValueRefusedError,
)
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.candidate import Candidate, Probe
from bisect_trt.probe.check import Check, Comparing
from bisect_trt.probe.outcome import Ending, Outcome, Reason, raised
from bisect_trt.probe.prober import write_candidate
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.releases import (
    NO_INDEX,
    NONE_ALONE,
    NOT_SEARCHED,
    Boundaries,
    NewerRelease,
)
from bisect_trt.report.reproducer import Since
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.ordered import History, find_edges
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import Session
from bisect_trt.session.space import Series
from bisect_trt.session.subject import Subject
from bisect_trt.steps.minimal_case import named_nodes
from bisect_trt.steps.second_opinion import fails_on_fresh, installed_versions
from bisect_trt.targets.base import Package, TargetSettings, reference_settings, too_new
from bisect_trt.targets.messages import error_class
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.deadline import BudgetSpent
from bisect_trt.worker.environments import Environment, find_python, interpreter, others, with_numpy
from bisect_trt.worker.environments import releases as list_index
from bisect_trt.worker.place import make_place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import CANCELLED, Failed, Sample, Trace

_INDEX_SECONDS = 30.0
"""The time in which an index must answer a question that the user did not ask for."""


@dataclass(frozen=True)
class ReleaseCheck(Check):
    """The built-in comparison, or a command, in the environment with the packages of a candidate.

    A release that cannot be installed or started, or that does not support the model, is
    ``UNRESOLVED``.

    Attributes:
        check: The check. A command contains ``{python}``, which becomes the interpreter of the
            environment.
        subject: The model.
        target: The runtime, if one is compared.
        failure: The failure to look for, if it is known.
        network: The graph with the nodes that messages name: of the model, or of the minimal case
            that is probed.
        newest: Whether this is the newest release, so that age is no explanation for a missing
            operator.
        fusion: Nodes; the reason of a release says whether one layer of its engine runs them.
    """

    check: Check
    subject: Subject
    target: TargetSettings | None
    network: Network
    failure: Outcome | None = None
    newest: bool = False
    fusion: Names = ()

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.check.parallel

    @property
    def runs_user_code(self) -> bool:
        """Whether the check does."""
        return self.check.runs_user_code

    @property
    def runtime(self) -> TargetSettings | None:
        """The runtime that is compared, if one is."""
        return self.target

    @property
    def tolerances(self) -> ToleranceOptions | None:
        """The tolerances of the check."""
        return self.check.tolerances

    def on_samples(
        self, samples: Sequence[Sample], tolerance: ToleranceOptions
    ) -> ReleaseCheck | None:
        """Return a check on other samples, if the check can judge them."""
        check = self.check.on_samples(samples, tolerance)
        return None if check is None else replace(self, check=check, fusion=())

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate; its environment is created first if needed."""
        try:
            return self._judged(self._run(files, cancel))
        except (UnavailableError, UsageError) as error:
            # Only this release cannot be asked.
            signature = CANCELLED if cancel is not None and cancel.is_set else "no environment"
            files.log.write_text(f"{error}\n", encoding="utf-8", errors="replace")
            return Outcome(Ending.OTHER, signature, str(error))

    def _run(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        seconds = self.subject.workers.deadline.seconds_left()
        python = interpreter(Environment.parse(files.packages), cancel=cancel, timeout=seconds)
        if not self.check.judges_runtime:
            return self.check.run(replace(files, python=python), cancel)
        place = make_place(f"env={files.packages}", lambda _: str(python))
        subject = self.subject
        limit = subject.settings.data.memory_limit
        timeout = self.check.timeout
        with WorkerPool(
            subject.workspace.folder,
            memory_limit=limit,
            timeout=timeout,
            places=(place,),
            deadline=subject.workers.deadline,
        ) as pool:
            # The time to make the environment does not count.
            began = time.monotonic()
            outcome = self.check.under(workers=pool).run(files, cancel)
            seconds = time.monotonic() - began
            if self.fusion and self.target is not None:
                trace = Trace(self.target, files.model, files.inputs, "fusions")
                reply = pool.ask(trace, timeout, cancel)
                layers = () if isinstance(reply, Failed) else reply.get("layers", ())
                fused = [layer for layer in layers if {*self.fusion} <= {*layer["nodes"]}]
                nodes = " + ".join(fused[0]["nodes"]) if fused else "no"
                outcome = outcome.seeing(Reason.FUSED, nodes)
        # The size of the error may differ between releases.
        return replace(outcome, seconds=seconds, severity=None)

    def _judged(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the signature of the failure looked for, if another release reports it in other words."""
        if words := too_new(raised(outcome.signature)):
            return _unsupported(outcome, words[0])
        if outcome.ending is not Ending.BROKEN:
            return outcome
        # Releases word one refusal in different ways, so kinds are compared and not texts.
        if self.failure is not None and is_same_refusal(self.failure, outcome, self.network):
            return replace(outcome, signature=self.failure.signature)
        if self.target is not None:
            knows_not = partial(self.target.target.does_not_know, newest=self.newest)
            # A message may begin with what it guarantees, and end with what comes later.
            if said := [*filter(knows_not, outcome.message.split(". "))]:
                return _unsupported(outcome, said[0])
        return replace(outcome, signature=refusal_of(outcome, self.network))


def _unsupported(outcome: Outcome, message: str) -> Outcome:
    """Return the outcome of a release that is older than the model, which says nothing of the failure."""
    unsupported = replace(outcome, ending=Ending.OTHER, reason="", failed=None, findings=())
    return unsupported.seeing(Reason.UNSUPPORTED, message)


def is_same_refusal(one: Outcome, other: Outcome, network: Network) -> bool:
    """Return whether two releases fail at the same node, or in the same words at one that they made and named themselves."""
    if refusal_of(one, network) == refusal_of(other, network):
        return True
    both = all(named_nodes(network, failure.message) for failure in (one, other))
    return not both and one.signature == other.signature


def refusal_of(failure: Outcome, network: Network) -> str:
    """Return the kind of a failure with the node and operator that its message names first.

    Messages change between releases. The text, without operands, counts only where it names no
    node.
    """
    kind = failure.signature.partition(":")[0]
    operators = {node.op_type for node in network.nodes}
    if nodes := named_nodes(network, failure.message):
        return f"{kind}: {network.nodes[nodes[0]].op_type} {network.nodes[nodes[0]].name}"
    # Where no node is named, the operator is what messages have in common.
    named = next((word for word in re.findall(r"\w+", failure.message) if word in operators), None)
    return error_class(failure.signature) if named is None else f"{kind}: {named}"


def in_releases(
    check: Check,
    subject: Subject,
    target: TargetSettings | None,
    failure: Outcome | None = None,
    network: Network | None = None,
    fusion: Names = (),
) -> ReleaseCheck:
    """Return the same check in the environment of a candidate.

    Args:
        check: The built-in comparison, or a command.
        subject: The model.
        target: The runtime, if one is compared.
        failure: The failure to look for, if it is known.
        network: The graph of the candidate; by default of the model.
        fusion: Nodes that one layer of an engine may run.

    Raises:
        UsageError: It cannot run there.
    """
    check.require_portable()
    network = network or subject.network
    return ReleaseCheck(check, subject, target, network, failure, fusion=fusion)


class Range(Struct, frozen=True):
    """The releases from one version to another, including all that begin with the newest; ``None`` is no limit."""

    oldest: Version | None = None
    newest: Version | None = None

    @classmethod
    def read(cls, oldest: str, newest: str) -> Range:
        """Return the range between two options.

        Raises:
            UsageError: One is no version, or the range is empty.
        """
        try:
            first, last = (Version(text) if text else None for text in (oldest, newest))
        except InvalidVersion as error:
            raise ValueRefusedError(
                f"--from or --to: {error}; give a version such as 1.18 or 1.18.1."
            ) from error
        if first is not None and not cls(None, last).has(first):
            raise ConflictError(f"--from {oldest} is newer than --to {newest}; swap them.")
        return cls(first, last)

    def has(self, release: Version) -> bool:
        """Whether a release is in the range."""
        if self.oldest is not None and release < self.oldest:
            return False
        newest = self.newest
        return (
            newest is None
            or release <= newest
            or release.release[: len(newest.release)] == newest.release
        )


def list_releases(package: str, wanted: Range, timeout: float | None = None) -> dict[str, str]:
    """Return the releases of a range, the oldest first, each with its interpreter; an empty one is the running one.

    Other installed interpreters are used, the nearest version first, where the running one has no
    releases as old or as new.

    Args:
        package: Its name on the index.
        wanted: The range.
        timeout: The seconds that the index may take each time, if these are fewer than usual.

    Raises:
        UnavailableError: There are no releases, or the index does not answer.
    """
    interpreters: dict[Version, str] = {}
    for python in ("", *others()):
        try:
            if python:
                find_python(python)
        except UnavailableError:
            continue
        for release in list_index(package, python or None, timeout):
            interpreters.setdefault(Version(release), python)
        # Each interpreter costs a request to the index, so the search ends once the range is
        # covered.
        if (
            interpreters
            and min(interpreters) <= (wanted.oldest or min(interpreters))
            and (wanted.newest or max(interpreters)) <= max(interpreters)
        ):
            break
    if releases := sorted(filter(wanted.has, interpreters)):
        return {str(release): interpreters[release] for release in releases}
    ends = "".join(
        f" {word} {end}"
        for word, end in (("from", wanted.oldest), ("to", wanted.newest))
        if end is not None
    )
    available = (
        f"it has {min(interpreters)} to {max(interpreters)}"
        if interpreters
        else "it has none at all"
    )
    raise PlaceError(
        f"the index has no release of {package}{ends} for an interpreter here; {available}."
    )


def ask_releases(
    session: Session,
    check: ReleaseCheck,
    package: Package,
    pythons: Mapping[str, str],
    model: Candidate,
    *,
    failing: str = "",
    beside: Sequence[str] = (),
    every: bool = False,
    runs: int = 1,
) -> Boundaries:
    """Find the boundaries; the probed releases are in the result however the search ends.

    Args:
        session: The session of the model.
        check: Runs a candidate in the environment of a release.
        package: The package.
        pythons: The releases, the oldest first, with their interpreters; see :func:`list_releases`.
        model: The candidate to run.
        failing: A release that most likely fails.
        beside: Other packages to install in each environment, as pip takes them.
        every: Whether all releases are probed, instead of bisecting them.
        runs: How often each is run, at most.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    releases = tuple(pythons)

    def build(place: int) -> Probe:
        release = releases[place]
        wanted = with_numpy((*package.requirements(release), *beside))
        environment = Environment(wanted, pythons[release], alone=bool(package.parts))
        title = f"{package.name} {release}"
        return Probe(replace(model, title=title, packages=str(environment)), runs=runs)

    space = Series(build)
    if check.failure is None:
        # The newest release defines the failure; an older one may lack an operator because of its
        # age.
        newest = session.prober.beside(replace(check, newest=True))
        if space.probe(newest, len(releases) - 1) is Verdict.FAIL:
            record = space.seen(newest)[len(releases) - 1]
            check = replace(check, failure=newest.ledger.outcome(record.key))
    prober = session.prober.beside(check)
    hint = releases.index(failing) if failing in releases else None
    history: History | None = None
    session.console.progress.expect(None if every else len(releases), len(releases))
    try:
        history = space.search(
            prober, lambda ask: find_edges(len(releases), ask, hint, every=every)
        )
    finally:
        records = space.seen(prober)
        verdicts = History({place: record.verdict for place, record in records.items()})
        reasons = {releases[place]: record.reason for place, record in sorted(records.items())}
        boundaries = Boundaries(package.name, releases, history or verdicts, reasons)
        boundaries.fill_in(session.result)
    # Fresh inputs have no values but the reference's.
    if boundaries.upgrade and not session.result.reference_doubt:
        environments = {
            f"{package.name} {release}": build(releases.index(release)).candidate.packages
            for release in boundaries.upgrades
        }
        wrong = fails_on_fresh(session, check, environments)
        boundaries = structs.replace(boundaries, wrong=wrong)
        boundaries.fill_in(session.result)
    return boundaries


def since_when(
    session: Session, check: CheckSettings, case: Candidate, folder: Path, *, asked: bool
) -> Since | None:
    """Find the boundaries for the minimal case of a diagnosis; without ``--releases``, print the command instead.

    An error is printed and does not end the diagnosis.

    Args:
        session: The model with its prober.
        check: The check of the diagnosis.
        case: The minimal case.
        folder: The reproducer, which the printed command takes as its model, or writes again in a place.
        asked: Whether the user gave ``--releases``.
    """
    target = check.target
    console = session.console
    prober = session.prober
    package = None if target is None else target.target.package(target)
    if target is None or package is None:
        return None
    subject = session.subject
    command = shlex.join(["bisect-trt", "releases", str(folder), *target.flags(), *check.words])
    if subject.workers.places:
        # The case may fail in other releases in another way: only a diagnosis has the failure of
        # the place to look for.
        command = session.command("diagnose", check)
        command += f" --releases -o {shlex.quote(str(folder))} --overwrite"
    if not asked:
        if not target.low_precisions:
            # Else precision is a likelier reason than the release.
            console.answer(NOT_SEARCHED.format(command))
            session.result.suggest(command)
        return None
    console.step(f"Which releases of {package.name} fail?")
    original = prober.ledger.original
    failing = (
        prober.ledger.outcome(record.key)
        for record in reversed(prober.ledger.records)
        if record.signature == original
    )
    failure = prober.ledger.outcome(case.key) or next(failing, None)
    releases = _failing_releases(session, target)
    try:
        # Other nodes of the whole model may have the names that a message about the case is made
        # of.
        elsewhere = in_releases(prober.check, subject, target, failure, Network(case.proto))
        pythons = list_releases(package.index_name, Range())
        boundaries = ask_releases(
            session, elsewhere, package, pythons, case, failing="".join(releases[:1])
        )
    except (BisectError, BudgetSpent) as error:
        console.say(
            f"  not found: {error}"
            + (f" To continue: {command}" if isinstance(error, BudgetSpent) else "")
        )
        return None
    if boundaries.history.oldest is None:
        console.answer(NONE_ALONE.format(package.name))
        return None
    return boundaries.since(session.result)


def _failing_releases(session: Session, target: TargetSettings) -> list[str]:
    """Return the releases of the target's packages in the places of the run, or in this environment."""
    names = [package.name for package in target.target.builds(target)]
    if runtimes := session.subject.seen.values():
        # The version that the runtime itself reports: another build may be installed beside it.
        if reported := [
            str(runtime.target["version"]) for runtime in runtimes if runtime.target.get("version")
        ]:
            return [*dict.fromkeys(reported)]
        packages = [runtime.found.get("packages", {}) for runtime in runtimes]
        return [
            str(packages_of[name])
            for packages_of in packages
            for name in names
            if packages_of.get(name)
        ]
    return [*installed_versions(target)]


def ask_newest(
    session: Session, check: Comparing, case: Candidate, *, fresh: bool = False
) -> NewerRelease | None:
    """Run a case in the newest release on the index, in an environment of its own.

    Args:
        session: The session.
        check: Compares the target of the run, or the reference, which runs here.
        case: Is compared with its values, or with the reference's.
        fresh: Whether a release that passes is run on fresh inputs too.

    Returns:
        ``None`` where the index does not answer, or each run is a build.
    """
    subject = session.subject
    target = check.runtime
    package = target.target.package(target)
    if package is None or target.target.compiles:
        return None
    console = session.console
    console.step(f"Is the newest release of {package.name} right?")
    remaining = subject.workers.deadline.seconds_left()
    seconds = _INDEX_SECONDS if remaining is None else min(remaining, _INDEX_SECONDS)
    try:
        pythons = list_releases(package.index_name, Range(), seconds)
    except BisectError as error:
        console.say(f"  {error}")
        console.answer(NO_INDEX.format(package.name))
        return None
    release = [*pythons][-1]
    is_reference = target == reference_settings()
    failing = tuple(
        installed_versions(target) if is_reference else _failing_releases(session, target)
    )
    newest = NewerRelease(package.name, failing, release)
    # There is nothing to upgrade to.
    if any(Version(version) >= Version(release) for version in failing):
        console.say(f"  {release} is the newest")
        return newest
    environment = Environment(
        with_numpy(package.requirements(release)), pythons[release], alone=bool(package.parts)
    )
    candidate = replace(case, title=release, packages=str(environment))
    try:
        files = write_candidate(Probe(candidate), subject.workspace, subject.reference)
        elsewhere = in_releases(check, subject, target)
        outcome = elsewhere.run(files)
        wrong: Mapping[str, str] = {}
        if fresh and outcome.ending is Ending.PASSED:
            environments = {f"{package.name} {release}": candidate.packages}
            wrong = fails_on_fresh(session, elsewhere, environments)
    except BisectError as error:
        console.say(f"  not found: {error}")
        return None
    console.say(f"  {release}: {describe_outcome(outcome)}")
    return structs.replace(newest, outcome=outcome, wrong=wrong)
