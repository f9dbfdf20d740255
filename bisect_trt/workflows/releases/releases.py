"""In which release a failure appeared, and in which it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.command import PYTHON, CommandCheck
from bisect_trt.probing.journal import Record
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.probing.release_check import ReleaseCheck
from bisect_trt.probing.runner import Check
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.reporting.result import Result
from bisect_trt.search.history import History, find_edges
from bisect_trt.search.oracle import Oracle, Search, Units, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.releases.boundaries import REASON_LENGTH, Boundaries
from bisect_trt.workflows.releases.listing import ReleasesSettings, list_releases, packages_of, spread
from bisect_trt.workflows.subject import Subject


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
    console.say(f"  {len(pythons)}: {spread(list(pythons))}")
    how = "Ask each" if settings.every else "Bisect them"
    console.step(f"{how}: each in an environment of its own, made where it is not there yet")
    found = ask_releases(investigation, settings, pythons, subject.original)
    if settings.every:
        for place, release in enumerate(found.releases):
            console.answer(
                f"  {release:<12} {found.history.seen[place].value:<11} {found.reasons[release][:REASON_LENGTH]}"
            )
    if found.history.oldest is None:
        _refuse(found)
    result.status, doubt, more = "found", found.doubt(), found.more()
    result.minimality = "1-minimal" if doubt is None else "unproven"
    result.why = "; ".join(filter(None, (doubt, more))) or None
    console.answer(f"It {found.describe()}.")
    if found.first_passing is not None:
        console.answer(f"  To be rid of it: {found.package} {found.first_passing} or a newer one.")
    if result.why:
        console.answer(f"  {result.why}")
    return result


def _refuse(found: Boundaries) -> None:
    """Raise that none fails."""
    untold = [
        release for place, release in enumerate(found.releases) if found.history.seen[place] is Verdict.UNRESOLVED
    ]
    said = f"{untold[0]} says nothing: {found.reasons[untold[0]][:REASON_LENGTH]}" if untold else ""
    if len(untold) == len(found.releases):
        raise NothingTold(f"no release of {found.package} says anything of this failure; {said}")
    raise DoesNotReproduce(
        f"no release of {found.package} from {found.releases[0]} to {found.releases[-1]} fails"
        + (f"; {len(untold)} of {len(found.releases)} say nothing ({said})." if untold else ".")
        + " The one that you saw fail may be older (--from); or it ran with other options or inputs."
    )


class NothingTold(UnavailableError):  # noqa: N818 - an ending, not an error
    """No release can be installed, or knows the model."""


def ask_releases(
    investigation: Investigation,
    settings: ReleasesSettings,
    pythons: Mapping[str, str],
    model: Candidate,
    failing: str | None = None,
) -> Boundaries:
    """Find the boundaries; what is known of them is in the result however it ends.

    Args:
        investigation: Its prober's check is a ``ReleaseCheck``.
        settings: Which releases.
        pythons: The releases, the oldest first, and the interpreter that each is for; see :func:`list_releases`.
        model: What is run.
        failing: A release that most likely fails.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    releases, ledger, runner = tuple(pythons), investigation.prober.ledger, investigation.prober.runner
    candidates = [_candidate(model, settings, release, python) for release, python in pythons.items()]
    known = {candidate.key: place for place, candidate in enumerate(candidates)}

    hint = releases.index(failing) if failing in releases else None
    if isinstance(runner.check, ReleaseCheck) and runner.check.expected is None:
        # What the newest says is the failure, whatever it is; of others, an operator that they lack is a matter of their age.
        check, runner.check = runner.check, replace(runner.check, newest=True)
        fails = investigation.prober.probe(candidates[-1]).verdict is Verdict.FAIL
        runner.check = replace(check, expected=ledger.original if fails else None)

    def story(oracle: Oracle) -> History:
        return find_edges(len(releases), lambda place: oracle(Units(frozenset({place}))), hint, every=settings.every)

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
    packages = packages_of(settings, release, python)
    return replace(model, title=f"{settings.package} {release}", packages=packages, runs=settings.runs)


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
