"""Nodes that probably need fp32, found without a probe: by their own errors, their range, and what they compute inside.

Each node is fed the reference's values and run alone in the low precision, which shows its own error. Rules on the values find
what that does not show. The strongest reason of each node counts.

Where fresh samples fail, ``Sensitivity`` measures how far rounding each node alone moves the outputs. It runs a model with a
Loop: the body is the model again, and iteration ``i`` rounds what node ``i`` reads and makes. That costs about as much as to
run the model once for each node; a candidate for each node would have to be built and loaded too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.commands.subject import Subject
from bisect_trt.mixed_precision.plain import stored_value
from bisect_trt.onnxlib.emulation import EXACT_OPS
from bisect_trt.onnxlib.lower import LOW_TYPES, Slots, plan_slots
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import attribute, bodies, clone, mentioned_names
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.probe.reference import Reference
from bisect_trt.tensors.comparison import ComparisonKind
from bisect_trt.tensors.info import blocks
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Failed

BREAKS = 4.0
"""The score of a node that makes Inf or NaN in the low precision."""
INSIDE = 3.0
"""The score of a node that overflows inside, or where it reads values twice as large."""
LOSES = 2.0
"""The score of a node that loses most of the digits."""
MAY = 1.0
"""The largest score of a node with a small error."""
FP16_MAX = 65504.0
_MASK = -1e6
"""A tensor with values this low, and no large positive ones, is a mask: it hides scores before a Softmax."""
_NOTABLE = 0.1
"""The smallest own error, in tolerances, that is reported; rounding alone takes about 0.02."""
_OF_CHANNELS = {"InstanceNormalization", "GroupNormalization"}
_CENTRED = _OF_CHANNELS | {"LayerNormalization"}
_NORMS = _CENTRED | {"ReduceL2", "RMSNormalization", "SimplifiedLayerNormalization"}
_MEANS = ("ReduceMean", "GlobalAveragePool")
Finding = tuple[float, str, str]
"""The score, the rule, and the reason in words without the operator."""


@dataclass(frozen=True)
class Suspect:
    """A unit that may need fp32.

    Attributes:
        unit: The unit.
        score: One of the bands above, and up to 1 more within it.
        rule: The name of the strongest rule that applies.
        reason: The reason in words.
    """

    unit: int
    score: float
    rule: str
    reason: str


class Facts:
    """A model after its reference run.

    Attributes:
        subject: The model.
        network: Its graph.
        precision: ``fp16`` or ``bf16``.
        nodes: The nodes that can be lowered, by number, in topological order.
    """

    def __init__(self, subject: Subject, precision: str) -> None:
        """Find the nodes that can be lowered."""
        self.subject, self.network, self.precision = subject, subject.network, precision
        types = {name: element_type(info.dtype) for name, info in subject.infos.items()}
        self._slots = plan_slots(self.network.proto, (), types, LOW_TYPES[precision])
        searched = (self.network.order[unit] for unit in subject.units.searched)
        self.nodes = [index for index in searched if self._slots[index].inputs or self._slots[index].outputs]
        self._folder = subject.workspace.weights.folder_of(self.network.proto)
        self._ranges: dict[str, tuple[float, float] | None] = {}

    def op(self, index: int) -> str:
        """The operator of a node."""
        return str(self.network.nodes[index].op_type)

    def reads(self, index: int) -> list[str]:
        """The tensors that a node reads in low precision, each once."""
        inputs = self.network.nodes[index].input
        return list(dict.fromkeys(inputs[place] for place in sorted(self._slots[index].inputs) if inputs[place]))

    def makes(self, index: int) -> list[str]:
        """The tensors that a node makes in low precision."""
        outputs = self.network.nodes[index].output
        return [outputs[place] for place in sorted(self._slots[index].outputs) if outputs[place]]

    def value(self, name: str) -> NDArray[Any] | None:
        """The values of a tensor, if known: from the reference run, an initializer or a Constant node."""
        known = self.subject.reference.select([name])
        if name in known:
            return known[name]
        return stored_value(self.network, name, self._folder)

    def range(self, name: str) -> tuple[float, float] | None:
        """The range of a float tensor, if its values are known; computed once."""
        if name not in self._ranges:
            value = self.value(name)
            self._ranges[name] = finite_range(value) if value is not None and value.dtype.kind == "f" else None
        return self._ranges[name]

    def peak(self, name: str) -> float:
        """The largest magnitude of a tensor; 0 where it is not known."""
        return max(map(abs, self.range(name) or (0.0,)))

    def look(self, reference: Reference) -> None:
        """Widen the ranges by the values of another sample."""
        for name, known in list(self._ranges.items()):
            value = reference.select([name]).get(name) if known is not None else None
            if known is not None and value is not None:
                low, high = finite_range(value)
                self._ranges[name] = min(low, known[0]), max(high, known[1])

    def is_mask(self, name: str) -> bool:
        """Return whether a tensor hides scores by large negative numbers, for which -Inf does as well."""
        low, high = self.range(name) or (0.0, 0.0)
        return low <= _MASK and high <= min(FP16_MAX, -low / 1000)


def finite_range(values: NDArray[Any]) -> tuple[float, float]:
    """The range of a tensor without its NaN and Inf, read a block at a time; zeros for an empty one."""
    low, high = np.inf, -np.inf
    for block in blocks(values):
        finite = block[np.isfinite(block)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def _within(band: float, ratio: float) -> float:
    """The score of something that is so many times too large; nearly the same for nearly the same."""
    return round(band + min(math.log10(max(ratio, 1.0)) / 50, 0.9), 2)


def _overflow(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs past 65504, which become Inf; masks are meant to."""
    for verb, names in (("reads", facts.reads(index)), ("makes", facts.makes(index))):
        for name in names:
            if facts.peak(name) > FP16_MAX and not facts.is_mask(name):
                extreme = max(facts.range(name) or (0.0,), key=abs)
                reason = f"{verb} {extreme:.6g}, past {FP16_MAX:.6g}"
                yield _within(BREAKS, abs(extreme) / FP16_MAX), "overflow", reason


def _sum_inside(facts: Facts, index: int) -> Iterator[Finding]:
    """Sums, or sums of squares, past 65504 inside of means and norms."""
    node, made = facts.network.nodes[index], next(iter(facts.makes(index)), None)
    mean = node.op_type in _MEANS
    values = facts.value(node.input[0]) if made is not None and (mean or node.op_type in _NORMS) else None
    result = None if made is None else facts.value(made)
    if values is None or result is None or made is None or not values.size or not np.isfinite(values).all():
        return
    if mean:
        total = facts.peak(made) * (values.size // max(result.size, 1)) if facts.peak(made) <= FP16_MAX else 0.0
    elif node.op_type == "ReduceL2":
        total = facts.peak(made) ** 2
    else:
        first = 2 if node.op_type in _OF_CHANNELS else int(attribute(node, "axis", -1)) % values.ndim
        elements, axes = values.astype(np.float64), tuple(range(first, values.ndim))
        if node.op_type in _CENTRED:
            elements -= elements.mean(axis=axes, keepdims=True)
        total = float(np.square(elements, out=elements).sum(axis=axes).max())
    if total > FP16_MAX:
        squares = "" if mean else " of squares"
        reason = f"has a sum{squares} of {total:.6g} inside, past {FP16_MAX:.6g}"
        yield _within(INSIDE, total / FP16_MAX), "sum inside", reason


def _headroom(facts: Facts, index: int) -> Iterator[Finding]:
    """Exponentials and squares that overflow where the node reads values twice as large."""
    node, made = facts.network.nodes[index], facts.makes(index)
    if not made or not 0 < facts.peak(made[0]) <= FP16_MAX:
        return
    doubled = 0.0
    if node.op_type == "Exp":
        doubled = math.exp(min(2 * (facts.range(node.input[0]) or (0.0, 0.0))[1], 700.0))
    elif node.op_type == "Pow" or (node.op_type == "Mul" and node.input[0] == node.input[1]):
        power = facts.value(node.input[1]) if node.op_type == "Pow" else np.asarray(2.0)
        if power is not None and power.size == 1:
            doubled = facts.peak(made[0]) * 2.0 ** min(float(power.reshape(())), 64.0)
    if doubled > FP16_MAX:
        reason = f"makes values up to {facts.peak(made[0]):.6g}, past {FP16_MAX:.6g} where it reads twice as large ones"
        yield INSIDE, "headroom", reason


_RULES: tuple[Callable[[Facts, int], Iterator[Finding]], ...] = (_overflow, _sum_inside, _headroom)
"""The rules for fp16; bf16 has the range of fp32."""


def suspect(subject: Subject, precision: str = "fp16", facts: Facts | None = None) -> list[Suspect]:
    """The units that may need fp32, most suspicious first, and in topological order among equals.

    Args:
        subject: The model, with its reference run.
        precision: The precision of the other units, ``fp16`` or ``bf16``.
        facts: The model after its reference run, if known.
    """
    if subject.models.build_only:  # no values are known
        return []
    facts, suspects = facts or Facts(subject, precision), []
    found = _own_errors(facts)
    if precision == "fp16":
        _drop_masks(facts, found)
        for index in facts.nodes:
            for rule in _RULES:
                for finding in rule(facts, index):
                    found.setdefault(index, []).append(finding)
    for index, findings in found.items():
        if findings:
            score, rule_name, reason = max(findings, key=lambda each: (each[0], each[1] == "overflow"))
            suspects.append(Suspect(subject.network.rank[index], score, rule_name, f"{facts.op(index)} {reason}"))
    return sorted(suspects, key=lambda entry: (-entry.score, entry.unit))


def _drop_masks(facts: Facts, found: dict[int, list[Finding]]) -> None:
    """Suspect the nodes that make a mask only where a node makes NaN from it: -Inf hides scores as well."""
    producer, reads = facts.network.producer, facts.network.reads
    pending = [index for index, findings in found.items() if any(rule == "new NaN" for _, rule, _ in findings)]
    needed: set[int] = set()
    while pending:
        for name in reads[pending.pop()]:
            if name in producer and producer[name] not in needed and facts.is_mask(name):
                needed.add(producer[name])
                pending.append(producer[name])
    for index in facts.nodes:
        masks = [name for name in facts.makes(index) if facts.is_mask(name)]
        if masks:
            low = (facts.range(masks[0]) or (0.0,))[0]
            reason = f"makes a mask of {low:.6g}, past -{FP16_MAX:.6g}: it becomes -Inf, and NaN in what reads it"
            kept = [each for each in found.get(index, []) if each[1] != "new Inf"]
            found[index] = [*kept, (BREAKS + 0.9, "mask", reason)] if index in needed else kept


def _own_errors(facts: Facts) -> dict[int, list[Finding]]:
    """The nodes that are notably off in the low precision when they are fed the reference's values."""
    from bisect_trt.commands.layerwise import Marking, compare_own  # noqa: PLC0415 - not needed for the first probe

    subject, precision, nodes = facts.subject, facts.precision, facts.network.nodes
    target = replace(subject.models.reference, fp16=precision == "fp16", bf16=precision == "bf16")
    computes = (
        index for index in facts.nodes if nodes[index].op_type not in EXACT_OPS and not any(bodies(nodes[index]))
    )
    names = {name: index for index in computes for name in facts.makes(index)}
    look = Marking(subject, target, ToleranceOptions(precision=Precision(precision), nonfinite_equal=True))
    found: dict[int, list[Finding]] = {}
    for name, seen in compare_own(look, list(names), most=1).tensors.items():
        average = (seen.mean_abs or 0.0) / seen.atol if seen.atol else 0.0
        off = f"alone is off by {seen.severity:.3g} times the tolerance in {precision}"
        if seen.kind in (ComparisonKind.NAN, ComparisonKind.INF):
            new = "new NaN" if seen.kind is ComparisonKind.NAN else "new Inf"
            finding = (BREAKS, new, f"makes {new} in {precision} from the reference's own values")
        elif not seen.passed:
            finding = (_within(LOSES, seen.severity), "own error", off)
        elif average >= _NOTABLE:
            finding = (MAY * min(average, 1.0), "own error", f"{off}, on average by {average:.0%}")
        else:
            continue
        found.setdefault(names[name], []).append(finding)
    return found


_MOST_WORK = 4e9
"""The largest product of nodes and elements of all tensors: about half a minute on one core."""


class Sensitivity:
    """Measures the error that each of some nodes causes alone."""

    def __init__(
        self,
        subject: Subject,
        nodes: Sequence[int],
        precision: str,
        allowed: Mapping[str, tuple[float, float]],
    ) -> None:
        """Build the model, unless it would take too long to run.

        Args:
            subject: The model.
            nodes: The nodes to round, by number.
            precision: ``fp16`` or ``bf16``.
            allowed: The absolute and the relative tolerance of each float output.
        """
        self._subject, self._count = subject, len(nodes)
        network, low = subject.network, LOW_TYPES[precision]
        shapes = [
            *(info.shape or () for info in subject.infos.values()),
            *(each.dims for each in network.initializers.values()),
        ]
        elements = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
        fixed = not any(any(bodies(node)) for index, node in enumerate(network.nodes) if not network.constant[index])
        able = fixed and bool(allowed) and self._count * elements <= _MOST_WORK
        self._model: onnx.ModelProto | None = None
        if able:
            types = {name: element_type(info.dtype) for name, info in subject.infos.items()}
            slots = plan_slots(network.proto, (), types, low)
            self._model = _Looped(network, low).build(nodes, slots, allowed)

    def errors(self, sample: Sample) -> NDArray[np.float64] | None:
        """The error of each node in units of the tolerance, ``inf`` for NaN; ``None`` where it cannot be measured."""
        if self._model is None:
            return None
        made = self._subject.models.run("sensitivity-nodes", self._model, sample)
        if isinstance(made, Failed):
            return None
        errors: NDArray[np.float64] = np.max([value.astype(np.float64) for value in made.values()], axis=0)
        return np.where(np.isnan(errors), np.inf, errors)


class _Looped:
    """Writes a model and, in the body of a Loop, the same model with one node rounded."""

    def __init__(self, network: Network, low: int) -> None:
        names = mentioned_names(network.proto.graph)
        self._mark = "~"
        while any(self._mark in name for name in names):
            self._mark += "~"
        self._network, self._low = network, low
        self._model = clone(network.proto)
        self._main, self._body = self._model.graph, GraphProto(name="rounded")
        self._rounded: dict[str, str] = {}

    def build(
        self, nodes: Sequence[int], slots: Sequence[Slots], allowed: Mapping[str, tuple[float, float]]
    ) -> onnx.ModelProto:
        """The model; it returns a vector of errors for each output."""
        network, mark = self._network, self._mark
        turn = {index: place for place, index in enumerate(nodes)}
        moving = {
            name for index, node in enumerate(network.nodes) if not network.constant[index] for name in node.output
        }
        for index in network.order:
            if network.constant[index]:
                continue
            node = clone(network.nodes[index])
            node.input[:] = [f"{name}{mark}" if name and name in moving else name for name in node.input]
            node.output[:] = [f"{name}{mark}" if name else "" for name in node.output]
            if index in turn:
                self._round(node, slots[index], turn[index])
            else:
                self._body.node.append(node)
        errors = [self._error(name, *tolerance) for name, tolerance in allowed.items()]
        self._node(self._body, "Identity", f"more{mark}", result=f"again{mark}")
        self._body.input.append(helper.make_tensor_value_info(f"turn{mark}", TensorProto.INT64, []))
        self._body.input.append(helper.make_tensor_value_info(f"more{mark}", TensorProto.BOOL, []))
        self._body.output.append(helper.make_tensor_value_info(f"again{mark}", TensorProto.BOOL, []))
        self._body.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in errors)
        made = [f"{name}{mark}" for name in errors]
        count = self._scalar("count", np.array(len(nodes)))
        self._main.node.append(helper.make_node("Loop", [count, ""], made, body=self._body))
        del self._main.output[:]
        self._main.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(nodes)]) for name in made)
        return self._model

    def _round(self, node: NodeProto, slots: Slots, place: int) -> None:
        """Write a node of the body that is rounded in one iteration: what it reads, and what it makes unless that is exact."""
        now = self._node(self._body, "Equal", f"turn{self._mark}", self._scalar(f"turn{place}", np.array(place)))
        for position in sorted(slots.inputs):
            if name := node.input[position]:
                node.input[position] = self._node(self._body, "Where", now, self._low_of(name), name)
        exact = node.op_type in EXACT_OPS
        rounded = [] if exact else [position for position in sorted(slots.outputs) if node.output[position]]
        names = [node.output[position] for position in rounded]
        for position in rounded:
            node.output[position] += "exact"
        self._body.node.append(node)
        for name in names:
            self._node(self._body, "Where", now, self._low_of(f"{name}exact"), f"{name}exact", result=name)

    def _low_of(self, name: str) -> str:
        """The rounded values of a tensor, made once: in the body, or outside where they are the same in each iteration."""
        if name not in self._rounded:
            graph = self._body if self._mark in name else self._main
            half = self._node(graph, "Cast", name, result=f"{name}{self._mark}half", to=self._low)
            self._rounded[name] = self._node(graph, "Cast", half, result=f"{half}full", to=TensorProto.FLOAT)
        return self._rounded[name]

    def _error(self, name: str, atol: float, rtol: float) -> str:
        """The largest error of an output in the body over its tolerance."""
        main, body, mark = self._main, self._body, self._mark
        size = self._node(main, "Abs", name, result=f"{name}{mark}size")
        share = self._node(
            main, "Mul", size, self._scalar(f"{name}rtol", np.array(rtol, np.float32)), result=f"{size}r"
        )
        allowed = self._node(
            main, "Max", share, self._scalar(f"{name}atol", np.array(atol, np.float32)), result=f"{size}a"
        )
        off = self._node(body, "Abs", self._node(body, "Sub", f"{name}{mark}", name))
        return self._node(
            body, "ReduceMax", self._node(body, "Div", off, allowed), result=f"{name}{mark}error", keepdims=0
        )

    def _node(self, graph: GraphProto, kind: str, *inputs: str, result: str = "", **attributes: int) -> str:
        """Write a node; the name of its output."""
        result = result or f"{inputs[-1]}{self._mark}{kind}{len(graph.node)}"
        node = graph.node.add(op_type=kind, input=inputs, output=[result])
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        return result

    def _scalar(self, name: str, value: NDArray[np.generic]) -> str:
        """Store a number; its name."""
        self._main.initializer.append(numpy_helper.from_array(value, f"{name}{self._mark}"))
        return f"{name}{self._mark}"
