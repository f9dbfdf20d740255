"""A tool from ONNX to ONNX as a target: the model that it writes is run in the reference."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from bisect_trt.errors import UsageError
from bisect_trt.options.spec import option
from bisect_trt.targets.base import Minimal, OwnOptions, OwnSettings, Script, Target
from bisect_trt.targets.settings import TargetSettings, reference_settings

if TYPE_CHECKING:
    from onnx import ModelProto

    from bisect_trt.targets.options import TargetOptions

MODEL, OUT, FILE = "{model}", "{out}", "{{file{}}}"


@dataclass(frozen=True)
class ThroughSettings(OwnSettings):
    """What only a tool from ONNX to ONNX has.

    Attributes:
        command: Its words, with ``{model}`` for what it reads, ``{out}`` for what it writes, and ``{file1}``, ... for files.
        reads: These files: a script, a configuration.
    """

    command: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The command as it was given, its files by their paths."""
        paths = {FILE.format(number): path for number, path in enumerate(self.reads, 1)}
        return [paths.get(word, word) for word in self.command]


@dataclass
class ThroughOptions(OwnOptions):
    """What only such a tool has: the command that runs it."""

    through: Annotated[
        str | None,
        option(
            metavar="COMMAND",
            help="A tool from ONNX to ONNX, such as 'onnxsim {model} {out}': what it writes is run in the reference.",
        ),
    ] = None

    def settings(self, common: TargetOptions, *, engines: bool) -> ThroughSettings:
        """As plain data.

        Raises:
            UsageError: It names no model to read or to write, its quotes do not match, or there is no such program.
        """
        return parse(self.through or "")

    def files(self) -> list[Path]:
        """The scripts and the like that it names."""
        try:
            return [Path(path) for path in parse(self.through).reads] if self.through else []
        except UsageError:  # said where it is asked for
            return []


def parse(command: str) -> ThroughSettings:
    """A command from its text; there is no shell.

    Raises:
        UsageError: As for :meth:`ThroughOptions.settings`.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--through {command}: {error}; mend the quotes.") from error
    for placeholder, what in ((MODEL, "the model that the tool reads"), (OUT, "where it writes its own")):
        if not any(placeholder in word for word in words):
            raise UsageError(
                f"--through {command}: {placeholder} is missing, {what}; write 'onnxsim {{model}} {{out}}'."
            )
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--through: there is no program '{words[0]}' (or it is not executable); give its path or mend PATH."
        )
    reads = list(dict.fromkeys(str(Path(word).absolute()) for word in words if _is_file(word)))
    places = {path: FILE.format(number) for number, path in enumerate(reads, 1)}
    return ThroughSettings(
        tuple(places[str(Path(word).absolute())] if _is_file(word) else word for word in words), tuple(reads)
    )


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


_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")
"""Words that need no quotes where nothing is a shell's but blanks."""


class ThroughTarget(Target):
    """A tool from ONNX to ONNX, whose model is run in the reference."""

    name, title, own, options = "through", "the tool", ThroughSettings, ThroughOptions
    precisions = ()
    needs, reads_graph = "onnxruntime", True
    sent = ("bisect_trt.targets.onnxrt.runner", "bisect_trt.targets.through.runner")
    files = ("reads",)
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def describe(self, settings: TargetSettings) -> str:
        """Its command, by the names of its files."""
        own = settings.of(ThroughSettings)
        names = {path: Path(path).name for path in own.reads}
        words = (names.get(word, word) for word in own.words)
        return f"the model that `{' '.join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)}` writes"

    def flags(self, settings: TargetSettings) -> list[str]:
        """The option with its command."""
        return ["--through", shlex.join(settings.of(ThroughSettings).words)]

    def plain(self, settings: TargetSettings) -> dict[str, Any]:
        """Return the settings of the tool and, beside them, those of the reference."""
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
        """Return how ``reproduce.py`` runs a model: with the tool and ONNX Runtime."""
        script, own = super().script(settings, model), settings.of(ThroughSettings)
        tool = Path(own.words[0]).name if own.command else self.title
        return Script(f"{tool}, {script.needs}", script.modules, script.settings, script.hints)
