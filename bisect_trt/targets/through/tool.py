"""How a tool from ONNX to ONNX is run: for the worker and, since its source goes there too, for ``reproduce.py``.

So it needs nothing of bisect-trt, and has Python 3.8's syntax.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from typing import Any, Collection, Mapping

LAST_WORDS = 400
"""How much is quoted of what a tool says."""


class ToolFailed(Exception):  # noqa: N818 - a finding about the model
    """A tool does not make a model of this one."""


def run_tool(model: pathlib.Path, folder: pathlib.Path, settings: Mapping[str, Any]) -> pathlib.Path:
    """Have the tool write its model.

    Args:
        model: What it reads.
        folder: Where it writes.
        settings: ``command``, and what it ``reads``.

    Raises:
        ToolFailed: It ends badly, or writes nothing.
        OSError: It cannot be run.
    """
    out = folder / "out.onnx"
    named = {"model": str(model.absolute()), "out": str(out)}
    for number, path in enumerate(settings["reads"], 1):
        named[f"file{number}"] = str(pathlib.Path(path).absolute())
    words = [fill(word, named) for word in settings["command"]]
    if words[0] in named.values() and not os.access(words[0], os.X_OK):
        pathlib.Path(words[0]).chmod(0o755)  # a copy, which does not keep that
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = done.stdout.decode(errors="replace")
    print(text, flush=True)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = f": {lines[-1][:LAST_WORDS]}" if lines else ""
    if done.returncode < 0:
        try:
            name = signal.Signals(-done.returncode).name
        except ValueError:
            name = f"signal {-done.returncode}"
        raise ToolFailed(f"the tool crashes ({name})")
    if done.returncode:
        raise ToolFailed(f"the tool ends with status {done.returncode}{said}")
    if not out.is_file() or not out.stat().st_size:
        raise ToolFailed("the tool ends well and writes no model")
    return out


def fill(word: str, named: Mapping[str, str]) -> str:
    """A word with its placeholders filled in, those in what is filled in left as they are."""
    parts = []
    while word:
        found = min(
            (place for place in ((word.find("{" + name + "}"), name) for name in named) if place[0] >= 0), default=None
        )
        if found is None:
            break
        parts += [word[: found[0]], named[found[1]]]
        word = word[found[0] + len(found[1]) + 2 :]
    return "".join([*parts, word])


def same_ends(
    given: Collection[str], inputs: Collection[str], outputs: Collection[str], wanted: Collection[str]
) -> str:
    """What is wrong with the names of what a tool wrote; empty if nothing is.

    Args:
        given: Names of what is fed.
        inputs: Names of the inputs that its model has.
        outputs: Names of the outputs that its model has.
        wanted: Names of the outputs that the original has; none where that is not known.
    """
    for name in inputs:
        if name not in given:
            return f"the model that the tool writes has an input '{name}', which the original has not"
    for name in wanted:
        if name not in outputs:
            return f"the model that the tool writes has no output '{name}' any more"
    return ""
