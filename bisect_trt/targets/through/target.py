"""A tool from ONNX to ONNX as a target."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bisect_trt.targets.base import Minimal, Runtime, Script, Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.through.options import ThroughOptions
from bisect_trt.targets.through.settings import ThroughSettings

_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")
"""Words that need no quotes where nothing is a shell's but blanks."""


class ThroughTarget(Target):
    """A tool from ONNX to ONNX, whose model is run in the reference."""

    name, title, own, options = "through", "the tool", ThroughSettings, ThroughOptions
    precisions = ()
    needs = "onnxruntime"
    files = ("reads",)
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """The tool, and the reference."""
        from bisect_trt.targets.through.runtime import Through  # noqa: PLC0415 - a target that may not be asked for

        return Through(settings)

    def describe(self, settings: TargetSettings) -> str:
        """Its command, by the names of its files."""
        own = settings.of(ThroughSettings)
        names = {path: Path(path).name for path in own.reads}
        words = (names.get(word, word) for word in own.words)
        return f"the model that `{' '.join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)}` writes"

    def flags(self, settings: TargetSettings) -> list[str]:
        """The option with its command."""
        return ["--through", shlex.join(settings.of(ThroughSettings).words)]

    def script(self, settings: TargetSettings, model: Minimal) -> Script:
        """With the tool and ONNX Runtime."""
        own, folder = settings.of(ThroughSettings), "bisect_trt.targets.through"
        modules = ("bisect_trt.targets.signatures", f"{folder}.tool", f"{folder}.standalone")
        values = {**self.reproducible(settings), "outputs": list(model.outputs)}
        tool = Path(own.words[0]).name if own.command else self.title
        return Script(f"{tool}, {self.needs} and numpy", modules, values)
