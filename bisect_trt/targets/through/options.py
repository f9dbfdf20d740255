"""The option of a tool from ONNX to ONNX."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bisect_trt.errors import UsageError
from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnOptions
from bisect_trt.targets.through.settings import FILE, MODEL, OUT, ThroughSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions


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
