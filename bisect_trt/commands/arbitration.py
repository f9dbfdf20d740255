"""Which side of a minimal case is wrong: the target, the reference, the low precision, or neither, where two roundings tie.

The case is computed by the target, the reference, ONNX's reference evaluator in float64 (else in the model's own types), and
by the reference with each tensor rounded. The outputs of each are a row of :class:`Opinions`; :func:`judge` compares the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx

from bisect_trt.commands.rounding import (
    MUCH_WORSE,
    ULP,
    UNITS,
    Computed,
    Run,
    Values,
    first_turned,
    furthest_moved,
    is_steady,
    is_tie,
    mark_decisions,
)
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.emulation import lower_roundtrip, widened
from bisect_trt.onnxlib.lower import LOW_TYPES
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import drawing_nodes, label
from bisect_trt.onnxlib.roundings import lows_of
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import CRASHED
from bisect_trt.probe.outcome import Ending
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import to_plain
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Collect, Failed

Whose = Literal["target", "reference", "precision", "rounding", "tie", "random", "unknown"]
_EVALUATOR = TargetSettings("onnx")
_EVALUATOR_SECONDS = 120.0
"""The evaluator is written for clarity, not for speed."""
_TRIALS = 6
_KINDS = {"shape": "its shape", "dtype": "its type", "missing": "an output that is missing"}
"""Kinds of differences that are no number."""
_EVALUATOR_IGNORES = {"clip", "input_forget"}
"""Attributes of recurrent nodes that ONNX's evaluator does not implement, without saying so."""


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
    def is_targets(self) -> bool:
        """Whether another setting of the target, or another form of the model, may make it pass: else there is nothing to fix."""
        return self.whose in ("target", "precision", "unknown")

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
        right: Those of ONNX's reference evaluator, which count as right.
        wide: Whether that computed in float64.
        rounded: The reference's with each tensor rounded to ``low``, or in fp32 moved at random by its rounding.
        low: The low precision of the target, where it is emulated here.
        others: Low precisions of the target that are not.
    """

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    inputs: Values
    reference: Values
    target: Computed
    right: Computed
    wide: bool = True
    rounded: Computed = ""
    low: str | None = None
    others: tuple[str, ...] = ()

    @property
    def drawing(self) -> onnx.NodeProto | None:
        """The first node that draws random numbers."""
        found = drawing_nodes(self.model, {**self.reference, **self.inputs}, unsure=False)
        return self.model.graph.node[found[0]] if found else None


def arbitrate(session: Session, target: TargetSettings, tolerance: ToleranceOptions, answer: Candidate) -> Fault:
    """Decide which side of a minimal case is wrong: a few runs of a few nodes, none of them a probe."""
    subject, outcome = session.subject, session.prober.ledger.outcome(answer.key)
    name, right = target.target.title, reference_settings().target.title
    reference = f"the reference ({right})"
    if target.build_only:
        if isinstance(_run(subject, answer.proto, dict(subject.values(answer, answer.inputs))), str):
            return Fault("unknown", f"Which side is wrong cannot be decided: {reference} does not run the case either.")
        lack = "or an operator, a type or a shape that it does not have"
        return Fault("target", f"It is a bug of {name}, {lack}: {reference} runs the case.")
    if name == right:  # one runtime, set up in two ways
        name, reference = target.describe(), f"the reference ({right} on the CPU, graph optimisations off)"
    versions = {str(seen.target.get("version", "")) for seen in subject.seen.values()}
    if len(versions) == 1 and "" not in versions:  # the release in a place, which no page of the report has
        name = name.replace(target.target.title, f"{target.target.title} {versions.pop()}", 1)
    broken = outcome is not None and outcome.ending not in (Ending.MISMATCHED, Ending.PASSED)
    opinions = _gather(subject, answer, target, outcome.reason if outcome is not None and broken else None)
    return judge(opinions, tolerance, name, reference, lambda model, fed: _run(subject, model, fed))


def _gather(subject: Subject, candidate: Candidate, target: TargetSettings, refused: str | None) -> Opinions:
    """Compute a minimal case by all; ``refused`` is why the target does not run it, if so."""
    settings = replace(target, keep=candidate.keep or target.keep, held=candidate.held or target.held)
    inputs, golden = (dict(subject.values(candidate, names)) for names in (candidate.inputs, candidate.outputs))
    lows = tuple(name for name in settings.low_precisions if name != "tf32")  # TF32 is a matter of tolerance
    low = lows[0] if len(lows) == 1 and lows[0] in LOW_TYPES else None
    model = mark_decisions(candidate.proto)

    def rounded() -> Computed:
        if low is not None:
            return _run(subject, lower_roundtrip(model, settings.keep, low=LOW_TYPES[low]), inputs)
        # The last place of fp32 does not measure lower types.
        if lows or isinstance(made, str) or not is_steady(model) or lows_of(model.graph):
            return ""
        unit = UNITS[Precision.TF32] if "tf32" in settings.low_precisions else ULP
        infos = Network(model).infos
        return furthest_moved(model, infos, unit, golden, lambda each: _run(subject, each, inputs), _TRIALS)

    def wide() -> Computed:
        wider = {name: each.astype(np.float64) if each.dtype == np.float32 else each for name, each in inputs.items()}
        return _run(subject, widened(model, subject.workspace.weights.folder_of(model)), wider, _EVALUATOR)

    made: Computed = refused if refused is not None else _run(subject, model, inputs, settings)
    # A model whose tensors were shrunk has no activations of the original's.
    inner: Computed = golden
    if model is not candidate.proto:
        inner = _run(subject, model, inputs)
        if not isinstance(made, str):  # marks may change what it makes
            bare = _run(subject, candidate.proto, inputs, settings)
            alike = not isinstance(bare, str) and all(
                np.array_equal(one, made[name], equal_nan=one.dtype.kind == "f") for name, one in bare.items()
            )
            made = made if alike else bare
    ignored = next(filter(None, map(_ignored, model.graph.node)), None)
    right = ignored or _attempt(wide)
    in_float64 = not isinstance(right, str)
    return Opinions(
        model,
        tuple(name for name in candidate.outputs if name in golden),
        inputs,
        {**(golden if isinstance(inner, str) else inner), **golden},
        made,
        right if in_float64 or ignored else _run(subject, model, inputs, _EVALUATOR),
        in_float64,
        _attempt(rounded),
        low,
        lows if low is None else (),
    )


def _attempt(compute: Callable[[], Computed]) -> Computed:
    """Return what it computes, or why it cannot: weights that are missing, an opset that is too old, unfit shapes."""
    try:
        return compute()
    except Exception as error:  # whatever ONNX raises
        return str(error)


def _run(subject: Subject, model: onnx.ModelProto, fed: Values, runner: TargetSettings | None = None) -> Computed:
    """Return the outputs of a model; of the reference without a runner."""
    models, made = subject.models, subject.workspace.scratch("fault.made.npz")
    settings = models.reference if runner is None else runner
    request = Collect(settings, models.write("fault", model), models.feed("fault.in", fed), made)
    try:
        reply = models.workers.ask(request, _EVALUATOR_SECONDS if runner == _EVALUATOR else None, here=runner is None)
    except BisectError as error:
        return str(error)
    return reply.message if isinstance(reply, Failed) else load_npz(made)


def _ignored(node: onnx.NodeProto) -> str:
    """Return why the evaluator has no opinion on a node; empty if it has one."""
    ignored = [each.name for each in node.attribute if each.name in _EVALUATOR_IGNORES]
    return f"it ignores '{ignored[0]}' of {node.op_type}" if ignored and node.op_type in ("GRU", "LSTM", "RNN") else ""


@dataclass(frozen=True)
class _Error:
    """How far values are from others."""

    passed: bool
    severity: float  # in tolerances, at the element that is furthest past its own
    largest: float  # absolute
    words: str  # where neither is a number

    def __str__(self) -> str:
        finite = math.isfinite(self.severity) and math.isfinite(self.largest)
        return f"{self.largest:.3g}" if finite else self.words

    def times(self, other: _Error) -> float:
        """Return how many times worse, absolute or in tolerances; equally bad where both make NaN or Inf."""
        if not math.isfinite(other.severity):
            return 1.0
        if not math.isfinite(self.severity):
            return math.inf
        absolute = self.largest / other.largest if 0 < other.largest < math.inf else 0.0
        return max(absolute, self.severity / max(other.severity, 1.0))


def judge(opinions: Opinions, tolerance: ToleranceOptions, target: str, reference: str, run: Run) -> Fault:
    """Decide which side is wrong: the first rule that applies decides.

    Args:
        opinions: The outputs of each runtime.
        tolerance: How far the target may be off.
        target: Its name in sentences.
        reference: That of the reference.
        run: Runs another model on the reference.
    """
    each = _Judge(opinions, tolerance, target, reference, run)
    rules = (each.refused, each.drawn, each.tied, each.rounded, each.reference_is_off)
    return next((fault for rule in rules if (fault := rule()) is not None), None) or each.target_is_off()


class _Judge:
    """The rules, each of which returns a verdict or ``None``."""

    def __init__(self, opinions: Opinions, tolerance: ToleranceOptions, target: str, reference: str, run: Run) -> None:
        self._case, self._tolerance, self._run = opinions, tolerance, run
        self._target, self._reference = target, reference
        self._made: Values = {} if isinstance(opinions.target, str) else opinions.target
        self._arbiter = f"ONNX's reference evaluator{' in float64' if opinions.wide else ''}"
        self._own: _Error | None = None
        self._figures: dict[str, Any] = {}
        if not isinstance(opinions.right, str) and opinions.outputs:
            # Two that compute exactly may be apart by the rounding of the types that the model itself has.
            low = any(value.dtype == np.float16 for value in opinions.reference.values())
            computed = Precision.FP16 if low else Precision.FP32
            exact = replace(tolerance, atol={}, rtol={}, check_error_stat={}, precision=computed)
            self._own = self._error(opinions.right, opinions.reference, exact)
            self._figures |= {"reference_error": self._own.largest, "arbiter": self._arbiter}

    def _unknown(self, why: str) -> Fault:
        return Fault("unknown", f"Which side is wrong cannot be decided: {why}.", self._figures)

    def _bug(self, why: str, lack: str = "") -> Fault:
        return Fault("target", f"It is a bug of {self._target}{lack}: {why}.", self._figures)

    def _no_arbiter(self) -> str:
        line = " ".join(str(self._case.right).split())
        return f"{self._arbiter} does not run the case ({line if len(line) <= 160 else f'{line[:157]}...'})"

    def _error(self, right: Values, values: Values, tolerance: ToleranceOptions | None = None) -> _Error:
        """Return how far values are from what they should be, on the outputs that are compared."""
        expected = {name: right[name] for name in self._case.outputs if name in right}
        comparisons = compare_all(expected, values, tolerance or self._tolerance, lows=lows_of(self._case.model.graph))
        wrong = [each for each in comparisons if not each.passed]
        errors = [
            math.inf if each.max_abs is None or math.isnan(each.max_abs) else each.max_abs for each in comparisons
        ]
        named = (_KINDS[each.kind.value] for each in wrong if each.kind.value in _KINDS)
        worst = max((each.severity for each in wrong), default=0.0)
        return _Error(not wrong, worst, max(errors, default=0.0), next(named, "NaN or Inf"))

    def refused(self) -> Fault | None:
        """The target does not run the case."""
        message, others = self._case.target, f"{self._arbiter} and {self._reference}"
        if not isinstance(message, str):
            return None
        if self._own is None:
            neither = self._no_arbiter() if self._case.outputs else f"{self._reference} does not run it either"
            return self._unknown(f"{self._target} does not run the case, and {neither}")
        if not self._own.passed and self._case.drawing is None:
            return self._unknown(f"{self._target} does not run the case, and {others} differ by {self._own}")
        lack = ", which crashes" if message.startswith(CRASHED) else ", or an operator that it does not have"
        return self._bug(f"{others} both run it", lack)

    def drawn(self) -> Fault | None:
        """The case draws random numbers."""
        if (node := self._case.drawing) is None:
            return None
        advice = "make the random values an input of the model, or set a seed, which makes one runtime repeatable"
        if node.op_type == "Dropout":
            advice = "export the model in eval mode (`model.eval()` in PyTorch), or set its training_mode to false"
        sentence = (
            f"{node.op_type} '{label(node)}' draws random numbers, so two runtimes need not agree. This is not a bug in "
            f"{self._target}. To compare them, {advice}."
        )
        return Fault("random", sentence, {"node": label(node), "op": node.op_type})

    def tied(self) -> Fault | None:
        """The first node that decided otherwise was so near to its edge that neither side is wrong."""
        case, made = self._case, self._made
        node = first_turned(case.model, case.reference, made)
        precision = Precision(case.low) if case.low else self._tolerance.precision
        others = [made] if isinstance(case.right, str) else [made, case.right]
        if node is None or not is_tie(node, case.model, case.inputs, case.reference, others, precision, self._run):
            return None
        one, other = case.reference[node.output[-1]], made[node.output[-1]]  # of TopK the indices
        count = int(np.count_nonzero(one != other)) if one.shape == other.shape else 1
        sentence = (
            f"A tie: {count} decision{'s' if count > 1 else ''} of {node.op_type} '{label(node)}' came out otherwise, within "
            "the rounding of what it reads. Neither side is wrong."
        )
        return Fault("tie", sentence, {"op": node.op_type, "node": label(node), "decisions": count})

    def rounded(self) -> Fault | None:
        """Rounding by itself, without the target, makes the same error; or the target makes none any more."""
        case, low, seen = self._case, self._case.low, self._error(self._case.reference, self._made)
        self._figures |= {"target_error": seen.largest, "severity": seen.severity}
        if seen.passed:
            return self._unknown("run once more beside the others, the target does not fail")
        if isinstance(case.rounded, str):
            return None if low is None else self._unknown(f"rounding to {low} cannot be emulated ({case.rounded})")
        alone = self._error(case.reference, case.rounded)
        self._figures |= {"rounding_error": alone.largest, "precision": low or "fp32", "times_worse": seen.times(alone)}
        if alone.passed or seen.times(alone) > MUCH_WORSE:
            return None
        what = f"these values: rounding alone, without the target, is off by {alone}"
        if low is None:
            own, right = self._own, case.right
            if own and not isinstance(right, str) and self._error(right, self._made).times(own) >= MUCH_WORSE:
                return None
            advice = "subtract the mean, or scale, before"
        else:
            limit = 65504.0 if low == "fp16" else float(np.finfo(np.float32).max)
            floats = (value for value in (*case.inputs.values(), *case.reference.values()) if value.dtype.kind == "f")
            largest = max((float(np.max(np.abs(each[np.isfinite(each)]), initial=0.0)) for each in floats), default=0.0)
            if largest > limit and not math.isfinite(alone.severity):
                what = f"this value: {largest:.5g} exceeds its maximum, {limit:.5g}"
            advice = "keep these nodes in a wider precision"
        sentence = f"{low or 'fp32'} cannot represent {what}. This is not a bug in {self._target}: {advice}."
        return Fault("rounding" if low is None else "precision", sentence, self._figures)

    def reference_is_off(self) -> Fault | None:
        """The reference does not match float64: does the target? Or nothing else is known."""
        own, right = self._own, self._case.right
        if not isinstance(right, str) and own is not None and not own.passed:
            beside = self._error(right, self._made)
            self._figures["target_error"] = beside.largest
            off = f"from {self._arbiter} {self._target} is off by {beside}, and {self._reference} by {own}"
            if beside.passed:
                return Fault("reference", f"The reference is off: {off}.", self._figures)
            self._figures["times_worse"] = beside.times(own)
            return self._unknown(off) if beside.times(own) < MUCH_WORSE else self._bug(off)
        if self._case.others:
            return self._unknown(f"rounding to {' and '.join(self._case.others)} is not emulated here")
        return self._unknown(self._no_arbiter()) if own is None else None

    def target_is_off(self) -> Fault:
        """The reference matches float64, and the target is further off than rounding makes it."""
        right = f"{self._arbiter} and {self._reference} agree to within {self._own}"
        if self._case.low is not None:
            right += f", rounding to {self._case.low} alone is off by {self._figures['rounding_error']:.3g}"
        return self._bug(f"{right}, and {self._target} is off by {self._error(self._case.reference, self._made)}")
