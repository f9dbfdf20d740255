"""A tool from ONNX to ONNX as a target: the model that it writes is run in the reference."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.errors import MissingOptionError, ValueRefusedError
from bisect_trt.options.spec import option
from bisect_trt.targets.base import Minimal, OwnSettings, Script, Target
from bisect_trt.targets.settings import TargetSettings, reference_settings

if TYPE_CHECKING:
    from onnx import ModelProto


MODEL, OUT, FILE = "{model}", "{out}", "{{file{}}}"


def command(text: Any) -> str:  # noqa: ANN401 - whatever was given
    """A command that runs such a tool; there is no shell.

    Raises:
        UsageError: It names no model to read or to write, its quotes do not match, or there is no such program.
    """
    if not isinstance(text, str):
        raise ValueError("a text")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueRefusedError(f"--through {text}: {error}; correct the quotes.") from error
    for placeholder, what in ((MODEL, "the model that the tool reads"), (OUT, "where it writes its own")):
        if not any(placeholder in word for word in words):
            raise MissingOptionError(
                f"--through {text}: {placeholder} is missing, {what}; write 'onnxsim {{model}} {{out}}'."
            )
    if shutil.which(words[0]) is None:
        raise ValueRefusedError(
            f"--through: there is no program '{words[0]}' (or it is not executable); give its path or correct PATH."
        )
    return text


@dataclass(frozen=True)
class ThroughSettings(OwnSettings):
    """The settings of a tool from ONNX to ONNX.

    Attributes:
        through: The command, with ``{model}`` for what it reads, ``{out}`` for what it writes, and ``{file1}``, ... for files.
        reads: These files: a script, a configuration.
    """

    through: Annotated[
        str | None,
        option(
            metavar="COMMAND",
            help="A tool from ONNX to ONNX, such as 'onnxsim {model} {out}': what it writes is run in the reference.",
            read=command,
        ),
    ] = None
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Find the files in the command."""
        if self.reads or self.through is None:
            return
        words = shlex.split(self.through)
        files = [str(Path(word).absolute()) if _is_file(word) else "" for word in words]
        reads = [path for path in dict.fromkeys(files) if path]
        names = [FILE.format(reads.index(path) + 1) if path else word for path, word in zip(files, words, strict=True)]
        object.__setattr__(self, "through", shlex.join(names))
        object.__setattr__(self, "reads", tuple(reads))

    @property
    def words(self) -> list[str]:
        """The command as it was given, its files by their paths."""
        paths = {FILE.format(number): path for number, path in enumerate(self.reads, 1)}
        return [paths.get(word, word) for word in shlex.split(self.through or "")]


def _is_file(word: str) -> bool:
    """Whether a word names a file of the user's; a program with its path is one if it is a script."""
    try:
        path = Path(word)
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) != b"\x7fELF"
    except (OSError, ValueError):  # no path at all
        return False


class ThroughTarget(Target):
    """A tool from ONNX to ONNX; its model is run in the reference."""

    name, title, own = "through", "the tool", ThroughSettings
    precisions = ()
    needs, reads_graph = "onnxruntime", True
    sent = ("bisect_trt.targets.onnxrt.runner", "bisect_trt.targets.through.runner")
    files = ("reads",)

    def describe(self, settings: TargetSettings) -> str:
        """Its command, by the names of its files."""
        own = settings.of(ThroughSettings)
        names = {path: Path(path).name for path in own.reads}
        words = (names.get(word, word) for word in own.words)
        return f"the model that `{' '.join(words)}` writes"

    def flags(self, settings: TargetSettings) -> list[str]:
        """The option with its command."""
        return ["--through", shlex.join(settings.of(ThroughSettings).words)]

    def look(self, plain: TargetSettings) -> Iterator[tuple[str, str]]:
        """Yield nothing: a tool is named with each command."""
        yield from ()

    def plain(self, settings: TargetSettings) -> dict[str, Any]:
        """Return the settings of the tool and of the reference."""
        reference = reference_settings()
        return {**reference.target.plain(reference), **super().plain(settings)}

    def hints(
        self, settings: TargetSettings, model: ModelProto, path: Path, facts: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the names of the model's inputs and outputs, which the tool has to keep."""
        return {
            "inputs": [value.name for value in model.graph.input],
            "outputs": [value.name for value in model.graph.output],
        }

    def script(self, settings: TargetSettings, model: Minimal) -> Script:
        """Return how ``reproduce.py`` runs a model: with the tool, then ONNX Runtime."""
        script, own = super().script(settings, model), settings.of(ThroughSettings)
        tool = Path(own.words[0]).name if own.through else self.title
        return Script(f"{tool}, {script.needs}", script.modules, script.settings, script.hints)
