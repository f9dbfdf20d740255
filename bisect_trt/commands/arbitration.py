"""Which side of a minimal case is wrong: the target, the reference, the low precision, or neither, where two roundings tie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.commands.opinions import Evidence, Values, decides, gather, ignored_attribute
from bisect_trt.commands.rounding_error import MUCH_WORSE
from bisect_trt.commands.session import Session
from bisect_trt.onnxlib.halves import lows_of
from bisect_trt.onnxlib.nodes import Draws
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import CRASHED
from bisect_trt.probe.outcome import Ending
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import to_plain
from bisect_trt.tensors.margins import Decision, margin
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions, automatic_tolerance

Whose = Literal["target", "reference", "precision", "rounding", "tie", "random", "unknown"]
EVALUATOR = "ONNX's reference evaluator"
UNKNOWN = "Whose fault it is cannot be told"


@dataclass(frozen=True)
class Fault:
    """Which side is wrong.

    Attributes:
        whose: The target, the reference or the low precision; ``rounding`` where fp32 itself must be so far off; ``tie``
            where a decision is too near to its edge for either to be wrong; ``random`` where a node draws its numbers;
            ``unknown`` where that cannot be decided.
        sentence: Why, with the figures.
        figures: The same as numbers: the errors of each side, in units of the tolerance and absolute.
    """

    whose: Whose
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        """Whether it is worth a report to the makers of the target; what is not known may be."""
        return self.whose in ("target", "unknown")

    @property
    def is_nobodys(self) -> bool:
        """Whether two correct roundings differ, so that neither the model nor a runtime has to be fixed."""
        return self.whose in ("rounding", "tie")

    def to_json(self) -> dict[str, Any]:
        """The field ``fault`` of the result."""
        plain: dict[str, Any] = to_plain({"whose": self.whose, "sentence": self.sentence, **self.figures})
        return plain


@dataclass(frozen=True)
class Error:
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
        """The largest error."""
        if not math.isfinite(self.severity) or not math.isfinite(self.largest):
            return "NaN or Inf"
        return f"{self.largest:.3g}"

    def times(self, other: Error) -> float:
        """How many times worse, by the largest errors or in tolerances; equally bad where both make NaN or Inf."""
        if not math.isfinite(other.severity):
            return 1.0
        if not math.isfinite(self.severity):
            return math.inf
        absolute = self.largest / other.largest if 0 < other.largest < math.inf else 0.0
        return max(absolute, self.severity / max(other.severity, 1.0))


def arbitrate(session: Session, target: TargetSettings, tolerance: ToleranceOptions, answer: Candidate) -> Fault:
    """Decide which side of a minimal case is wrong.

    It is computed once more by ONNX's reference evaluator, the same in float64, and rounded without the target: a few runs
    of a few nodes, none of them a probe.
    """
    outcome = session.prober.ledger.outcome(answer.key)
    broken = outcome is not None and outcome.ending not in (Ending.MISMATCHED, Ending.PASSED)
    evidence = gather(
        session.subject, answer, target, refused=outcome.reason if outcome is not None and broken else None
    )
    name, right = target.target.title, reference_settings().target.title
    reference = f"the reference ({right})"
    if name == right:  # one runtime, set up in two ways
        name, reference = target.describe(), f"the reference ({right} on the CPU, graph optimisations off)"
    versions = {str(seen.target.get("version", "")) for seen in session.subject.seen.values()}
    if len(versions) == 1 and "" not in versions:  # in a place; here, every answer's page has the one that is installed
        name = name.replace(target.target.title, f"{target.target.title} {versions.pop()}", 1)
    fault = judge(evidence, tolerance, name, reference)
    if fault.whose in ("reference", "unknown") and (why := ignored_attribute(session.subject, evidence)) is not None:
        fault = judge(replace(evidence, wide=why, evaluator=why), tolerance, name, reference)
    return fault


def judge(evidence: Evidence, tolerance: ToleranceOptions, target: str, reference: str) -> Fault:
    """Decide which side is wrong; ``target`` and ``reference`` are their names in sentences."""
    return _Judge(evidence, tolerance, target, reference).verdict()


class _Judge:
    def __init__(self, evidence: Evidence, tolerance: ToleranceOptions, target: str, reference: str) -> None:
        self._evidence, self._tolerance = evidence, tolerance
        self._target, self._reference = target, reference
        self._arbiter = f"{EVALUATOR} in float64" if not isinstance(evidence.wide, str) else EVALUATOR
        # Two that compute exactly may be apart by the rounding of the types that the model itself has.
        low = any(value.dtype == np.float16 for value in evidence.reference.values())
        self._exact = replace(tolerance, atol={}, rtol={}, stat={}, precision=Precision.FP16 if low else Precision.FP32)

    def verdict(self) -> Fault:
        evidence, arbiter = self._evidence, self._evidence.arbiter
        own = None
        if not isinstance(arbiter, str) and evidence.outputs:
            own = self._error(arbiter, evidence.reference, self._exact)
        if isinstance(evidence.target, str):
            return self._refused(own, evidence.target)
        if (neither := self._drawn() or self._tied(evidence.target)) is not None:
            return neither
        seen = self._error(evidence.reference, evidence.target)
        figures: dict[str, Any] = {"target_error": seen.largest, "severity": seen.severity}
        if seen.passed:
            why = "run once more beside the others, the target did not show the failure"
            return Fault("unknown", f"{UNKNOWN}: {why}.", figures)
        if (inherent := self._inherent(evidence.target)) is not None:
            return inherent
        if own is not None and not isinstance(arbiter, str):
            figures |= {"reference_error": own.largest, "arbiter": self._arbiter}
            if not own.passed:
                return self._reference_is_off(arbiter, evidence.target, own, figures)
        return self._target_is_off(seen, own, figures)

    def _target_is_off(self, seen: Error, own: Error | None, figures: dict[str, Any]) -> Fault:
        """The reference is what float64 says, as far as that is known, and the target is not."""
        evidence = self._evidence
        if evidence.low is not None:
            return self._rounding(evidence.low, seen, own, figures)
        if evidence.others:
            why = f"rounding to {' and '.join(evidence.others)} is not emulated here"
            return Fault("unknown", f"{UNKNOWN}: {why}.", figures)
        if own is None:
            why = f"{EVALUATOR} does not run the case ({_short(str(evidence.arbiter))})"
            return Fault("unknown", f"{UNKNOWN}: {why}, so there is no third opinion.", figures)
        agree = f"{self._arbiter} and {self._reference} agree to within {own.words()}"
        sentence = f"It is a bug of {self._target}: {agree}, and {self._target} is off by {seen.words()}."
        return Fault("target", sentence, figures)

    def _error(self, right: Values, values: Values, tolerance: ToleranceOptions | None = None) -> Error:
        """How far values are from what they should be, on the outputs that are compared."""
        expected = {name: right[name] for name in self._evidence.outputs if name in right}
        lows = lows_of(self._evidence.model.graph)
        comparisons = compare_all(expected, values, tolerance or self._tolerance, lows=lows)
        failed = [comparison for comparison in comparisons if not comparison.passed]
        errors = [
            math.inf if each.max_abs is None or math.isnan(each.max_abs) else each.max_abs for each in comparisons
        ]
        return Error(not failed, max((each.severity for each in failed), default=0.0), max(errors, default=0.0))

    def _refused(self, own: Error | None, said: str) -> Fault:
        """The target does not run the case."""
        evidence, target = self._evidence, self._target
        if own is None:
            why = f"{EVALUATOR} does not run it either ({_short(str(evidence.arbiter))})"
            why = why if evidence.outputs else f"nor does {self._reference}"
            return Fault("unknown", f"{UNKNOWN}: {target} does not run the case, and {why}.")
        figures = {"reference_error": own.largest, "arbiter": self._arbiter}
        lack = ", which crashes" if said.startswith(CRASHED) else ", or an operator that it has not"
        both = f"It is a bug of {target}{lack}: {self._arbiter} and {self._reference} both run it"
        if (drawn := drawing(evidence)) is not None:
            numbers = f"They make other numbers of it each time, for {drawn[0]} draws them. {drawn[2]}"
            return Fault("target", f"{both}. {numbers}", figures)
        if not own.passed:
            which = f"{self._arbiter} and {self._reference}, which do, differ by {own.words()}"
            return Fault("unknown", f"{target} does not run the case, and {which}.", figures)
        return Fault("target", f"{both}, and agree to within {own.words()}.", figures)

    def _reference_is_off(self, arbiter: Values, made: Values, own: Error, figures: dict[str, Any]) -> Fault:
        """The reference is not what float64 says: is the target?"""
        evidence, target, reference = self._evidence, self._target, self._reference
        beside = self._error(arbiter, made)
        figures["target_error"] = beside.largest
        if beside.passed:
            second = evidence.evaluator if not isinstance(evidence.evaluator, str) else arbiter
            agrees = f"{self._arbiter} agrees with {target} to within {beside.words()}"
            if self._error(second, made).passed:
                sentence = f"The reference is wrong: {agrees}, and {reference} is off by {own.words()}."
            else:
                sentence = (
                    f"The reference is off: {agrees}. Node by node in fp32 {EVALUATOR} is off as well, as {reference} is by "
                    f"{own.words()}; {target} loses less on the way."
                )
            return Fault("reference", sentence, figures)
        worse = figures["times_worse"] = beside.times(own)
        off = f"{self._arbiter} says by {beside.words()}, and"
        if worse >= MUCH_WORSE:
            rounds = f"{reference}, which rounds too, by {own.words()}"
            return Fault("target", f"It is a bug of {target}: it is off what {off} {rounds}.", figures)
        sentence = f"{UNKNOWN}: {target} is off what {off} so is {reference}, by {own.words()}."
        return Fault("unknown", sentence, figures)

    def _rounding(self, low: str, seen: Error, own: Error | None, figures: dict[str, Any]) -> Fault:
        """Does rounding by itself, without the target, make the same error?"""
        evidence, target = self._evidence, self._target
        if evidence.rounded is None or isinstance(evidence.rounded, str):
            why = f"rounding to {low} cannot be emulated ({_short(str(evidence.rounded))})"
            return Fault("unknown", f"{UNKNOWN}: {why}.", figures)
        alone = self._error(evidence.reference, evidence.rounded)
        worse = seen.times(alone)
        figures |= {"rounding_error": alone.largest, "rounding_severity": alone.severity, "precision": low}
        figures["times_worse"] = worse
        if not alone.passed and worse <= MUCH_WORSE:
            no_bug = f"Rounding alone makes the same error, so it is no bug of {target}, but a matter of choosing the precision."
            return Fault("precision", f"{self._cannot_hold(low, alone)} {no_bug}", figures)
        if own is None:
            why = f"{EVALUATOR} does not run the case ({_short(str(evidence.arbiter))})"
            sentence = f"{UNKNOWN}: rounding to {low} alone is off by {alone.words()}, and {why}."
            return Fault("unknown", sentence, figures)
        # A small value may be further past the tolerance than the largest error is.
        much = "much" if math.isclose(seen.largest, worse * alone.largest, rel_tol=0.1) else "far past the tolerance"
        times = "" if not math.isfinite(worse) else f", {worse:.3g} times as {much}"
        within = "" if not alone.passed else ", which is within the tolerance"
        sentence = (
            f"It is a bug of {target}: rounding to {low} alone is off by {alone.words()}{within}, and {target} by "
            f"{seen.words()}{times}."
        )
        return Fault("target", sentence, figures)

    def _cannot_hold(self, low: str, alone: Error) -> str:
        limit = 65504.0 if low == "fp16" else float(np.finfo(np.float32).max)
        values = [*self._evidence.inputs.values(), *self._evidence.reference.values()]
        finite = (np.abs(value[np.isfinite(value)]) for value in values if value.dtype.kind == "f")
        largest = max((float(np.max(each, initial=0.0)) for each in finite), default=0.0)
        if not math.isfinite(alone.severity) and largest > limit:
            return f"{low} cannot hold this value: {largest:.5g} is past its largest, {limit:.5g}."
        what = "NaN or Inf" if not math.isfinite(alone.severity) else f"an error of {alone.words()}"
        return f"{low} cannot hold these values: rounding to it alone, without the target, makes {what}."

    def _drawn(self) -> Fault | None:
        """Whether the case draws random numbers."""
        if (drawn := drawing(self._evidence)) is None:
            return None
        named, node, advice = drawn
        sentence = f"{named} draws random numbers, so two runtimes, or two runs, need not agree: it is no bug of {self._target}."
        return Fault("random", f"{sentence} {advice}", {"node": node.name or node.output[0], "op": node.op_type})

    def _inherent(self, made: Values) -> Fault | None:
        """Whether rounding must be expected to move these very values as far as both sides are off float64."""
        evidence, wide, expected = self._evidence, self._evidence.wide, self._evidence.movement
        # Of lower types than fp32 its last place says nothing.
        if expected is None or isinstance(wide, str) or lows_of(evidence.model.graph):
            return None

        def forgiven(values: Values) -> Values:
            """The values, but float64's where rounding alone may be as far off."""
            result = dict(values)
            for name in evidence.outputs:
                value = values.get(name)
                if value is None or name not in expected or value.dtype.kind != "f":
                    continue
                if value.shape == expected[name].shape == wide[name].shape:
                    with np.errstate(all="ignore"):
                        near = np.abs(value.astype(np.float64) - wide[name]) <= MUCH_WORSE * expected[name]
                    result[name] = np.where(near, wide[name], value)
            return result

        if not self._error(wide, forgiven(made)).passed:
            return None
        target, own = self._error(wide, made), self._error(wide, evidence.reference, self._exact)
        inherent = self._error(wide, forgiven(evidence.reference), self._exact).passed
        if not inherent or target.times(own) >= MUCH_WORSE:
            return None
        most = max((float(np.max(expected[n], initial=0.0)) for n in evidence.outputs if n in expected), default=0.0)
        low = "tf32" if self._tolerance.precision is Precision.TF32 else "fp32"
        sentence = (
            f"{low} cannot hold these values: what moves each tensor in its last place moves the outputs by up to {most:.3g} in "
            f"float64, of which {self._target} is off by {target.words()}, and {self._reference} by {own.words()}. So it is no "
            f"bug of {self._target}, but a matter of how large what is computed with is beside what is left of it: subtract the "
            "mean, or scale, before."
        )
        errors = {"target_error": target.largest, "reference_error": own.largest, "rounding_error": most}
        return Fault("rounding", sentence, {**errors, "precision": low, "arbiter": self._arbiter})

    def _tied(self, target: Values) -> Fault | None:
        """Whether the first decision that the two sides took differently was so near to its edge that neither is wrong."""
        reference = self._evidence.reference
        for node in self._evidence.model.graph.node:
            outputs = [name for name in node.output if name]
            if not decides(node) or not all(name in reference and name in target for name in outputs):
                continue
            decided, other = ([np.asarray(side[name]) for name in outputs] for side in (reference, target))
            if not all(np.array_equal(one, two) for one, two in zip(decided, other, strict=True)):
                return self._near(target, node, decided, other)
        return None

    def _near(
        self, target: Values, node: onnx.NodeProto, decided: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]
    ) -> Fault | None:
        evidence = self._evidence
        weights = {tensor.name: tensor for tensor in evidence.model.graph.initializer if not tensor.external_data}

        def read(name: str, side: Values, fed: Values) -> NDArray[Any] | None:
            if name in weights:
                return np.asarray(numpy_helper.to_array(weights[name]))
            return fed.get(name, evidence.inputs[name]) if name in evidence.inputs else side.get(name)

        inputs = [read(name, evidence.reference, {}) if name else None for name in node.input]
        theirs = [read(name, target, evidence.read) if name else None for name in node.input]
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        measured = margin(Decision(node.op_type, attributes, inputs, decided, other))
        numbers = [value.reshape(-1) for value in inputs[:2] if value is not None and value.dtype.kind == "f"]
        if measured is None or not measured[0].size or not np.isfinite(measured[0]).all() or not numbers:
            return None
        edges, sizes = measured
        resolved = automatic_tolerance(np.concatenate(numbers), self._tolerance.precision)
        moved = max((_moved(one, two) for one, two in zip(inputs, theirs, strict=True)), default=math.inf)
        largest, count = float(edges.max()), edges.size
        near = bool((edges <= 2 * (resolved.atol + resolved.rtol * sizes)).all())
        # A decision that rounding cannot have moved over its edge is wrong; of equals, either may be chosen.
        turned = moved > 0 and largest <= 2 * moved
        draw = largest == 0 and node.op_type in ("ArgMax", "ArgMin", "TopK", "NonMaxSuppression")
        if not near or not (turned or draw):
            return None
        name, known = node.name or node.output[0], math.isfinite(moved)
        figures: dict[str, Any] = {"margin": largest, "difference": moved if known else None}
        figures |= {"op": node.op_type, "node": name, "decisions": count}
        many = "one decision" if count == 1 else f"{count} decisions"
        by = f"rounding moved what it reads by up to {moved:.3g}" if known else "what it reads is not to be had"
        sentence = (
            f"A tie: {many} of {node.op_type} '{name}' came out otherwise, with a margin of {largest:.3g} at most, and {by}. "
            "Neither is wrong."
        )
        return Fault("tie", sentence, figures)


def drawing(evidence: Evidence) -> tuple[str, onnx.NodeProto, str] | None:
    """The first node that draws random numbers, its description, and what to do about it."""
    draws = Draws(evidence.model, {**evidence.reference, **evidence.inputs}, unsure=False)
    node = next((node for node in evidence.model.graph.node if draws.by(node)), None)
    if node is None:
        return None
    seeded = any(attribute.name == "seed" for attribute in node.attribute)
    seed = "Its seed makes" if seeded else "Its attribute `seed` would make"
    advice = f"{seed} one runtime repeat itself; to compare two of them, make what it draws an input of the model."
    if draws.drops(node):
        advice = "Export the model in eval mode (`model.eval()` in PyTorch), or set its training_mode to false."
    return f"{node.op_type} '{node.name or node.output[0]}'", node, advice


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


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:157]}..."
