"""Measures how far rounding alone moves the outputs of a model, and whether it can turn a decision (a tie).

To first order, rounding moves a result by the rounding of each step times the condition of what
follows (N. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapter 1), and a sum of
n terms rounds like a random walk of n steps. This is measured: each tensor is perturbed at random
by the rounding of its node, and the model is run again on the reference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bisect_trt.onnxlib.load import tensor_bytes
from bisect_trt.onnxlib.nodes import (
    attribute,
    bodies,
    clone,
    drawing_nodes,
    function_key,
    keep_only,
)
from bisect_trt.onnxlib.roundings import EXACT_OPS
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.report.faults import describe_amplified
from bisect_trt.report.parts import Amplified
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.files import Arrays, Values
from bisect_trt.tensors.info import Array, TensorInfo, finite_rms
from bisect_trt.tensors.tolerance import Precision, automatic_tolerance, coarser, precision_of
from bisect_trt.worker.protocol import Failed

Computed = Values | str
"""The outputs of a model, or the reason why there are none."""
Run = Callable[[onnx.ModelProto, Values], Computed]
MUCH_WORSE = 4.0
"""A target that is off by more than this multiple of the rounding error has a bug; below it, it may
round more often."""
ULP = 2.0**-23
"""One unit in the last place of float32, relative to the value."""
UNITS = {Precision.TF32: 2.0**-10, Precision.FP16: 2.0**-10, Precision.BF16: 2.0**-7}
"""One unit in the last place of lower precisions, relative to the value."""
_TRIALS = 2
_MEANINGLESS = 0.1
"""No tolerance above this share of an output is recommended."""
_MOST_BYTES = 256 << 20
_CHOICES = ("ArgMax", "ArgMin", "TopK")
_DECIDING = {
    *_CHOICES, "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual",
    "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Sign",
}  # fmt: skip
"""Operators with results that change completely for the smallest change of their inputs."""
_MONOTONIC = {"Cast", "Ceil", "Floor", "QuantizeLinear", "Round", "Sign"}
"""Deciding operators that keep the order of their inputs, so that two results explain each result
between them."""
_EXACT = EXACT_OPS | _MONOTONIC | {"Max", "Min", "ReduceMax", "ReduceMin"}
"""Operators that compute nothing that fp32 rounds: copies, choices, integers; a count of steps is one."""
_DISCONTINUOUS = {
    *_DECIDING,
    "DynamicQuantizeLinear",
    "GridSample",
    "Mod",
    "Resize",
    "RoiAlign",
    "Upsample",
}
_INTEGERS = {
    kind for name, kind in onnx.TensorProto.DataType.items() if "INT" in name or name == "BOOL"
}
_TERMS: Mapping[str, Callable[[Sequence[Sequence[int]], Sequence[int]], int]] = {
    "MatMul": lambda read, _: read[0][-1],
    "Gemm": lambda read, output: math.prod(read[0]) // output[0],
    **dict.fromkeys(
        ("Conv", "ConvTranspose"), lambda read, output: math.prod(read[1]) // output[1]
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), lambda read, _: read[1][-1] + read[2][-1]),
    **dict.fromkeys(("CumSum", "LogSoftmax", "Softmax"), lambda read, _: max(read[0])),
    "Reduce": lambda read, output: math.prod(read[0]) // math.prod(output),
}
"""Number of terms that a node adds up for each output element, from the shapes of its inputs and
output."""


def rounding_alone(
    subject: Subject, check: CheckSettings, comparisons: Sequence[TensorComparison]
) -> Amplified | None:
    """Run the reference with rounding added, twice, and compare it with itself.

    Returns:
        The field ``amplified`` of the result, if rounding alone fails each output that fails on the
        target and is off at least a
        quarter as far. ``None`` also where that cannot be measured: a target of low precision, NaN
            or Inf, a model that draws
        random numbers or is too large to be run once more.
    """
    failed = _failing(comparisons)
    proto = subject.network.proto
    original = subject.original
    if not failed or check.target is None or check.target.low_precisions:
        return None
    # A runtime may keep a second copy of each weight, laid out for its kernels.
    large = 2 * sum(map(tensor_bytes, proto.graph.initializer)) > _MOST_BYTES
    finite = all(math.isfinite(comparison.severity) for comparison in failed.values())
    if large or not finite or subject.reference.lost or drawing_nodes(proto):
        return None
    golden = subject.values(original, list(failed))
    fed = subject.values(original, original.inputs)

    def run(model: onnx.ModelProto) -> Computed:
        outputs = subject.models.run("perturbed", model, fed)
        return outputs.message if isinstance(outputs, Failed) else outputs

    perturbed = perturb(proto, roundings(proto, subject.infos, ULP), golden, run, _TRIALS)
    if isinstance(perturbed, str):
        return None
    alone = _failing(compare_all(golden, perturbed, check.tolerance))
    if not all(name in alone and _is_as_far(failed[name], alone[name]) for name in failed):
        return None
    furthest = max(failed.values(), key=lambda comparison: comparison.severity)
    by_rounding = alone[furthest.name].max_abs or 0.0
    off = furthest.max_abs or 0.0
    op, spread = _amplifier(subject, run)
    atol = _passing_atol(failed.values(), by_rounding)
    smallest = min(finite_rms(golden[name]) for name in failed)
    return Amplified(
        output=furthest.name,
        moved=by_rounding,
        off=off,
        op=op,
        spread=spread,
        sentence=describe_amplified(
            furthest.name, by_rounding, off, op, atol if atol < _MEANINGLESS * smallest else None
        ),
    )


def _passing_atol(failed: Iterable[TensorComparison], by_rounding: float) -> float:
    """Return a tolerance that passes: the target may be further off than rounding is, and another output by more."""
    return max(2 * by_rounding, *(comparison.max_abs or 0.0 for comparison in failed))


def _failing(comparisons: Sequence[TensorComparison]) -> dict[str, TensorComparison]:
    """Return the outputs that do not match."""
    return {comparison.name: comparison for comparison in comparisons if not comparison.passed}


def _relative_rms(values: Array, golden: Array) -> float:
    """Return the root mean square of the errors, relative to the root mean square of the values."""
    scale = finite_rms(golden)
    return finite_rms(values - golden) / scale if scale else 0.0


def _is_as_far(failed: TensorComparison, alone: TensorComparison) -> bool:
    """Return whether rounding alone moves an output at least a quarter as far as it is off."""
    if (failed.max_abs or 0.0) > MUCH_WORSE * (alone.max_abs or 0.0):
        return False
    return failed.severity <= MUCH_WORSE * alone.severity


def _amplifier(
    subject: Subject, run: Callable[[onnx.ModelProto], Computed]
) -> tuple[str | None, bool]:
    """Find the operator that amplifies relative errors most, over all its nodes.

    Returns:
        The operator, if any amplifies and that can be measured; and whether the gain is spread over
        many nodes, so that no piece
        of the model is to blame: no node alone loses half of the digits that are lost.
    """
    network = subject.network
    infos = subject.infos
    names = [name for name in network.computed if name in infos and infos[name].dtype == np.float32]
    if (
        sum(4 * math.prod(int(dim or 1) for dim in infos[name].shape or ()) for name in names)
        > _MOST_BYTES
    ):
        return None, False
    perturbed = run(_perturbed(subject.marked(names), roundings(network.proto, infos, ULP), 0))
    if isinstance(perturbed, str):
        return None, False
    errors = {
        name: _relative_rms(perturbed[name], subject.reference.select([name])[name])
        for name in names
    }
    # An error that grows in every layer grows as a product, so digits are added.
    gains = defaultdict[str, float](float)  # in digits of base 2; as a factor
    most = 0.0
    for index in network.order:
        read = max([ULP, *(errors.get(name, 0.0) for name in network.reads[index])])
        made = max((errors.get(name, 0.0) for name in network.made(index)), default=0.0)
        if made > 2 * read:
            gains[network.nodes[index].op_type] += math.log2(made / read)
            most = max(most, made / read)
    if not gains:
        return None, False
    return max(gains, key=gains.__getitem__), most**2 < max(errors.values()) / ULP


def is_continuous(model: onnx.ModelProto) -> bool:
    """Return whether small changes of a model's tensors make small changes of its outputs, as far as operators show."""
    functions = frozenset(map(function_key, model.functions))
    return not any(
        any(bodies(node))
        or function_key(node) in functions
        or node.op_type in _DISCONTINUOUS
        or node.op_type.startswith("QLinear")
        for node in model.graph.node
    )


def perturb(
    model: onnx.ModelProto,
    units: Mapping[str, float],
    golden: Values,
    run: Callable[[onnx.ModelProto], Computed],
    trials: int,
) -> Computed:
    """Return the outputs of a model with fp32 tensors perturbed at random: of several trials the worst.

    Args:
        model: The model.
        units: The largest relative perturbation of each tensor.
        golden: The outputs of the model as it is, by name.
        run: Runs a model on the reference.
        trials: How many times it is perturbed.
    """
    outputs = Arrays()

    def off(value: Array, right: Array) -> float:
        with np.errstate(all="ignore"):
            aligned = value.shape == right.shape
            return (
                float(np.max(np.abs(value.astype(np.float64) - right), initial=0.0))
                if aligned
                else 0.0
            )

    # Rounding errors cancel in one draw and add up in another.
    for trial in range(trials):
        perturbed = run(_perturbed(model, units, trial))
        if isinstance(perturbed, str):
            return perturbed
        for name, right in golden.items():
            if name not in outputs or off(perturbed[name], right) > off(outputs[name], right):
                outputs[name] = perturbed[name]
    return outputs


def _perturbed(model: onnx.ModelProto, units: Mapping[str, float], seed: int) -> onnx.ModelProto:
    """Return the model with random factors on its inputs and on what its nodes compute; copies stay exact."""
    result = clone(model)
    nodes: list[onnx.NodeProto] = []

    def multiply(source: str, target: str, unit: float) -> None:
        factor = f"{target}__factor"
        # Nodes with equal seeds would draw equal factors, whose effects cancel or add up.
        number = float(seed * 10_000 + len(nodes))
        drawn = helper.make_node(
            "RandomUniformLike", [source], [factor], low=1 - unit, high=1 + unit, seed=number
        )
        nodes.extend([drawn, helper.make_node("Mul", [source, factor], [target])])

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name for value in model.graph.input if value.name in units} - weights
    for name in sorted(inputs):
        multiply(name, f"{name}__perturbed", units[name])
    for node in model.graph.node:
        copy = clone(node)
        copy.input[:] = [f"{name}__perturbed" if name in inputs else name for name in node.input]
        rounds = node.op_type not in _EXACT and any(node.input)
        changed = [name for name in node.output if name in units] if rounds else []
        copy.output[:] = [f"{name}__exact" if name in changed else name for name in node.output]
        nodes.append(copy)
        for name in changed:
            multiply(f"{name}__exact", name, units[name])
    keep_only(result.graph.node, nodes)
    return result


def roundings(
    model: onnx.ModelProto, infos: Mapping[str, TensorInfo], unit: float
) -> dict[str, float]:
    """Return the rounding error of each float32 tensor that a node makes, relative to its value."""
    shapes = {
        name: [dim if isinstance(dim, int) else 1 for dim in info.shape or ()]
        for name, info in infos.items()
    }
    units = dict.fromkeys((name for name, info in infos.items() if info.dtype == np.float32), unit)
    for node in model.graph.node:
        terms = _TERMS.get(
            "Reduce" if node.op_type.startswith(("Reduce", "Global")) else node.op_type
        )
        try:
            shape = shapes[node.output[0]]
            count = terms([shapes.get(name, ()) for name in node.input], shape) if terms else 1
        except (
            IndexError,
            KeyError,
            ValueError,
            ZeroDivisionError,
        ):
            # An unknown shape, or one without elements.
            count = 1
        units |= {name: unit * math.sqrt(max(count, 1)) for name in node.output if name in units}
    return units


def _decides(node: onnx.NodeProto) -> bool:
    """Return whether the smallest change of a node's inputs may change its result completely."""
    return node.op_type in _DECIDING and (
        node.op_type != "Cast" or attribute(node, "to") in _INTEGERS
    )


def mark_decisions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the tensors that its deciding nodes read and make among its outputs; the same if it has none."""
    # A tensor must not be an output twice.
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    tensors = {name for node in model.graph.node for name in node.output} - ends
    deciding = [
        name for node in model.graph.node if _decides(node) for name in (*node.input, *node.output)
    ]
    added = list(dict.fromkeys(name for name in deciding if name in tensors))
    if not added:
        return model
    marked = clone(model)
    types = {value.name: value for value in model.graph.value_info}
    marked.graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added)
    return marked


def turned_decision(
    model: onnx.ModelProto, reference: Values, target: Values
) -> onnx.NodeProto | None:
    """Return the first node that decided otherwise on the target."""

    def differs(node: onnx.NodeProto) -> bool:
        names = [name for name in node.output if name in reference and name in target]
        return _decides(node) and not all(
            np.array_equal(reference[name], target[name]) for name in names
        )

    return next(filter(differs, model.graph.node), None)


def rounding_turns(
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    inputs: Values,
    sides: Sequence[Values],
    decided: Values,
    precision: Precision,
    run: Run,
) -> bool:
    """Return whether the rounding of what a node reads can turn its decision.

    The node is run alone on the reference with its inputs moved as far as any two sides differ.
    Among equals that were computed, either choice is right; among equals that the node is fed, the
    ONNX standard says which.

    Args:
        node: The node that decided otherwise.
        model: The model that it is in.
        inputs: The input values of the model, which no side computes.
        sides: The tensors of the reference, then of other computations, which differ by rounding.
        decided: The tensors of the target, with the decision.
        precision: The precision that the inputs of the model are rounded to, and that bounds the
            differences.
        run: Runs a model on the reference.
    """
    reference = sides[0]
    names = [name for name in node.input if name]
    stored = (
        tensor
        for tensor in model.graph.initializer
        if tensor.name in names and not tensor.external_data
    )
    weights = {each.name: np.asarray(numpy_helper.to_array(each)) for each in stored}
    known = {**reference, **inputs, **weights}
    decisive = node.input[0]
    if (
        any(name not in known for name in names)
        or known[decisive].dtype.kind != "f"
        or not known[decisive].size
    ):
        return False
    fed = {name: known[name] for name in names}
    unit = UNITS.get(precision, 0.0)
    moved: Array = np.zeros(fed[decisive].shape)
    # The target rounds the model's inputs too, and no computed side shows by how much.
    if decisive in inputs and unit:
        # Below its smallest normal number fp16 loses more than the relative unit says.
        least = (
            float(np.finfo(np.float16).smallest_subnormal) if precision is Precision.FP16 else 0.0
        )
        moved = np.maximum(np.abs(fed[decisive]) * unit, least)
    # Stored weights have the same bits on all sides.
    for name in fed.keys() - weights.keys() - ({decisive} if decisive in inputs else set()):
        apart = [
            _difference(fed[name], side.get(name), unit if name in inputs else None)
            for side in sides
        ]
        moved = np.maximum(moved, max(apart))

    def slack_of(value: Array) -> Array:
        resolved = automatic_tolerance(
            value, coarser(precision, precision_of(value.dtype)) or precision
        )
        # Each of two compared values may be off by this, so the gap between them by twice as
        # much.
        return np.asarray(
            2
            * np.minimum(
                moved if value is fed[decisive] else moved.max(),
                resolved.atol + resolved.rtol * np.abs(value),
            )
        )

    def limited(value: Array, other: Array | None) -> Array:
        """Return another side's value as far as rounding explains it: what it reads may be wrong itself."""
        if other is None or other.shape != value.shape or value.dtype.kind != "f":
            return value
        slack = slack_of(value)
        return np.clip(other, value - slack, value + slack).astype(value.dtype)

    slack = slack_of(fed[decisive])
    # Beside the values of each side, all values moved to one end: a decision may turn between
    # sides.
    ways = [
        {**fed, decisive: (fed[decisive] + way * slack).astype(fed[decisive].dtype)}
        for way in (0, -1, 1)
    ]
    ways += [
        {name: limited(value, side.get(name)) for name, value in fed.items()} for side in sides[1:]
    ]
    alone = _alone(node, model, fed, reference)
    made = [each for each in (run(alone, values) for values in ways) if not isinstance(each, str)]
    if node.op_type in _CHOICES:
        indices = node.output[-1]  # TopK returns the values first
        is_exact = decisive in inputs
        return any(
            _equal_choice(
                node, fed[decisive], slack, each[indices], decided[indices], is_exact=is_exact
            )
            for each in made
        )
    return all(
        _explains(node, [each[name] for each in made], decided[name])
        for name in filter(None, node.output)
    )


def _explains(node: onnx.NodeProto, results: Sequence[Array], decided: Array) -> bool:
    """Return whether each element of a decision is among the results of moved inputs, or between them."""
    alike = [result for result in results if result.shape == decided.shape]
    if not alike:
        return False
    if node.op_type in _MONOTONIC:
        between = (np.min(alike, 0) <= decided) & (decided <= np.max(alike, 0))
        return bool(between.all())
    return bool(np.any([candidate == decided for candidate in alike], 0).all())


def with_decision(model: onnx.ModelProto, node: onnx.NodeProto, target: Values) -> onnx.ModelProto:
    """Return the model without a node, with the target's results of that node as inputs.

    Args:
        model: The model; it is not changed.
        node: The node to remove.
        target: The target's values by name.
    """
    reduced = clone(model)
    keep_only(
        reduced.graph.node,
        [copy for copy in reduced.graph.node if copy.output != node.output],
    )
    keep_only(
        reduced.graph.output,
        [output for output in reduced.graph.output if output.name not in node.output],
    )
    decided = {name: target[name] for name in node.output if name in target}
    for name, value in decided.items():
        reduced.graph.input.append(
            helper.make_tensor_value_info(name, element_type(value.dtype), value.shape)
        )
    return reduced


def _difference(one: Array, second: Array | None, unit: float | None) -> float:
    """Return the difference of two roundings of a tensor: for an input from its unit, infinite if it is unknown."""
    if one.dtype.kind != "f":
        return 0.0
    if unit is not None:
        return float(np.max(np.abs(one), initial=0.0)) * unit
    # What one side does not have may differ by anything.
    if second is None or second.shape != one.shape:
        return math.inf
    with np.errstate(all="ignore"):
        distance = np.abs(one.astype(np.float64) - second.astype(np.float64))[
            np.isfinite(one) | np.isfinite(second)
        ]
    return float(np.max(distance, initial=0.0)) if np.isfinite(distance).all() else math.inf


def _alone(
    node: onnx.NodeProto, model: onnx.ModelProto, fed: Values, shown: Values
) -> onnx.ModelProto:
    """Return a model of one node."""
    info = helper.make_tensor_value_info
    inputs = [info(name, element_type(value.dtype), value.shape) for name, value in fed.items()]
    outputs = [
        info(name, element_type(shown[name].dtype), [None] * shown[name].ndim)
        for name in node.output
        if name
    ]
    graph = helper.make_graph([node], "decision", inputs, outputs)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _equal_choice(
    node: onnx.NodeProto,
    values: Array,
    slack: Array,
    right: Array,
    chosen: Array,
    *,
    is_exact: bool,
) -> bool:
    """Return whether the values at two sets of indices differ by rounding at most.

    Args:
        node: The choosing node.
        values: What it reads.
        slack: How far rounding moves each value.
        right: The indices that it chooses.
        chosen: The indices to judge, of the same shape.
        is_exact: Whether both sides read the same values, so that the standard decides among equal
            ones.
    """
    axis = attribute(node, "axis", -1 if node.op_type == "TopK" else 0) % values.ndim
    if node.op_type != "TopK" and not attribute(node, "keepdims", 1):
        right = np.expand_dims(right, axis)
        chosen = np.expand_dims(chosen, axis)
    if right.shape != chosen.shape or not ((chosen >= 0) & (chosen < values.shape[axis])).all():
        return False
    best, alternative, largest = (
        np.take_along_axis(array, index.astype(np.int64), axis)
        for array, index in ((values, right), (values, chosen), (slack, right))
    )
    # Among exact inputs equal values are no choice: the standard says which index is first.
    undecided = (right == chosen) | (best != alternative) if is_exact else np.True_
    return bool((undecided & (np.abs(best - alternative) <= largest)).all())
