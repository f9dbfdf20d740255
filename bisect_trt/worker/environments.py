"""Virtual environments with the packages that a place asks for: made once, and kept in the user's cache.

They lie in ``$XDG_CACHE_HOME/bisect-trt/envs`` (``~/.cache`` without it), or in the folder that ``BISECT_TRT_ENVS`` names.
uv makes them where it is there, else venv and pip.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets import find, names
from bisect_trt.targets.base import Package
from bisect_trt.worker import indexes
from bisect_trt.worker.guard import guard
from bisect_trt.worker.process import Cancel

FOLDER = "BISECT_TRT_ENVS"
"""The environment variable that names the folder they lie in."""
_OLDEST = 8
"""The oldest Python 3 that a worker runs on."""
_PYTHON = re.compile(r"python==?(3(?:\.\d+){0,2}|/.*)")
_NOWHERE = re.compile(r"there is no version of|was not found in the package registry")
"""What uv says where a release does not exist for any."""
_NO_SUCH = re.compile(r"No solution found|No matching distribution|Could not find a version|no wheels? with a matching")
"""What the tools say where a release does not exist for an interpreter."""


@dataclass(frozen=True)
class Environment:
    """What an environment is to hold.

    Attributes:
        requirements: As pip takes them, or files that are wheels; NumPy is among them.
        python: The interpreter's version, as ``3.9``, or its path; chosen for the requirements if empty.
    """

    requirements: tuple[str, ...]
    python: str = ""

    @classmethod
    def parse(cls, text: str) -> Environment:
        """Read ``[python=3.9] onnxruntime==1.20.1 numpy<2``; NumPy is added where it is not named.

        Raises:
            UsageError: A word is no requirement.
        """
        try:
            words = shlex.split(re.sub(r"\s*([=<>!~]=?=?|,)\s*", r"\1", text.strip()))
        except ValueError as error:
            raise UsageError(f"env='{text}' cannot be read: {error}.") from error
        pythons = [found[1] for word in words if (found := _PYTHON.fullmatch(word))]
        wanted = [_checked(word, text) for word in words if not _PYTHON.fullmatch(word)]
        if not wanted or len(pythons) > 1:
            raise UsageError(
                f"env='{text}' is no list of packages; write them as pip takes them: env='onnxruntime==1.20.1 numpy<2', "
                "with python=3.9 before them for another interpreter."
            )
        return cls(with_numpy(wanted), *pythons)

    def __str__(self) -> str:
        """As :meth:`parse` reads it."""
        words = [shlex.quote(each) if " " in each else each for each in self.requirements]
        return " ".join([*([f"python={self.python}"] if self.python else []), *words])


def _checked(word: str, text: str) -> str:
    if word.endswith(".whl") and not word.startswith("-"):
        if not Path(word).is_file():
            raise UsageError(f"env='{text}': there is no file {word}.")
        return str(Path(word).absolute())
    try:
        Requirement(word)
    except InvalidRequirement as error:
        raise UsageError(
            f"env='{text}': '{word}' is no requirement as pip takes them, such as onnxruntime==1.20.1 ({error.args[0]})."
            if not word.startswith("-")
            else f"env='{text}': '{word}' is an option; indexes and the like are told to pip or uv in their own settings."
        ) from error
    return word


def with_numpy(requirements: Sequence[str]) -> tuple[str, ...]:
    """The same with NumPy, of a version that the releases work with which are asked for; they do not all say so."""
    named = [Requirement(each) for each in requirements if not each.endswith(".whl")]
    if any(canonicalize_name(each.name) == "numpy" for each in named):
        return tuple(requirements)
    packages = {package.name: package for name in names() for package in _packages(name)}
    for each in named:
        pins = [pin for pin in each.specifier if pin.operator == "=="]
        if canonicalize_name(each.name) in packages and pins:
            with contextlib.suppress(InvalidVersion):
                release = Version(pins[0].version).release
                return (*requirements, packages[canonicalize_name(each.name)].numpy(release))
    return (*requirements, "numpy")


def _packages(name: str) -> tuple[Package, ...]:
    try:
        return find(name).packages
    except UnavailableError:
        return ()


def interpreter(wanted: Environment, say: Callable[[str], None] = lambda _: None, cancel: Cancel | None = None) -> Path:
    """The Python of an environment, which is made if it is not there yet.

    Two processes that want the same one make it once. It is made beside its place and moved there, so what is there is
    whole, however a process was ended that made one.

    Args:
        wanted: What it holds.
        say: Told that it is made, which takes seconds to minutes.
        cancel: Ends that.

    Raises:
        UnavailableError: It cannot be made: no such release for an interpreter that is here, or the index does not answer.
    """
    first: UnavailableError | None = None
    for python in _pythons(wanted):
        try:
            return _kept(wanted, python, say, cancel)
        except NoSuchRelease as error:
            first = first or error
            if error.anywhere:
                break
    assert first is not None
    raise first


class NoSuchRelease(UnavailableError):  # noqa: N818 - an ending, not an error
    """The index has no such release for an interpreter.

    Attributes:
        anywhere: Nor for any other.
    """

    def __init__(self, message: str, *, anywhere: bool = False) -> None:
        super().__init__(message)
        self.anywhere = anywhere


def _kept(wanted: Environment, python: str, say: Callable[[str], None], cancel: Cancel | None) -> Path:
    root = folder()
    files = [(each, Path(each).stat().st_mtime_ns) for each in wanted.requirements if each.endswith(".whl")]
    key = hashlib.sha256(repr((sorted(wanted.requirements), files, os.path.realpath(python))).encode()).hexdigest()
    title = re.sub(r"[^\w.]+", "-", Path(wanted.requirements[0]).name).strip("-")[:60]
    place = root / f"{title}-{key[:12]}"
    made = place / "bin" / "python"
    if made.exists():  # not if the interpreter that it was made of is gone
        return made
    with _locked(root / f"{place.name}.lock"):
        if made.exists():
            return made
        say(f"make an environment with {' '.join(wanted.requirements)}, once ({place}, of {python})")
        shutil.rmtree(place, ignore_errors=True)
        for rest in root.glob(f"{glob.escape(place.name)}.making*"):  # of one that was killed
            shutil.rmtree(rest, ignore_errors=True)
        making = root / f"{place.name}.making-{os.getpid()}"
        try:
            _make(making, wanted, python, cancel)
            making.rename(place)
        except OSError as error:
            raise UnavailableError(f"the environment {place} cannot be written: {error.strerror}.") from error
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return made


def _make(place: Path, wanted: Environment, python: str, cancel: Cancel | None) -> None:
    tool, made = indexes.uv(), str(place / "bin" / "python")
    if tool is not None:
        told = {**indexes.for_uv(), "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "VIRTUAL_ENV": ""}
        _run(
            wanted,
            [tool, "venv", "--quiet", "--no-project", "--no-config", "--python", python, str(place)],
            told,
            cancel,
        )
        _run(wanted, [tool, "pip", "install", "--quiet", "--python", made, *wanted.requirements], told, cancel)
        return
    told = indexes.for_pip()
    _run(wanted, [python, "-I", "-m", "venv", str(place)], told, cancel)
    _run(wanted, [made, "-I", "-m", "pip", "install", "--quiet", *wanted.requirements], told, cancel)


def _run(wanted: Environment, argv: Sequence[str], environment: dict[str, str], cancel: Cancel | None) -> None:
    status, said = indexes.run_tool(argv, environment, cancel)
    if status == 0:
        return
    what, tool = " ".join(wanted.requirements), "uv" if Path(argv[0]).name == "uv" else argv[3]
    sentence = (
        f"an environment with {what} cannot be made: {tool} says: {indexes.last_lines(said)}{indexes.asked(said)}"
    )
    if _NO_SUCH.search(said) is not None and not indexes.unreached(said):
        raise NoSuchRelease(
            f"{sentence}. Name releases that the index has; python=3.9 before them asks for another interpreter.",
            anywhere=_NOWHERE.search(said) is not None,
        )
    raise UnavailableError(f"{sentence}. Is the index reachable, and is there room on the disk?")


def folder() -> Path:
    """Where environments lie; it is made.

    Raises:
        UnavailableError: It cannot be.
    """
    named = os.environ.get(FOLDER)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(named).expanduser() if named else cache / "bisect-trt" / "envs"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"environments cannot be kept in {root}: {error.strerror}; name another folder in {FOLDER}."
        ) from error
    return root.absolute()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; a lock of one that ends, however it does, is free once all has ended that it had started."""
    try:
        lock = path.open("w")
    except OSError as error:
        raise UnavailableError(
            f"{path.parent} cannot be written: {error.strerror}; name another folder in {FOLDER}."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with guard.holding(lock.fileno()):  # what a killed one has started writes there until its guard has ended it
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # the guard's too


def _pythons(wanted: Environment) -> Iterator[str]:
    """The interpreters to try, as paths: the one that is asked for; else this one, then others, the nearest version first."""
    if wanted.python:
        yield find_python(wanted.python)
        return
    yield sys.executable
    pinned = [each for each in wanted.requirements if "==" in each]
    if not pinned:  # what this interpreter has no release of at all is no matter of its version
        return
    for version in others():
        with contextlib.suppress(UnavailableError):
            yield find_python(version, download=False)


def others() -> list[str]:
    """The versions of Python that a worker runs on beside this one's, the nearest first; the newest is the next one."""
    own = sys.version_info[1]
    near = sorted(range(_OLDEST, own + 2), key=lambda minor: abs(minor - own))
    return [f"3.{minor}" for minor in near if minor != own]


def find_python(asked: str, *, download: bool = True) -> str:
    """The path of an interpreter.

    Args:
        asked: Its version, as ``3.9`` or ``3.9.18``, or its path.
        download: Whether uv may fetch one that is not here.

    Raises:
        UnavailableError: There is none.
    """
    if "/" in asked:
        if os.access(asked, os.X_OK):
            return asked
        raise UnavailableError(f"there is no interpreter {asked}.")
    found = _found(asked, os.environ.get("PATH", ""))
    if found is not None:
        return found
    tool = indexes.uv()
    if tool is not None and download:
        _, said = indexes.run_tool([tool, "python", "install", "--quiet", asked], {"NO_COLOR": "1"})
        _found.cache_clear()
        found = _found(asked, os.environ.get("PATH", ""))
        if found is not None:
            return found
        raise UnavailableError(
            f"there is no Python {asked} here, and uv cannot install it: {indexes.last_lines(said)}."
        )
    raise UnavailableError(f"there is no Python {asked} here; install it, or uv, which does.")


@functools.cache
def _found(asked: str, path: str) -> str | None:
    """One of PATH, of pyenv's or of uv's that has this version and can make environments."""
    minor = ".".join(asked.split(".")[:2]) if "." in asked else f"{sys.version_info[0]}.{sys.version_info[1]}"
    home = Path.home()
    pyenv, data = (
        os.environ.get("PYENV_ROOT") or home / ".pyenv",
        os.environ.get("XDG_DATA_HOME") or home / ".local/share",
    )
    kept = os.environ.get("UV_PYTHON_INSTALL_DIR") or f"{data}/uv/python"
    here = [sys.executable] if minor == f"{sys.version_info[0]}.{sys.version_info[1]}" else []
    places = [(Path(pyenv, "versions"), f"{minor}.*"), (Path(kept), f"cpython-{minor}.*")]
    more = [str(each) for at, name in places for each in sorted(at.glob(f"{name}/bin/python{minor}"), reverse=True)]
    for each in filter(None, [*here, shutil.which(f"python{minor}", path=path), *more]):
        try:
            ask = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])))"
            done = subprocess.run([each, "-I", "-c", ask], capture_output=True, text=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and f"{done.stdout.strip()}.".startswith(f"{asked}."):
            return each
    return None
