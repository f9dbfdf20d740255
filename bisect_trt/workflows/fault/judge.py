"""From what others make of a minimal case to whose fault it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.graph.halves import lows_of
from bisect_trt.graph.randomness import Draws
from bisect_trt.probing.builtin import CRASHED
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.margins import Decision, margin
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions, automatic_tolerance
from bisect_trt.workflows.fault.evidence import Evidence, Values, decides

Whose = Literal["target", "reference", "precision", "rounding", "tie", "random", "unknown"]
MUCH_WORSE = 4.0
"""How many times the error of rounding alone, or of the reference, a target may make before it is a bug: it may round more
often."""


@dataclass(frozen=True)
class Fault:
    """Whose fault a failure is.

    Attributes:
        whose: The target's, the reference's, the low precision's; ``rounding`` where fp32 itself must be so far
            off; ``tie`` where a decision is too near to its edge for either
            to be wrong; ``random`` where a node draws its numbers; ``unknown`` where that cannot be told.
        sentence: Why, with the figures.
        figures: The same as numbers: errors by who makes them, in units of the tolerance and absolute.
    """

    whose: Whose
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        """Whether it is worth a report to those who make the target; what is not known may be."""
        return self.whose in ("target", "unknown")

    @property
    def is_nobodys(self) -> bool:
        """Whether two correct roundings differ, so that nothing of the model or of a runtime is to be mended."""
        return self.whose in ("rounding", "tie")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = to_plain({"whose": self.whose, "sentence": self.sentence, **self.figures})
        return plain


@dataclass(frozen=True)
class _Error:
    """How far values are from others.

    Attributes:
        passed: Whether that is within the tolerance.
        severity: How many times the tolerance at the element that is furthest past it, which need not be the one of the
            largest error; infinite for NaN and Inf of one side alone.
        largest: The largest absolute error.
    """

    passed: bool
    severity: float
    largest: float

    def words(self) -> str:
        if not math.isfinite(self.severity) or not math.isfinite(self.largest):
            return "NaN or Inf"
        return f"{self.largest:.3g}"


def judge(  # noqa: PLR0911 - one for each way in which it ends
    evidence: Evidence, tolerance: ToleranceOptions, who: str, reference: str
) -> Fault:
    """Whose fault a failure is."""
    arbiter = evidence.arbiter
    own = None if isinstance(arbiter, str) else _own(evidence, arbiter, tolerance)
    if isinstance(evidence.target, str):
        return _refused(evidence, own, who, reference)
    if (neither := _random(evidence, who) or _tie(evidence, evidence.target, tolerance)) is not None:
        return neither
    seen = _error(evidence, evidence.reference, evidence.target, tolerance)
    figures: dict[str, Any] = {"target_error": seen.largest, "severity": seen.severity}
    if seen.passed:
        why = "run once more beside the others, the target did not show the failure"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}.", figures)
    if (inherent := _inherent(evidence, tolerance, who, reference)) is not None:
        return inherent
    if own is not None and not isinstance(arbiter, str):
        figures |= {"reference_error": own.largest, "arbiter": _who_arbitrates(evidence)}
        if not own.passed:
            return _reference_is_off(evidence, arbiter, own, tolerance, who, reference, figures)
    if evidence.low is not None:
        return _rounding(evidence, evidence.low, seen, own, tolerance, who, figures)
    if evidence.others:
        why = f"rounding to {' and '.join(evidence.others)} is not emulated here"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}.", figures)
    if own is None:
        why = f"{_EVALUATOR} does not run the case ({_short(str(arbiter))})"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}, so there is no third opinion.", figures)
    return Fault(
        "target",
        f"It is a bug of {who}: {_who_arbitrates(evidence)} and {reference} agree to within {own.words()}, and {who} is off "
        f"by {seen.words()}.",
        figures,
    )


def _own(evidence: Evidence, arbiter: Values, tolerance: ToleranceOptions) -> _Error | None:
    """How far the reference is off; ``None`` where it has made nothing."""
    return _error(evidence, arbiter, evidence.reference, _exact(tolerance, evidence)) if evidence.outputs else None


_EVALUATOR = "ONNX's reference evaluator"


def _who_arbitrates(evidence: Evidence) -> str:
    return f"{_EVALUATOR} in float64" if not isinstance(evidence.wide, str) else _EVALUATOR


def _refused(evidence: Evidence, own: _Error | None, who: str, reference: str) -> Fault:
    if own is None:
        why = f"{_EVALUATOR} does not run it either ({_short(str(evidence.arbiter))})"
        if not evidence.outputs:
            why = f"nor does {reference}"
        return Fault("unknown", f"Whose fault it is cannot be told: {who} does not run the case, and {why}.")
    figures = {"reference_error": own.largest, "arbiter": _who_arbitrates(evidence)}
    if (drawn := _drawn(evidence)) is not None:
        sentence = (
            f"It is a bug of {who}{_or_lack(evidence)}: {_who_arbitrates(evidence)} and {reference} both run it. "
            f"They make other numbers of it each time, for {drawn[0]} draws them. {drawn[2]}"
        )
        return Fault("target", sentence, figures)
    if not own.passed:
        return Fault(
            "unknown",
            f"{who} does not run the case, and {_who_arbitrates(evidence)} and {reference}, which do, differ by {own.words()}.",
            figures,
        )
    agree = f"{_who_arbitrates(evidence)} and {reference} both run it, and agree to within {own.words()}"
    return Fault("target", f"It is a bug of {who}{_or_lack(evidence)}: {agree}.", figures)


def _or_lack(evidence: Evidence) -> str:
    """What a refusal may be beside a bug; a crash is nothing else."""
    crashed = isinstance(evidence.target, str) and evidence.target.startswith(CRASHED)
    return ", which crashes" if crashed else ", or an operator that it has not"


def _reference_is_off(
    evidence: Evidence,
    arbiter: Values,
    own: _Error,
    tolerance: ToleranceOptions,
    who: str,
    reference: str,
    figures: dict[str, Any],
) -> Fault:
    """The reference is not what float64 says: is the target?"""
    assert not isinstance(evidence.target, str)
    beside = _error(evidence, arbiter, evidence.target, tolerance)
    figures["target_error"] = beside.largest
    second = evidence.evaluator if not isinstance(evidence.evaluator, str) else arbiter
    if beside.passed and _error(evidence, second, evidence.target, tolerance).passed:
        sentence = (
            f"The reference is wrong: {_who_arbitrates(evidence)} agrees with {who} to within {beside.words()}, and "
            f"{reference} is off by {own.words()}."
        )
        return Fault("reference", sentence, figures)
    worse = _times_worse(beside, own)
    figures["times_worse"] = worse
    if worse >= MUCH_WORSE:
        sentence = (
            f"It is a bug of {who}: it is off what {_who_arbitrates(evidence)} says by {beside.words()}, and {reference}, "
            f"which rounds too, by {own.words()}."
        )
        return Fault("target", sentence, figures)
    sentence = (
        f"Whose fault it is cannot be told: {who} is off what {_who_arbitrates(evidence)} says by {beside.words()}, and so is "
        f"{reference}, by {own.words()}."
    )
    return Fault("unknown", sentence, figures)


def _drawn(evidence: Evidence) -> tuple[str, onnx.NodeProto, str] | None:
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


def _random(evidence: Evidence, who: str) -> Fault | None:
    """Whether the case draws random numbers."""
    if (drawn := _drawn(evidence)) is None:
        return None
    named, node, advice = drawn
    sentence = (
        f"{named} draws random numbers, so two runtimes, or two runs, need not agree: it is no bug of {who}. {advice}"
    )
    return Fault("random", sentence, {"node": node.name or node.output[0], "op": node.op_type})


def _inherent(evidence: Evidence, tolerance: ToleranceOptions, who: str, reference: str) -> Fault | None:
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

    if not _error(evidence, wide, forgiven(evidence.target), tolerance).passed:
        return None
    exact = _exact(tolerance, evidence)
    target, own = _error(evidence, wide, evidence.target, tolerance), _error(evidence, wide, evidence.reference, exact)
    if (
        not _error(evidence, wide, forgiven(evidence.reference), exact).passed
        or _times_worse(target, own) >= MUCH_WORSE
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
        "arbiter": _who_arbitrates(evidence),
    }
    return Fault("rounding", sentence, figures)


def _rounding(
    evidence: Evidence,
    low: str,
    seen: _Error,
    own: _Error | None,
    tolerance: ToleranceOptions,
    who: str,
    figures: dict[str, Any],
) -> Fault:
    """Does rounding by itself, without the target, make the same error?"""
    if evidence.rounded is None or isinstance(evidence.rounded, str):
        why = f"rounding to {low} cannot be emulated ({_short(str(evidence.rounded))})"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}.", figures)
    alone = _error(evidence, evidence.reference, evidence.rounded, tolerance)
    figures |= {"rounding_error": alone.largest, "rounding_severity": alone.severity, "precision": low}
    worse = _times_worse(seen, alone)
    figures["times_worse"] = worse
    if not alone.passed and worse <= MUCH_WORSE:
        return Fault("precision", f"{_cannot_hold(evidence, low, alone)} {_no_bug(who)}", figures)
    if own is None:
        why = f"{_EVALUATOR} does not run the case ({_short(str(evidence.arbiter))})"
        sentence = f"Whose fault it is cannot be told: rounding to {low} alone is off by {alone.words()}, and {why}."
        return Fault("unknown", sentence, figures)
    times = "" if not math.isfinite(worse) else f", {worse:.3g} times as {_what_is_more(seen, alone, worse)}"
    sentence = (
        f"It is a bug of {who}: rounding to {low} alone is off by {alone.words()}"
        f"{'' if not alone.passed else ', which is within the tolerance'}, and {who} by {seen.words()}{times}."
    )
    return Fault("target", sentence, figures)


def _times_worse(one: _Error, other: _Error) -> float:
    """How many times worse, by the largest errors or beside the tolerance; equally bad where both make NaN or Inf."""
    if not math.isfinite(other.severity):
        return 1.0
    if not math.isfinite(one.severity):
        return math.inf
    absolute = one.largest / other.largest if 0 < other.largest < math.inf else 0.0
    return max(absolute, one.severity / max(other.severity, 1.0))


def _what_is_more(one: _Error, other: _Error, worse: float) -> str:
    """What is so many times as much: the errors that are said, or, where a small value is further off, what they are of it."""
    return "much" if math.isclose(one.largest, worse * other.largest, rel_tol=0.1) else "far past the tolerance"


def _cannot_hold(evidence: Evidence, low: str, alone: _Error) -> str:
    limit = 65504.0 if low == "fp16" else float(np.finfo(np.float32).max)
    values = [value for value in (*evidence.inputs.values(), *evidence.reference.values()) if value.dtype.kind == "f"]
    largest = max((float(np.max(np.abs(v[np.isfinite(v)]), initial=0.0)) for v in values), default=0.0)
    if not math.isfinite(alone.severity) and largest > limit:
        return f"{low} cannot hold this value: {largest:.5g} is past its largest, {limit:.5g}."
    what = "NaN or Inf" if not math.isfinite(alone.severity) else f"an error of {alone.words()}"
    return f"{low} cannot hold these values: rounding to it alone, without the target, makes {what}."


def _no_bug(who: str) -> str:
    return f"Rounding alone makes the same error, so it is no bug of {who}, but a matter of choosing the precision."


def _tie(evidence: Evidence, target: Values, tolerance: ToleranceOptions) -> Fault | None:
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


def _exact(tolerance: ToleranceOptions, evidence: Evidence) -> ToleranceOptions:
    """How far two that compute exactly may be apart: the rounding of the types that the model itself has."""
    low = any(value.dtype == np.float16 for value in evidence.reference.values())
    precision = Precision.FP16 if low else Precision.FP32
    return replace(tolerance, atol={}, rtol={}, stat={}, precision=precision)


def _error(evidence: Evidence, right: Values, values: Values, tolerance: ToleranceOptions) -> _Error:
    """How far values are from what they should be, on the outputs that are compared."""
    expected = {name: right[name] for name in evidence.outputs if name in right}
    comparisons: list[TensorComparison] = compare_all(expected, values, tolerance, lows=lows_of(evidence.model.graph))
    failed = [comparison for comparison in comparisons if not comparison.passed]
    largest = max((_largest(comparison) for comparison in comparisons), default=0.0)
    return _Error(not failed, max((comparison.severity for comparison in failed), default=0.0), largest)


def _largest(comparison: TensorComparison) -> float:
    value = comparison.max_abs if comparison.max_abs is not None else math.inf
    return math.inf if math.isnan(value) else value


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:157]}..."
