"""What the rules look at: nodes, and the values of what they read and make, one tensor at a time; and what they find.

A finding is one reason to suspect a node, and how much it weighs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.graph.lower import LOW_TYPES, plan_slots
from bisect_trt.graph.nodes import attribute, held
from bisect_trt.graph.values import element_type
from bisect_trt.tensors.stats import blocks
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion.decomposed import decomposed_patterns

BREAKS = 4.0
"""In low precision there will be an Inf, a NaN or a 0 in place of a divisor."""
INSIDE = 3.0
"""What the operator computes inside breaks, if it is computed in low precision there too."""
LOSES = 2.0
"""Most of the digits get lost."""
MAY = 1.0
"""Something is odd, and mostly harmless."""

FP16_MAX = 65504.0
FP16_TINY = 2.0**-24
"""The smallest fp16 number, 6e-8; what is under half of it becomes 0."""
FP16_NORMAL = 2.0**-14
"""Under this fp16 has fewer digits."""


@dataclass(frozen=True)
class Finding:
    """A reason to suspect a node.

    Attributes:
        score: How much it weighs: one of the bands above, and up to 1 more within the band.
        rule: The name of the rule that applies.
        reason: A sentence.
    """

    score: float
    rule: str
    reason: str


@dataclass(frozen=True)
class Suspect:
    """A unit that may need fp32.

    Attributes:
        unit: The unit.
        score: How suspicious it is; from ``BREAKS`` on it is known to give an Inf, a NaN or a 0.
        rule: The name of the strongest rule that applies.
        reason: The reason in words.
        more: What else was found, in words, strongest first.
    """

    unit: int
    score: float
    rule: str
    reason: str
    more: tuple[str, ...] = ()


def within(band: float, ratio: float) -> float:
    """The score of something that is so many times too large, or too small; nearly the same for nearly the same."""
    return round(band + min(math.log10(max(ratio, 1.0)) / 50, 0.9), 2)


def number(value: float) -> str:
    """A number for a sentence."""
    return f"{value:.6g}"


Values = NDArray[Any]


@dataclass(frozen=True)
class Magnitudes:
    """The range of a float tensor, NaN and Inf left out.

    Attributes:
        low: Smallest value; 0 where there is none.
        high: Largest value; 0 where there is none.
        nonzero: How many elements are not 0.
        tiny: How many of those are under the smallest fp16 number.
        squares: The sum of squares.
        size: How many elements.
    """

    low: float
    high: float
    nonzero: int
    tiny: int
    squares: float
    size: int

    @property
    def absmax(self) -> float:
        """Largest magnitude."""
        return max(-self.low, self.high)

    @property
    def rms(self) -> float:
        """Root mean square."""
        return float(np.sqrt(self.squares / max(self.size, 1)))


def magnitudes(values: Values) -> Magnitudes:
    """Go through a tensor once, a block at a time."""
    low, high, nonzero, tiny, squares, size = np.inf, -np.inf, 0, 0, 0.0, 0
    for block in blocks(values):
        finite = block if np.isfinite(block).all() else block[np.isfinite(block)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            nonzero += int(np.count_nonzero(finite))
            tiny += int(np.count_nonzero((np.abs(finite) < FP16_TINY) & (finite != 0)))
            squares += float(np.square(finite, dtype=np.float64).sum())
            size += finite.size
    return Magnitudes(low if size else 0.0, high if size else 0.0, nonzero, tiny, squares, size)


class Facts:
    """A model after its reference run, for the rules to look at.

    Attributes:
        subject: The model.
        network: Its graph.
        precision: ``fp16`` or ``bf16``.
        nodes: The nodes that would be lowered, by number, in topological order.
    """

    def __init__(self, subject: Subject, precision: str) -> None:
        self.subject = subject
        self.network = subject.network
        self.precision = precision
        types = {name: element_type(info.dtype) for name, info in subject.infos.items()}
        self._slots = plan_slots(self.network.proto, (), types, opaque=False, low=LOW_TYPES[precision])
        order = self.network.order
        searched = (order[unit] for unit in subject.units.searched)
        self.nodes = [index for index in searched if self._slots[index].inputs or self._slots[index].outputs]
        self._patterns = decomposed_patterns(self.network, self.attribute, self.constant)
        self._magnitudes: dict[str, Magnitudes | None] = {}

    def node(self, index: int) -> onnx.NodeProto:
        """A node."""
        return self.network.nodes[index]

    def who(self, index: int) -> str:
        """A node at the start of a sentence: its operator, after the pattern that it is a member of."""
        operator = self.node(index).op_type
        return f"{self._patterns[index]}: {operator}" if index in self._patterns else operator

    def reads(self, index: int) -> Iterator[str]:
        """What a node reads in low precision."""
        inputs = self.node(index).input
        return (inputs[position] for position in sorted(self._slots[index].inputs) if inputs[position])

    def makes(self, index: int) -> Iterator[str]:
        """What a node makes in low precision."""
        outputs = self.node(index).output
        return (outputs[position] for position in sorted(self._slots[index].outputs) if outputs[position])

    def attribute(self, index: int, name: str, default: Any = None) -> Any:  # noqa: ANN401 - ONNX's are of any type
        """An attribute's value."""
        return attribute(self.node(index), name, default)

    def is_weight(self, name: str) -> bool:
        """Whether a tensor depends on no input."""
        maker = self.network.producer.get(name)
        return name in self.network.initializers if maker is None else self.network.constant[maker]

    def born(self, name: str) -> str:
        """Where a value that a node reads comes from, to end a sentence, if that is a node that stays in fp32 itself.

        The reader is the first that has the value in low precision, and the one to keep; but it has not made it.
        """
        maker = self.network.producer.get(name)
        if maker is None or self.network.constant[maker] or self._slots[maker].outputs:
            return ""
        node, precision = self.node(maker), self.precision
        why = f"which has no {precision} at this opset" if self._lacks(node) else "which is computed in fp32"
        return f", as {node.op_type} '{node.name or name}' makes it, {why}"

    def _lacks(self, node: onnx.NodeProto) -> bool:
        """Whether the schema of an operator of ONNX's own has the low precision later than at the model's opset, or never."""
        wanted = f"tensor({'float16' if self.precision == 'fp16' else 'bfloat16'})"
        opset = next((entry.version for entry in self.network.proto.opset_import if not entry.domain), 1)
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        except onnx.defs.SchemaError:
            return False
        allowed = {entry.type_param_str: entry.allowed_type_strs for entry in schema.type_constraints}
        kinds = [allowed.get(made.type_str, [made.type_str]) for made in schema.outputs]
        return not any(wanted in kind for kind in kinds)

    def value(self, name: str) -> Values | None:
        """A tensor's values, if they are known."""
        known = self.subject.reference.select([name])
        if name in known:
            return known[name]
        return self._stored(name)

    def constant(self, name: str) -> Values | None:
        """The values of a weight; of what depends on an input, ``None``."""
        return self._stored(name) if name and self.is_weight(name) else None

    def scalar(self, name: str) -> float | None:
        """The value of a weight of one element."""
        value = self.constant(name)
        return (
            float(value.reshape(-1)[0]) if value is not None and value.size == 1 and value.dtype.kind in "fiu" else None
        )

    def magnitudes(self, name: str) -> Magnitudes | None:
        """The range of a float tensor, if its values are known; computed once."""
        if name not in self._magnitudes:
            values = self.value(name)
            floats = values is not None and values.dtype.kind == "f"
            self._magnitudes[name] = magnitudes(values) if values is not None and floats else None
        return self._magnitudes[name]

    def _stored(self, name: str) -> Values | None:
        """The values of an initializer, or of what a Constant node holds."""
        tensor = self.network.initializers.get(name)
        if tensor is None and name in self.network.producer and self.is_weight(name):
            tensor = held(self.network.nodes[self.network.producer[name]])
        if tensor is None:
            return None
        return np.asarray(
            numpy_helper.to_array(tensor, str(self.subject.workspace.weights.folder_of(self.network.proto)))
        )
