"""Builds that choose: of each node a kernel and a format, by chance; the nodes named ``bad`` now and then a wrong kernel.

A node named ``bad_loose`` cannot be held to its kernel.

What is chosen is reported, kept with the engine, and can be pinned and banned, as of a runtime with
tactics.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path

import onnx

from bisect_trt.steps.build_choices import read_choices
from bisect_trt.targets.choices import FORMAT, RECORD, TACTIC, Choice, write_choices
from bisect_trt.targets.messages import BuildError

WRONG = "wrong_kernel"
RIGHT = ("tiled_16", "tiled_32", "tiled_64", "split_k")
FORMATS = ("linear", "channels_last")


def build(
    model: onnx.ModelProto, chance: float, pins: Sequence[str], bans: Sequence[str]
) -> list[Choice]:
    """What a build chooses: a bad node takes the wrong kernel with this chance.

    Raises:
        BuildError: It cannot be held to what is pinned.
    """
    held = dict(each.split("=") for each in pins)
    found = []
    for node in model.graph.node:
        kernels = [each for each in RIGHT if f"{node.name}={each}" not in bans]
        may = node.name.startswith("bad") and f"{node.name}={WRONG}" not in bans
        kernel = WRONG if may and random.random() < chance else random.choice(kernels)
        if node.name in held:
            kernel = held[node.name]
            if kernel not in (*RIGHT, *((WRONG,) if node.name.startswith("bad") else ())):
                raise BuildError(f"'{node.name}' has no kernel {kernel}", signature="pin")
        found.append(Choice(node.name, TACTIC, kernel, pins=not node.name.startswith("bad_loose")))
        found.append(Choice(node.name, FORMAT, random.choice(FORMATS)))
    return found


def wrong_nodes(choices: Sequence[Choice]) -> frozenset[str]:
    """The nodes that run the wrong kernel."""
    return frozenset(each.layer for each in choices if each.value == WRONG)


def record(folder: str | None, choices: Sequence[Choice]) -> None:
    """Leave what a build chose, if it is asked for."""
    if folder is not None:
        write_choices(Path(folder) / RECORD, choices)


def save_engine(path: Path, model: onnx.ModelProto, choices: Sequence[Choice]) -> None:
    """An engine: the model, and what was chosen for it."""
    write_choices(path, choices)
    plain = json.loads(path.read_text())
    path.write_text(
        json.dumps({**plain, "model": base64.b64encode(model.SerializeToString()).decode()})
    )


def load_engine(path: Path) -> tuple[onnx.ModelProto, list[Choice]]:
    """What :func:`save_engine` wrote."""
    plain = json.loads(path.read_text())
    choices = read_choices(plain)
    assert choices is not None
    return onnx.load_from_string(base64.b64decode(plain["model"])), choices
