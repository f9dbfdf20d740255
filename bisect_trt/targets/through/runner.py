"""Runs a tool from ONNX to ONNX, and the model that it writes in ONNX Runtime, all optimisations off."""

from __future__ import annotations

import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping

from bisect_trt.aliases import Plain
from bisect_trt.errors import RuntimeMissingError
from bisect_trt.targets.messages import BuildError, Feed
from bisect_trt.targets.onnxrt.runner import OrtRunner, OrtSession

LAST_WORDS = 400
"""Most characters of a tool's last line that are quoted."""


class ThroughRunner:
    """A tool, and ONNX Runtime for its models."""

    def __init__(self, settings: Plain) -> None:
        """``settings`` has the fields of ``ThroughSettings`` and of ``OnnxRuntimeSettings``."""
        self._settings = settings
        self._reference = OrtRunner(settings)
        self.facts = self._reference.facts

    def load(self, path: pathlib.Path, feed: Feed, hints: Plain) -> OrtSession:
        """Have the tool write its model, and open that.

        Args:
            path: The ONNX file.
            feed: Not used.
            hints: ``inputs`` and ``outputs``: the names of the model's.

        Raises:
            BuildError: The tool fails, or its model has other inputs or outputs, or does not load.
            UnavailableError: The tool cannot be run.
        """
        with tempfile.TemporaryDirectory(prefix="bisect_trt_") as folder:
            try:
                written = run_tool(path, pathlib.Path(folder), self._settings["through"])
            except OSError as error:
                raise RuntimeMissingError(
                    f"the tool cannot be run: {error.strerror or error}; check its path."
                ) from error
            try:
                session = self._reference.load(written, feed, {})
            except BuildError as error:
                raise BuildError(
                    f"the model that the tool writes does not load: {error.message}"
                ) from error
        for info in session.inputs:
            if info.name not in hints["inputs"]:
                raise BuildError(
                    f"the model that the tool writes has an input '{info.name}', which the original has not"
                )
        for name in hints["outputs"]:
            if name not in (*session.names, *session.skipped):
                raise BuildError(f"the model that the tool writes has no output '{name}' any more")
        # A tool may fold an input away; the feed has it still.
        session.ignored = frozenset(hints["inputs"]) - {info.name for info in session.inputs}
        session.names = [name for name in hints["outputs"] if name in session.names]
        return session


make = ThroughRunner


def run_tool(model: pathlib.Path, folder: pathlib.Path, command: str) -> pathlib.Path:
    """Have the tool write its model into a folder; returns its path.

    Args:
        model: The ONNX file.
        folder: The folder for the model that it writes.
        command: The command, with ``{model}`` and ``{out}``.

    Raises:
        BuildError: It fails, or writes nothing.
        OSError: It cannot be run.
    """
    out = folder / "out.onnx"
    named = {"model": str(model.absolute()), "out": str(out)}
    words = [fill(word, named) for word in shlex.split(command)]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    print(text, flush=True)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last_line = f": {lines[-1][:LAST_WORDS]}" if lines else ""
    if done.returncode < 0:
        # A negative status is a signal, which Python may not know by name.
        names = {int(number): number.name for number in signal.Signals}
        raise BuildError(
            f"the tool crashes ({names.get(-done.returncode, f'signal {-done.returncode}')})"
        )
    if done.returncode:
        raise BuildError(f"the tool exits with status {done.returncode}{last_line}")
    if not out.is_file() or not out.stat().st_size:
        raise BuildError("the tool succeeds and writes no model")
    return out


def fill(word: str, named: Mapping[str, str]) -> str:
    """A word with its placeholders filled in, those in what is filled in left as they are."""
    return re.sub(r"\{(\w+)\}", lambda match: named.get(match[1], match[0]), word)
