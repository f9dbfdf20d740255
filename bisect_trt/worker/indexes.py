"""What the package indexes have, asked through pip and its settings; and those settings for uv, which reads none of pip's."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from bisect_trt.errors import UnavailableError
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.process import Cancel, run_to_end

_SAID = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "no-index": ("UV_NO_INDEX",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
}
"""A setting of pip: what uv is told of it by, the newest way first."""
_FRAME = " \u2502\u251c\u2500\u25b6\u00d7\u2570\u256d"
"""What tools draw around their messages."""
_SHOWN = 6
"""Of what a tool prints that fails, so many lines are said."""
_SECONDS = 1800.0
"""How long an index may take."""


def releases(package: str, python: str | None = None) -> list[str]:
    """The releases of a package that the index has for an interpreter of this machine's kind, the oldest first.

    Neither pre-releases nor yanked ones are among them.

    Args:
        package: Its name.
        python: The interpreter's version, as ``3.9``; this one's if not given.

    Raises:
        UnavailableError: The index cannot be reached, or has no such package.
    """
    # Sources of a package may be older than all its wheels, and build with nothing of today.
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = _listed(package, ["--python-version", version, "--only-binary", ":all:"])
    return found if found or python is not None else _listed(package, [])  # but there are packages that have no wheels


def _listed(package: str, options: Sequence[str]) -> list[str]:
    words = ["index", "versions", package, *options]
    status, said = run_tool([*pip(), *words], for_pip())
    listed = re.search(r"^Available versions: (.*)$", said, re.MULTILINE)
    if status != 0 or listed is None:
        if re.search(r"No matching distribution found", said) and not unreached(said):
            return []
        raise UnavailableError(
            f"the releases of {package} cannot be listed: pip says: {last_lines(said)}. Is the index reachable, and named "
            "in pip's or uv's settings?"
        )
    found = (_version(word.strip()) for word in listed[1].split(","))
    return [str(each) for each in sorted(each for each in found if each is not None and not each.is_prerelease)]


def unreached(said: str) -> bool:
    """Whether what a tool printed says that an index does not answer."""
    return re.search(r"Retrying|Could not fetch|Max retries|ConnectionError|SSLError", said) is not None


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:  # of the time before there was a rule for them
        return None


def run_tool(argv: Sequence[str], environment: Mapping[str, str], cancel: Cancel | None = None) -> tuple[int, str]:
    """Run pip, uv or venv to its end, or until somebody cancels it; its exit status, and all that it printed.

    The settings of a project are left unread: the folder one works in, which a stranger may have sent, names no index.

    Raises:
        UnavailableError: It cannot be started, or does not get to an end.
    """
    with scratch() as folder:
        log = Path(folder, "log")
        try:
            told = {"UV_PROJECT": folder, **environment}
            ended = run_to_end(argv, log=log, environment=told, timeout=_SECONDS, cancel=cancel)
        except OSError as error:
            raise UnavailableError(f"{argv[0]} cannot be started: {error.strerror}.") from error
        said = log.read_text(encoding="utf-8", errors="replace")
    if ended.timed_out or ended.cancelled:
        raise UnavailableError(f"{shlex.join(argv[:4])} has not ended after {ended.seconds:.0f} s.")
    return ended.code, said


def last_lines(said: str) -> str:
    """The end of what a tool printed, as one line; what it says of itself is left out."""
    lines = [line.lstrip(_FRAME).rstrip() for line in said.splitlines()]
    told = [line for line in lines if line and not line.startswith(("[notice]", "WARNING: Location"))]
    return " / ".join(told[-_SHOWN:]).rstrip(".") or "nothing"


def asked(said: str) -> str:
    """The index that did not answer, behind what a tool printed: older releases of pip do not name it."""
    named = re.sub(r"//[^/@]*@", "//", pip_settings().get("index-url", "")) if unreached(said) else ""
    return f" / index-url: {named}" if named else ""


def uv() -> str | None:
    """The path of uv, if it is there and runs."""
    return _uv(os.environ.get("PATH", ""))


@functools.cache
def _uv(path: str) -> str | None:
    found = shutil.which("uv", path=path)
    if found is None:
        return None
    try:  # a version manager leaves a program of that name that only says that it is not there
        done = subprocess.run([found, "--version"], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if done.returncode == 0 else None


def pip() -> list[str]:
    """The command of a pip.

    Raises:
        UnavailableError: There is none.
    """
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin is not None and spec.origin.startswith((sys.prefix, sys.base_prefix)):
        return [sys.executable, "-I", "-m", "pip"]  # a pip.py of the folder one works in is not it
    found, tool = shutil.which("pip3") or shutil.which("pip"), uv()
    if tool is not None:
        return [tool, "tool", "run", "--quiet", "pip"]
    if found is not None:
        return [found]
    raise UnavailableError("there is neither pip nor uv here to ask a package index; python -m ensurepip installs pip.")


def for_uv() -> dict[str, str]:
    """What uv is to be told in its environment: pip's settings, where it has been told nothing of its own.

    To pip all indexes are equal, and the newest release of any is taken.
    """
    if _uv_was_told():
        return {}
    told = {_SAID[name][0]: value for name, value in pip_settings().items()}
    if "SSL_CERT_FILE" in told and os.environ.get("SSL_CERT_FILE"):
        del told["SSL_CERT_FILE"]
    if "UV_FIND_LINKS" in told:
        told["UV_FIND_LINKS"] = ",".join(told["UV_FIND_LINKS"].split())
    if "UV_INDEX" in told:  # one that is a folder and lacks a package is an error to uv, and none to pip
        told["UV_INDEX"] = " ".join(filter(_is_there, told["UV_INDEX"].split()))
        told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in told.items() if value}


def for_pip() -> dict[str, str]:
    """What pip is to be told in its environment: uv's settings, where it has been told nothing of its own."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1", "COLUMNS": "1000"}
    if not _uv_was_told() or any(name != "cert" for name in pip_settings()):
        return quiet
    told = _uv_file()
    for name, variables in _SAID.items():
        said = next((os.environ[each] for each in variables if os.environ.get(each)), None)
        if said is not None and name != "cert":
            told[name] = " ".join(said.split(",")) if name == "find-links" else said
    # uv's indexes may have names: NAME=URL.
    named = {name: re.sub(r"(^|\s)[\w.-]+=(?=\w+:)", r"\1", value) for name, value in told.items()}
    return quiet | {f"PIP_{name.upper().replace('-', '_')}": value for name, value in named.items()}


def _uv_was_told() -> bool:
    variables = (each for name in _SAID if name != "cert" for each in _SAID[name])
    return any(os.environ.get(each) for each in (*variables, "UV_CONFIG_FILE")) or bool(_uv_file())


def _uv_file() -> dict[str, str]:
    """What uv's own settings say of indexes, in pip's words; read from Python 3.11 on, which can."""
    if sys.version_info < (3, 11):
        return {}
    import tomllib  # noqa: PLC0415 - see above

    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    named = os.environ.get("UV_CONFIG_FILE")
    places = [named] if named else [f"{home}/uv/uv.toml", "/etc/uv/uv.toml"]
    found: dict[str, Any] = {}
    for path in places:
        try:
            found = {**tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8")), **found}
        except (OSError, ValueError):
            continue
    found = {**found.get("pip", {}), **found}
    told = {name: found[name] for name in ("index-url", "extra-index-url", "find-links", "no-index") if name in found}
    indexes = [each for each in found.get("index", ()) if "url" in each]
    for each in indexes:
        if each.get("default"):
            told["index-url"] = each["url"]
        else:
            told["extra-index-url"] = [*told.get("extra-index-url", []), each["url"]]
    return {name: " ".join(value) if isinstance(value, list) else str(value) for name, value in told.items()}


def pip_settings() -> dict[str, str]:
    """What pip has been told of indexes, in its files and its environment."""
    try:
        command = pip()
    except UnavailableError:
        return {}
    told = tuple((name, value) for name, value in os.environ.items() if name.startswith("PIP_"))
    return dict(_pip_settings(tuple(command), told))


@functools.cache
def _pip_settings(command: tuple[str, ...], told: tuple[tuple[str, str], ...]) -> dict[str, str]:  # noqa: ARG001 - the key
    found: dict[str, str] = {}
    rank: dict[str, int] = {}
    done = subprocess.run([*command, "config", "list"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        where, _, value = line.partition("=")
        section, _, name = where.rpartition(".")
        order = ["global", "install", ":env:"].index(section) if section in ("global", "install", ":env:") else -1
        if name in _SAID and order >= rank.get(name, 0):
            found[name], rank[name] = " ".join(shlex.split(value)).replace("\\n", " ").strip(), order
    return found


def _is_there(url: str) -> bool:
    return not url.startswith("file://") or Path(url.removeprefix("file://")).is_dir()
