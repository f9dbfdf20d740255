"""Runs a tool from ONNX to ONNX, and the model that it writes in ONNX Runtime, all optimisations off."""

from __future__ import annotations

import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.runner import OrtRunner, OrtSession

LAST_WORDS = 400
"""How many characters are quoted of a tool's last line."""


class ThroughRunner:
    """A tool, and ONNX Runtime for its models.

    Attributes:
        facts: The version of ONNX Runtime.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings`` has the fields of ``ThroughSettings`` and of ``OnnxRuntimeSettings``."""
        self._settings, self._reference = settings, OrtRunner(settings)
        self.facts = self._reference.facts

    def gpu_memory(self) -> int:
        """Return 0: the reference runs on the CPU."""
        return 0

    def load(
        self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any], unfused: bool
    ) -> ThroughSession | None:
        """Have the tool write its model, and open that; ``None`` for ``unfused``.

        Raises:
            BuildError: The tool fails, or its model has other inputs or outputs, or does not load.
            UnavailableError: The tool cannot be run.
        """
        if unfused:
            return None
        with tempfile.TemporaryDirectory(prefix="bisect_trt_") as folder:
            try:
                written = run_tool(path, pathlib.Path(folder), self._settings)
            except OSError as error:
                raise UnavailableError(f"the tool cannot be run: {error.strerror or error}; check its path.") from error
            try:
                session = self._reference.load(written, feed, {}, False)
            except BuildError as error:
                raise BuildError(f"the model that the tool writes does not load: {error.message}") from error
        assert session is not None  # it is only where nothing shall be fused
        inputs, outputs = [info.name for info in session.inputs], [*session.names, *session.skipped]
        if wrong := same_ends(hints["inputs"], inputs, outputs, hints["outputs"]):
            raise BuildError(wrong)
        return ThroughSession(session, hints["outputs"])


make = ThroughRunner


class ThroughSession:
    """The tool's model, ready to run.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs that cannot be had as NumPy arrays, with their type.
    """

    def __init__(self, session: OrtSession, wanted: Collection[str]) -> None:
        """``wanted`` are the outputs of the original, which may be fewer than those of the tool's model."""
        self._session, self._wanted = session, wanted
        self.inputs, self.skipped = session.inputs, session.skipped

    def layers(self) -> list[dict[str, Any]]:
        """Return nothing: a tool does not say what became of a node."""
        return []

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs of the original that are tensors, by name.

        Raises:
            RunError: It fails.
        """
        outputs = self._session.run({info.name: inputs[info.name] for info in self.inputs})
        return {name: outputs[name] for name in self._wanted if name in outputs}


def run_tool(model: pathlib.Path, folder: pathlib.Path, settings: Mapping[str, Any]) -> pathlib.Path:
    """Have the tool write its model.

    Args:
        model: What it reads.
        folder: Where it writes.
        settings: The command (``through``), and what it ``reads``.

    Raises:
        BuildError: It ends badly, or writes nothing.
        OSError: It cannot be run.
    """
    out = folder / "out.onnx"
    named = {"model": str(model.absolute()), "out": str(out)}
    for number, path in enumerate(settings["reads"], 1):
        named[f"file{number}"] = str(pathlib.Path(path).absolute())
    words = [fill(word, named) for word in shlex.split(settings["through"])]
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
        raise BuildError(f"the tool crashes ({name})")
    if done.returncode:
        raise BuildError(f"the tool ends with status {done.returncode}{said}")
    if not out.is_file() or not out.stat().st_size:
        raise BuildError("the tool ends well and writes no model")
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
