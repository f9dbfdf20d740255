"""A tool from ONNX to ONNX as a target: the model that it writes is run in the reference."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.aliases import Fields, Plain
from bisect_trt.errors import MissingOptionError, ValueRefusedError
from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnSettings, Script, Target, TargetSettings, reference_settings

if TYPE_CHECKING:
    from onnx import ModelProto


MODEL = "{model}"
OUT = "{out}"


def command(text: Any) -> str:  # noqa: ANN401 - whatever was given
    """A command that runs such a tool, with the whole paths of the files that it names; there is no shell.

    Raises:
        UsageError: It names no model to read or to write, its quotes do not match, or there is no
            such program.
    """
    if not isinstance(text, str):
        raise ValueError("a text")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueRefusedError(f"--through {text}: {error}; correct the quotes.") from error
    for placeholder, meaning in (
        (MODEL, "the model that the tool reads"),
        (OUT, "where it writes its own"),
    ):
        if not any(placeholder in word for word in words):
            raise MissingOptionError(
                f"--through {text}: {placeholder} is missing, {meaning}; write 'onnxsim {{model}} {{out}}'."
            )
    if shutil.which(words[0]) is None:
        raise ValueRefusedError(
            f"--through: there is no program '{words[0]}' (or it is not executable); give its path or correct PATH."
        )
    return shlex.join(
        str(Path(word).absolute()) if os.path.isfile(word) else word  # noqa: PTH113 - of any length
        for word in words
    )


@dataclass(frozen=True)
class ThroughSettings(OwnSettings):
    """The command of a tool from ONNX to ONNX, with ``{model}`` for what it reads and ``{out}`` for what it writes."""

    through: Annotated[
        str | None,
        option(
            metavar="COMMAND",
            help="A tool from ONNX to ONNX, such as 'onnxsim {model} {out}': what it writes is run in the reference.",
            read=command,
        ),
    ] = None


class ThroughTarget(Target):
    """A tool from ONNX to ONNX; its model is run in the reference."""

    name = "through"
    title = "the tool"
    own = ThroughSettings
    precisions = ()
    needs = "onnxruntime"
    reads_graph = True
    sent = ("bisect_trt.targets.onnxrt.runner", "bisect_trt.targets.through.runner")
    stays = True

    def describe(self, settings: TargetSettings) -> str:
        """Its command, by the names of its files."""
        words = shlex.split(settings.of(ThroughSettings).through or "")
        return f"the model that `{' '.join(Path(word).name if '/' in word else word for word in words)}` writes"

    def versions(self, settings: TargetSettings) -> Mapping[str, str]:
        """Return the version of the Python package that has the tool, if that is installed in this environment."""
        words = shlex.split(settings.of(ThroughSettings).through or "")
        # A tool of another environment has a version that this one does not know.
        if not words or Path(shutil.which(words[0]) or "").parent != Path(sys.executable).parent:
            return {}
        names: list[str] = []
        if words[1:2] == ["-m"] and len(words) > 2:
            names = metadata.packages_distributions().get(words[2].partition(".")[0], [])
        scripts = metadata.entry_points(group="console_scripts", name=Path(words[0]).name)
        names += [entry.dist.name for entry in scripts if entry.dist is not None]
        return {name: metadata.version(name) for name in names}

    def flags(self, settings: TargetSettings) -> list[str]:
        """The option with its command."""
        return ["--through", settings.of(ThroughSettings).through or ""]

    def plain(self, settings: TargetSettings) -> Fields:
        """Return the settings of the tool and of the reference."""
        reference = reference_settings()
        return {**reference.target.plain(reference), **super().plain(settings)}

    def hints(self, settings: TargetSettings, model: ModelProto, path: Path, facts: Plain) -> Plain:
        """Return the names of the model's inputs and outputs, which the tool has to keep.

        Args:
            settings: The settings of the target.
            model: The model.
            path: The ONNX file.
            facts: The facts that its runner reports, such as the version.
        """
        return {
            "inputs": [value.name for value in model.graph.input],
            "outputs": [value.name for value in model.graph.output],
        }

    def script(self, settings: TargetSettings, hints: Plain) -> Script:
        """Return how ``reproduce.py`` runs a model: with the tool, then ONNX Runtime."""
        script = super().script(settings, hints)
        options = settings.of(ThroughSettings)
        tool = Path(shlex.split(options.through)[0]).name if options.through else self.title
        return Script(f"{tool}, {script.needs}", script.modules, script.settings, script.hints)
