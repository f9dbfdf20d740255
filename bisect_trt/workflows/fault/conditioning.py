"""How far rounding must be expected to move what a few nodes make of these very values, whoever computes them.

What rounding does to a result is, to first order, the rounding of a step times the condition of what follows (N. Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, chapter 1). So it is measured: the case is computed in float64 with each
tensor moved at random by up to one unit in the last place of float32, as each runtime does to it that rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bisect_trt.graph.lower.roundtrip import EXACT_OPS
from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import bodies
from bisect_trt.graph.rewrites.registry import matches
from bisect_trt.graph.rewrites.view import View, splice_in
from bisect_trt.tensors.margins import DECIDING

TRIALS = 6
"""Such computations. That an element whose movement is random is moved by less than a tenth of it in all is one in millions."""
_JUMPING = DECIDING | {"DynamicQuantizeLinear", "GridSample", "Mod", "Resize", "RoiAlign", "Upsample"}
"""Operators of which such a movement would say nothing: the least makes a wholly different result."""
_SPELLED = ("spelled-layer-norm", "spelled-instance-norm")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT = ("GRU", "LSTM", "RNN")

Shapes = Mapping[str, Sequence[int]]
Compute = Callable[[onnx.ModelProto], "Mapping[str, NDArray[np.float64]] | str"]


def expected_movement(
    model: onnx.ModelProto,
    wide: onnx.ModelProto,
    inputs: Mapping[str, NDArray[np.float32]],
    unit: float,
    compute: Compute,
) -> dict[str, NDArray[np.float64]] | None:
    """How far each element of the outputs may be moved by rounding.

    A sum of n terms rounds n times, which adds up like a random walk, so the root of the most terms that a node adds up goes
    with it.

    Args:
        model: The case, in float32.
        wide: The same in float64.
        inputs: What it is fed; any types.
        unit: One unit in the last place, relative to the value.
        compute: Runs a model in float64 on these inputs; gives its outputs, or why there are none.

    Returns:
        Absolute and in float64, of the shape of each output; ``None`` if it cannot be measured.
    """
    if any(
        node.op_type in _JUMPING or node.op_type.startswith("QLinear") or _nests(model, node)
        for node in model.graph.node
    ):
        return None
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # whatever ONNX raises
        return None
    declared = [*graph.value_info, *graph.input, *graph.output]
    single = {value.name for value in declared if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    shapes: dict[str, Sequence[int]] = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim] for value in declared
    }
    shapes |= {tensor.name: tensor.dims for tensor in model.graph.initializer}
    shapes |= {name: value.shape for name, value in inputs.items()}
    exact = compute(wide)
    if isinstance(exact, str):
        return None
    moved = {name: np.zeros(np.shape(value)) for name, value in exact.items()}
    for trial in range(TRIALS):
        seen = compute(jittered(wide, dict.fromkeys(single, unit), trial))
        if isinstance(seen, str):
            return None
        for name, most in moved.items():
            if np.shape(seen[name]) != most.shape:
                return None
            with np.errstate(all="ignore"):
                apart = np.abs(np.asarray(seen[name], np.float64) - np.asarray(exact[name], np.float64))
            np.maximum(most, np.where(np.isfinite(apart), apart, 0.0), out=most)
    root = math.sqrt(max((terms(node, shapes) for node in model.graph.node), default=1))
    return {name: most * root for name, most in moved.items()}


def _nests(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    functions = {(each.domain, each.name) for each in model.functions}
    return any(bodies(node)) or (node.domain, node.op_type) in functions


def spelled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its norms spelled out, so that what they round inside is seen too; as it is where there are none."""
    for name in _SPELLED:
        view = View(Network(model))
        if fragments := matches(view, name):
            model = splice_in(view, fragments)
    return model


def jittered(
    wide: onnx.ModelProto, units: Mapping[str, float], trial: int, halves: Collection[str] = ()
) -> onnx.ModelProto:
    """The model with what it is fed and what its nodes compute moved at random; what is only moved about stays as it is.

    Args:
        wide: A model.
        units: Its tensors that are to be moved, float32 or float64, and by up to how much of the value.
        trial: Another number gives other movements, the same one the same.
        halves: Those of them that are float16: they are moved in float32.
    """
    result = onnx.ModelProto()
    result.CopyFrom(wide)
    graph = result.graph
    nodes: list[onnx.NodeProto] = []

    def move(source: str, target: str, plain: str) -> None:
        factor, seed = f"{target}__factor", float(trial * 10_000 + len(nodes))
        unit, half = units[plain], plain in halves
        if half:
            nodes.append(helper.make_node("Cast", [source], [f"{target}__single"], to=TensorProto.FLOAT))
            source = f"{target}__single"
        drawn = helper.make_node("RandomUniformLike", [source], [factor], low=1 - unit, high=1 + unit, seed=seed)
        nodes.extend([drawn, helper.make_node("Mul", [source, factor], [f"{target}__moved" if half else target])])
        if half:
            nodes.append(helper.make_node("Cast", [f"{target}__moved"], [target], to=TensorProto.FLOAT16))

    weights = {tensor.name for tensor in graph.initializer}
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.name in units and value.name not in weights:
            renamed[value.name] = f"{value.name}__moved"
            move(value.name, renamed[value.name], value.name)
    for node in wide.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        rounds = node.op_type not in EXACT_OPS and any(node.input)
        after = [name for name in node.output if name in units] if rounds else []
        copy.output[:] = [f"{name}__exact" if name in after else name for name in node.output]
        nodes.append(copy)
        for name in after:
            move(f"{name}__exact", name, name)
    del graph.node[:]
    graph.node.extend(nodes)
    return result


def terms(node: onnx.NodeProto, shapes: Shapes) -> int:
    """How many numbers a node adds up for one of those it makes; 1 where that is not known."""
    read = [shapes.get(name, ()) for name in node.input]
    if not read or not read[0]:
        return 1
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    made, op = shapes.get(node.output[0], ()), node.op_type
    count = 1
    if op in _WEIGHTED and len(read) > 1 and read[1]:
        weight = read[1]
        if op == "MatMul":
            count = weight[-2] if len(weight) > 1 else weight[0]
        elif op == "Gemm":
            count = weight[1 if attributes.get("transB") else 0]
        else:
            count = math.prod(weight) // max(weight[0 if op == "Conv" else 1], 1)
    elif op in _RECURRENT and len(read) > 2:
        count = read[1][-1] + read[2][-1]
    elif op in ("Softmax", "LogSoftmax", "CumSum"):
        count = max(read[0])
    elif op == "GroupNormalization":
        count = math.prod(read[0][1:]) // attributes["num_groups"]
    elif op == "AveragePool":
        count = math.prod(attributes["kernel_shape"])
    elif op.startswith(("Reduce", "Global")):
        count = math.prod(read[0]) // max(math.prod(made), 1)
    return max(count, 1)
