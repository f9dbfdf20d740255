"""How far rounding moves what a model computes of given values, whatever runtime computes it.

To first order, rounding moves a result by the rounding of each step times the condition of what follows (N. Higham, "Accuracy and
Stability of Numerical Algorithms", 2002, chapter 1), and a sum of n terms rounds like a random walk of n steps. This is
measured: each tensor is moved at random by the rounding of its node, and the model is run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.emulation import EXACT_OPS
from bisect_trt.onnxlib.external_data import held_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import Draws, bodies
from bisect_trt.onnxlib.rewrites import NetworkView, splice_in
from bisect_trt.onnxlib.rules import matches
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.margins import DECIDING
from bisect_trt.tensors.stats import finite_rms
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample

MUCH_WORSE = 4.0
"""A target may be off by so many times the error of rounding alone before that is a bug: it may round more often."""
MOST_QUESTIONS = 100
"""The limit of a search in a model that amplifies rounding: its pieces may amplify it wherever they are cut."""
ULP = 2.0**-23
"""One unit in the last place of float32, relative to the value."""
_TRIALS = 2
_SMALL = 0.1
"""A tolerance past so much of an output would say nothing of it."""
_MOST_BYTES = 256 << 20
_MOVEMENT_TRIALS = 6
"""That an element whose movement is random moves by less than a tenth of it in all of them is one in millions."""
_JUMPING = DECIDING | {"DynamicQuantizeLinear", "GridSample", "Mod", "Resize", "RoiAlign", "Upsample"}
"""Operators for which the movement says nothing: the least difference makes a wholly different result."""
_SPELLED = ("spelled-layer-norm", "spelled-instance-norm")

Shapes = Mapping[str, Sequence[int]]
Compute = Callable[[onnx.ModelProto], "Mapping[str, NDArray[np.float64]] | str"]
_TERMS: Mapping[str, Callable[[Sequence[Sequence[int]], Sequence[int]], int]] = {
    "MatMul": lambda read, _: read[0][-1],
    "Gemm": lambda read, made: math.prod(read[0]) // made[0],
    **dict.fromkeys(("Conv", "ConvTranspose"), lambda read, made: math.prod(read[1]) // made[1]),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), lambda read, _: read[1][-1] + read[2][-1]),
    **dict.fromkeys(("CumSum", "LogSoftmax", "Softmax"), lambda read, _: max(read[0])),
    "Reduce": lambda read, made: math.prod(read[0]) // math.prod(made),
}
"""How many numbers a node adds up for each element that it makes, of the shapes that it reads and makes."""


def rounding_alone(
    subject: Subject, target: TargetSettings, tolerance: ToleranceOptions, seen: Sequence[TensorComparison]
) -> dict[str, Any] | None:
    """Run the reference with rounding added, twice, and compare it with itself.

    Args:
        subject: The model.
        target: The target that fails on it.
        tolerance: How far it may be off.
        seen: How far the target's outputs are off.

    Returns:
        The field ``amplified`` of the result, where rounding alone fails each output that fails and is off at least a quarter as
        far. ``None`` also where that cannot be measured: a target of low precision, NaN or Inf, a model that draws random
        numbers or is too large to be run once more.
    """
    failed = {each.name: each for each in seen if not each.passed}
    proto, models, infos = subject.network.proto, subject.models, subject.infos
    if not failed or target.low_precisions or not all(math.isfinite(each.severity) for each in failed.values()):
        return None
    draws = Draws(proto, subject.samples[0], unsure=True)
    if held_bytes(proto) > _MOST_BYTES or subject.reference.lost or any(map(draws.by, proto.graph.node)):
        return None
    shapes = {name: [dim if isinstance(dim, int) else 1 for dim in info.shape or ()] for name, info in infos.items()}
    units = _roundings(proto, [name for name, info in infos.items() if info.dtype == np.float32], shapes, ULP)
    original = subject.original
    golden = subject.values(original, list(failed))
    sample = Sample(
        models.feed("moved.in", subject.values(original, original.inputs)), models.feed("moved.golden", golden)
    )
    worst: dict[str, TensorComparison] = {}
    for trial in range(_TRIALS):
        path = models.write("moved", jittered(proto, units, trial))
        request = Compare(reference_settings(target), path, (sample,), tolerance, tuple(failed), every=True)
        if isinstance(reply := models.workers.ask(request), Failed):
            return None
        for each in reply.comparisons:
            if not each.passed and (each.name not in worst or worst[each.name].severity < each.severity):
                worst[each.name] = each
    if any(name not in worst or _much_worse(each, worst[name]) for name, each in failed.items()):
        return None
    furthest = max(failed.values(), key=lambda each: each.severity)
    moved, off = worst[furthest.name].max_abs or 0.0, furthest.max_abs or 0.0
    keeps = f", or a tolerance that rounding keeps (--atol {2 * moved:.2g})"
    sentence = (
        "Perhaps neither side is wrong, and the model amplifies rounding: with each tensor moved at random in its last place the "
        f"reference is off by {moved:.3g} at '{furthest.name}', and the target by {off:.3g}. To tell, use real inputs "
        f"(--load-inputs){keeps if moved < _SMALL * finite_rms(golden[furthest.name]) else ''}."
    )
    plain: dict[str, Any] = to_plain({"output": furthest.name, "moved": moved, "off": off, "sentence": sentence})
    return plain


def _much_worse(target: TensorComparison, rounding: TensorComparison) -> bool:
    largest = (target.max_abs or 0.0) > MUCH_WORSE * (rounding.max_abs or 0.0)
    return largest or target.severity > MUCH_WORSE * rounding.severity


def expected_movement(
    model: onnx.ModelProto,
    wide: onnx.ModelProto,
    inputs: Mapping[str, NDArray[Any]],
    unit: float,
    compute: Compute,
) -> dict[str, NDArray[np.float64]] | None:
    """How far rounding may move each element of the outputs.

    Args:
        model: The case, in float32.
        wide: The same in float64.
        inputs: The input values; any types.
        unit: One unit in the last place, relative to the value.
        compute: Runs a model in float64 on these inputs; gives its outputs, or why there are none.

    Returns:
        Absolute and in float64, of the shape of each output; ``None`` if it cannot be measured.
    """
    functions = {(each.domain, each.name) for each in model.functions}
    for node in model.graph.node:
        nested = any(bodies(node)) or (node.domain, node.op_type) in functions
        if nested or node.op_type in _JUMPING or node.op_type.startswith("QLinear"):
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
    exact, units = compute(wide), _roundings(model, single, shapes, unit)
    if isinstance(exact, str):
        return None
    most = {name: np.zeros(np.shape(value)) for name, value in exact.items()}
    for trial in range(_MOVEMENT_TRIALS):
        seen = compute(jittered(wide, units, trial))
        if isinstance(seen, str) or any(np.shape(seen[name]) != value.shape for name, value in most.items()):
            return None
        with np.errstate(all="ignore"):
            for name, value in most.items():
                moved = np.abs(np.asarray(seen[name], np.float64) - np.asarray(exact[name], np.float64))
                np.maximum(value, np.where(np.isfinite(moved), moved, 0.0), out=value)
    return most


def spelled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its norms spelled out, so that the rounding inside them is measured too."""
    for name in _SPELLED:
        view = NetworkView(Network(model))
        if fragments := matches(view, name):
            model = splice_in(view, fragments)
    return model


def jittered(model: onnx.ModelProto, units: Mapping[str, float], trial: int) -> onnx.ModelProto:
    """The model with its inputs and what its nodes compute moved at random; what is only moved about stays exact.

    Args:
        model: A model.
        units: Its tensors that are moved, float32 or float64, and by up to how much of the value.
        trial: Another number gives other movements, the same one the same.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []

    def move(source: str, target: str, unit: float) -> None:
        factor, seed = f"{target}__factor", float(trial * 10_000 + len(nodes))
        drawn = helper.make_node("RandomUniformLike", [source], [factor], low=1 - unit, high=1 + unit, seed=seed)
        nodes.extend([drawn, helper.make_node("Mul", [source, factor], [target])])

    fed = {value.name for value in model.graph.input if value.name in units}
    fed -= {tensor.name for tensor in model.graph.initializer}
    for name in sorted(fed):
        move(name, f"{name}__moved", units[name])
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [f"{name}__moved" if name in fed else name for name in node.input]
        rounds = node.op_type not in EXACT_OPS and any(node.input)
        moved = [name for name in node.output if name in units] if rounds else []
        copy.output[:] = [f"{name}__exact" if name in moved else name for name in node.output]
        nodes.append(copy)
        for name in moved:
            move(f"{name}__exact", name, units[name])
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def _roundings(model: onnx.ModelProto, names: Collection[str], shapes: Shapes, unit: float) -> dict[str, float]:
    """How far the node that makes each tensor rounds it, relative to its value."""
    units = dict.fromkeys(names, unit)
    for node in model.graph.node:
        many = _TERMS.get("Reduce" if node.op_type.startswith(("Reduce", "Global")) else node.op_type)
        try:
            made = shapes[node.output[0]]
            count = many([shapes.get(name, ()) for name in node.input], made) if many else 1
        except (IndexError, KeyError, ValueError, ZeroDivisionError):  # a shape that is not known, or of no elements
            count = 1
        units |= {name: unit * math.sqrt(max(count, 1)) for name in node.output if name in units}
    return units
