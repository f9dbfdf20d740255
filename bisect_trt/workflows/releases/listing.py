"""Which releases of a package there are, and for which interpreter each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probing.places import indexes
from bisect_trt.probing.places.environments import Environment, find_python, others, with_numpy
from bisect_trt.targets.settings import TargetSettings


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
        there = f"it has {spread(sorted(found, key=Version))}" if found else "it has none at all"
        raise UnavailableError(
            f"the index has no release of {settings.package}{_asked(settings)} for an interpreter here; {there}."
        )
    return {release: found[release] for release in chosen}


def _reached(found: Mapping[str, str], settings: ReleasesSettings) -> bool:
    """Whether both ends of what is asked for are among them."""
    older = not settings.oldest or any(Version(each) <= Version(settings.oldest) for each in found)
    newer = not settings.newest or any(Version(each) >= Version(settings.newest) for each in found)
    return bool(found) and older and newer


def packages_of(settings: ReleasesSettings, release: str, python: str) -> str:
    """The environment of a release, as ``Environment.parse`` reads it; ``python`` is what :func:`list_releases` says."""
    return str(Environment(with_numpy((f"{settings.package}=={release}", *settings.beside)), python))


def _asked(settings: ReleasesSettings) -> str:
    return (f" from {settings.oldest}" if settings.oldest else "") + (
        f" to {settings.newest}" if settings.newest else ""
    )


def spread(releases: Sequence[str]) -> str:
    """From the first to the last, in words."""
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
