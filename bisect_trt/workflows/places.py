"""Where targets run, as it was asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.options.places import Places
from bisect_trt.probing.places.place import Place, make_place, parse
from bisect_trt.reporting.console import Console


def open_places(options: Places, console: Console) -> tuple[Place, ...]:
    """The places that were named; environments are made, which may take minutes.

    Raises:
        UnavailableError: One is not there, or cannot be made.
        UsageError: A word names no place.
    """
    for word in options.on:  # before any environment is made
        kind, parts = parse(word)
        program = parts["python"] if kind == "python" else "ssh" if kind == "ssh" else None
        if program is not None and shutil.which(program) is None:
            raise UnavailableError(f"--on {word}: there is no program '{program}' here; check its path.")

    def environment(packages: str) -> str:
        from bisect_trt.probing.places.environments import Environment, interpreter  # noqa: PLC0415 - of those alone

        return str(interpreter(Environment.parse(packages), console.say))

    return tuple(make_place(_absolute(word), environment) for word in options.on)


def _absolute(word: str) -> str:
    """A place whose interpreter is given by its path from here."""
    kind, _, path = word.partition("=")
    if kind == "python" and "/" in path:
        return f"python={Path(path).absolute()}"
    return word
