"""Decides which side of a minimal case is wrong: the target, the reference, the low precision, or neither.

The case is computed by the target, by the reference, by ONNX's reference evaluator in float64, and
by the reference with every tensor rounded. :class:`Opinions` holds the outputs of each, and its
method :meth:`~Opinions.judge` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

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
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.faults import (
    FEW_ULPS,
    IN_FP32,
    NOT_NUMBERS,
    SAME_RUNTIME,
    STRING,
    Difference,
    Fault,
    Lost,
    Rule,
)
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Loss
from bisect_trt.report.text import Entry
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.steps.rounding import (
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
from bisect_trt.worker.protocol import CRASHED, Failed

_TRIALS = 6
_MOST_TENSORS = 64
"""The largest number of tensors of a case that are rounded one by one."""


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
            by its rounding. The reason why there are none is a message, or the low precisions that
            are not emulated; empty where rounding cannot make such a difference.
        low: The low precision of the target, where it is emulated here.
        keep: The nodes that the target keeps in fp32, by address.
        plain: The outputs of the evaluator in fp32, where rounding may explain the difference.
        tolerance: How far the target may be off.
        target_name: The target in sentences.
        reference_name: The reference in sentences.
        run: Runs another model on the reference.
        marked_target: The outputs of the target with the tensors of deciding nodes among them,
            which may hide the failure.
        crashed: Whether the target crashed.
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
    crashed: bool = False
    network: Network | None = None
    wide: bool = True
    rounded: Computed = ""
    low: str | None = None
    keep: Collection[str] = ()
    plain: Values = {}

    def judge(self) -> Fault:
        """Decide which side is wrong: the first rule that applies decides."""
        if isinstance(self.target, str):
            return self._refused()
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
    def own(self) -> Difference | None:
        """The error of the reference; ``None`` if the evaluator does not run the case."""
        if isinstance(self.right, str) or not self.outputs:
            return None
        exact = exact_tolerance(self.tolerance, self.reference)
        return self._error(self.right, self.reference, exact)

    @cached_property
    def seen(self) -> Difference:
        """The difference between target and reference."""
        return self._error(self.reference, self._made)

    @property
    def _made(self) -> Values:
        return {} if isinstance(self.target, str) else self.target

    def _error(
        self, right: Values, values: Values, tolerance: ToleranceOptions | None = None
    ) -> Difference:
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
        kinds = [comparison.kind.value for comparison in wrong]
        if any(comparison.target_dtype == "string" for comparison in wrong):
            kinds.append(STRING)
        kind = next((kind for kind in kinds if kind in NOT_NUMBERS), "")
        worst = max((comparison.severity for comparison in wrong), default=0.0)
        return Difference(not wrong, worst, max(errors, default=0.0), kind)

    def _fault(self, rule: Rule, **figures: Any) -> Fault:  # noqa: ANN401 - fields of a fault
        """Return a fault with the figures that are known, and others."""
        known: Entry = {"low": self.low, "own": self.own}
        if self._made:
            known["seen"] = self.seen
            if not isinstance(self.rounded, str):
                known["alone"] = self._error(self.reference, self.rounded)
        names = (self.target_name, self.reference_name, self.arbiter)
        return Fault(rule, *names, **{**known, **figures})

    def _refused(self) -> Fault:
        """The target does not run the case."""
        if self.own is None:
            rule = Rule.REFUSED if self.outputs else Rule.REFUSED_TWICE
            return self._fault(rule, message=str(self.right))
        # Where the evaluator computes other values, it does not vouch for the model.
        if not self.own.passed and self.drawing is None:
            return self._fault(Rule.DISPUTED)
        return self._fault(Rule.CRASHED if self.crashed else Rule.UNSUPPORTED)

    def _drawn(self) -> Fault | None:
        """The case draws random numbers."""
        if (node := self.drawing) is None:
            return None
        rule = Rule.DROPPED if node.op_type == "Dropout" else Rule.DRAWN
        return Fault(rule, self.target_name, op=node.op_type, node=label(node))

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
        figures: Entry = {"op": first.op_type, "node": label(first), "decisions": count}
        if is_tie:
            return Fault(Rule.TIE, **figures)
        return self._fault(Rule.TURNED, low=precision.value, **figures)

    def _passes(self) -> Fault | None:
        """The target makes no error any more."""
        return self._fault(Rule.GONE) if self.seen.passed else None

    def _rounded(self) -> Fault | None:
        """Rounding alone, without the target, makes the same error, or approximations in the low precision do."""
        if isinstance(self.rounded, str):
            return None
        alone = self._error(self.reference, self.rounded)
        if alone.passed or self.seen.times(alone) > MUCH_WORSE:
            return self._approximated()
        if self.low is not None:
            lost = self._lost(self.low, finite=math.isfinite(alone.severity))
            return self._fault(Rule.LOST if lost else Rule.TOO_ROUNDED, lost=lost)
        # It is a bug if neither the reference nor another computation in fp32 loses these digits: a sum
        # may be added one by one, or in pairs.
        if self.own and not isinstance(self.right, str):
            beside = self._error(self.right, self._made)
            plain = self._error(self.right, self.plain) if self.plain else self.own
            if min(beside.times(self.own), beside.times(plain)) >= MUCH_WORSE:
                return None
        return self._fault(Rule.ROUNDED)

    def _lost(self, low: str, *, finite: bool) -> Lost | None:
        """Find the first tensor of the case that overflows, or else makes the error if it alone is rounded.

        Args:
            low: The low precision.
            finite: Whether rounding leaves finite errors, so that nothing overflows.
        """
        values = self._tensors()
        rounded = {name: _in_low(value, low) for name, value in values.items()}
        past = {name: np.isinf(rounded[name]) & np.isfinite(values[name]) for name in values}
        tried = [name for name in values if (values[name] != rounded[name]).any()]
        tried.sort(key=lambda name: not past[name].any())
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
    ) -> Lost:
        """Return the loss of one tensor that is rounded.

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
        loss: Loss = "digits"
        maker = None
        if self.network is not None and name in self.network.producer:
            maker = _computed_by(self.network, name)
        if past.any():
            loss = "overflow"
            size = np.where(past, np.abs(value), 0)
        elif low == "fp16" and self._explains(values, name, small):
            loss = "underflow"
            zero = (value != 0) & (becomes == 0)
            size = np.where(zero if zero.any() else value != small, size, 0)
        place = np.unravel_index(np.argmax(size), value.shape)
        lost = float(value[place])
        if loss == "overflow":
            lost = abs(lost)
        limit = FP16_MAX if low == "fp16" else float(np.finfo(np.float32).max)
        stored = any(name == tensor.name for tensor in self.model.graph.initializer)
        return Lost(loss, name, lost, float(becomes[place]), limit, maker, stored)

    def _tensors(self) -> Values:
        """Return the float32 tensors of the case, in topological order."""
        graph = self.model.graph
        stored = [tensor for tensor in graph.initializer if not tensor.external_data]
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in stored}
        types = Network(self.model).element_types
        names = [name for node in graph.node for name in node.output]
        names = [name for name in names if types.get(name) == onnx.TensorProto.FLOAT]
        marked = clone(self.model)
        del marked.graph.output[:]
        info = helper.make_tensor_value_info
        marked.graph.output.extend(info(name, onnx.TensorProto.FLOAT, None) for name in names)
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
        return self._fault(Rule.APPROXIMATED, beside=error)

    def _reference_is_off(self) -> Fault | None:
        """The reference does not match float64; the target may. Or nothing else is known."""
        if isinstance(self.right, str) or self.own is None or self.own.passed:
            if self.rounded and isinstance(self.rounded, str):
                return self._fault(
                    Rule.UNROUNDED if self.low else Rule.NOT_EMULATED, message=self.rounded
                )
            if self.own is not None:
                return None
            claimed = {**self.inputs, **self._made}
            return self._fault(Rule.NO_VOTE, message=str(self.right), right=claimed)
        difference = self._error(self.right, self._made)
        if not difference.passed:
            is_bug = difference.times(self.own) >= MUCH_WORSE
            return self._fault(Rule.TARGET_OFF if is_bug else Rule.BOTH_OFF, beside=difference)
        outputs = {
            name: value.astype(self.reference[name].dtype)
            for name, value in self.right.items()
            if name in self.reference
        }
        right = {**self.inputs, **outputs}
        return self._fault(Rule.REFERENCE_OFF, beside=difference, right=right)

    def _target_is_off(self) -> Fault:
        """The reference matches float64, and the target is further off than rounding makes it."""
        return self._fault(Rule.ALONE)


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
        golden = _run(subject, answer.proto, dict(subject.values(answer, answer.inputs)))
        rule = Rule.BUILT_NOWHERE if isinstance(golden, str) else Rule.NOT_BUILT
        return Fault(rule, name, reference)
    if name == right:  # one runtime with two configurations
        name = target.describe()
        wide = IN_FP32 if subject.models.computes_wide else ""
        reference = SAME_RUNTIME.format(right, wide)
    releases = None
    versions = {str(seen.target.get("version", "")) for seen in subject.seen.values()}
    if (
        len(versions) == 1 and "" not in versions
    ):  # the release in a place, which no page of the report has
        version = versions.pop()
        name = name.replace(target.target.title, f"{target.target.title} {version}", 1)
        here = max(installed_versions(reference_settings()), key=Version, default=version)
        if target.target.title == right and Version(version) > Version(here):
            releases = (f"{right} {version}", here)
    refusal = (
        None
        if outcome is None or outcome.ending in (Ending.MISMATCHED, Ending.PASSED)
        else describe_outcome(outcome)
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

    def with_decisions(outputs: Values, on: TargetSettings | None = None) -> Values:
        """Return the outputs with the tensors that decisions read marked; none if that model does not run."""
        shown = run(marked, on=on) if marked is not answer.proto else outputs
        return {} if isinstance(shown, str) else shown

    outputs = refusal or run(answer.proto, on=settings)
    shown = {} if isinstance(outputs, str) else with_decisions(outputs, settings)
    # Marking may change what the target computes, so its outputs stay.
    outputs = outputs if isinstance(outputs, str) else {**shown, **outputs}
    objected = objection(marked)
    exact = objected or _attempt(lambda: _in_float64(subject, marked, inputs))
    low, rounded = _round(marked, settings, golden, run, refused=isinstance(outputs, str))
    measured = low is None and not isinstance(rounded, str)
    plain = run(marked, on=EVALUATOR) if measured else ""
    reference_values = {**with_decisions(golden), **golden}
    fault = Opinions(
        marked,
        tuple(each for each in answer.outputs if each in {*golden, *map(tensor_of, golden)}),
        inputs,
        reference_values,
        outputs,
        run(marked, on=EVALUATOR) if isinstance(exact, str) and not objected else exact,
        tolerance,
        name,
        reference,
        run,
        shown,
        outcome is not None and outcome.signature.startswith(CRASHED),
        subject.network,
        not isinstance(exact, str),
        rounded,
        low,
        settings.keep,
        {} if isinstance(plain, str) else plain,
    ).judge()
    if refusal and subject.models.computes_wide and target.target.title == right:
        # The reference lacks the same kernel: it runs another model than the target is asked for.
        return Fault(Rule.NO_KERNEL, name, reference)
    return structs.replace(fault, releases=releases)


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
        The low precision, if it is emulated; and the outputs, or why there are none, as
        :class:`Opinions` has them.
    """
    # TF32 only widens the tolerance.
    lows = tuple(low for low in settings.low_precisions if low != "tf32")
    if len(lows) == 1 and lows[0] in LOW_TYPES:
        low = lows[0]
        outputs = _attempt(lambda: run(lower_roundtrip(model, settings.keep, low=LOW_TYPES[low])))
        return low, outputs
    if lows:
        return None, " and ".join(lows)
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
