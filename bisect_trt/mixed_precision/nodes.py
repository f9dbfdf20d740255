"""The nodes of a float model as the space of a search: which may be lowered, and which probably need fp32.

``Sensitivity`` measures how far rounding each node alone moves the outputs. It runs a model with
Loops, each for some nodes: the body is what follows these, and iteration ``i`` rounds what node
``i`` reads and makes. That costs about half as much as to run the model once for each node; a
candidate for each node would have to be built and loaded too. Suspects are the nodes with errors
that add up past the tolerance, and those that read twice as large values past 65504.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from msgspec import structs
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.errors import ModelRefusedError, UsageError
from bisect_trt.mixed_precision.lowering import low_slots, make_lowering, refuse_lowered
from bisect_trt.mixed_precision.plain import stored_value
from bisect_trt.mixed_precision.search import (
    BREAKS,
    INSIDE,
    Low,
    Lowering,
    PrecisionSettings,
    PrecisionSpace,
    Suspect,
    half_of,
)
from bisect_trt.onnxlib.low_plan import LOW_TYPES, Slots
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import bodies, clone, is_end
from bisect_trt.onnxlib.roundings import EXACT_OPS
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.probe.oracles import SEVERE
from bisect_trt.report.mixed import LOWERED_ALONE, NEAR_LIMIT, WRONG_ELSEWHERE
from bisect_trt.report.parts import Unit
from bisect_trt.search.oracle import Subset
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.info import FP16_MAX, FP16_NORMAL, Array, finite_range
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

Errors = NDArray[np.float64]
_MOST_GIVEN = 4
_MOST_MEASURED = 12
"""The numbers of given and of failing fresh samples on which the error of each node is measured."""


_MASK = -1e6
"""A tensor with values this low, and no large positive ones, is a mask: -Inf hides scores before a
Softmax as well."""


class NodeSpace(PrecisionSpace):
    """The nodes that compute in fp32 and may be lowered."""

    allowed = 0.01

    def __init__(self, subject: Subject, lowering: Lowering, settings: PrecisionSettings) -> None:
        """Look at the reference run; errors in fp16 and bf16 do not show which nodes INT8 breaks.

        Where the target compiles, the nodes are not measured yet: their ranges say enough for a
        first set, and measuring may take longer than some builds. Where a probe is cheap, it takes
        longer than to see that all nodes may be lowered.
        """
        super().__init__(subject, lowering, ())
        self._precision = settings.precision
        self._cheap = settings.cheap
        self._meters = list[Sensitivity]()
        self._errors = list[list[Errors]]()
        self._seen = 0
        self._pending: Sequence[Sample] = []
        self._alike: Subset = frozenset()
        self._vanishing = set[int]()
        self._tolerances: list[ToleranceOptions] = []
        if settings.calibrated or subject.models.build_only:
            return
        tolerance = settings.tolerance or ToleranceOptions()
        # A loose tolerance of the user's hides which nodes lose digits; the automatic one shows
        # it.
        tolerances = [tolerance, ToleranceOptions()]
        self._tolerances = tolerances[: 1 + bool(tolerance.atol or tolerance.rtol)]
        self._meters = [self._meter(bound, self.lowering.main) for bound in self._tolerances]
        self._errors = [[] for _ in self._meters]
        given = subject.samples[:_MOST_GIVEN]
        if settings.compiles or settings.cheap:
            self._pending = given
            given = []
        self._learn(given)

    def measure_nodes(self) -> None:
        """Measure the nodes on the given samples, once."""
        samples = self._pending
        self._pending = []
        if samples:
            self._learn(samples)

    def _meter(
        self, tolerance: ToleranceOptions, units: Sequence[int], *, small: bool = False
    ) -> Sensitivity:
        """Return a meter of errors of nodes in units of a tolerance, of ``small`` values alone if so."""
        subject = self.subject
        network = subject.network
        outputs = subject.reference.select(network.outputs).items()
        # An output may also be an input, a weight, or a part of a sequence: no node makes these.
        computed = {*network.computed}
        finite = {
            name: value
            for name, value in outputs
            if name in computed and value.dtype == np.float32 and np.isfinite(value).all()
        }
        nodes = [network.order[unit] for unit in units]
        allowed = replace(tolerance, precision=Precision(self._precision)).resolve(finite)
        return Sensitivity(subject, nodes, self._precision, allowed, small=small)

    def _learn(self, samples: Sequence[Sample]) -> None:
        """Measure nodes on more samples, and find the suspects of all samples anew."""
        for place, meter in enumerate(self._meters):
            self._errors[place] += meter.errors(samples)
        if self._precision == "fp16" and any(self._errors):
            self._learn_vanishing(samples)
        self.suspects, *by_automatic = (
            suspect(
                self.subject,
                self.lowering.main,
                self._precision,
                np.max(errors, axis=0) if errors else None,
                self._vanishing,
            )
            for errors in self._errors
        )
        # By the automatic tolerance: what loses digits is no matter of what the user accepts.
        self.losing = frozenset(
            entry.unit
            for entry in (by_automatic[0] if by_automatic else self.suspects)
            if entry.score >= (_own_score(SEVERE) if entry.rule == _OWN_ERROR else INSIDE)
        )
        self.measured = any(self._errors) or bool(self.losing)

    def _learn_vanishing(self, samples: Sequence[Sample]) -> None:
        """Find which nodes that break the outputs alone do so by their small values."""
        errors = np.max([row for rows in self._errors for row in rows], axis=0)
        breaking = [
            unit for unit, error in zip(self.lowering.main, errors, strict=True) if error > 1
        ]
        if breaking:
            meter = self._meter(self._tolerances[-1], breaking, small=True)
            for row in meter.errors(samples):
                self._vanishing.update(
                    unit for unit, error in zip(breaking, row, strict=True) if error > 1
                )

    @property
    def certain(self) -> Subset:
        """The nodes that break the outputs alone, or would if they read twice as large values."""
        return _certain(self.suspects)

    def order(self, failing: Sequence[Sample]) -> list[int]:
        """The nodes that use most of the tolerance on these samples first, then suspects, then the others from the input on.

        Before all of these come the nodes of :meth:`suspect_alike`.

        A node that breaks the tolerance alone counts as one, and is certain from here on. Errors of
        roundings add up as independent ones, so squares are added.
        """
        batch = failing[self._seen : _MOST_MEASURED]
        self._seen = len(failing)
        if batch and self._meters:
            self._learn(batch)
        units = self.lowering.units
        used = {entry.unit: entry.score for entry in self.suspects}
        if any(self._errors):
            shares = np.square(np.minimum(self._errors[0], 1.0)).sum(axis=0)
            used = dict(zip(self.lowering.main, shares.tolist(), strict=True))
        return sorted(units, key=lambda unit: (unit not in self._alike, -used.get(unit, 0.0), unit))

    def suspect_alike(self, operators: Collection[str]) -> None:
        """Suspect each node of some operators, and no other: a wrong kernel is wrong at all of them."""
        network = self.subject.network
        self.suspects = [
            Suspect(unit, 0.0, "alike", WRONG_ELSEWHERE.format(op))
            for unit in self.lowering.main
            if (op := network.nodes[network.order[unit]].op_type) in operators
        ]
        self._alike = frozenset(suspect.unit for suspect in self.suspects)

    def suspect_case(self, case: onnx.ModelProto) -> None:
        """Suspect the nodes with the operators of a minimal case, where no node loses values alone."""
        if self._cheap or not self.suspects:
            self.measure_nodes()
        if not self.suspects:
            self.suspect_alike({node.op_type for node in case.graph.node})

    def describe(self, units: Subset) -> list[Unit]:
        """Names, operators and outputs of the nodes."""
        return [Unit(**structs.asdict(node)) for node in self.culprits(units)]


_OWN_ERROR = "own error"
"""The rule of a node that no range explains. Up to ``SEVERE`` this may be rounding of what others made large."""


def _own_score(error: float) -> float:
    """The score of a unit that breaks the outputs alone by so many tolerances."""
    return BREAKS + min(math.log10(error) / 50, 0.9)


def _certain(suspects: Sequence[Suspect]) -> Subset:
    return frozenset(entry.unit for entry in suspects if entry.score >= INSIDE)


def make_nodes(subject: Subject, settings: PrecisionSettings) -> NodeSpace:
    """The space of a float model.

    Raises:
        UsageError: The model is not an fp32 one, a pattern matches nothing, or there is nothing to
            lower.
    """
    network = subject.network
    target = settings.target
    left: list[int] = []
    if target is not None and target.target.computes_low(target):
        # Nothing is rewritten, so a quantized model is its own reference.
        left = [index for index, node in enumerate(network.nodes) if is_end(node)]
    else:
        refuse_lowered(network, str(subject.settings.path))
    return NodeSpace(subject, make_lowering(subject, settings, left), settings)


def find_losing(subject: Subject, target: TargetSettings | None) -> list[int]:
    """Return the nodes that lose values alone in the low precision of a target by the reference run.

    They are in topological order; none where the target has no such precision.
    """
    if target is None or (precision := half_of(target)) is None:
        return []
    options = PrecisionOptions(subject.settings.path, Path())
    try:
        settings = PrecisionSettings(options, precision, target)
        space = make_nodes(subject, settings)
    except UsageError:
        # No node can be lowered to it.
        return []
    if settings.cheap or not space.certain:
        space.measure_nodes()
    return [subject.network.order[unit] for unit in sorted(space.certain & {*space.lowering.main})]


_PEAKS = {"Softmax": 0.0, "Sigmoid": 0.1}
"""Operators that make probabilities, with the least largest value that errors are compared with: a
heatmap in which nothing is found has errors as large as its values."""


def peaked_outputs(network: Network) -> dict[str, str]:
    """The outputs of probabilities or heatmaps, each with the operator that makes it."""
    peaks = {}
    for name in network.outputs:
        source = name
        while (index := network.producer.get(source)) is not None:
            node = network.nodes[index]
            if node.op_type in _PEAKS:
                peaks[name] = node.op_type
            if node.op_type not in EXACT_OPS | {"Cast"}:
                break
            source = node.input[0]
    return peaks


def with_peaked(tolerance: ToleranceOptions, network: Network) -> ToleranceOptions:
    """The tolerance with the outputs of a model that are judged by their largest value."""
    peaks = {name: _PEAKS[operator] for name, operator in peaked_outputs(network).items()}
    return replace(tolerance, peaks=peaks)


def built_in_check(check: CheckSettings, subject: Subject, precision: Low) -> CheckSettings:
    """The check for candidates that are lowered already.

    The target takes them as they are. Tolerances that were not given become the low precision's, as
    numbers: the outputs are always the original's.

    Args:
        check: The check of the user.
        subject: The model; its reference outputs resolve automatic tolerances.
        precision: The precision to which candidates are lowered.

    Raises:
        UsageError: A tolerance names no output.
    """
    if check.target is None:
        return check
    tolerance = replace(check.tolerance, precision=Precision(precision))
    tolerance.check_names(subject.network.outputs)
    resolved = tolerance.resolve(subject.reference.select(subject.network.outputs)).items()
    atol = {**tolerance.atol, **{name: bound.atol for name, bound in resolved}}
    rtol = {**tolerance.rtol, **{name: bound.rtol for name, bound in resolved}}
    target = check.target if check.by_layer else replace(check.target, fp16=False, bf16=False)
    timed = target.target.compiles
    return replace(
        check,
        target=target,
        tolerance=replace(tolerance, atol=atol, rtol=rtol),
        timed=timed,
    )


def suspect(
    subject: Subject,
    units: Sequence[int],
    precision: str,
    errors: Errors | None,
    vanishing: Collection[int] = (),
) -> list[Suspect]:
    """The units that may need fp32, most suspicious first, and in topological order among equals.

    ``errors`` are of each unit alone, in units of the tolerance; ``None`` where they are not
    measured.

    Args:
        subject: The model with its reference run.
        units: The units to judge, in topological order.
        precision: The precision that nodes are lowered to; only fp16 overflows.
        errors: The error of each unit alone, one float64 a unit, in units of the tolerance; ``None``
            where it is not measured.
        vanishing: The units that break the outputs alone by their small values.
    """
    network = subject.network
    ranges = _Ranges(subject, precision, masks=errors is not None)
    nodes = [network.order[unit] for unit in units]
    past = [ranges.overflow(index) if precision == "fp16" else ("", "") for index in nodes]
    if errors is None:
        errors = np.array([math.inf if overflow else 0.0 for overflow, _ in past])
    order = np.argsort(-errors, kind="stable")
    # Of independent roundings squares add up.
    tail = np.cumsum(np.square(np.minimum(errors[order], 2.0))[::-1])[::-1]
    needed = frozenset(order[tail > 1].tolist())
    suspects = list[Suspect]()
    for place, (unit, error, (overflow, headroom)) in enumerate(
        zip(units, errors.tolist(), past, strict=True)
    ):
        underflow = ranges.underflow(nodes[place]) if unit in vanishing else ""
        rule, reason = _reason(error, overflow, underflow, precision)
        score = 0.0
        if error > 1:
            score = _own_score(error)
        elif headroom:
            score = INSIDE
            rule = "headroom"
            reason = headroom
        elif place in needed:
            score = error
        if score:
            suspects.append(
                Suspect(unit, score, rule, f"{network.nodes[nodes[place]].op_type} {reason}")
            )
    return sorted(suspects, key=lambda entry: (-entry.score, entry.unit))


def _reason(error: float, overflow: str, underflow: str, precision: str) -> tuple[str, str]:
    """Return the rule by which a node is a suspect, and the reason in words."""
    if overflow:
        return "overflow", overflow
    if underflow:
        return "underflow", underflow
    size = f"{error:.3g} times the tolerance" if math.isfinite(error) else "NaN or Inf"
    return _OWN_ERROR, LOWERED_ALONE.format(precision, size)


class _Ranges:
    """The values that nodes read and make in the reference run."""

    def __init__(self, subject: Subject, precision: str, *, masks: bool) -> None:
        """Read nothing yet; ``masks`` also take part."""
        self._reference = subject.reference
        self._network = subject.network
        self._masks = masks
        self._slots = low_slots(subject, precision)
        self._folder = subject.workspace.weights.folder_of(self._network.proto)
        self._known: dict[str, tuple[float, float]] = {}

    def overflow(self, index: int) -> tuple[str, str]:
        """Two sentences, empty where untrue: a node has a tensor past fp16's range; it would if it read values twice as large."""
        node = self._network.nodes[index]
        outputs = [node.output[place] for place in sorted(self._slots[index].outputs)]
        for verb, name in self._tensors(index):
            low, high = self._range(name)
            if max(-low, high) > FP16_MAX:
                return f"{verb} {max(low, high, key=abs):.6g}, past {FP16_MAX:.6g}", ""
        peak = max((max(-low, high) for low, high in map(self._range, outputs)), default=0.0)
        squares = node.op_type == "Mul" and node.input[0] == node.input[1]
        # Where the input doubles, a square or product grows fourfold, and Exp squares.
        doubled = {"Exp": peak * peak, "Pow": 4 * peak}.get(
            node.op_type, 4 * peak if squares else 0.0
        )
        return "", NEAR_LIMIT.format(peak, FP16_MAX) if doubled > FP16_MAX else ""

    def underflow(self, index: int) -> str:
        """A sentence about the first tensor of a node with values too small for fp16; empty where there is none."""
        few = ""
        for verb, name in self._tensors(index):
            value = self._value(name)
            sizes = np.abs(value[np.isfinite(value)]) if value is not None else np.zeros(0)
            small = sizes[(sizes > 0) & (sizes < FP16_NORMAL)]
            zero = small[small.astype(np.float16) == 0]
            if zero.size:
                return f"{verb} {zero.max():.3g}, which becomes 0"
            if small.size:
                few = few or f"{verb} {small.min():.3g}, which keeps few digits"
        return few

    def _tensors(self, index: int) -> Iterator[tuple[str, str]]:
        """Yield each tensor of a node in the low precision, after a verb."""
        node = self._network.nodes[index]
        slots = self._slots[index]
        for name in [node.input[place] for place in sorted(slots.inputs)]:
            producer = self._network.producer.get(name)
            stored = name in self._network.initializers or (
                producer is not None and self._network.constant[producer]
            )
            yield (f"reads the stored weight '{name}' of" if stored else "reads"), name
        for place in sorted(slots.outputs):
            yield "makes", node.output[place]

    def _value(self, name: str) -> Array | None:
        """The values of a float tensor; ``None`` where they are not known."""
        value = self._reference.select([name]).get(name)
        value = stored_value(self._network, name, self._folder) if value is None else value
        return value if value is not None and value.dtype.kind == "f" else None

    def _range(self, name: str) -> tuple[float, float]:
        """The range of a float tensor; zeros where it is not known."""
        if name not in self._known:
            value = self._value(name)
            low, high = (0.0, 0.0) if value is None else finite_range(value, 0.0)
            # A mask overflows to -Inf, which Softmax takes as it is meant.
            is_mask = low <= _MASK and high <= min(FP16_MAX, -low / 1000)
            self._known[name] = (0.0, 0.0) if is_mask and not self._masks else (low, high)
        return self._known[name]


_MOST_WORK = 6.4e10
"""The largest product of nodes, elements of all tensors, and samples: about two minutes on one core."""
_PATIENCE = 300.0
"""Seconds that it may take for a sample; nodes are not measured on a machine that takes longer."""


class Sensitivity:
    """Measures the error that each of some nodes causes alone."""

    def __init__(
        self,
        subject: Subject,
        nodes: Sequence[int],
        precision: str,
        allowed: Mapping[str, tuple[float, float]],
        *,
        small: bool = False,
    ) -> None:
        """Build the model, unless it would take too long to run; ``small`` rounds only what fp16 has fewer digits of."""
        self._subject = subject
        network = subject.network
        self._model: onnx.ModelProto | None = None
        # Together, samples of several sizes have free shapes.
        runs = subject.reference.more or (subject.reference,)
        elements = sum(math.prod(tensor.dims) for tensor in network.initializers.values()) + max(
            sum(math.prod(info.sizes or ()) for info in run.infos.values()) for run in runs
        )
        fixed = not any(
            any(bodies(node))
            for index, node in enumerate(network.nodes)
            if not network.constant[index]
        )
        self._left = int(_MOST_WORK / max(len(nodes) * elements, 1))
        """The number of samples that may still be measured."""
        if fixed and nodes and allowed and self._left:
            slots = low_slots(subject, precision)
            self._model = _Looped(network, LOW_TYPES[precision], small=small).build(
                nodes, slots, allowed
            )

    def errors(self, samples: Sequence[Sample]) -> list[Errors]:
        """The error of each node in units of the tolerance, ``inf`` for NaN, on those samples where it can be measured."""
        samples = samples[: self._left]
        self._left -= len(samples)
        if self._model is None or not samples:
            return []
        run = self._subject.models.run_each
        try:
            ran = run("sensitivity-nodes", self._model, samples, _PATIENCE * len(samples))
        except ModelRefusedError:
            # It takes too long, or too much memory.
            self._model = None
            return []
        return [np.max(list(made.values()), axis=0).astype(np.float64) for made in ran]


_BLOCK = 48
"""The number of nodes that a Loop rounds. Its body has what these change, so many small Loops run fewer nodes."""


class _Looped:
    """Writes a model and, in the bodies of Loops, what follows some of its nodes, with one of these rounded in each turn."""

    def __init__(self, network: Network, low: int, *, small: bool) -> None:
        self._small = small
        self._network = network
        self._low = low
        self._model = clone(network.proto)
        self._main = self._model.graph
        self._body = GraphProto()
        self._mark = "~rounded"
        self._rounded: dict[str, str] = {}

    def build(
        self,
        nodes: Sequence[int],
        slots: Sequence[Slots],
        allowed: Mapping[str, tuple[float, float]],
    ) -> onnx.ModelProto:
        """The model; it returns a vector of errors for each output."""
        tolerances = {
            name: self._tolerance(name, *tolerance) for name, tolerance in allowed.items()
        }
        parts = dict[str, list[str]]()
        for start in range(0, len(nodes), _BLOCK):
            self._mark = f"~rounded{start}~"
            found = self._loop(nodes[start : start + _BLOCK], slots, tolerances)
            for name, part in zip(allowed, found, strict=True):
                parts.setdefault(name, []).append(part)
        del self._main.output[:]
        for found in parts.values():
            errors = self._node(self._main, "Concat", *found, axis=0)
            info = helper.make_tensor_value_info(errors, TensorProto.FLOAT, [len(nodes)])
            self._main.output.append(info)
        return self._model

    def _loop(
        self, nodes: Sequence[int], slots: Sequence[Slots], tolerances: Mapping[str, str]
    ) -> list[str]:
        """Write the Loop of some nodes; the vector of errors of each output."""
        network = self._network
        mark = self._mark
        body = self._body = GraphProto(name=f"body{mark}")
        turn = {index: place for place, index in enumerate(nodes)}
        moving = set[str]()
        for index in network.order:
            plain = network.nodes[index]
            if index not in turn and (network.constant[index] or moving.isdisjoint(plain.input)):
                continue
            node = clone(plain)
            node.input[:] = [f"{name}{mark}" if name in moving else name for name in node.input]
            node.output[:] = [f"{name}{mark}" if name else "" for name in node.output]
            moving.update(filter(None, plain.output))
            if index in turn:
                self._round(node, plain, slots[index], turn[index])
            else:
                body.node.append(node)
        errors = [
            self._error(f"{name}{mark}" if name in moving else name, name, tolerance)
            for name, tolerance in tolerances.items()
        ]
        self._node(body, "Identity", f"more{mark}", result=f"again{mark}")
        body.input.append(helper.make_tensor_value_info(f"turn{mark}", TensorProto.INT64, []))
        body.input.append(helper.make_tensor_value_info(f"more{mark}", TensorProto.BOOL, []))
        body.output.append(helper.make_tensor_value_info(f"again{mark}", TensorProto.BOOL, []))
        body.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in errors
        )
        found = [f"{name}s" for name in errors]
        # One Loop over the nodes: a model for each node would have to be loaded as often.
        count = self._scalar("count", len(nodes))
        self._main.node.append(helper.make_node("Loop", [count, ""], found, body=body))
        return found

    def _round(self, node: NodeProto, plain: NodeProto, slots: Slots, place: int) -> None:
        """Write a node that is rounded in one turn: what it reads, and what it makes unless that is exact.

        What it reads is exact in its turn, so that is rounded once, outside.
        """
        now = self._node(
            self._body, "Equal", f"turn{self._mark}", self._scalar(f"turn{place}", place)
        )
        for position in sorted(slots.inputs):
            if name := plain.input[position]:
                if name not in self._rounded:
                    self._rounded[name] = self._low_of(self._main, name)
                node.input[position] = self._node(
                    self._body, "Where", now, self._rounded[name], node.input[position]
                )
        # Moving rounded values rounds nothing further.
        exact = node.op_type in EXACT_OPS
        names = [
            node.output[position]
            for position in sorted(slots.outputs)
            if node.output[position] and not exact
        ]
        node.output[:] = [f"{name}exact" if name in names else name for name in node.output]
        self._body.node.append(node)
        for name in names:
            low = self._low_of(self._body, f"{name}exact")
            self._node(self._body, "Where", now, low, f"{name}exact", result=name)

    def _low_of(self, graph: GraphProto, exact: str) -> str:
        """The rounded values of a tensor."""
        half = self._node(graph, "Cast", exact, result=f"{exact}{self._mark}half", to=self._low)
        full = self._node(graph, "Cast", half, result=f"{half}full", to=TensorProto.FLOAT)
        if self._small:
            size = self._node(graph, "Abs", exact, result=f"{half}size")
            least = self._scalar(f"{half}least", FP16_NORMAL)
            is_small = self._node(graph, "Less", size, least, result=f"{half}small")
            full = self._node(graph, "Where", is_small, full, exact, result=f"{half}part")
        return full

    def _tolerance(self, name: str, atol: float, rtol: float) -> str:
        """The largest error of each element of an output that passes."""
        size = self._node(self._main, "Abs", name)
        share = self._node(self._main, "Mul", size, self._scalar(f"{name}rtol", float(rtol)))
        return self._node(self._main, "Max", share, self._scalar(f"{name}atol", float(atol)))

    def _error(self, made: str, name: str, tolerance: str) -> str:
        """The largest error of an output in the body over its tolerance."""
        body = self._body
        off = self._node(body, "Abs", self._node(body, "Sub", made, name))
        share = self._node(body, "Div", off, tolerance)
        limit = self._scalar(f"{name}inf", math.inf)
        # ReduceMax skips NaN.
        share = self._node(body, "Where", self._node(body, "Less", share, limit), share, limit)
        return self._node(body, "ReduceMax", share, result=f"{name}{self._mark}error", keepdims=0)

    def _node(
        self, graph: GraphProto, kind: str, *inputs: str, result: str = "", **attributes: int
    ) -> str:
        """Write a node; the name of its output."""
        result = result or f"{inputs[-1]}{self._mark}{kind}{len(graph.node)}"
        node = graph.node.add(op_type=kind, input=inputs, output=[result])
        node.attribute.extend(
            helper.make_attribute(name, value) for name, value in attributes.items()
        )
        return result

    def _scalar(self, name: str, value: float) -> str:
        """Store a number, an int as int64 and a float as float32; its name."""
        array = np.array(value, np.int64 if isinstance(value, int) else np.float32)
        self._main.initializer.append(numpy_helper.from_array(array, f"{name}{self._mark}"))
        return f"{name}{self._mark}"
