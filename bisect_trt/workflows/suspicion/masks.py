"""Mask constants: -1e9 or -3.4e38 where scores shall not count, which is -Inf in fp16.

Mostly -Inf is as good: exp(-Inf) is 0. But a row of which every score is hidden is uniform after Softmax in fp32, and NaN
in fp16. Then all nodes that the mask passes on its way to that Softmax are needed in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bisect_trt.workflows.suspicion.facts import Facts
from bisect_trt.workflows.suspicion.finding import BREAKS, FP16_MAX, MAY, Finding, number
from bisect_trt.workflows.suspicion.ranges import is_mask

_NORMALISERS = ("Softmax", "LogSoftmax")
_VERBS = {"Add": "adds", "Sub": "subtracts", "Mul": "multiplies"}
_FIRST_OPSET_OF_ONE_AXIS = 13
"""Before it, Softmax was over all axes from its own on."""


class Masks:
    """The masks of a model, and what becomes of them."""

    def __init__(self, facts: Facts) -> None:
        """Look at every softmax."""
        self._facts = facts
        self._hidden_rows = {
            index: rows
            for index in facts.nodes
            if facts.node(index).op_type in _NORMALISERS and (rows := self._count_hidden(index))
        }
        self._harmful = self._ways_to(self._hidden_rows)

    def findings(self, index: int) -> Iterator[Finding]:
        """What is said of one node."""
        facts = self._facts
        who = facts.who(index)
        if index in self._hidden_rows:
            rows = self._hidden_rows[index]
            reason = f"{who} reads {rows} rows of which all scores are masked: all -Inf in fp16, so they become NaN"
            yield Finding(BREAKS + 0.95, "masked row", reason)
            return
        reads = list(dict.fromkeys(facts.reads(index)))
        name = next((name for name in (*reads, *facts.makes(index)) if is_mask(facts, name)), None)
        seen = None if name is None else facts.magnitudes(name)
        if name is None or seen is None:
            return
        verb = _VERBS.get(facts.node(index).op_type, "reads") if name in reads else "makes"
        reason = f"{who} {verb} a mask of {number(seen.low)}, past -{number(FP16_MAX)}: it becomes -Inf"
        if facts.node(index).op_type == "Mul" and any(self._has_zeros(other) for other in reads if other != name):
            yield Finding(BREAKS + 0.95, "mask", f"{reason}, and NaN where it is multiplied by 0")
        elif index in self._harmful:
            yield Finding(BREAKS + 0.9, "mask", f"{reason}, and NaN in Softmax where it hides a whole row")
        else:
            yield Finding(MAY + 0.9, "mask", f"{reason}, which hides as well as long as no whole row is hidden")

    def _has_zeros(self, name: str) -> bool:
        seen = self._facts.magnitudes(name)
        return seen is not None and seen.nonzero < seen.size

    def _count_hidden(self, index: int) -> int:
        """How many rows of a softmax have no score that fp16 has."""
        facts = self._facts
        node = facts.node(index)
        seen = facts.magnitudes(node.input[0])
        if seen is None or seen.low >= -FP16_MAX:
            return 0
        scores = facts.value(node.input[0])
        assert scores is not None  # it has a range
        opset = next((entry.version for entry in facts.network.proto.opset_import if not entry.domain), 1)
        last = -1 if opset >= _FIRST_OPSET_OF_ONE_AXIS else 1
        axis = int(facts.attribute(index, "axis", last)) % max(scores.ndim, 1)
        axes = (axis,) if opset >= _FIRST_OPSET_OF_ONE_AXIS else tuple(range(axis, scores.ndim))
        return int(np.count_nonzero(scores.max(axis=axes) < -FP16_MAX))

    def _ways_to(self, softmaxes: dict[int, int]) -> set[int]:
        """The nodes that the mask passes before it reaches some softmaxes."""
        network = self._facts.network
        pending, passed = list(softmaxes), set(softmaxes)
        while pending:
            for name in network.reads[pending.pop()]:
                maker = network.producer.get(name)
                if maker is not None and maker not in passed and is_mask(self._facts, name):
                    passed.add(maker)
                    pending.append(maker)
        return passed
