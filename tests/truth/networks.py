"""Networks with bugs in their middle: generated ones, full of branches and look-alikes, and the light models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference, version_converter

from benchmarks.cases import light_model
from truth.patterns import Pattern, Shape, Sketch

_SHAPE: Shape = (1, 8, 8, 8)


@dataclass(frozen=True)
class Network:
    """A network and the truth about it.

    Attributes:
        model: Every node is named.
        guilty: Of each planted bug, the names of the nodes that it takes. They are disjoint.
    """

    model: onnx.ModelProto
    guilty: tuple[frozenset[str], ...]


def generated(pattern: Pattern, nodes: int, times: int, seed: int) -> Network:
    """A branching network of about ``nodes`` nodes with a bug in its middle, ``times`` over, among its look-alikes.

    Its values stay near 1 at any depth. Weights are drawn from ``numpy.random.default_rng(seed)``.
    """
    rng = random.Random(seed)
    values = np.random.default_rng(seed)
    sketch = Sketch("")
    guilty: list[frozenset[str]] = []
    places = [nodes * (place + 1) // (times + 1) for place in range(times)]
    blocks = [sketch.add("Tanh", "input")]
    behind: set[int] = set()
    while len(sketch.nodes) < nodes:
        tensor = blocks[-1]
        if len(guilty) < times and len(sketch.nodes) >= places[len(guilty)]:
            tensor, nodes_of_it = pattern.plant(sketch, tensor, _SHAPE)
            guilty.append(nodes_of_it)
            behind.add(len(blocks))
        elif rng.random() < 0.2:
            tensor = pattern.alike(sketch, tensor, _SHAPE)
        ends = [_branch(sketch, tensor, rng, values) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            ends.append(rng.choice(blocks))
        while len(ends) > 1:
            ends.append(sketch.add("Add", ends.pop(0), ends.pop(0)))
        blocks.append(sketch.add("Tanh", ends[0]))
    outputs = {blocks[-1], blocks[len(blocks) // 2]}
    if times > 1:  # the error of the first must not be all that is seen of the second
        outputs |= {blocks[place] for place in behind}
    graph = helper.make_graph(
        sketch.nodes,
        "generated",
        [_value("input", _SHAPE), *(_value(name, shape) for name, shape in sketch.inputs.items())],
        [_value(name, _SHAPE) for name in sorted(outputs)],
        sketch.weights,
    )
    return Network(_model(graph, pattern.opset), tuple(guilty))


def _branch(sketch: Sketch, tensor: str, rng: random.Random, values: np.random.Generator) -> str:
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(5)
        if kind == 0:
            tensor = sketch.add("Conv", tensor, sketch.weight(values.normal(0, 0.3, (8, 8, 1, 1))))
        elif kind == 1:
            tensor = sketch.add("Mul", tensor, sketch.weight(values.uniform(0.5, 1, (8, 1, 1))))
        elif kind == 2:
            tensor = sketch.add("Add", tensor, sketch.weight(values.normal(0, 0.1, (8, 1, 1))))
        elif kind == 3:
            tensor = sketch.add("MaxPool", tensor, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        else:
            tensor = sketch.add("Concat", tensor, sketch.add("Sigmoid", tensor), axis=1)
            tensor = sketch.add("Conv", tensor, sketch.weight(values.normal(0, 0.2, (8, 16, 1, 1))))
    return tensor


def in_light_model(pattern: Pattern, name: str, seed: int) -> Network:
    """One of the light models with a bug on an edge of its middle, beside it a look-alike; a further output shows both."""
    model = version_converter.convert_version(onnx.load(str(light_model(name))), pattern.opset)
    graph = shape_inference.infer_shapes(model).graph
    shapes = {
        value.name: tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
        for value in graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    feature = [
        place
        for place, node in enumerate(graph.node)
        if (shape := shapes.get(node.output[0], ()))
        and len(shape) == 4
        and 7 <= shape[-1] <= 28
        and shape[2] == shape[3]
    ]
    place = random.Random(seed).choice(feature[len(feature) // 4 :])
    tensor = graph.node[place].output[0]
    sketch = Sketch("planted_")
    # These models hold the same value all over a channel.
    uneven = np.random.default_rng(seed).normal(size=shapes[tensor][2:])
    start = sketch.add("Sub", sketch.add("Tanh", tensor), sketch.weight(uneven))
    end, guilty = pattern.plant(sketch, start, shapes[tensor])
    shown = sketch.add("Add", pattern.alike(sketch, end, shapes[tensor]), end)
    rest = list(graph.node)[place + 1 :]
    for node in rest:
        for slot, read in enumerate(node.input):
            if read == tensor:
                node.input[slot] = shown
    del graph.node[:]
    nodes = [*model.graph.node[: place + 1], *sketch.nodes, *rest]
    for number, node in enumerate(nodes):
        node.name = node.name if node in sketch.nodes else f"{node.op_type}_{number}"
    graph.node.extend(nodes)
    graph.initializer.extend(sketch.weights)
    graph.input.extend(_value(each, shape) for each, shape in sketch.inputs.items())
    graph.output.append(_value(shown, shapes[tensor]))
    return Network(_model(graph, pattern.opset), (guilty,))


def _value(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    # The oldest IR that has the opset: releases of its time read no newer one.
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset > 20 else 8
    )
    onnx.checker.check_model(model, full_check=True)
    return model
