"""Where nobody is at fault: numbers drawn at random, a decision at its edge, and what fp32 itself makes of such values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.graph.halves import lows_of
from bisect_trt.graph.randomness import Draws
from bisect_trt.tensors.margins import Decision, margin
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions, automatic_tolerance
from bisect_trt.workflows.fault.evidence import Evidence, Values, decides
from bisect_trt.workflows.fault.fault import MUCH_WORSE, Fault, how_far, of_the_types, times_worse, who_arbitrates


def drawing(evidence: Evidence) -> tuple[str, onnx.NodeProto, str] | None:
    """The first node that draws random numbers, in words and itself, and what to do about it."""
    draws = Draws(evidence.model, {**evidence.reference, **evidence.inputs}, unsure=False)
    node = next((node for node in evidence.model.graph.node if draws.by(node)), None)
    if node is None:
        return None
    named = f"{node.op_type} '{node.name or node.output[0]}'"
    if draws.drops(node):
        return (
            named,
            node,
            "Export the model in eval mode (`model.eval()` in PyTorch), or set its training_mode to false.",
        )
    seeded = any(attribute.name == "seed" for attribute in node.attribute)
    seed = "Its seed makes" if seeded else "Its attribute `seed` would make"
    advice = f"{seed} one runtime repeat itself; to compare two of them, make what it draws an input of the model."
    return named, node, advice


def drawn_at_random(evidence: Evidence, who: str) -> Fault | None:
    """Whether the case draws random numbers."""
    if (drawn := drawing(evidence)) is None:
        return None
    named, node, advice = drawn
    sentence = (
        f"{named} draws random numbers, so two runtimes, or two runs, need not agree: it is no bug of {who}. {advice}"
    )
    return Fault("random", sentence, {"node": node.name or node.output[0], "op": node.op_type})


def inherent_rounding(evidence: Evidence, tolerance: ToleranceOptions, who: str, reference: str) -> Fault | None:
    """Whether all that both are off float64 is what rounding must be expected to make of these very values."""
    if evidence.movement is None or isinstance(evidence.wide, str) or isinstance(evidence.target, str):
        return None
    if lows_of(evidence.model.graph):  # of which fp32's last place says nothing
        return None
    wide, expected = evidence.wide, evidence.movement

    def forgiven(values: Values) -> Values:
        made = {name: values[name] for name in evidence.outputs if name in values and name in expected}
        numbers = {name: value for name, value in made.items() if value.dtype.kind == "f"}
        result = dict(values)
        for name, value in numbers.items():
            if value.shape == expected[name].shape == wide[name].shape:
                with np.errstate(all="ignore"):
                    near = np.abs(value.astype(np.float64) - wide[name]) <= MUCH_WORSE * expected[name]
                result[name] = np.where(near, wide[name], value)
        return result

    if not how_far(evidence, wide, forgiven(evidence.target), tolerance).passed:
        return None
    exact = of_the_types(tolerance, evidence)
    target, own = (
        how_far(evidence, wide, evidence.target, tolerance),
        how_far(evidence, wide, evidence.reference, exact),
    )
    if (
        not how_far(evidence, wide, forgiven(evidence.reference), exact).passed
        or times_worse(target, own) >= MUCH_WORSE
    ):
        return None
    most = max(
        (float(np.max(expected[name], initial=0.0)) for name in evidence.outputs if name in expected), default=0.0
    )
    low = "tf32" if tolerance.precision is Precision.TF32 else "fp32"
    sentence = (
        f"{low} cannot hold these values: what moves each tensor in its last place moves the outputs by up to {most:.3g} in "
        f"float64, of which {who} is off by {target.words()}, and {reference} by {own.words()}. So it is no bug of {who}, but "
        f"a matter of how large what is computed with is beside what is left of it: subtract the mean, or scale, before."
    )
    figures = {
        "target_error": target.largest,
        "reference_error": own.largest,
        "rounding_error": most,
        "precision": low,
        "arbiter": who_arbitrates(evidence),
    }
    return Fault("rounding", sentence, figures)


def tied(evidence: Evidence, target: Values, tolerance: ToleranceOptions) -> Fault | None:
    """Whether the first decision that the two took differently was so near to its edge that neither is wrong."""
    for node in evidence.model.graph.node:
        outputs = [name for name in node.output if name]
        if not decides(node) or not all(name in evidence.reference and name in target for name in outputs):
            continue
        decided = [np.asarray(evidence.reference[name]) for name in outputs]
        other = [np.asarray(target[name]) for name in outputs]
        if all(np.array_equal(one, two) for one, two in zip(decided, other, strict=True)):
            continue
        return _near(evidence, target, tolerance, node, decided, other)
    return None


def _near(
    evidence: Evidence,
    target: Values,
    tolerance: ToleranceOptions,
    node: onnx.NodeProto,
    decided: Sequence[NDArray[Any]],
    other: Sequence[NDArray[Any]],
) -> Fault | None:
    weights = {tensor.name: tensor for tensor in evidence.model.graph.initializer if not tensor.external_data}

    def read(name: str, *, by_target: bool) -> NDArray[Any] | None:
        if name in weights:
            return np.asarray(numpy_helper.to_array(weights[name]))
        if name in evidence.inputs:
            return evidence.read.get(name, evidence.inputs[name]) if by_target else evidence.inputs[name]
        return (target if by_target else evidence.reference).get(name)

    inputs = [read(name, by_target=False) if name else None for name in node.input]
    theirs = [read(name, by_target=True) if name else None for name in node.input]
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    measured = margin(Decision(node.op_type, attributes, inputs, decided, other))
    if measured is None or not measured[0].size or not np.isfinite(measured[0]).all():
        return None
    edges, sizes = measured
    numbers = [value for value in inputs[:2] if value is not None and value.dtype.kind == "f"]
    if not numbers:
        return None
    resolved = automatic_tolerance(np.concatenate([value.reshape(-1) for value in numbers]), tolerance.precision)
    moved = max((_moved(one, two) for one, two in zip(inputs, theirs, strict=True)), default=math.inf)
    near = bool((edges <= 2 * (resolved.atol + resolved.rtol * sizes)).all())
    # What cannot have been moved over its edge was decided wrongly; of equals, either may be chosen.
    turned = moved > 0 and float(edges.max()) <= 2 * moved
    draw = float(edges.max()) == 0 and node.op_type in ("ArgMax", "ArgMin", "TopK", "NonMaxSuppression")
    if not near or not (turned or draw):
        return None
    count = edges.size
    figures = {
        "margin": float(edges.max()),
        "difference": None if not math.isfinite(moved) else moved,
        "op": node.op_type,
        "node": node.name or node.output[0],
        "decisions": count,
    }
    many = "one decision" if count == 1 else f"{count} decisions"
    by = (
        f"rounding moved what it reads by up to {moved:.3g}"
        if math.isfinite(moved)
        else "what it reads is not to be had"
    )
    sentence = (
        f"A tie: {many} of {node.op_type} '{node.name or node.output[0]}' came out otherwise, with a margin of "
        f"{figures['margin']:.3g} at most, and {by}. Neither is wrong."
    )
    return Fault("tie", sentence, figures)


def _moved(one: NDArray[Any] | None, two: NDArray[Any] | None) -> float:
    """How far two roundings of a tensor are apart; infinitely where that is not known."""
    if one is None and two is None:
        return 0.0
    if one is None or two is None or one.shape != two.shape:
        return math.inf
    if one.dtype.kind != "f":
        return 0.0
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(np.float64) - two.astype(np.float64))
    finite = np.isfinite(one) | np.isfinite(two)
    return float(np.max(apart[finite], initial=0.0)) if np.isfinite(apart[finite]).all() else math.inf
