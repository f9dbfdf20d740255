"""How far rounding alone moves what a model computes of given values, whatever runtime computes it.

To first order, rounding moves a result by the rounding of each step times the condition of what follows (N. Higham, "Accuracy and
Stability of Numerical Algorithms", 2002, chapter 1), and a sum of n terms rounds like a random walk of n steps. This is
measured: each tensor is moved at random by the rounding of its node, and the model is run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.commands.ties import DECIDING, Computed, Values
from bisect_trt.onnxlib.emulation import EXACT_OPS
from bisect_trt.onnxlib.external_data import held_bytes
from bisect_trt.onnxlib.nodes import Draws, bodies, clone
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.stats import finite_rms
from bisect_trt.worker.protocol import Failed

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
_JUMPING = DECIDING | {"DynamicQuantizeLinear", "GridSample", "Mod", "Resize", "RoiAlign", "Upsample"}
"""Operators for which the movement says nothing: the least difference makes a wholly different result."""
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
    draws = Draws(proto, subject.samples[0], unsure=True)
    if held_bytes(proto) > _MOST_BYTES or subject.reference.lost or any(map(draws.by, proto.graph.node)):
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
    keeps = f", or a tolerance that rounding keeps (--atol {2 * apart:.2g})"
    sentence = (
        "Perhaps neither side is wrong, and the model amplifies rounding: with each tensor moved at random in its last place the "
        f"reference is off by {apart:.3g} at '{furthest.name}', and the target by {off:.3g}. To tell, use real inputs "
        f"(--load-inputs){keeps if apart < _SMALL * finite_rms(golden[furthest.name]) else ''}."
    )
    plain: dict[str, Any] = to_plain({"output": furthest.name, "moved": apart, "off": off, "sentence": sentence})
    return plain


def _much_worse(target: TensorComparison, rounding: TensorComparison) -> bool:
    largest = (target.max_abs or 0.0) > MUCH_WORSE * (rounding.max_abs or 0.0)
    return largest or target.severity > MUCH_WORSE * rounding.severity


def is_steady(model: onnx.ModelProto) -> bool:
    """Whether small movements of a model's tensors make small movements of its outputs, as far as operators tell."""
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
    """The outputs of a model whose fp32 tensors are moved at random by their rounding, those that come out furthest off.

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
    """The model with its inputs and what its nodes compute moved at random; what is only moved about stays exact.

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
    """How far the node that makes each tensor of float32 rounds it, relative to its value."""
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
