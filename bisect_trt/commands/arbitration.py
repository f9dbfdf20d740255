"""Which side of a minimal case is wrong: the target, the reference, the low precision, or neither, where two roundings tie.

The case is computed by the target, the reference, ONNX's reference evaluator, the same in float64, and, for a low precision, by
the reference with each tensor rounded to it. What each computes is a row of :class:`Opinions`; :func:`judge` compares the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.commands.rounding_error import MUCH_WORSE, ULP, expected_movement, spelled
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.emulation import lower_roundtrip, widened
from bisect_trt.onnxlib.halves import lows_of
from bisect_trt.onnxlib.lower import round_to_bfloat16, round_to_half
from bisect_trt.onnxlib.lower_plan import LOW_TYPES
from bisect_trt.onnxlib.nodes import Draws, attribute
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import CRASHED
from bisect_trt.probe.outcome import Ending
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import to_plain
from bisect_trt.tensors.margins import DECIDING, Decision, margin
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions, automatic_tolerance
from bisect_trt.worker.protocol import Collect, Failed

Values = Mapping[str, NDArray[Any]]
Whose = Literal["target", "reference", "precision", "rounding", "tie", "random", "unknown"]
_EVALUATOR = TargetSettings("onnx")
_EVALUATOR_SECONDS = 120.0
"""The evaluator is written for clarity, not for speed."""
_EVALUATOR_IGNORES = {"clip", "input_forget"}
"""Attributes of recurrent nodes that ONNX's evaluator does not implement, without saying so."""
_INTEGERS = {kind for name, kind in onnx.TensorProto.DataType.items() if "INT" in name or name == "BOOL"}


@dataclass(frozen=True)
class Fault:
    """Which side is wrong.

    Attributes:
        whose: The target, the reference or the low precision; ``rounding`` where fp32 itself must be so far off; ``tie``
            where a decision is too near to its edge for either to be wrong; ``random`` where a node draws its numbers;
            ``unknown`` where that cannot be decided.
        sentence: Why, with the figures.
        figures: The same as numbers: the largest absolute error of each side, and what the rule compared.
    """

    whose: Whose
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        """Whether it may be worth a report to the makers of the target."""
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
class Opinions:
    """The outputs of a minimal case by several runtimes; where one has none, the reason in words.

    Attributes:
        model: The case, with the tensors of its deciding nodes among its outputs.
        outputs: The tensors that are compared.
        inputs: Its input values.
        reference: The reference's outputs.
        target: The target's.
        evaluator: Those of ONNX's reference evaluator.
        wide: The same in float64.
        rounded: The reference's with each tensor rounded to ``low``.
        low: The low precision of the target, where it is emulated here.
        others: Low precisions of the target that are not.
        movement: How far rounding in fp32, or TF32, is expected to move each output.
    """

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    inputs: Values
    reference: Values
    target: Values | str
    evaluator: Values | str
    wide: Values | str
    rounded: Values | str = ""
    low: str | None = None
    others: tuple[str, ...] = ()
    movement: Values | str = ""

    @property
    def right(self) -> Values | str:
        """The outputs that count as right: float64's, else the evaluator's, else why there are none."""
        return self.evaluator if isinstance(self.wide, str) else self.wide


def arbitrate(session: Session, target: TargetSettings, tolerance: ToleranceOptions, answer: Candidate) -> Fault:
    """Decide which side of a minimal case is wrong: a few runs of a few nodes, none of them a probe."""
    outcome = session.prober.ledger.outcome(answer.key)
    broken = outcome is not None and outcome.ending not in (Ending.MISMATCHED, Ending.PASSED)
    opinions = _gather(session.subject, answer, target, outcome.reason if outcome is not None and broken else None)
    name, right = target.target.title, reference_settings().target.title
    reference = f"the reference ({right})"
    if name == right:  # one runtime, set up in two ways
        name, reference = target.describe(), f"the reference ({right} on the CPU, graph optimisations off)"
    versions = {str(seen.target.get("version", "")) for seen in session.subject.seen.values()}
    if len(versions) == 1 and "" not in versions:  # the release in a place, which no page of the report has
        name = name.replace(target.target.title, f"{target.target.title} {versions.pop()}", 1)
    return judge(opinions, tolerance, name, reference)


def _gather(subject: Subject, candidate: Candidate, target: TargetSettings, refused: str | None) -> Opinions:
    """Compute a minimal case by all; ``refused`` is why the target does not run it, if so."""
    settings = replace(target, keep=candidate.keep or target.keep, held=candidate.held or target.held)
    inputs, golden = (dict(subject.values(candidate, names)) for names in (candidate.inputs, candidate.outputs))
    wider = {name: each.astype(np.float64) if each.dtype == np.float32 else each for name, each in inputs.items()}
    lows = tuple(name for name in settings.low_precisions if name != "tf32")  # TF32 is a matter of tolerance
    low = lows[0] if len(lows) == 1 and lows[0] in LOW_TYPES else None
    unit = 2.0**-10 if "tf32" in settings.low_precisions else ULP
    model = _mark_decisions(candidate.proto)
    ignored = next(filter(None, map(_ignored, model.graph.node)), None)

    def run(model: onnx.ModelProto, runner: TargetSettings | None = None, fed: Values = inputs) -> Values | str:
        return _run(subject, model, fed, runner)

    def widen(model: onnx.ModelProto) -> onnx.ModelProto:
        return widened(model, subject.workspace.weights.folder_of(model))

    def by_target() -> Values | str:
        made = refused if refused is not None else run(model, settings)
        if model is candidate.proto or isinstance(made, str):
            return made
        bare = run(candidate.proto, settings)  # the marks may change what it makes
        return bare if isinstance(bare, str) or not _alike(bare, made) else made

    def moved() -> Values | None:
        simple = spelled(model)
        return expected_movement(simple, widen(simple), inputs, unit, lambda each: run(each, _EVALUATOR, wider))

    made = by_target()
    # A model whose tensors were shrunk has no activations of the original's.
    inner = run(model) if model is not candidate.proto else golden
    return Opinions(
        model,
        tuple(name for name in candidate.outputs if name in golden),
        inputs,
        {**(golden if isinstance(inner, str) else inner), **golden},
        made,
        ignored or run(model, _EVALUATOR),
        ignored or _attempt(lambda: run(widen(model), _EVALUATOR, wider)),
        "" if low is None else _attempt(lambda: run(lower_roundtrip(model, settings.keep, low=LOW_TYPES[low]))),
        low,
        lows if low is None else (),
        "" if lows or isinstance(made, str) or ignored else _attempt(moved),
    )


def _attempt(compute: Callable[[], Values | str | None]) -> Values | str:
    """What it computes, or why it cannot: weights that are missing, an opset that is too old, shapes that do not fit."""
    try:
        return compute() or ""
    except Exception as error:  # whatever ONNX raises
        return str(error)


def _run(subject: Subject, model: onnx.ModelProto, fed: Values, runner: TargetSettings | None) -> Values | str:
    """The outputs of a model, or why there are none; of the reference without a runner."""
    models, made = subject.models, subject.workspace.scratch("fault.made.npz")
    settings = models.reference if runner is None else runner
    request = Collect(settings, models.write("fault", model), models.feed("fault.in", fed), made)
    try:
        reply = models.workers.ask(request, _EVALUATOR_SECONDS if runner == _EVALUATOR else None, here=runner is None)
    except BisectError as error:
        return str(error)
    return reply.message if isinstance(reply, Failed) else load_npz(made)


def _ignored(node: onnx.NodeProto) -> str:
    """Why the evaluator has no opinion on a node; empty if it has one."""
    ignored = [each.name for each in node.attribute if each.name in _EVALUATOR_IGNORES]
    return f"it ignores '{ignored[0]}' of {node.op_type}" if ignored and node.op_type in ("GRU", "LSTM", "RNN") else ""


def _decides(node: onnx.NodeProto) -> bool:
    """Whether the least difference in a node's inputs may make a wholly different result."""
    return node.op_type in DECIDING and (node.op_type != "Cast" or attribute(node, "to") in _INTEGERS)


def _mark_decisions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all that its deciding nodes read and make among its outputs; the same where there is nothing to add."""
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    made = {name for node in model.graph.node for name in node.output} - known
    deciding = [name for node in model.graph.node if _decides(node) for name in (*node.input, *node.output)]
    added = list(dict.fromkeys(name for name in deciding if name in made))
    if not added:
        return model
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    types = {value.name: value for value in model.graph.value_info}
    marked.graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added)
    return marked


def _alike(some: Values, others: Values) -> bool:
    shared = ((value, others[name]) for name, value in some.items() if name in others)
    return all(np.array_equal(one, two, equal_nan=one.dtype.kind == "f") for one, two in shared)


@dataclass(frozen=True)
class _Error:
    """How far values are from others."""

    passed: bool
    severity: float  # in tolerances, at the element that is furthest past its own
    largest: float  # absolute

    def __str__(self) -> str:
        finite = math.isfinite(self.severity) and math.isfinite(self.largest)
        return f"{self.largest:.3g}" if finite else "NaN or Inf"

    def times(self, other: _Error) -> float:
        """How many times worse, absolute or in tolerances; equally bad where both make NaN or Inf."""
        if not math.isfinite(other.severity):
            return 1.0
        if not math.isfinite(self.severity):
            return math.inf
        absolute = self.largest / other.largest if 0 < other.largest < math.inf else 0.0
        return max(absolute, self.severity / max(other.severity, 1.0))


def judge(opinions: Opinions, tolerance: ToleranceOptions, target: str, reference: str) -> Fault:
    """Decide which side is wrong; ``target`` and ``reference`` are their names in sentences."""
    return _Judge(opinions, tolerance, target, reference).verdict()


class _Judge:
    """The rules, each of which returns a verdict or ``None``; the first that applies decides."""

    def __init__(self, opinions: Opinions, tolerance: ToleranceOptions, target: str, reference: str) -> None:
        self._case, self._tolerance, self._target, self._reference = opinions, tolerance, target, reference
        self._made: Values = {} if isinstance(opinions.target, str) else opinions.target
        self._arbiter = f"ONNX's reference evaluator{'' if isinstance(opinions.wide, str) else ' in float64'}"
        # Two that compute exactly may be apart by the rounding of the types that the model itself has.
        low = any(value.dtype == np.float16 for value in opinions.reference.values())
        self._exact = replace(tolerance, atol={}, rtol={}, stat={}, precision=Precision.FP16 if low else Precision.FP32)
        self._own: _Error | None = None
        self._figures: dict[str, Any] = {}
        if not isinstance(opinions.right, str) and opinions.outputs:
            self._own = self._error(opinions.right, opinions.reference, self._exact)
            self._figures |= {"reference_error": self._own.largest, "arbiter": self._arbiter}

    def verdict(self) -> Fault:
        first = (self._refused, self._drawn, self._tied, self._not_shown, self._inherent, self._reference_is_off)
        rules = (*first, self._rounded, self._undecided)
        return next((fault for rule in rules if (fault := rule()) is not None), None) or self._target_is_off()

    def _fault(self, whose: Whose, sentence: str) -> Fault:
        return Fault(whose, sentence, self._figures)

    def _unknown(self, why: str) -> Fault:
        return self._fault("unknown", f"Which side is wrong cannot be decided: {why}.")

    def _no_arbiter(self) -> str:
        line = " ".join(str(self._case.right).split())
        return f"{self._arbiter} does not run the case ({line if len(line) <= 160 else f'{line[:157]}...'})"

    def _error(self, right: Values, values: Values, tolerance: ToleranceOptions | None = None) -> _Error:
        """How far values are from what they should be, on the outputs that are compared."""
        expected = {name: right[name] for name in self._case.outputs if name in right}
        comparisons = compare_all(expected, values, tolerance or self._tolerance, lows=lows_of(self._case.model.graph))
        worst = [each.severity for each in comparisons if not each.passed]
        errors = [
            math.inf if each.max_abs is None or math.isnan(each.max_abs) else each.max_abs for each in comparisons
        ]
        return _Error(not worst, max(worst, default=0.0), max(errors, default=0.0))

    def _refused(self) -> Fault | None:
        """The target does not run the case."""
        said, target, others = self._case.target, self._target, f"{self._arbiter} and {self._reference}"
        if not isinstance(said, str):
            return None
        if self._own is None:
            neither = self._no_arbiter() if self._case.outputs else f"{self._reference} does not run it either"
            return self._unknown(f"{target} does not run the case, and {neither}")
        if not self._own.passed and _drawing(self._case) is None:
            return self._unknown(f"{target} does not run the case, and {others} differ by {self._own}")
        lack = ", which crashes" if said.startswith(CRASHED) else ", or an operator that it does not have"
        return self._fault("target", f"It is a bug of {target}{lack}: {others} both run it.")

    def _not_shown(self) -> Fault | None:
        seen = self._error(self._case.reference, self._made)
        self._figures |= {"target_error": seen.largest, "severity": seen.severity}
        return self._unknown("run once more beside the others, the target does not fail") if seen.passed else None

    def _reference_is_off(self) -> Fault | None:
        """The reference is not what float64 says: is the target?"""
        own, target, reference, right = self._own, self._target, self._reference, self._case.right
        if isinstance(right, str) or own is None or own.passed:
            return None
        beside = self._error(right, self._made)
        self._figures["target_error"] = beside.largest
        if beside.passed:
            agrees = f"{self._arbiter} agrees with {target} to within {beside}"
            return self._fault("reference", f"The reference is off: {agrees}, and {reference} is off by {own}.")
        self._figures["times_worse"] = beside.times(own)
        off = f"{target} is off from {self._arbiter} by {beside}, and {reference}, which rounds too, by {own}"
        if beside.times(own) < MUCH_WORSE:
            return self._unknown(off)
        return self._fault("target", f"It is a bug of {target}: {off}.")

    def _rounded(self) -> Fault | None:
        """Rounding by itself, without the target, makes the same error."""
        case, low = self._case, self._case.low
        if low is None:
            return None
        if isinstance(case.rounded, str):
            return self._unknown(f"rounding to {low} cannot be emulated ({case.rounded})")
        seen, alone = (self._error(case.reference, made) for made in (self._made, case.rounded))
        self._figures |= {"rounding_error": alone.largest, "rounding_severity": alone.severity, "precision": low}
        self._figures["times_worse"] = seen.times(alone)
        if alone.passed or seen.times(alone) > MUCH_WORSE:
            return None
        limit = 65504.0 if low == "fp16" else float(np.finfo(np.float32).max)
        floats = (value for value in (*case.inputs.values(), *case.reference.values()) if value.dtype.kind == "f")
        largest = max((float(np.max(np.abs(each[np.isfinite(each)]), initial=0.0)) for each in floats), default=0.0)
        what = f"these values: rounding to it alone, without the target, is off by {alone}"
        if largest > limit and not math.isfinite(alone.severity):
            what = f"this value: {largest:.5g} is past its largest, {limit:.5g}"
        no_bug = f"It is no bug of {self._target}: choose another precision there."
        return self._fault("precision", f"{low} cannot hold {what}. {no_bug}")

    def _undecided(self) -> Fault | None:
        if self._case.others:
            return self._unknown(f"rounding to {' and '.join(self._case.others)} is not emulated here")
        return self._unknown(self._no_arbiter()) if self._own is None else None

    def _target_is_off(self) -> Fault:
        """The reference is what float64 says, and the target is further off than rounding makes it."""
        seen, case = self._error(self._case.reference, self._made), self._case
        right = f"{self._arbiter} and {self._reference} agree to within {self._own}"
        if case.low is not None:
            right += f", rounding to {case.low} alone is off by {self._figures['rounding_error']:.3g}"
        return self._fault("target", f"It is a bug of {self._target}: {right}, and {self._target} is off by {seen}.")

    def _drawn(self) -> Fault | None:
        """Whether the case draws random numbers."""
        if (node := _drawing(self._case)) is None:
            return None
        name = node.name or node.output[0]
        advice = "make what it draws an input of the model, or give it a seed to have one runtime repeat itself"
        if node.op_type == "Dropout":
            advice = "export the model in eval mode (`model.eval()` in PyTorch), or set its training_mode to false"
        sentence = (
            f"{node.op_type} '{name}' draws random numbers, so two runtimes need not agree: it is no bug of "
            f"{self._target}. To compare them, {advice}."
        )
        return Fault("random", sentence, {"node": name, "op": node.op_type})

    def _inherent(self) -> Fault | None:
        """Whether rounding is expected to move these very values as far as both sides are off float64."""
        case, made, wide, expected = self._case, self._made, self._case.wide, self._case.movement
        # The last place of fp32 says nothing of lower types.
        if isinstance(expected, str) or isinstance(wide, str) or lows_of(case.model.graph):
            return None

        def forgiven(values: Values) -> Values:
            """The values, but float64's where rounding alone may be as far off."""
            result = dict(values)
            for name in {*case.outputs}.intersection(values, expected):
                value, right, most = values[name], wide[name], expected[name]
                if value.dtype.kind == "f" and value.shape == most.shape == right.shape:
                    with np.errstate(all="ignore"):
                        near = np.abs(value.astype(np.float64) - right) <= MUCH_WORSE * most
                    result[name] = np.where(near, right, value)
            return result

        target, own = self._error(wide, made), self._error(wide, case.reference, self._exact)
        passed = self._error(wide, forgiven(made)).passed
        passed = passed and self._error(wide, forgiven(case.reference), self._exact).passed
        if not passed or target.times(own) >= MUCH_WORSE:
            return None
        most = max((float(np.max(expected[n], initial=0.0)) for n in case.outputs if n in expected), default=0.0)
        low = "tf32" if self._tolerance.precision is Precision.TF32 else "fp32"
        sentence = (
            f"{low} cannot hold these values: rounding is expected to move the outputs by up to {most:.3g}, and from float64 "
            f"{self._target} is off by {target}, {self._reference} by {own}. It is no bug of {self._target}: values are computed "
            "with that are large beside what is left of them; subtract the mean, or scale, before."
        )
        errors = {"target_error": target.largest, "reference_error": own.largest, "rounding_error": most}
        return Fault("rounding", sentence, {**errors, "precision": low, "arbiter": self._arbiter})

    def _tied(self) -> Fault | None:
        """Whether the first decision that the two sides took differently was so near to its edge that neither is wrong."""
        reference, target = self._case.reference, self._made
        for node in self._case.model.graph.node:
            outputs = [name for name in node.output if name]
            if not _decides(node) or not all(name in reference and name in target for name in outputs):
                continue
            decided, other = ([np.asarray(side[name]) for name in outputs] for side in (reference, target))
            if not all(map(np.array_equal, decided, other)):
                return self._near(node, decided, other)
        return None

    def _near(
        self, node: onnx.NodeProto, decided: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]
    ) -> Fault | None:
        case = self._case
        stored = {each.name: each for each in case.model.graph.initializer if not each.external_data}
        weights = {name: np.asarray(numpy_helper.to_array(stored[name])) for name in node.input if name in stored}
        mine = {**case.reference, **case.inputs, **weights}
        fed = {name: _round(each, case.low) for name, each in case.inputs.items()}
        their = {**self._made, **fed, **weights}
        inputs = [mine.get(name) for name in node.input]
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        measured = margin(Decision(node.op_type, attributes, inputs, decided, other))
        numbers = [value.reshape(-1) for value in inputs[:2] if value is not None and value.dtype.kind == "f"]
        if measured is None or not measured[0].size or not np.isfinite(measured[0]).all() or not numbers:
            return None
        edges, sizes = measured
        resolved = automatic_tolerance(np.concatenate(numbers), self._tolerance.precision)
        moved = max(_moved(one, their.get(name)) for name, one in zip(node.input, inputs, strict=True) if name)
        largest = float(edges.max())
        near = bool((edges <= 2 * (resolved.atol + resolved.rtol * sizes)).all())
        # A decision that rounding cannot have moved over its edge is wrong; of equals, either may be chosen.
        turned = moved > 0 and largest <= 2 * moved
        draw = largest == 0 and node.op_type in ("ArgMax", "ArgMin", "TopK", "NonMaxSuppression")
        if not near or not (turned or draw):
            return None
        name, difference = node.name or node.output[0], moved if math.isfinite(moved) else None
        by = "" if difference is None else f", and rounding moves what it reads by up to {difference:.3g}"
        sentence = (
            f"A tie: {edges.size} decision{'s' if edges.size > 1 else ''} of {node.op_type} '{name}' came out otherwise. The "
            f"margin is {largest:.3g} at most{by}. Neither side is wrong."
        )
        figures = {"margin": largest, "difference": difference, "op": node.op_type, "node": name}
        return Fault("tie", sentence, {**figures, "decisions": edges.size})


def _drawing(case: Opinions) -> onnx.NodeProto | None:
    """The first node that draws random numbers."""
    draws = Draws(case.model, {**case.reference, **case.inputs}, unsure=False)
    return next(filter(draws.by, case.model.graph.node), None)


def _moved(one: NDArray[Any] | None, two: NDArray[Any] | None) -> float:
    """How far two roundings of a tensor are apart; infinitely where that is not known."""
    if one is None or two is None or one.shape != two.shape:
        return math.inf
    if one.dtype.kind != "f":
        return 0.0
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(np.float64) - two.astype(np.float64))[np.isfinite(one) | np.isfinite(two)]
    return float(np.max(apart, initial=0.0)) if np.isfinite(apart).all() else math.inf


def _round(value: NDArray[Any], low: str | None) -> NDArray[Any]:
    """An input as the target rounds it."""
    if low is None or value.dtype != np.float32:
        return value
    if low == "fp16":
        return round_to_half(value).astype(np.float32)
    return (round_to_bfloat16(value).astype(np.uint32) << np.uint32(16)).view(np.float32)
