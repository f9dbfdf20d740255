"""How far rounding moves what a model, or a few nodes of it, make of given values, whatever runtime computes them.

To first order, rounding moves a result by the rounding of a step times the condition of what follows (N. Higham, "Accuracy and
Stability of Numerical Algorithms", 2002, chapter 1). It is measured: each tensor is moved at random in its last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.external_data import held_bytes
from bisect_trt.onnxlib.lower.roundtrip import EXACT_OPS
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import Draws, bodies
from bisect_trt.onnxlib.rewrites import matches
from bisect_trt.onnxlib.rewrites.view import View, splice_in
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.margins import DECIDING
from bisect_trt.tensors.stats import finite_rms
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample

MUCH_WORSE = 4.0
"""How many times the error of rounding alone, or of the reference, a target may make before it is a bug: it may round more
often."""
TRIALS = 2
MOST_QUESTIONS = 100
"""So many are asked of such a model, whose pieces may amplify rounding wherever it is cut; a search of a real culprit seldom
takes as many."""
_SMALL = 0.1
"""Past so much of an output a tolerance would say nothing of it."""
_MOST_BYTES = 256 << 20
_UNITS = {"float32": 2.0**-23, "float16": 2.0**-10}
MOVEMENT_TRIALS = 6
"""Computations. That an element whose movement is random is moved by less than a tenth of it in all is one in millions."""
_JUMPING = DECIDING | {"DynamicQuantizeLinear", "GridSample", "Mod", "Resize", "RoiAlign", "Upsample"}
"""Operators of which such a movement would say nothing: the least makes a wholly different result."""
_SPELLED = ("spelled-layer-norm", "spelled-instance-norm")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT = ("GRU", "LSTM", "RNN")

Shapes = Mapping[str, Sequence[int]]
Compute = Callable[[onnx.ModelProto], "Mapping[str, NDArray[np.float64]] | str"]


@dataclass(frozen=True)
class Amplified:
    """How far rounding moves an output.

    Attributes:
        name: The output that the target has furthest past the tolerance.
        moved: The largest absolute error that rounding made of it.
        off: The target's.
        size: The root mean square of what the output should be.
    """

    name: str
    moved: float
    off: float
    size: float

    @property
    def seen(self) -> str:
        """What was seen, with the figures."""
        return (
            "rounding alone fails it too: with each tensor moved at random in its last place the reference is off by "
            f"{self.moved:.3g} at '{self.name}', and the target by {self.off:.3g}"
        )

    @property
    def sentence(self) -> str:
        """What it means where no node turned out to be wrong, and what would tell."""
        ways = "real inputs (--load-inputs)"
        if self.moved < _SMALL * self.size:
            ways += f", or a tolerance that rounding keeps (--atol {2 * self.moved:.2g})"
        return f"Perhaps nobody is wrong, and the model amplifies rounding, for {self.seen}. What would tell: {ways}."

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = to_plain(
            {"output": self.name, "moved": self.moved, "off": self.off, "sentence": self.sentence}
        )
        return plain


def rounding_alone(
    subject: Subject, target: TargetSettings, tolerance: ToleranceOptions, seen: list[TensorComparison]
) -> Amplified | None:
    """Have the reference run the model with rounding added, twice.

    Args:
        subject: The model.
        target: Who fails on it.
        tolerance: How far it may be off.
        seen: What the target made of the outputs.

    Returns:
        What rounding does; ``None`` where it does less, by four times, or where that is not to be had: a target of low
        precision, whose own rounding is another question, a model that draws random numbers, whose runs differ without any
        rounding, one that does not run or is too large to be run once more.
    """
    failed = {each.name: each for each in seen if not each.passed}
    proto = subject.network.proto
    if not failed or target.low_precisions or not all(math.isfinite(each.severity) for each in failed.values()):
        return None
    draws = Draws(proto, subject.samples[0], unsure=True)
    if held_bytes(proto) > _MOST_BYTES or subject.reference.lost or any(map(draws.by, proto.graph.node)):
        return None
    infos, models = subject.infos, subject.models
    shapes = {name: [dim if isinstance(dim, int) else 1 for dim in info.shape or ()] for name, info in infos.items()}
    units = {
        name: _UNITS[infos[name].dtype.name]
        for name in (*subject.samples[0], *subject.network.computed)
        if name in infos and infos[name].dtype.name in _UNITS
    }
    halves = {name for name in units if infos[name].dtype == np.float16}
    for node in proto.graph.node:
        if node.op_type not in EXACT_OPS:
            many = math.sqrt(terms(node, shapes))  # each of so many is rounded as they are added up, in fp32
            units |= {name: max(units[name], _UNITS["float32"] * many) for name in node.output if name in units}
    original = subject.original
    inputs = models.feed("moved.in", subject.values(original, original.inputs))
    golden = models.feed("moved.golden", subject.values(original, list(failed)))
    worst: dict[str, TensorComparison] = {}
    for trial in range(TRIALS):
        path = models.write("moved", jittered(proto, units, trial, halves))
        reply = models.ask(
            Compare(reference_settings(target), path, (Sample(inputs, golden),), tolerance, tuple(failed), every=True)
        )
        if isinstance(reply, Failed):
            return None
        for each in reply.comparisons:
            if not each.passed and (each.name not in worst or worst[each.name].severity < each.severity):
                worst[each.name] = each
    if any(name not in worst or _much_worse(each, worst[name]) for name, each in failed.items()):
        return None
    furthest = max(failed.values(), key=lambda each: each.severity)
    size = finite_rms(subject.values(original, [furthest.name])[furthest.name])
    return Amplified(furthest.name, worst[furthest.name].max_abs or 0.0, furthest.max_abs or 0.0, size)


def _much_worse(target: TensorComparison, rounding: TensorComparison) -> bool:
    largest = (target.max_abs or 0.0) > MUCH_WORSE * (rounding.max_abs or 0.0)
    return largest or target.severity > MUCH_WORSE * rounding.severity


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
    for trial in range(MOVEMENT_TRIALS):
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
