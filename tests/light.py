"""The light models of the ``onnx`` wheel, as tests take them: their nodes named."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import onnx
from support import node_names, node_tag, rest_slow

from benchmarks.cases import LIGHT_MODELS, light_model

LIGHT = rest_slow(
    sorted(LIGHT_MODELS, key=lambda name: name not in {"squeezenet", "shufflenet"}), 2
)
"""All of them, as parameters of a test; `make test` has the two smallest."""


@dataclass(frozen=True)
class Light:
    """A light model whose nodes are named by :func:`node_tag`.

    Attributes:
        path: Where it lies.
        computing: Names of the nodes that depend on what is fed; the others make weights.
    """

    path: Path
    computing: tuple[str, ...]

    def choose(self, count: int, seed: int) -> list[str]:
        """Some computing nodes."""
        return random.Random(seed).sample(self.computing, count)

    def left(self, reduced: Path) -> list[str]:
        """The computing nodes that a reduced model has."""
        return [name for name in node_names(reduced) if name in set(self.computing)]


def tag_light(name: str, folder: Path) -> Light:
    """Write one of the light models with tagged nodes."""
    model = onnx.load(str(light_model(name)))
    # Of IR version 3: initializers are listed among the inputs.
    fed = {value.name for value in model.graph.input} - {
        tensor.name for tensor in model.graph.initializer
    }
    computing = []
    for place, node in enumerate(model.graph.node):
        node.name = node_tag(place)
        if not fed.isdisjoint(node.input):
            fed.update(node.output)
            computing.append(node.name)
    path = folder / f"{name}.onnx"
    onnx.save(model, str(path))
    return Light(path, tuple(computing))
