"""What the benchmarks reduce: models, and the nodes that a check requires in them.

The light models are real architectures that ship in the ``onnx`` wheel, their weights produced by
``ConstantOfShape`` nodes. Those come along with whoever consumes them, so neither the choice of
required nodes nor the count of what is left looks at them: both only know the **computing nodes**,
which depend on what the user feeds.

A node is named by its first output tensor. None of these models has nested graphs (``If``,
``Loop``, ``Scan``).
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
GENERATED_SIZES = (5_000, 10_000, 20_000)


@dataclass(frozen=True)
class Case:
    """One reduction to run.

    Attributes:
        model: Path of the model.
        seed: What chose the required nodes.
        required: First output tensor of each required node; the check fails while all are produced.
    """

    model: Path
    seed: int
    required: tuple[str, ...]

    @property
    def name(self) -> str:
        """For reports, for example ``densenet121/2-nodes/seed-0``."""
        return (
            f"{self.model.stem.removeprefix('light_')}/{len(self.required)}-nodes/seed-{self.seed}"
        )

    @property
    def bound(self) -> float:
        """log2 C(N, k): the yes-or-no answers it takes to tell k nodes of N computing nodes apart from any other k."""
        return math.log2(math.comb(len(computing_nodes(self.model)), len(self.required)))


def light_model(name: str) -> Path:
    """Path of one of ``LIGHT_MODELS``."""
    return LIGHT_FOLDER / f"light_{name}.onnx"


@functools.cache
def computing_nodes(model: Path) -> tuple[str, ...]:
    """First outputs of the nodes that depend on a graph input which is not an initializer, in the model's order.

    Models of IR version 3 list initializers as inputs too; those are weights.
    """
    graph = onnx.load(model, load_external_data=False).graph
    fed = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    names = []
    for node in graph.node:
        if not fed.isdisjoint(node.input):
            fed.update(filter(None, node.output))
            names.append(first_output(node))
    return tuple(names)


def first_output(node: onnx.NodeProto) -> str:
    """The tensor that names a node: its first output that is not left out."""
    name: str = next(filter(None, node.output))
    return name


def nodes_left(original: Path, reduced: Path) -> tuple[str, ...]:
    """Which computing nodes of the original model a reduced one still has.

    A node is a computing node by what it was in the original, also where a reduction froze its
    inputs to constants.
    """
    wanted = set(computing_nodes(original))
    graph = onnx.load(reduced, load_external_data=False).graph
    return tuple(name for name in map(first_output, graph.node) if name in wanted)


def choose(model: Path, count: int, seed: int) -> Case:
    """A case with ``count`` required nodes, drawn by ``random.Random(seed)`` from the computing nodes."""
    required = random.Random(seed).sample(computing_nodes(model), count)
    return Case(model, seed, tuple(required))


def one_node_cases() -> list[Case]:
    """27 cases: nine light models, three seeds."""
    return [choose(light_model(name), 1, seed) for name in LIGHT_MODELS for seed in range(3)]


def two_node_cases() -> list[Case]:
    """18 cases: nine light models, two seeds."""
    return [choose(light_model(name), 2, seed) for name in LIGHT_MODELS for seed in range(2)]


def scattered_cases(count: int, seeds: int = 5) -> list[Case]:
    """``count`` nodes scattered over DenseNet-121, once for each of ``seeds`` seeds."""
    return [choose(light_model("densenet121"), count, seed) for seed in range(seeds)]


def write_generated(folder: Path, nodes: int, seed: int = 0) -> Path:
    """Writes :func:`generated` into ``folder`` and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"generated_{nodes}_{seed}.onnx"
    onnx.save(generated(nodes, seed), path)
    return path


def generated(nodes: int, seed: int = 0) -> onnx.ModelProto:
    """A branching network of exactly ``nodes`` nodes: residual blocks of Mul, Add and Relu on float32 [1, 8, 8, 8].

    Each block sends its input down two or three branches of one to four steps and adds them up; one
    block in four also adds what an earlier block put out. Values stay bounded at any depth: the
    branches are scaled so that a block puts out less than 0.9 times the largest value it is given,
    plus a small constant.
    """
    rng = random.Random(seed)
    shape = (1, 8, 8, 8)
    builder = _Builder()
    blocks = ["input"]
    # A block has at most 3 branches of 5 nodes, 2 joins, a skip of 2 and a Relu: 20 nodes. What
    # then misses is a chain.
    while len(builder.nodes) + 20 <= nodes:
        ends = [builder.branch(blocks[-1], rng, 0.3) for _ in range(rng.randint(2, 3))]
        if rng.random() < 0.25:
            ends.append(builder.scaled(rng.choice(blocks), 0.05))
        blocks.append(
            builder.step("Relu", functools.reduce(lambda a, b: builder.step("Add", a, b), ends))
        )
    last = blocks[-1]
    while len(builder.nodes) < nodes:
        last = builder.step("Relu", last)
    graph = helper.make_graph(
        builder.nodes,
        f"generated_{nodes}_{seed}",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        builder.weights,
    )
    # Versions that the oldest supported ONNX Runtime reads.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def overflowing(nodes: int, culprits: int, seed: int = 0) -> onnx.ModelProto:
    """A generated network with so many places where values are multiplied by 9e8 and divided again: too much for fp16.

    Each is four nodes more, ``much``, ``more``, ``less`` and ``little`` with its number; the second
    one overflows.
    """
    model = generated(nodes, seed)
    graph = model.graph
    graph.initializer.extend(
        numpy_helper.from_array(np.array(v, np.float32), n)
        for n, v in (("up", 3e4), ("down", 1 / 3e4))
    )
    places = {round((place + 0.5) * nodes / culprits): place for place in range(culprits)}
    ordered: list[onnx.NodeProto] = []
    for index, node in enumerate(graph.node):
        ordered.append(node)
        if index in places:
            after = node.output[0]
            last = f"before_{places[index]}"
            node.output[0] = last
            for name, factor in (
                ("much", "up"),
                ("more", "up"),
                ("less", "down"),
                ("little", "down"),
            ):
                made = after if name == "little" else f"{name}_{places[index]}_out"
                ordered.append(
                    helper.make_node("Mul", [last, factor], [made], name=f"{name}_{places[index]}")
                )
                last = made
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(kept)
    return model


class _Builder:
    """Collects the nodes and weights of a generated model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def step(self, op: str, *inputs: str) -> str:
        """Adds a node; returns its output's name."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name=name))
        return f"{name}_out"

    def weight(self, value: float) -> str:
        """Adds a weight of shape [8, 1, 1], one value a channel; returns its name."""
        name = f"weight_{len(self.weights)}"
        channels = np.linspace(0.9 * value, value, 8, dtype=np.float32).reshape(8, 1, 1)
        self.weights.append(numpy_helper.from_array(channels, name))
        return name

    def scaled(self, tensor: str, factor: float) -> str:
        """Adds a Mul by at most ``factor``; returns its output's name."""
        return self.step("Mul", tensor, self.weight(factor))

    def branch(self, tensor: str, rng: random.Random, factor: float) -> str:
        """Adds a Mul and then up to four steps; returns the last one's output."""
        end = self.scaled(tensor, factor * rng.uniform(0.5, 0.9))
        for _ in range(rng.randint(1, 4)):
            end = (
                self.step("Relu", end)
                if rng.random() < 0.5
                else self.step("Add", end, self.weight(0.01))
            )
        return end
