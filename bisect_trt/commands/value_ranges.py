"""The reference's values as the rules of :mod:`bisect_trt.commands.suspicion` see them: ranges, weights, masks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.lower_plan import LOW_TYPES, plan_slots
from bisect_trt.onnxlib.nodes import attribute, held
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.stats import blocks

FP16_MAX = 65504.0
FP16_TINY = 2.0**-24
"""The smallest fp16 number, 6e-8; numbers under half of it become 0."""
FP16_NORMAL = 2.0**-14
"""Under this fp16 has fewer digits."""
_SURELY_A_MASK, _SCORES = -1e6, 1e-2
"""Scores may be added to a mask before Softmax; they are small beside it."""

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
    """The range of a tensor, read once, a block at a time."""
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
        """Find the nodes that would be lowered."""
        self.subject = subject
        self.network = subject.network
        self.precision = precision
        types = {name: element_type(info.dtype) for name, info in subject.infos.items()}
        self._slots = plan_slots(self.network.proto, (), types, LOW_TYPES[precision])
        searched = (self.network.order[unit] for unit in subject.units.searched)
        self.nodes = [index for index in searched if self._slots[index].inputs or self._slots[index].outputs]
        self._magnitudes: dict[str, Magnitudes | None] = {}

    def node(self, index: int) -> onnx.NodeProto:
        """A node."""
        return self.network.nodes[index]

    def who(self, index: int) -> str:
        """The subject of a sentence about a node: its operator."""
        return str(self.node(index).op_type)

    def reads(self, index: int) -> list[str]:
        """The tensors that a node reads in low precision, each once."""
        inputs = self.node(index).input
        return list(dict.fromkeys(inputs[place] for place in sorted(self._slots[index].inputs) if inputs[place]))

    def makes(self, index: int) -> list[str]:
        """The tensors that a node makes in low precision."""
        outputs = self.node(index).output
        return [outputs[place] for place in sorted(self._slots[index].outputs) if outputs[place]]

    def is_weight(self, name: str) -> bool:
        """Whether a tensor depends on no input."""
        maker = self.network.producer.get(name)
        return name in self.network.initializers if maker is None else self.network.constant[maker]

    def born(self, name: str) -> str:
        """The end of a sentence about a value that a node reads: its maker, if that stays in fp32 itself."""
        maker = self.network.producer.get(name)
        if maker is None or self.network.constant[maker] or self._slots[maker].outputs:
            return ""
        return f", as {self.node(maker).op_type} '{self.node(maker).name or name}' makes it, which is computed in fp32"

    def value(self, name: str) -> Values | None:
        """A tensor's values, if they are known."""
        known = self.subject.reference.select([name])
        return known[name] if name in known else self._stored(name)

    def constant(self, name: str) -> Values | None:
        """The values of a weight; ``None`` for other tensors."""
        return self._stored(name) if name and self.is_weight(name) else None

    def scalar(self, name: str) -> float | None:
        """The value of a weight of one element."""
        value = self.constant(name)
        number = value is not None and value.size == 1 and value.dtype.kind in "fiu"
        return float(value.reshape(-1)[0]) if value is not None and number else None

    def magnitudes(self, name: str) -> Magnitudes | None:
        """The range of a float tensor, if its values are known; computed once."""
        if name not in self._magnitudes:
            values = self.value(name)
            floats = values is not None and values.dtype.kind == "f"
            self._magnitudes[name] = magnitudes(values) if values is not None and floats else None
        return self._magnitudes[name]

    def _stored(self, name: str) -> Values | None:
        """The values of an initializer, or of a Constant node."""
        tensor = self.network.initializers.get(name)
        if tensor is None and name in self.network.producer and self.is_weight(name):
            tensor = held(self.network.nodes[self.network.producer[name]])
        folder = str(self.subject.workspace.weights.folder_of(self.network.proto))
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor, folder))

    def is_mask(self, name: str) -> bool:
        """Whether all that is past fp16's range in a tensor is one large negative number, which hides scores."""
        seen = self.magnitudes(name)
        if seen is None or seen.low >= -FP16_MAX or seen.high > min(FP16_MAX, -seen.low / 1000):
            return False
        values = self.value(name)
        if seen.low <= _SURELY_A_MASK or values is None:
            return True
        return bool(values[values < -FP16_MAX].max() <= seen.low * (1 - _SCORES))

    @cached_property
    def hidden_rows(self) -> dict[int, int]:
        """How many rows of each softmax have no score that fp16 has."""
        found: dict[int, int] = {}
        opset = next((entry.version for entry in self.network.proto.opset_import if not entry.domain), 1)
        for index in self.nodes:
            node = self.node(index)
            seen = self.magnitudes(node.input[0]) if node.op_type in ("Softmax", "LogSoftmax") else None
            scores = None if seen is None or seen.low >= -FP16_MAX else self.value(node.input[0])
            if scores is not None:  # before opset 13 Softmax was over all axes from its own on
                axis = int(attribute(node, "axis", -1 if opset >= 13 else 1)) % max(scores.ndim, 1)
                axes = (axis,) if opset >= 13 else tuple(range(axis, scores.ndim))
                found[index] = int(np.count_nonzero(scores.max(axis=axes) < -FP16_MAX))
        return {index: rows for index, rows in found.items() if rows}

    @cached_property
    def leads_to_hidden_rows(self) -> set[int]:
        """The nodes that a mask passes before it hides a whole row."""
        pending, passed = list(self.hidden_rows), set(self.hidden_rows)
        while pending:
            for name in self.network.reads[pending.pop()]:
                maker = self.network.producer.get(name)
                if maker is not None and maker not in passed and self.is_mask(name):
                    passed.add(maker)
                    pending.append(maker)
        return passed
