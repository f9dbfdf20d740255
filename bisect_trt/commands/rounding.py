"""How far rounding alone moves what a model computes, and the decisions that it makes of that, whatever runtime computes it.

To first order, rounding moves a result by the rounding of each step times the condition of what follows (N. Higham, "Accuracy and
Stability of Numerical Algorithms", 2002, chapter 1), and a sum of n terms rounds like a random walk of n steps. This is
measured: each tensor is moved at random by the rounding of its node, and the model is run again. A node that makes an index, a
bool or a step of a number may decide otherwise then: a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.emulation import EXACT_OPS
from bisect_trt.onnxlib.load import tensor_bytes
from bisect_trt.onnxlib.nodes import attribute, bodies, clone, drawing_nodes
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.info import TensorInfo, finite_rms
from bisect_trt.tensors.tolerance import Precision, automatic_tolerance
from bisect_trt.worker.protocol import Failed

Values = Mapping[str, NDArray[Any]]
Computed = Values | str
"""The outputs of a model, or why there are none."""
Run = Callable[[onnx.ModelProto, Values], Computed]
MUCH_WORSE = 4.0
"""A target may be off by so many times the error of rounding alone before that is a bug: it may round more often."""
ULP = 2.0**-23
"""One unit in the last place of float32, relative to the value."""
_TRIALS = 2
_SMALL = 0.1
"""A tolerance above this share of an output would be meaningless."""
_MOST_BYTES = 256 << 20
DECIDING = frozenset({
    "ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual",
    "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Sign", "TopK",
})  # fmt: skip
"""Operators that may make a wholly different result of the least difference in their inputs."""
UNITS = {Precision.TF32: 2.0**-10, Precision.FP16: 2.0**-10, Precision.BF16: 2.0**-7}
"""One unit in the last place, relative to the value."""
_CHOICES = ("ArgMax", "ArgMin", "TopK")
_INSIDE = {"GridSample": 1, "Resize": 2, "Upsample": 1}
"""Operators that compute an index inside, of the input with this number, and pick an element by it."""
_INTEGERS = {kind for name, kind in onnx.TensorProto.DataType.items() if "INT" in name or name == "BOOL"}
_JUMPING = DECIDING | {"DynamicQuantizeLinear", "GridSample", "Mod", "Resize", "RoiAlign", "Upsample"}
"""Operators that small movements do not measure: the least difference makes a wholly different result."""
_TERMS: Mapping[str, Callable[[Sequence[Sequence[int]], Sequence[int]], int]] = {
    "MatMul": lambda read, _: read[0][-1],
    "Gemm": lambda read, made: math.prod(read[0]) // made[0],
    **dict.fromkeys(("Conv", "ConvTranspose"), lambda read, made: math.prod(read[1]) // made[1]),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), lambda read, _: read[1][-1] + read[2][-1]),
    **dict.fromkeys(("CumSum", "LogSoftmax", "Softmax"), lambda read, _: max(read[0])),
    "Reduce": lambda read, made: math.prod(read[0]) // math.prod(made),
}
"""How many numbers a node adds up for each element that it makes, of the shapes that it reads and makes."""


def rounding_alone(subject: Subject, check: CheckSettings, seen: Sequence[TensorComparison]) -> dict[str, Any] | None:
    """Run the reference with rounding added, twice, and compare it with itself.

    Args:
        subject: The model.
        check: The target that fails on it, and how far it may be off.
        seen: How far the target's outputs are off.

    Returns:
        The field ``amplified`` of the result, where rounding alone fails each output that fails and is off at least a quarter as
        far. ``None`` also where that cannot be measured: a target of low precision, NaN or Inf, a model that draws random
        numbers or is too large to be run once more.
    """
    failed = {each.name: each for each in seen if not each.passed}
    proto, original = subject.network.proto, subject.original
    if not failed or check.target is None or check.target.low_precisions:
        return None
    if not all(math.isfinite(each.severity) for each in failed.values()):
        return None
    # A runtime may keep a second copy of each weight, laid out for its kernels.
    large = 2 * sum(map(tensor_bytes, proto.graph.initializer)) > _MOST_BYTES
    if large or subject.reference.lost or drawing_nodes(proto, subject.samples[0], unsure=True):
        return None
    golden, fed = subject.values(original, list(failed)), subject.values(original, original.inputs)

    def run(model: onnx.ModelProto) -> Computed:
        made = subject.models.run("moved", model, fed)
        return made.message if isinstance(made, Failed) else made

    moved = furthest_moved(proto, subject.infos, ULP, golden, run, _TRIALS)
    if isinstance(moved, str):
        return None
    worst = {each.name: each for each in compare_all(golden, moved, check.tolerance) if not each.passed}
    if any(name not in worst or _much_worse(each, worst[name]) for name, each in failed.items()):
        return None
    furthest = max(failed.values(), key=lambda each: each.severity)
    apart, off = worst[furthest.name].max_abs or 0.0, furthest.max_abs or 0.0
    amplifier = _amplifier(subject, run)
    keeps = f", or a tolerance that rounding keeps (--atol {2 * apart:.2g})"
    sentence = (
        f"Rounding explains it: with each tensor moved at random in its last place the reference is off by {apart:.3g} at "
        f"'{furthest.name}', and the target by {off:.3g}."
        + (f" {amplifier.words} amplifies it most." if amplifier else "")
        + " To find more, use real inputs (--load-inputs)"
        + f"{keeps if apart < _SMALL * finite_rms(golden[furthest.name]) else ''}."
    )
    found = {"output": furthest.name, "moved": apart, "off": off, "op": amplifier.op if amplifier else None}
    spread = amplifier is not None and amplifier.spread
    plain: dict[str, Any] = to_plain({**found, "spread": spread, "sentence": sentence})
    return plain


@dataclass(frozen=True)
class Amplifier:
    """The operator whose nodes make relative errors larger by the most, all of them together.

    Attributes:
        op: The operator.
        words: The same, with how many nodes and by how much.
        spread: Whether many nodes share in it, so that no piece of the model is to blame: none makes half of its digits alone.
    """

    op: str
    words: str
    spread: bool


def _amplifier(subject: Subject, run: Callable[[onnx.ModelProto], Computed]) -> Amplifier | None:
    """Return the operator that amplifies most; ``None`` where that cannot be seen, or nothing amplifies."""
    network, infos = subject.network, subject.infos
    names = [name for name in network.computed if name in infos and infos[name].dtype == np.float32]
    if sum(4 * math.prod(int(dim or 1) for dim in infos[name].shape or ()) for name in names) > _MOST_BYTES:
        return None
    moved = run(_jittered(subject.marked(names), _roundings(network.proto, infos, ULP), 0))
    if isinstance(moved, str):
        return None
    apart: dict[str, float] = {}
    for name in names:
        golden = subject.reference.select([name])[name]
        scale = finite_rms(golden)
        apart[name] = finite_rms(moved[name] - golden) / scale if scale else 0.0
    gains: dict[str, list[float]] = {}
    for index in network.order:
        read = max([apart[name] for name in network.reads[index] if name in apart], default=0.0)
        made = max([apart[name] for name in network.made(index) if name in apart], default=0.0)
        if made > 2 * max(read, ULP):
            gains.setdefault(network.nodes[index].op_type, []).append(made / max(read, ULP))
    if not gains:
        return None
    op = max(gains, key=lambda name: math.prod(gains[name]))
    many = f"{len(gains[op])} nodes, each by up" if len(gains[op]) > 1 else "by up"
    spread = max(map(max, gains.values())) ** 2 < max(apart.values()) / ULP
    return Amplifier(op, f"{op} ({many} to {max(gains[op]):.2g} times)", spread)


def _much_worse(target: TensorComparison, rounding: TensorComparison) -> bool:
    largest = (target.max_abs or 0.0) > MUCH_WORSE * (rounding.max_abs or 0.0)
    return largest or target.severity > MUCH_WORSE * rounding.severity


def is_steady(model: onnx.ModelProto) -> bool:
    """Return whether small movements of a model's tensors make small movements of its outputs, as far as operators tell."""
    functions = {(each.domain, each.name) for each in model.functions}
    return not any(
        any(bodies(node))
        or (node.domain, node.op_type) in functions
        or node.op_type in _JUMPING
        or node.op_type.startswith("QLinear")
        for node in model.graph.node
    )


def furthest_moved(
    model: onnx.ModelProto,
    infos: Mapping[str, TensorInfo],
    unit: float,
    golden: Values,
    run: Callable[[onnx.ModelProto], Computed],
    trials: int,
) -> Computed:
    """Return the outputs of a model with its fp32 tensors moved at random by their rounding, the ones furthest off.

    Args:
        model: The model.
        infos: Types and shapes of its tensors.
        unit: One unit in the last place, relative to the value.
        golden: The outputs as they are without.
        run: Runs a model on the same inputs.
        trials: How often to move them.
    """
    units, found = _roundings(model, infos, unit), dict[str, NDArray[Any]]()
    for trial in range(trials):
        made = run(_jittered(model, units, trial))
        if isinstance(made, str):
            return made
        for name, right in golden.items():
            with np.errstate(all="ignore"):
                further = name not in found or _off(made[name], right) > _off(found[name], right)
            found |= {name: made[name]} if further else {}
    return found


def _off(value: NDArray[Any], right: NDArray[Any]) -> float:
    return float(np.max(np.abs(value.astype(np.float64) - right), initial=0.0)) if value.shape == right.shape else 0.0


def _jittered(model: onnx.ModelProto, units: Mapping[str, float], trial: int) -> onnx.ModelProto:
    """Return the model with its inputs and what its nodes compute moved at random; what is only moved about stays exact.

    Args:
        model: A model.
        units: Its tensors that are moved, float32 or float64, and by up to how much of the value.
        trial: Another number gives other movements, the same one the same.
    """
    result = clone(model)
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
        copy = clone(node)
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


def _roundings(model: onnx.ModelProto, infos: Mapping[str, TensorInfo], unit: float) -> dict[str, float]:
    """Return how far the node that makes each tensor of float32 rounds it, relative to its value."""
    shapes = {name: [dim if isinstance(dim, int) else 1 for dim in info.shape or ()] for name, info in infos.items()}
    units = dict.fromkeys((name for name, info in infos.items() if info.dtype == np.float32), unit)
    for node in model.graph.node:
        many = _TERMS.get("Reduce" if node.op_type.startswith(("Reduce", "Global")) else node.op_type)
        try:
            made = shapes[node.output[0]]
            count = many([shapes.get(name, ()) for name in node.input], made) if many else 1
        except (IndexError, KeyError, ValueError, ZeroDivisionError):  # a shape that is not known, or of no elements
            count = 1
        units |= {name: unit * math.sqrt(max(count, 1)) for name in node.output if name in units}
    return units


def decides(node: onnx.NodeProto) -> bool:
    """Return whether the least difference in a node's inputs may make a wholly different result."""
    if node.op_type in _INSIDE:
        default = b"linear" if node.op_type == "GridSample" else b"nearest"
        return len(node.input) > _INSIDE[node.op_type] and attribute(node, "mode", default) == b"nearest"
    return node.op_type in DECIDING and (node.op_type != "Cast" or attribute(node, "to") in _INTEGERS)


def mark_decisions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the tensors that its deciding nodes read and make among its outputs; the same if it has none."""
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    made = {name for node in model.graph.node for name in node.output} - known
    deciding = [name for node in model.graph.node if decides(node) for name in (*node.input, *node.output)]
    added = list(dict.fromkeys(name for name in deciding if name in made))
    if not added:
        return model
    marked = clone(model)
    types = {value.name: value for value in model.graph.value_info}
    marked.graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added)
    return marked


def first_turned(model: onnx.ModelProto, reference: Values, target: Values) -> onnx.NodeProto | None:
    """Return the first node that decided otherwise on the target."""

    def turned(node: onnx.NodeProto) -> bool:
        names = [name for name in node.output if name in reference and name in target]
        return decides(node) and not all(np.array_equal(reference[name], target[name]) for name in names)

    return next(filter(turned, model.graph.node), None)


def is_tie(
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    inputs: Values,
    reference: Values,
    others: Sequence[Values],
    precision: Precision,
    run: Run,
) -> bool:
    """Return whether a node decides as it did on the target, where what it reads moves as far as any two sides are apart.

    A decision that rounding cannot have moved over its edge is wrong; of equals, either may be chosen.

    Args:
        node: It decided otherwise on the target.
        model: Has the node.
        inputs: The model's.
        reference: The tensors of the reference.
        others: The tensors of the target; and of float64, where they are known.
        precision: The precision that the target rounds to.
        run: Runs a model on the reference.
    """
    names, target = [name for name in node.input if name], others[0]
    stored = {each.name: each for each in model.graph.initializer if each.name in names and not each.external_data}
    weights = {name: np.asarray(numpy_helper.to_array(tensor)) for name, tensor in stored.items()}
    known, decisive = {**reference, **inputs, **weights}, node.input[_INSIDE.get(node.op_type, 0)]
    if any(name not in known for name in names) or known[decisive].dtype.kind != "f" or not known[decisive].size:
        return False
    fed = {name: known[name] for name in names}
    if node.op_type in _INSIDE:
        # What float64 decides alike is exact, and rounding cannot turn it.
        if len(others) < 2 or all(np.array_equal(reference[name], others[1][name]) for name in node.output):
            return False
        slack = np.full_like(fed[decisive], 8 * ULP) * np.maximum(np.abs(fed[decisive]), 1)
    else:
        unit = UNITS.get(precision, 0.0)
        computed = [name for name in names if name not in weights]
        moved = max(
            _apart(fed[name], other.get(name), unit if name in inputs else None)
            for name in computed
            for other in others
        )
        resolved = automatic_tolerance(fed[decisive], precision)
        slack = 2 * np.minimum(moved, resolved.atol + resolved.rtol * np.abs(fed[decisive]))
    ways = [{**fed, decisive: (fed[decisive] + way * slack).astype(fed[decisive].dtype)} for way in (0, -1, 1)]
    shown = {name: np.asarray(target.get(name, value)) for name, value in fed.items()}
    piece = _alone(node, model, fed, reference)
    made = [each for each in (run(piece, values) for values in (*ways, shown)) if not isinstance(each, str)]
    if node.op_type in _CHOICES:
        picks = node.output[-1]  # of TopK the values come first
        return any(_alike(node, fed[decisive], slack, each[picks], target[picks]) for each in made)
    for name in filter(None, node.output):
        same = [each[name] == target[name] for each in made if each[name].shape == target[name].shape]
        if not same or not np.logical_or.reduce(same).all():
            return False
    return True


def _apart(one: NDArray[Any], other: NDArray[Any] | None, unit: float | None) -> float:
    """Return how far two roundings of a tensor are apart, of an input by its unit; infinitely where that is not known."""
    if one.dtype.kind != "f":
        return 0.0
    if unit is not None:
        return float(np.max(np.abs(one), initial=0.0)) * unit
    if other is None or other.shape != one.shape:
        return math.inf
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))[np.isfinite(one) | np.isfinite(other)]
    return float(np.max(apart, initial=0.0)) if np.isfinite(apart).all() else math.inf


def _alone(node: onnx.NodeProto, model: onnx.ModelProto, fed: Values, made: Values) -> onnx.ModelProto:
    """Return a model of one node."""
    info = helper.make_tensor_value_info
    inputs = [info(name, element_type(value.dtype), value.shape) for name, value in fed.items()]
    outputs = [info(name, element_type(made[name].dtype), [None] * made[name].ndim) for name in node.output if name]
    graph = helper.make_graph([node], "decision", inputs, outputs)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _alike(
    node: onnx.NodeProto, values: NDArray[Any], slack: NDArray[Any], right: NDArray[Any], chosen: NDArray[Any]
) -> bool:
    """Return whether the values at the indices that are right, and at those that were chosen, are apart by rounding at most."""
    axis = attribute(node, "axis", -1 if node.op_type == "TopK" else 0) % values.ndim
    if node.op_type != "TopK" and not attribute(node, "keepdims", 1):
        right, chosen = np.expand_dims(right, axis), np.expand_dims(chosen, axis)
    if right.shape != chosen.shape or not ((chosen >= 0) & (chosen < values.shape[axis])).all():
        return False
    best, taken, most = (
        np.take_along_axis(each, index.astype(np.int64), axis)
        for each, index in ((values, right), (values, chosen), (slack, right))
    )
    return bool((np.abs(best - taken) <= most).all())
