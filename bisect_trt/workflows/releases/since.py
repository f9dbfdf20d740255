"""The last step of a diagnosis: since which release the minimal case fails."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from bisect_trt.errors import BisectError
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.places.environments import Environment, interpreter
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.workers.process import run_to_end
from bisect_trt.reporting.issue import Since
from bisect_trt.reporting.reproducer import SCRIPT
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.releases.boundaries import Boundaries
from bisect_trt.workflows.releases.listing import ReleasesSettings, list_releases, packages_of
from bisect_trt.workflows.releases.releases import ask_releases, in_releases
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.subject import Subject

_SCRIPT_SECONDS = 600.0


def since_when(
    investigation: Investigation, check: CheckSettings, case: Candidate, folder: Path, *, asked: bool
) -> Since | None:
    """The last step of a diagnosis: since which release does the minimal case fail, and in which is it gone?

    Nothing is installed unless it was asked for; else the command is said that does it. What stands in the way of an answer is
    said, and is no reason to fail: the failure itself was found before.

    Returns:
        The answer, where there is one.
    """
    target, console, ledger = check.target, investigation.console, investigation.prober.ledger
    package = None if target is None else target.target.package(target)
    if target is None or package is None:
        return None
    failing = _failing_release(investigation.subject, package.name)
    oldest = _beyond_reach(investigation.subject, failing)
    since = ["--from", oldest] if oldest else []
    words = ["bisect-trt", "releases", str(folder), *target.flags(), *since, *check.tolerance.words()]
    if not asked:
        if not target.low_precisions:  # else precision is the first suspect, not a release
            console.answer(f"Since which release? Not looked for, because it installs releases: {shlex.join(words)}")
        return None
    settings = ReleasesSettings(package.name, oldest)
    console.step(f"Since which release of {package.name}?")
    runner, subject = investigation.prober.runner, investigation.subject
    elsewhere = Runner(
        in_releases(runner.check, subject, target, ledger.original), subject.workspace, subject.reference
    )
    elsewhere.flakiness = runner.flakiness
    there = replace(investigation, prober=Prober(elsewhere, ledger, investigation.prober.workers))
    try:
        pythons = list_releases(settings)
        found = ask_releases(there, settings, pythons, case, failing)
    except BudgetSpent as error:
        console.say(f"  {error} This goes on: {shlex.join(words)}")
        return None
    except BisectError as error:
        console.say(f"  not found: {error}")
        return None
    if found.history.oldest is None:
        console.answer(f"No release of {package.name} fails in an environment of its own.")
        return None
    sentences = [
        f"It {found.describe()}.",
        *(f"{each[0].upper()}{each[1:]}." for each in (found.doubt(), found.more()) if each),
    ]
    ends = _tried(subject, settings, pythons, found, folder)
    sentences += [f"The exit status of {SCRIPT} is {', and '.join(f'{end} with {at}' for at, end in ends.items())}."]
    mended = None
    if found.first_passing is not None and ends[found.first_passing] == "0":
        mended = f"{package.name} {found.first_passing} has it no more: update to that or a newer one"
    for sentence in [*sentences, *([f"{mended}, there is nothing left to report."] if mended else [])]:
        console.answer(sentence)
    return Since(" ".join(sentences), mended)


def _failing_release(subject: Subject, package: str) -> str | None:
    """The release that the target was seen to fail with, as far as it is known."""
    for seen in subject.seen.values():
        version = seen.found.get("packages", {}).get(package)
        return None if version is None else str(version)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _beyond_reach(subject: Subject, failing: str | None) -> str:
    """The release that fails, if an older Python runs it: this one may have none as old, and those that it has be right."""
    pythons = [Version(seen.found["Python"]) for seen in subject.seen.values() if "Python" in seen.found]
    here = Version(platform.python_version())
    return failing if failing is not None and any(each.release[:2] < here.release[:2] for each in pythons) else ""


def _tried(
    subject: Subject, settings: ReleasesSettings, pythons: Mapping[str, str], found: Boundaries, folder: Path
) -> dict[str, str]:
    """How ``reproduce.py`` ends with a release that fails, and with one that passes, where there is one."""
    log, ends = subject.workspace.scratch("releases.log"), {}
    for release in filter(None, (found.failing, found.passing)):
        python = interpreter(Environment.parse(packages_of(settings, release, pythons[release])))
        end = run_to_end([str(python), str(folder / SCRIPT)], log=log, environment={}, timeout=_SCRIPT_SECONDS)
        ends[release] = end.describe() if end.timed_out or end.code < 0 else str(end.code)
    return ends
