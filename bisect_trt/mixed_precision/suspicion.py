"""The error that rounding each node alone causes, and the nodes that probably need fp32 by it.

``Sensitivity`` measures how far rounding each node alone moves the outputs. It runs a model with a Loop: the body is the model
again, and iteration ``i`` rounds what node ``i`` reads and makes. That costs about as much as to run the model once for each
node; a candidate for each node would have to be built and loaded too. Suspects are the nodes with errors that add up past the
tolerance, and those that read twice as large values past 65504.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from bisect_trt.onnxlib.nodes import bodies, clone, mentioned_names
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.info import blocks
from bisect_trt.tensors.inputs import Sample
from bisect_trt.worker.protocol import Failed

BREAKS = 3.0
"""The score of a node that breaks the tolerance alone."""
INSIDE = 2.0
"""The score of a node that overflows where it reads values twice as large."""
MAY = 1.0
"""The largest score of a node that uses a part of the tolerance."""
FP16_MAX = 65504.0
_MASK = -1e6
"""A tensor with values this low, and no large positive ones, is a mask: -Inf hides scores before a Softmax as well."""
Errors = NDArray[np.float64]


@dataclass(frozen=True)
class Suspect:
    """A unit that may need fp32."""

    unit: int
    score: float
    rule: str
    reason: str


def suspect(subject: Subject, units: Sequence[int], precision: str, errors: Errors | None) -> list[Suspect]:
    """The units that may need fp32, most suspicious first, and in topological order among equals.

    ``errors`` are of each unit alone, in units of the tolerance; ``None`` where they are not measured.
    """
    ranges = _Ranges(subject, precision, masks=errors is not None)
    found, needed = list[Suspect](), frozenset[int]()
    if errors is not None:
        order = np.argsort(-errors, kind="stable")
        rest = np.cumsum(np.square(np.minimum(errors[order], 2.0))[::-1])[
            ::-1
        ]  # of independent roundings squares add up
        needed = frozenset(order[rest > 1].tolist())
    for place, unit in enumerate(units):
        index = subject.network.order[unit]
        overflow, headroom = ranges.overflow(index) if precision == "fp16" else ("", "")
        if errors is None:
            score = BREAKS if overflow else 0.0
        else:
            score = BREAKS + min(math.log10(max(errors[place], 1.0)) / 50, 0.9) if errors[place] > 1 else 0.0
        rule, reason = ("overflow", overflow) if overflow else ("own error", "")
        if not score and headroom:
            score, rule, reason = INSIDE, "headroom", headroom
        elif not score and place in needed and errors is not None:
            score = MAY * float(errors[place])
        if score:
            op = subject.network.nodes[index].op_type
            alone = (
                "NaN or Inf"
                if errors is None or not np.isfinite(errors[place])
                else f"{errors[place]:.3g} times the tolerance"
            )
            found.append(
                Suspect(unit, score, rule, f"{op} {reason or f'alone in {precision} changes the outputs by {alone}'}")
            )
    return sorted(found, key=lambda entry: (-entry.score, entry.unit))


class _Ranges:
    """The values that nodes read and make in the reference run."""

    def __init__(self, subject: Subject, precision: str, *, masks: bool) -> None:
        """Read nothing yet; ``masks`` also take part."""
        self._reference, self._network, self._masks = subject.reference, subject.network, masks
        types = {name: element_type(info.dtype) for name, info in subject.infos.items()}
        self._slots = plan_slots(self._network.proto, (), types, LOW_TYPES[precision])
        self._folder = subject.workspace.weights.folder_of(self._network.proto)
        self._known: dict[str, tuple[float, float]] = {}

    def overflow(self, index: int) -> tuple[str, str]:
        """Two sentences, empty where untrue: a node has a tensor past fp16's range; it would if it read values twice as large."""
        node, slots = self._network.nodes[index], self._slots[index]
        made = [node.output[place] for place in sorted(slots.outputs)]
        for verb, names in (("reads", [node.input[place] for place in sorted(slots.inputs)]), ("makes", made)):
            for low, high in map(self._range, names):
                if max(-low, high) > FP16_MAX:
                    return f"{verb} {max(low, high, key=abs):.6g}, past {FP16_MAX:.6g}", ""
        peak = max((max(-low, high) for low, high in map(self._range, made)), default=0.0)
        squares = node.op_type == "Mul" and node.input[0] == node.input[1]
        doubled = {"Exp": peak * peak, "Pow": 4 * peak}.get(node.op_type, 4 * peak if squares else 0.0)
        near = f"makes values up to {peak:.6g}, past {FP16_MAX:.6g} where it reads twice as large ones"
        return "", near if doubled > FP16_MAX else ""

    def _range(self, name: str) -> tuple[float, float]:
        """The range of a float tensor; zeros where it is not known."""
        if name not in self._known:
            value = self._reference.select([name]).get(name)
            value = stored_value(self._network, name, self._folder) if value is None else value
            low, high = finite_range(value) if value is not None and value.dtype.kind == "f" else (0.0, 0.0)
            is_mask = low <= _MASK and high <= min(FP16_MAX, -low / 1000)
            self._known[name] = (0.0, 0.0) if is_mask and not self._masks else (low, high)
        return self._known[name]


def finite_range(values: NDArray[Any]) -> tuple[float, float]:
    """The range of a tensor without its NaN and Inf, read a block at a time; zeros for an empty one."""
    low, high = np.inf, -np.inf
    for block in blocks(values):
        finite = block[np.isfinite(block)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)


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
        """Build the model, unless it would take too long to run."""
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

    def errors(self, samples: Sequence[Sample]) -> list[Errors]:
        """The error of each node in units of the tolerance, ``inf`` for NaN, on those samples where it can be measured."""
        found = []
        for sample in samples:
            if self._model is None:
                break
            made = self._subject.models.run("sensitivity-nodes", self._model, sample)
            if not isinstance(made, Failed):
                found.append(np.max([value.astype(np.float64) for value in made.values()], axis=0))
        return found


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
        self._exact: dict[str, str] = {}

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
        names = [] if exact else [node.output[position] for position in sorted(slots.outputs) if node.output[position]]
        for name in names:
            self._exact[name] = f"{name}exact"
        node.output[:] = [self._exact.get(name, name) for name in node.output]
        self._body.node.append(node)
        for name in names:
            self._node(self._body, "Where", now, self._low_of(name), self._exact[name], result=name)

    def _low_of(self, name: str) -> str:
        """The rounded values of a tensor, made once: in the body, or outside where they are the same in each iteration.

        A node that reads a tensor is rounded in other iterations than the node that makes it, so these are of the exact values.
        """
        if name not in self._rounded:
            graph = self._body if self._mark in name else self._main
            half = self._node(
                graph, "Cast", self._exact.get(name, name), result=f"{name}{self._mark}half", to=self._low
            )
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
        share, most = self._node(body, "Div", off, allowed), self._scalar(f"{name}inf", np.array(np.inf, np.float32))
        share = self._node(body, "Where", self._node(body, "Less", share, most), share, most)  # ReduceMax skips NaN
        return self._node(body, "ReduceMax", share, result=f"{name}{mark}error", keepdims=0)

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
