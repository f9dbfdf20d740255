"""The choices of a build: tactic, precision, formats and fused nodes of each layer.

A target that builds leaves it in a file beside the engine
(:meth:`~bisect_trt.targets.base.Target.recording`), and may be made to repeat it, or to avoid it, in
another build (:meth:`~bisect_trt.targets.base.Target.pinned`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORD = "choices.json"
"""File of a build's choices, in its folder."""
TIMINGS = "timing.cache"
"""File of a build's measurements, where the target has any."""
LAYERS = "layers.json"
"""Its layers as the target's own tool reports them, beside that, if there is one."""
TACTIC = "tactic"
PRECISION = "precision"
FORMAT = "format"
FUSION = "fusion"
"""The kinds of choices."""
MARK = "bisect_trt_build"


@dataclass(frozen=True, order=True)
class Choice:
    """Something that a build chose for a layer, where another build may choose something else.

    Attributes:
        layer: The layer, as the target calls it.
        kind: ``tactic`` (the kernel that runs it), ``precision`` (the types of what it makes),
            ``format`` (its layout in memory) or ``fusion`` (what is run in one with it).
        value: What was chosen, in the target's words.
        pins: Whether a build can be made to take it or to avoid it.
    """

    layer: str
    kind: str
    value: str
    pins: bool = field(default=False, compare=False)

    @property
    def said(self) -> str:
        """The choice with its kind: ``tactic 2147483657:-384``."""
        return f"{self.kind} {self.value}"


def choices_of_layers(layers: Iterable[Mapping[str, Any]]) -> list[Choice]:
    """Return the choices in the layers of an engine; see ``RuntimeSession.layers``.

    Beside what stands there, a layer may have a ``tactic``, ``formats``, and ``pins``: whether a
    build can be made to take its tactic.
    """
    choices = []
    for layer in layers:
        name = str(layer["name"])
        if layer.get("tactic") is not None:
            choices.append(Choice(name, TACTIC, str(layer["tactic"]), bool(layer.get("pins"))))
        fused = layer.get("tensors") or ()
        listed = {
            PRECISION: layer.get("precisions"),
            FORMAT: layer.get("formats"),
            FUSION: fused if len(fused) > 1 else (),
        }
        choices += [
            Choice(name, kind, ", ".join(map(str, values)))
            for kind, values in listed.items()
            if values
        ]
    return list(dict.fromkeys(choices))


def write_choices(path: Path, choices: Sequence[Choice]) -> None:
    """Write what a build chose.

    Raises:
        OSError: The file cannot be written.
    """
    plain = [vars(choice) for choice in choices]
    path.write_text(json.dumps({MARK: 1, "choices": plain}, indent=1) + "\n", encoding="utf-8")
