"""Virtual environments with the packages that a place asks for: made once by uv, and kept in the user's cache.

They lie in ``$XDG_CACHE_HOME/bisect-trt/envs`` (``~/.cache`` without it), or in the folder that
``BISECT_TRT_ENVS`` names.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_trt.aliases import Names
from bisect_trt.errors import PlaceError, ResourceError, ValueRefusedError
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.place import OLDEST
from bisect_trt.worker.process import Cancel, run_to_end

FOLDER = "BISECT_TRT_ENVS"
"""The environment variable that names the folder of the environments."""
_SECONDS = 1800.0
"""Seconds that a package index may take."""
_ALONE = "--no-deps"
_PYTHON = re.compile(r"python==?(3(?:\.\d+){0,2}|/.*)")
_FOR_NUMPY_1 = re.compile(r"onnxruntime(?:-gpu)?==1\.(?:\d|1[0-8])(?:\.\S+)?")
"""Releases that were built for NumPy 1 and do not declare that."""
_NO_SUCH = re.compile(r"No solution found|No matching distribution|no wheels? with a matching")
"""Messages of uv and pip for a release that does not exist for an interpreter."""
_UNREACHED = re.compile(
    r"Retrying|Could not fetch|Max retries|ConnectionError|SSLError|error sending request"
)
"""Their messages if an index does not answer."""
_FRAME = " \u2502\u251c\u2500\u25b6\u00d7\u2570\u256d"
"""Characters that uv draws around its messages."""
_SHOWN_LINES = 6
_NO_INDEX = "UV_NO_INDEX"
"""Becomes an option: uv does not read it."""
_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": _NO_INDEX,
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""The settings of pip that name indexes, and the environment variable of uv for each."""


_Tool: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]
"""Runs uv; see :func:`run_tool`."""


class Environment(Struct, frozen=True):
    """Packages as pip takes them, or wheels, NumPy among them, ``alone`` or with what they depend on.

    The interpreter is a version, such as ``3.11``, or a path; it is chosen for the requirements if
    empty.
    """

    requirements: Names
    python: str = ""
    alone: bool = False

    @classmethod
    def parse(cls, text: str) -> Environment:
        """Read ``[python=3.11] [--no-deps] onnxruntime==1.20.1 numpy<2``; NumPy is added if it is not named.

        Raises:
            UsageError: A word is no requirement.
        """
        try:
            # People put spaces around ==, and commas between bounds.
            words = shlex.split(re.sub(r"\s*([=<>!~]=?=?|,)\s*", r"\1", text.strip()))
            pythons = [match[1] for word in words if (match := _PYTHON.fullmatch(word))]
            wanted = [
                _checked(word) for word in words if word != _ALONE and not _PYTHON.fullmatch(word)
            ]
            if not wanted or len(pythons) > 1:
                raise ValueError(
                    "it names no package" if len(pythons) < 2 else "it names two interpreters"
                )
        except (ValueError, InvalidRequirement) as error:
            raise ValueRefusedError(
                f"env='{text}' is no list of packages ({error.args[0]}); write them as pip takes them: "
                "env='onnxruntime==1.20.1 numpy<2', with python=3.11 before them for another interpreter. Indexes are named in "
                "the settings of pip or uv."
            ) from error
        return cls(with_numpy(wanted), "".join(pythons), _ALONE in words)

    def __str__(self) -> str:
        """As :meth:`parse` reads it."""
        words = [
            shlex.quote(requirement) if " " in requirement else requirement
            for requirement in self.requirements
        ]
        return " ".join(
            [
                *([f"python={self.python}"] if self.python else []),
                *([_ALONE] if self.alone else []),
                *words,
            ]
        )


def _checked(word: str) -> str:
    """A requirement, or the path of a wheel."""
    if not word.endswith(".whl"):
        Requirement(word)
        return word
    if not Path(word).is_file():
        raise ValueError(f"there is no file {word}")
    return str(Path(word).absolute())


def with_numpy(requirements: Sequence[str]) -> Names:
    """The requirements with NumPy, of a version that the pinned releases work with."""
    if any(
        canonicalize_name(Requirement(requirement).name) == "numpy"
        for requirement in requirements
        if not requirement.endswith(".whl")
    ):
        return tuple(requirements)
    return (*requirements, "numpy<2" if any(map(_FOR_NUMPY_1.fullmatch, requirements)) else "numpy")


class NoSuchRelease(PlaceError):  # noqa: N818 - an ending, not an error
    """The index has no such release for an interpreter."""


def interpreter(
    wanted: Environment,
    say: Callable[[str], None] = lambda _: None,
    cancel: Cancel | None = None,
    timeout: float | None = None,
) -> Path:
    """The Python of an environment, which is made if it is not there yet; two processes make it once.

    Args:
        wanted: The packages, and the version of Python.
        say: Called with a sentence before it is made, which takes seconds to minutes.
        cancel: Ends the making.
        timeout: The seconds that each step of the making may take, if these are fewer than usual.

    Raises:
        UnavailableError: uv is not installed, no release is for an interpreter that is installed,
            or the index does not answer.
    """
    first: NoSuchRelease | None = None
    # Else the version of Python is not the reason.
    pinned = any("==" in requirement for requirement in wanted.requirements)
    for python in (
        [wanted.python] if wanted.python else [sys.executable, *(others() if pinned else ())]
    ):
        try:
            return _kept(
                wanted, find_python(python), say, partial(run_tool, cancel=cancel, timeout=timeout)
            )
        except NoSuchRelease as error:
            first = first or error
        except PlaceError:
            # This interpreter is not here; another one may be.
            if first is None:
                raise
    raise first or AssertionError("an interpreter is tried")


def _kept(wanted: Environment, python: str, say: Callable[[str], None], tool: _Tool) -> Path:
    """The Python of an environment of an interpreter; a file beside it says that it is complete."""
    files = [
        (requirement, Path(requirement).stat().st_mtime_ns)
        for requirement in wanted.requirements
        if requirement.endswith(".whl")
    ]
    named = repr((sorted(wanted.requirements), wanted.alone, files, os.path.realpath(python)))
    title = re.sub(r"[^\w.]+", "-", Path(wanted.requirements[0]).name).strip("-")[:60]
    place = folder() / f"{title}-{hashlib.sha256(named.encode()).hexdigest()[:12]}"
    executable = place / "bin" / "python"
    complete = place.with_suffix(f"{place.suffix}.complete")
    try:
        with place.with_suffix(f"{place.suffix}.lock").open("w") as lock:
            # Another process may be making it: this one waits, and then finds it complete.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (complete.exists() and executable.exists()):
                # The interpreter that it was made of may be gone.
                say(
                    f"make an environment with {' '.join(wanted.requirements)}, once ({place}, of {python})"
                )
                # The mark goes before the making, so that a killed one leaves nothing that looks
                # complete.
                complete.unlink(missing_ok=True)
                _make(place, wanted, python, tool)
                complete.touch()
    except OSError as error:
        raise ResourceError(
            f"the environment {place} cannot be written: {error.strerror}; name another folder in {FOLDER}."
        ) from error
    return executable


def _make(place: Path, wanted: Environment, python: str, tool: _Tool) -> None:
    settings = index_settings()
    options = [_ALONE] if wanted.alone else []
    options += ["--no-index"] if _is_on(settings.get(_NO_INDEX)) else []
    for words in (
        [
            "venv",
            "--quiet",
            "--clear",
            "--no-project",
            "--no-config",
            "--python",
            python,
            str(place),
        ],
        [
            "pip",
            "install",
            "--quiet",
            "--python",
            str(place / "bin" / "python"),
            *wanted.requirements,
            *options,
        ],
    ):
        status, output = tool([uv(), *words], settings)
        if status:
            sentence = f"an environment with {' '.join(wanted.requirements)} cannot be made: uv says: {_last_lines(output)}"
            if _is_missing(output):
                raise NoSuchRelease(
                    f"{sentence}. Name releases that the index has; python=3.11 before them asks for another interpreter."
                )
            raise PlaceError(
                f"{sentence}. Check that the index is reachable, and the free disk space."
            )


def _is_missing(output: str) -> bool:
    """Whether uv or pip have found that there is no such release, rather than no index."""
    return _NO_SUCH.search(output) is not None and _UNREACHED.search(output) is None


def folder() -> Path:
    """The folder of the environments, which is made.

    Raises:
        UnavailableError: It cannot be made.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(os.environ.get(FOLDER) or f"{cache}/bisect-trt/envs").expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(
            f"environments cannot be kept in {root}: {error.strerror}; name another folder in {FOLDER}."
        ) from error
    return root


def others() -> list[str]:
    """The versions of Python that a worker runs on beside this one's, the nearest first; the newest is the next one."""
    current = sys.version_info[1]
    minors = sorted(range(OLDEST[1], current + 2), key=lambda minor: abs(minor - current))
    return [f"3.{minor}" for minor in minors if minor != current]


def find_python(request: str) -> str:
    """The path of an interpreter by its version, such as ``3.11`` or ``3.11.7``, or by its path.

    Raises:
        UnavailableError: It is not installed.
    """
    if "/" in request:
        if os.access(request, os.X_OK):
            return request
        raise PlaceError(f"there is no interpreter {request}.")
    if f"{sys.version.split()[0]}.".startswith(f"{request}."):
        return sys.executable
    # uv does not look into the folder of pyenv, whose programs on PATH end with an error for most
    # versions.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    folders = [
        *sorted(map(str, pyenv.glob(f"{request}*/bin")), reverse=True),
        os.environ.get("PATH", ""),
    ]
    words = [uv(), "python", "find", "--no-project", "--system", request]
    status, output = run_tool(words, {"PATH": os.pathsep.join(folders)})
    if status:
        raise PlaceError(
            f"there is no Python {request} here; install it, as with: uv python install {request}."
        )
    return output.splitlines()[-1].strip()


def releases(package: str, python: str | None = None, timeout: float | None = None) -> list[str]:
    """The releases of a package for an interpreter (``3.11``), by default this one, the oldest first, without pre-releases.

    Args:
        package: Its name on the index.
        python: The version of the interpreter.
        timeout: The seconds that the index may take, if these are fewer than usual.

    Raises:
        UnavailableError: The index does not answer.
    """
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    # A source distribution may be older than all wheels, and cannot be built today.
    wheels = ["--python-version", version, "--only-binary", ":all:"]
    versions = _listed(package, wheels, timeout)
    # Some packages have no wheels.
    return versions if versions or python is not None else _listed(package, [], timeout)


def _listed(package: str, options: Sequence[str], timeout: float | None) -> list[str]:
    # pip does not read it, but may have been told to look into folders alone.
    if _is_on(os.environ.get("UV_OFFLINE")) and not _is_on(os.environ.get("PIP_NO_INDEX")):
        raise PlaceError(f"the releases of {package} cannot be listed: UV_OFFLINE is set.")
    words = [*_pip(), "index", "versions", package, *options]
    status, output = run_tool(words, timeout=timeout)
    listed = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if status != 0 or listed is None:
        if _is_missing(output):
            return []
        raise PlaceError(
            f"the releases of {package} cannot be listed: pip says: {_last_lines(output)}. Is the index reachable, and named "
            "in pip's settings?"
        )
    versions = []
    for word in listed[1].split(","):
        # A version may be of the time before there was a rule for versions.
        with contextlib.suppress(InvalidVersion):
            versions.append(Version(word.strip()))
    return [str(number) for number in sorted(versions) if not number.is_prerelease]


def _is_on(value: str | None) -> bool:
    """Whether a setting of uv or pip is true."""
    return (value or "").lower() in ("1", "t", "true", "y", "yes", "on")


def _pip() -> list[str]:
    """The command of pip: the installed one, and not a pip.py of the folder one works in; else uv's."""
    spec = importlib.util.find_spec("pip")
    installed = spec is not None and (spec.origin or "").startswith((sys.prefix, sys.base_prefix))
    return (
        [sys.executable, "-I", "-m", "pip"]
        if installed
        else [uv(), "tool", "run", "--quiet", "pip"]
    )


def uv() -> str:
    """The path of uv: the one beside this interpreter, or on PATH.

    Raises:
        UnavailableError: It is not installed.
    """
    folder_of_python = str(Path(sys.executable).parent)
    path = shutil.which("uv", path=os.pathsep.join([folder_of_python, os.environ.get("PATH", "")]))
    if path is None:
        raise PlaceError("environments are made by uv, which is not installed; pip install uv.")
    return path


def run_tool(
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    cancel: Cancel | None = None,
    timeout: float | None = None,
) -> tuple[int, str]:
    """The exit status and the output of uv or pip, run to its end, until it is cancelled or for ``timeout`` seconds.

    The settings of a project are not read: the folder one works in, which a stranger may have sent,
    names no index.

    Raises:
        UnavailableError: It cannot be started, or does not end.
    """
    settings = {
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "VIRTUAL_ENV": "",
        "NO_COLOR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        **(environment or {}),
    }
    seconds = _SECONDS if timeout is None else min(timeout, _SECONDS)
    # uv would read the project file of the user's folder.
    with scratch() as empty:
        log = Path(empty, "log")
        try:
            ended = run_to_end(
                argv,
                log=log,
                environment={"UV_PROJECT": empty, **settings},
                timeout=seconds,
                cancel=cancel,
            )
        except OSError as error:
            raise PlaceError(f"{argv[0]} cannot be started: {error.strerror}.") from error
        output = log.read_text(encoding="utf-8", errors="replace")
    if ended.limit is not None:
        raise PlaceError(f"{shlex.join(argv[:4])} has not ended after {ended.seconds:.0f} s.")
    return ended.code, output


def index_settings() -> dict[str, str]:
    """Environment variables that name pip's indexes to uv, which reads none of pip's settings; none if uv has its own.

    All indexes are equal, as for pip: the newest release of any is taken. Source: pip's
    documentation, "Configuration".
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    variables = {*_SETTINGS.values(), "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE"} - {
        "SSL_CERT_FILE"
    }
    if (
        any(map(os.environ.get, variables))
        or (config / "uv/uv.toml").exists()
        or Path("/etc/uv/uv.toml").exists()
    ):
        return {}
    listed = subprocess.run(
        [*_pip(), "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    entries = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    settings = {}
    for name, variable in _SETTINGS.items():
        values = [
            entries[key]
            for key in (f"global.{name}", f"install.{name}", f":env:.{name}")
            if key in entries
        ]
        words = ast.literal_eval(values[-1]).split() if values else []
        if words and not (name == "cert" and os.environ.get(variable)):
            settings[variable] = ("," if name == "find-links" else " ").join(words)
    if "UV_INDEX" in settings:
        # A folder that does not exist is refused by uv, and not by pip.
        urls = settings["UV_INDEX"].split()
        existing = [
            url
            for url in urls
            if not url.startswith("file://") or Path(url.removeprefix("file://")).is_dir()
        ]
        settings |= {"UV_INDEX": " ".join(existing), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return settings


def _last_lines(output: str) -> str:
    """The end of what a tool printed, as one line."""
    lines = [line.lstrip(_FRAME).rstrip() for line in output.splitlines()]
    shown = [
        line for line in lines if line and not line.startswith(("[notice]", "WARNING: Location"))
    ]
    return " / ".join(shown[-_SHOWN_LINES:]).rstrip(".") or "nothing"
