"""Decides which side of a minimal case is wrong: the target, the reference, the low precision, or neither.

The case is computed by the target, by the reference, by ONNX's reference evaluator in float64, and
by the reference with every tensor rounded. :class:`Opinions` holds the outputs of each, and its
method :meth:`~Opinions.judge` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx
from msgspec import Struct, structs
from onnx import helper, numpy_helper
from packaging.version import Version

from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.low_plan import LOW_TYPES
from bisect_trt.onnxlib.lower import round_to_bfloat16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone, drawing_nodes, drop, label
from bisect_trt.onnxlib.roundings import EXACT_OPS, lower_roundtrip, lows_of, widened
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import CRASHED
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.parts import Whose, WrongSide
from bisect_trt.report.text import Entry, Json
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.steps.rounding import (
    FEW_ULPS,
    MUCH_WORSE,
    ULP,
    UNITS,
    Computed,
    Run,
    is_continuous,
    mark_decisions,
    perturb,
    rounding_turns,
    roundings,
    turned_decision,
    with_decision,
)
from bisect_trt.steps.second_opinion import EVALUATOR, EVALUATOR_SECONDS, installed_versions
from bisect_trt.steps.standing import objection
from bisect_trt.targets.base import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.info import FP16_MAX, FP16_NORMAL, Array, tensor_of
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Failed

_TRIALS = 6
_MOST_TENSORS = 64
"""The largest number of tensors of a case that are rounded one by one."""
_NOT_NUMBERS = {"shape": "its shape", "dtype": "its type", "missing": "an output that is missing"}
_STRINGS = "its strings"


class Fault(Struct, frozen=True):
    """The side that is wrong.

    Attributes:
        whose: The target, the reference or the low precision; ``rounding`` where fp32 itself is
            that far off; ``tie`` where a decision is so close that both results are right;
            ``random`` where a node draws random numbers; ``unknown`` where that cannot be decided.
        sentence: The reason, with the figures.
        figures: The same as numbers: the largest absolute error of each side, and what the rule
            compared.
        is_seen: Whether the target differs when the case is run once more.
        right: The inputs, and the outputs that the reference lacks: the evaluator's where the
            reference is to blame, the target's where the evaluator has no vote.
    """

    whose: Whose
    sentence: str
    figures: Json = {}
    is_seen: bool = True
    right: Values = {}

    @property
    def is_bug(self) -> bool:
        """Whether it may be worth a bug report to the vendor of the target."""
        return self.whose in ("target", "unknown")

    @property
    def is_fixable(self) -> bool:
        """Whether another setting of the target, or another form of the model, may make it pass."""
        return self.whose in ("target", "precision", "unknown")

    def to_part(self) -> WrongSide:
        """Return the field ``fault`` of the result."""
        return WrongSide(self.whose, self.sentence, **self.figures)


class _Error(Struct, frozen=True):
    """The difference of two sides."""

    passed: bool
    severity: float  # in tolerances, of the element furthest past its own
    largest: float  # absolute
    words: str  # in place of a number

    def __str__(self) -> str:
        finite = math.isfinite(self.severity) and math.isfinite(self.largest)
        return f"{self.largest:.3g}" if finite else self.words

    def times(self, divisor: _Error) -> float:
        """Return how many times worse it is, absolute or in tolerances; 1 where both are NaN or Inf."""
        if not math.isfinite(divisor.severity):
            return 1.0
        if not math.isfinite(self.severity):
            return math.inf
        absolute = self.largest / divisor.largest if 0 < divisor.largest < math.inf else 0.0
        return max(absolute, self.severity / max(divisor.severity, 1.0))


class Opinions(Struct, frozen=True, dict=True):
    """The outputs of a minimal case on several runtimes; a text in place of outputs is the reason why there are none.

    Attributes:
        model: The case, with the tensors of its deciding nodes among its outputs.
        outputs: The tensors that are compared.
        inputs: Its input values.
        reference: The outputs of the reference.
        target: The outputs of the target.
        right: The outputs of ONNX's reference evaluator, which count as right.
        wide: Whether the evaluator computed in float64.
        rounded: The reference's with each tensor rounded to ``low``, or in fp32 perturbed at random
            by its rounding. Empty where rounding cannot make such a difference.
        low: The low precision of the target, where it is emulated here.
        keep: The nodes that the target keeps in fp32, by address.
        plain: The outputs of the evaluator in fp32, where rounding may explain the difference.
        tolerance: How far the target may be off.
        target_name: The target in sentences.
        reference_name: The reference in sentences.
        run: Runs another model on the reference.
        marked_target: The outputs of the target with the tensors of deciding nodes among them,
            which may hide the failure.
        network: The whole model, which the node that makes a tensor is named of.
    """

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    inputs: Values
    reference: Values
    target: Computed
    right: Computed
    tolerance: ToleranceOptions
    target_name: str
    reference_name: str
    run: Run
    marked_target: Values = {}
    network: Network | None = None
    wide: bool = True
    rounded: Computed = ""
    low: str | None = None
    keep: Collection[str] = ()
    plain: Values = {}

    def judge(self) -> Fault:
        """Decide which side is wrong: the first rule that applies decides."""
        if isinstance(self.target, str):
            return self._refused(self.target)
        rules = (self._drawn, self._turned, self._passes, self._rounded, self._reference_is_off)
        return (
            next((fault for rule in rules if (fault := rule()) is not None), None)
            or self._target_is_off()
        )

    @cached_property
    def drawing(self) -> onnx.NodeProto | None:
        """The first node that draws random numbers."""
        drawing = drawing_nodes(self.model)
        return self.model.graph.node[drawing[0]] if drawing else None

    @property
    def arbiter(self) -> str:
        """The evaluator in sentences."""
        return f"ONNX's reference evaluator{' in float64' if self.wide else ''}"

    @cached_property
    def own(self) -> _Error | None:
        """The error of the reference; ``None`` if the evaluator does not run the case."""
        if isinstance(self.right, str) or not self.outputs:
            return None
        exact = exact_tolerance(self.tolerance, self.reference)
        return self._error(self.right, self.reference, exact)

    @cached_property
    def seen(self) -> _Error:
        """The difference between target and reference."""
        return self._error(self.reference, self._made)

    @property
    def _made(self) -> Values:
        return {} if isinstance(self.target, str) else self.target

    def _error(
        self, right: Values, values: Values, tolerance: ToleranceOptions | None = None
    ) -> _Error:
        outputs = {*self.outputs}
        expected = {
            name: value
            for name, value in right.items()
            if name in outputs or tensor_of(name) in outputs
        }
        comparisons = compare_all(
            expected, values, tolerance or self.tolerance, lows=lows_of(self.model.graph)
        )
        wrong = [comparison for comparison in comparisons if not comparison.passed]
        # NaN compares as smaller than every error, and is worse than all.
        errors = [
            math.inf
            if comparison.max_abs is None or math.isnan(comparison.max_abs)
            else comparison.max_abs
            for comparison in comparisons
        ]
        words = next(
            (
                _NOT_NUMBERS[comparison.kind.value]
                for comparison in wrong
                if comparison.kind.value in _NOT_NUMBERS
            ),
            _STRINGS
            if any(comparison.target_dtype == "string" for comparison in wrong)
            else "NaN or Inf",
        )
        worst = max((comparison.severity for comparison in wrong), default=0.0)
        return _Error(not wrong, worst, max(errors, default=0.0), words)

    def _fault(self, whose: Whose, sentence: str, **figures: object) -> Fault:
        """Return a fault with the figures that are known, and others."""
        facts: Entry = (
            {}
            if self.own is None
            else {"reference_error": self.own.largest, "arbiter": self.arbiter}
        )
        if self._made:
            facts |= {"target_error": self.seen.largest, "severity": self.seen.severity}
        if not isinstance(self.rounded, str) and self._made:
            rounding = self._error(self.reference, self.rounded)
            facts |= {"rounding_error": rounding.largest, "precision": self.low or "fp32"}
            facts["times_worse"] = self.seen.times(rounding)
        return Fault(whose, sentence, facts | figures)

    def _unknown(self, reason: str, **figures: object) -> Fault:
        return self._fault(
            "unknown", f"Which side is wrong cannot be decided: {reason}.", **figures
        )

    def _bug(
        self, reason: str, lack: str = "", figures: Mapping[str, object] | None = None
    ) -> Fault:
        return self._fault(
            "target", f"It is a bug in {self.target_name}{lack}: {reason}.", **(figures or {})
        )

    def _no_arbiter(self) -> str:
        line = " ".join(str(self.right).split())
        return f"{self.arbiter} has no vote on the case ({line if len(line) <= 160 else f'{line[:157]}...'})"

    def _refused(self, message: str) -> Fault:
        """The target does not run the case."""
        runtimes = f"{self.arbiter} and {self.reference_name}"
        if self.own is None:
            neither = (
                self._no_arbiter()
                if self.outputs
                else f"{self.reference_name} does not run it either"
            )
            return self._unknown(f"{self.target_name} does not run the case, and {neither}")
        # Where the evaluator computes other values, it does not vouch for the model.
        if not self.own.passed and self.drawing is None:
            return self._unknown(
                f"{self.target_name} does not run the case, and {runtimes} differ by {self.own}"
            )
        lack = (
            ", which crashes"
            if message.startswith(CRASHED)
            else ", or an operator that it does not support"
        )
        return self._bug(f"{runtimes} both run it", lack)

    def _drawn(self) -> Fault | None:
        """The case draws random numbers."""
        if (node := self.drawing) is None:
            return None
        advice = "make the random tensor an input of the model, or give the node a seed so that one runtime repeats itself"
        if node.op_type == "Dropout":
            advice = "export the model in eval mode (`model.eval()` in PyTorch), or set its training_mode to false"
        sentence = (
            f"{node.op_type} '{label(node)}' draws random numbers, so two runtimes need not agree. This is not a bug in "
            f"{self.target_name}. To compare them, {advice}."
        )
        return Fault("random", sentence, {"node": label(node), "op": node.op_type})

    def _turned(self) -> Fault | None:
        """Decisions explain the difference: a tie if fp32 turns them too, else the fault of the target's low precision."""
        precision = Precision(self.low) if self.low else self.tolerance.precision
        right = [] if isinstance(self.right, str) else [self.right]
        made = self.marked_target
        error = self._error(self.reference, made)
        # Marked tensors may hide the failure, and leave ties.
        if not made or error.passed or self.seen.times(error) > MUCH_WORSE:
            made = self._made
        model = self.model
        inputs = dict(self.inputs)
        values = self.reference
        first = None
        count = 0
        is_tie = True
        while (node := turned_decision(model, values, made)) is not None:
            low = precision is not Precision.FP32
            sides = [values, *right] if low else [values, made, *right]
            turned = rounding_turns(node, model, inputs, sides, made, Precision.FP32, self.run)
            if not turned and low:
                is_tie = False
                sides = [values, made, *right]
                turned = rounding_turns(node, model, inputs, sides, made, precision, self.run)
            if not turned:
                return None
            first = first or node
            one = values[node.output[-1]]  # TopK: the indices
            other = made[node.output[-1]]
            count += int(np.count_nonzero(one != other)) if one.shape == other.shape else 1
            # What follows the decision is computed again from the target's: another difference may
            # be left.
            decided = {name: made[name] for name in node.output if name in made}
            model = with_decision(model, node, decided)
            inputs = inputs | decided
            following = self.run(model, inputs) if model.graph.output else {}
            if isinstance(following, str):
                return None
            values = {**values, **decided, **following}  # the evaluator decided otherwise before
            right = []
        if first is None or not self._error(values, made).passed:
            return None
        differ = f"{count} decision{'s' if count > 1 else ''} of {first.op_type} '{label(first)}'"
        figures: Entry = {"op": first.op_type, "node": label(first), "decisions": count}
        if is_tie:
            differ += f" differ{'' if count > 1 else 's'}"
            return Fault(
                "tie",
                f"A tie: {differ}, within the rounding of its inputs. Neither side is wrong.",
                figures,
            )
        sentence = (
            f"Rounding to {precision.value} turns {differ}, which fp32 decides clearly. This is not a bug in "
            f"{self.target_name}: keep the nodes that compute its inputs in a wider precision."
        )
        return self._fault("precision", sentence, **figures)

    def _passes(self) -> Fault | None:
        """The target makes no error any more."""
        if not self.seen.passed:
            return None
        return structs.replace(
            self._unknown("run once more, the target does not fail"), is_seen=False
        )

    def _rounded(self) -> Fault | None:
        """Rounding alone, without the target, makes the same error, or approximations in the low precision do."""
        if isinstance(self.rounded, str):
            return None
        alone = self._error(self.reference, self.rounded)
        if alone.passed or self.seen.times(alone) > MUCH_WORSE:
            return self._approximated()
        what = f"these values: rounding alone, without the target, is off by {alone}"
        advice = "keep these nodes in a wider precision"
        figures: Entry = {}
        if self.low is None:
            # It is a bug if neither the reference nor another computation in fp32 loses these digits:
            # a sum may be added one by one, or in pairs.
            if self.own and not isinstance(self.right, str):
                beside = self._error(self.right, self._made)
                plain = self._error(self.right, self.plain) if self.plain else self.own
                if min(beside.times(self.own), beside.times(plain)) >= MUCH_WORSE:
                    return None
            advice = "subtract the mean, or scale, before"
        else:
            what, figures = self._lost(self.low, finite=math.isfinite(alone.severity)) or (what, {})
        sentence = f"{self.low or 'fp32'} cannot represent {what}. This is not a bug in {self.target_name}: {advice}."
        return self._fault("rounding" if self.low is None else "precision", sentence, **figures)

    def _lost(self, low: str, *, finite: bool) -> tuple[str, Entry] | None:
        """Find the first tensor of the case that overflows, or else makes the error if it alone is rounded.

        Args:
            low: The low precision.
            finite: Whether rounding leaves finite errors, so that nothing overflows.

        Returns:
            The loss in words, and as figures.
        """
        values = self._tensors()
        rounded = {name: _in_low(value, low) for name, value in values.items()}
        past = {name: np.isinf(rounded[name]) & np.isfinite(values[name]) for name in values}
        tried = [name for name in values if (values[name] != rounded[name]).any()]
        few = () if self.keep else tried[:_MOST_TENSORS]
        alone = (name for name in few if self._explains(values, name, rounded[name]))
        overflowing = (name for name in values if past[name].any() and not finite)
        name = next(overflowing, None) or next(alone, None)
        if name is None:
            return None
        return self._loss(values, name, rounded[name], past[name], low)

    def _loss(
        self,
        values: Values,
        name: str,
        becomes: Array,
        past: Array,
        low: str,
    ) -> tuple[str, Entry]:
        """Return the loss of one tensor that is rounded, in words and as figures.

        Args:
            values: The values of all tensors of the case.
            name: The tensor.
            becomes: Its values in the low precision.
            past: Which of them overflow.
            low: The low precision.
        """
        value = values[name]
        with np.errstate(invalid="ignore"):
            size = np.nan_to_num(np.abs(value.astype(np.float64) - becomes))
        small = np.where(np.abs(value) < FP16_NORMAL, becomes, value)
        loss = "digits"
        maker = ""
        if self.network is not None and name in self.network.producer:
            maker = f" of {_computed_by(self.network, name)}"
        reason = f"'{name}'{maker} becomes "
        if any(name == tensor.name for tensor in self.model.graph.initializer):
            reason = f"the constant {reason}"
        if past.any():
            loss = "overflow"
            size = np.where(past, np.abs(value), 0)
        elif low == "fp16" and self._explains(values, name, small):
            loss = "underflow"
            zero = (value != 0) & (becomes == 0)
            size = np.where(zero if zero.any() else value != small, size, 0)
        place = np.unravel_index(np.argmax(size), value.shape)
        lost = float(value[place])
        what = f"this value: {lost:.7g} in {reason}{float(becomes[place]):.7g}"
        if loss == "overflow":
            limit = FP16_MAX if low == "fp16" else float(np.finfo(np.float32).max)
            lost = abs(lost)
            what = f"this value: {lost:.5g} exceeds its maximum, {limit:.5g}"
        elif loss == "underflow":
            what += ", as all below 3e-8" if zero.any() else ", as few digits are left below 6e-5"
        return what, {"value": lost, "loss": loss, "tensor": name}

    def _tensors(self) -> Values:
        """Return the float32 tensors of the case, in topological order."""
        graph = self.model.graph
        stored = [each for each in graph.initializer if not each.external_data]
        weights = {each.name: numpy_helper.to_array(each) for each in stored}
        types = Network(self.model).element_types
        made = [name for node in graph.node for name in node.output]
        made = [name for name in made if types.get(name) == onnx.TensorProto.FLOAT]
        marked = clone(self.model)
        del marked.graph.output[:]
        info = helper.make_tensor_value_info
        marked.graph.output.extend(info(name, onnx.TensorProto.FLOAT, None) for name in made)
        values = self.run(marked, self.inputs)
        known = {**self.inputs, **weights, **({} if isinstance(values, str) else values)}
        return {name: value for name, value in known.items() if value.dtype == np.float32}

    def _explains(self, values: Values, name: str, rounded: Array) -> bool:
        """Return whether the case with other values of one tensor is as far off as the target."""
        graph = self.model.graph
        maker = next((node for node in graph.node if name in node.output), None)
        model = self.model
        fed = {**self.inputs, name: rounded}
        made: Computed = {**self.reference, name: rounded}
        if name not in self.outputs:
            if maker is not None:
                fed |= {other: values[other] for other in maker.output if other in values}
                fed[name] = rounded
                model = with_decision(model, maker, fed)
            elif name not in self.inputs:
                model = clone(model)
                drop(model.graph.initializer, [name])
                kind = onnx.TensorProto.FLOAT
                model.graph.input.append(helper.make_tensor_value_info(name, kind, rounded.shape))
            made = self.run(model, fed)
        error = None if isinstance(made, str) else self._error(self.reference, made)
        return error is not None and not error.passed and self.seen.times(error) <= MUCH_WORSE

    def _approximated(self) -> Fault | None:
        """Nodes that are each off by a few units in the last place make the same error, without the target."""
        if self.low is None or not is_continuous(self.model):
            return None
        emulated = lower_roundtrip(self.model, self.keep, low=LOW_TYPES[self.low])
        casts = {node.input[0] for node in emulated.graph.node if node.op_type == "Cast"}
        unit = FEW_ULPS * UNITS[Precision(self.low)]
        # A few units on an input would excuse a single node that cancels.
        units = dict.fromkeys(casts - self.inputs.keys(), unit)
        alone = perturb(
            emulated, units, self.reference, lambda model: self.run(model, self.inputs), _TRIALS
        )
        if isinstance(alone, str):
            return None
        error = self._error(self.reference, alone)
        if error.passed or self.seen.times(error) > MUCH_WORSE:
            return None
        sentence = (
            f"{self.low} is too coarse for these nodes: if each is off by up to {FEW_ULPS} units in the last place, "
            f"as approximations are, the case is off by {error} without the target. This is not a bug in "
            f"{self.target_name}: keep these nodes in a wider precision."
        )
        return self._fault("precision", sentence)

    def _reference_is_off(self) -> Fault | None:
        """The reference does not match float64; the target may. Or nothing else is known."""
        if isinstance(self.right, str) or self.own is None or self.own.passed:
            if self.rounded and isinstance(self.rounded, str):
                return self._unknown(self.rounded)
            if self.own is not None:
                return None
            claimed = {**self.inputs, **self._made}
            return structs.replace(self._unknown(self._no_arbiter()), right=claimed)
        difference = self._error(self.right, self._made)
        off = f"compared with {self.arbiter}, {self.target_name} is off by {difference}, and {self.reference_name} by {self.own}"
        figures = {"target_error": difference.largest}
        if difference.passed:
            fault = self._fault("reference", f"The reference is off: {off}.", **figures)
            outputs = {
                name: value.astype(self.reference[name].dtype)
                for name, value in self.right.items()
                if name in self.reference
            }
            return structs.replace(fault, right={**self.inputs, **outputs})
        times = difference.times(self.own)
        figures["times_worse"] = times
        return (
            self._unknown(off, **figures) if times < MUCH_WORSE else self._bug(off, figures=figures)
        )

    def _target_is_off(self) -> Fault:
        """The reference matches float64, and the target is further off than rounding makes it."""
        off = f"it is off by {self.seen}, and {self.reference_name} agrees with {self.arbiter} to within {self.own}"
        if self.low is not None and not isinstance(self.rounded, str):
            off += f"; rounding to {self.low} alone is off by {self._error(self.reference, self.rounded).largest:.3g}"
        return self._bug(off)


def _computed_by(network: Network, name: str) -> str:
    """Return the node that computes a tensor, before those that only move its values."""
    index = network.producer[name]
    while network.nodes[index].op_type in EXACT_OPS - {"Concat", "Where"}:
        before = network.producer.get(network.nodes[index].input[0])
        if before is None:
            break
        index = before
    return network.describe(index)


def _in_low(values: Array, low: str) -> Array:
    """Return float32 values rounded to fp16 or bf16, as float32."""
    if low == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return (round_to_bfloat16(values).astype(np.uint32) << np.uint32(16)).view(np.float32)


def exact_tolerance(tolerance: ToleranceOptions, values: Values) -> ToleranceOptions:
    """Return the tolerance of two exact computations, which may differ by the rounding of the types of their values."""
    low = any(value.dtype == np.float16 for value in values.values())
    precision = Precision.FP16 if low else Precision.FP32
    return replace(tolerance, atol={}, rtol={}, check_error_stat={}, precision=precision)


def arbitrate(
    session: Session, target: TargetSettings, tolerance: ToleranceOptions, answer: Candidate
) -> Fault:
    """Decide which side of a minimal case is wrong: a few runs of a few nodes, none of them a probe."""
    subject = session.subject
    outcome = None if session.probing is None else session.probing.ledger.outcome(answer.key)
    name = target.target.title
    right = reference_settings().target.title
    reference = f"the reference ({right})"
    if target.build_only:
        if isinstance(
            _run(subject, answer.proto, dict(subject.values(answer, answer.inputs))), str
        ):
            return Fault(
                "unknown",
                f"Which side is wrong cannot be decided: {reference} does not run the case either.",
            )
        lack = "or an operator, a type or a shape that it does not support"
        return Fault("target", f"It is a bug in {name}, {lack}: {reference} runs the case.")
    if name == right:  # one runtime with two configurations
        name = target.describe()
        wide = ", in fp32 because it has no bf16 kernels" if subject.models.computes_wide else ""
        reference = f"the reference ({right} on the CPU, graph optimisations off{wide})"
    newer = ""
    versions = {str(seen.target.get("version", "")) for seen in subject.seen.values()}
    if (
        len(versions) == 1 and "" not in versions
    ):  # the release in a place, which no page of the report has
        version = versions.pop()
        name = name.replace(target.target.title, f"{target.target.title} {version}", 1)
        here = max(installed_versions(reference_settings()), key=Version, default=version)
        if target.target.title == right and Version(version) > Version(here):
            newer = f" {right} {version} is newer than the reference ({here}): if its values are right, upgrade."
    refusal = (
        None
        if outcome is None or outcome.ending in (Ending.MISMATCHED, Ending.PASSED)
        else outcome.reason
    )
    settings = answer.settings(target)
    inputs, golden = (
        dict(subject.values(answer, names)) for names in (answer.inputs, answer.outputs)
    )
    marked = mark_decisions(answer.proto)
    earlier = subject.earlier(answer)

    def run(
        model: onnx.ModelProto, values: Values = inputs, on: TargetSettings | None = None
    ) -> Computed:
        # The target may keep something of the samples before.
        return _run(subject, model, values, on, earlier if on == settings else ())

    def with_decisions(made: Values, on: TargetSettings | None = None) -> Values:
        """Return the outputs with the tensors that decisions read marked; none if that model does not run."""
        shown = run(marked, on=on) if marked is not answer.proto else made
        return {} if isinstance(shown, str) else shown

    made = refusal or run(answer.proto, on=settings)
    shown = {} if isinstance(made, str) else with_decisions(made, settings)
    # Marking may change what the target computes, so its outputs stay.
    made = made if isinstance(made, str) else {**shown, **made}
    objected = objection(marked)
    exact = objected or _attempt(lambda: _in_float64(subject, marked, inputs))
    low, rounded = _round(marked, settings, golden, run, refused=isinstance(made, str))
    measured = low is None and not isinstance(rounded, str)
    plain = run(marked, on=EVALUATOR) if measured else ""
    reference_values = {**with_decisions(golden), **golden}
    fault = Opinions(
        marked,
        tuple(each for each in answer.outputs if each in {*golden, *map(tensor_of, golden)}),
        inputs,
        reference_values,
        made,
        run(marked, on=EVALUATOR) if isinstance(exact, str) and not objected else exact,
        tolerance,
        name,
        reference,
        run,
        shown,
        subject.network,
        not isinstance(exact, str),
        rounded,
        low,
        settings.keep,
        {} if isinstance(plain, str) else plain,
    ).judge()
    if refusal and subject.models.computes_wide and target.target.title == right:
        # The reference lacks the same kernel: it runs another model than the target is asked for.
        return Fault(
            "precision",
            f"{name} has no bf16 kernel for the case, and {reference} runs it. This is not a bug: run the model in fp32 or fp16.",
        )
    return (
        structs.replace(fault, sentence=fault.sentence + newer)
        if fault.whose == "unknown"
        else fault
    )


def _in_float64(subject: Subject, model: onnx.ModelProto, inputs: Values) -> Computed:
    """Return the outputs that ONNX's reference evaluator computes in float64."""
    wider = {
        name: value.astype(np.float64) if value.dtype == np.float32 else value
        for name, value in inputs.items()
    }
    return _run(
        subject, widened(model, subject.workspace.weights.folder_of(model)), wider, EVALUATOR
    )


def _round(
    model: onnx.ModelProto,
    settings: TargetSettings,
    golden: Values,
    run: Callable[..., Computed],
    *,
    refused: bool,
) -> tuple[str | None, Computed]:
    """Run the reference with rounding: to the low precision of the target, or perturbed by the rounding of fp32.

    Returns:
        The low precision, if it is emulated; and the outputs, or why there are none: empty where
        rounding makes no difference.
    """
    # TF32 only widens the tolerance.
    lows = tuple(low for low in settings.low_precisions if low != "tf32")
    if len(lows) == 1 and lows[0] in LOW_TYPES:
        low = lows[0]
        outputs = _attempt(lambda: run(lower_roundtrip(model, settings.keep, low=LOW_TYPES[low])))
        return low, f"rounding to {low} cannot be emulated ({outputs})" if isinstance(
            outputs, str
        ) else outputs
    if lows:
        return None, f"rounding to {' and '.join(lows)} is not emulated here"
    # The last place of fp32 does not measure lower types.
    if refused or not is_continuous(model) or lows_of(model.graph):
        return None, ""
    unit = UNITS[Precision.TF32] if "tf32" in settings.low_precisions else ULP
    units = roundings(model, Network(model).infos, unit)
    outputs = _attempt(lambda: perturb(model, units, golden, run, _TRIALS))
    return None, "" if isinstance(outputs, str) else outputs


def _attempt(compute: Callable[[], Computed]) -> Computed:
    """Return the outputs, or the error message: missing weights, an opset that is too old, wrong shapes."""
    try:
        return compute()
    except Exception as error:
        # ONNX raises errors of many types.
        return str(error)


def _run(
    subject: Subject,
    model: onnx.ModelProto,
    fed: Values,
    on: TargetSettings | None = None,
    earlier: Sequence[Values] = (),
) -> Computed:
    """Return the outputs of a model on a target, in a session that ran other inputs ``earlier``; on the reference without one."""
    try:
        timeout = EVALUATOR_SECONDS if on == EVALUATOR else None
        outputs = subject.models.run("fault", model, fed, on, timeout, earlier)
    except BisectError as error:
        return str(error)
    return outputs.message if isinstance(outputs, Failed) else outputs
