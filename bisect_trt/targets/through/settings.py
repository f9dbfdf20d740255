"""What only a tool from ONNX to ONNX has."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.targets.base import OwnSettings

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
