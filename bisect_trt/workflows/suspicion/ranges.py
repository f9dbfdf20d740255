"""Values that fp16 does not have: past 65504, or so small that they become 0; and masks, which mean to be past it.

A mask of -1e9 or -3.4e38 where scores shall not count is -Inf in fp16. Mostly that is as good: exp(-Inf) is 0. But a row of
which every score is hidden is uniform after Softmax in fp32, and NaN in fp16. Then all nodes that the mask passes on its way
to that Softmax are needed in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bisect_trt.tensors.stats import blocks
from bisect_trt.workflows.suspicion.facts import (
    BREAKS,
    FP16_MAX,
    FP16_NORMAL,
    FP16_TINY,
    LOSES,
    MAY,
    Facts,
    Finding,
    number,
    within,
)

_LOST_SHARE = 0.1
"""Of the values that are not 0. Softmax makes a few that are too small and harms nobody."""
_SURELY_A_MASK = -1e6
_SCORES = 1e-2
"""What is hidden may be added to the mask first; that is small beside it."""
_NEXT_TO_NOTHING = ("Add", "Sub", "Max", "Clip")
"""A small constant is an epsilon to these, which is a rule of its own."""
_DIVISORS = {"Div": 1, "Log": 0, "Reciprocal": 0}
"""Operators, and the input that must not become 0."""


def past_the_largest(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs that become Inf. Masks, which are meant to, are a rule of their own."""
    for name, verb in _slots(facts, index):
        seen = facts.magnitudes(name)
        if seen is None or seen.absmax <= FP16_MAX or is_mask(facts, name):
            continue
        what = (
            f"{verb} a weight that reaches" if facts.is_weight(name) else {"reads": "reads", "makes": "reaches"}[verb]
        )
        extreme = seen.high if seen.high >= -seen.low else seen.low
        reason = f"{facts.who(index)} {what} {number(extreme)}, past {number(FP16_MAX)}"
        reason += facts.born(name) if verb == "reads" else ""
        yield Finding(within(BREAKS, seen.absmax / FP16_MAX), "overflow", reason)


def is_mask(facts: Facts, name: str) -> bool:
    """Whether all that is past fp16's range in a tensor is one large negative number, which hides scores."""
    seen = facts.magnitudes(name)
    if seen is None or seen.low >= -FP16_MAX or seen.high > min(FP16_MAX, -seen.low / 1000):
        return False
    values = facts.value(name)
    if seen.low <= _SURELY_A_MASK or values is None:
        return True
    hidden = values[values < -FP16_MAX]
    return bool(hidden.max() <= seen.low * (1 - _SCORES))


def under_the_smallest(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs that become 0, or keep few digits."""
    divisor = _divisor(facts, index)
    for name, verb in _slots(facts, index):
        seen = facts.magnitudes(name)
        if seen is None or not seen.nonzero:
            continue
        if seen.size == 1 and facts.is_weight(name) and facts.node(index).op_type in _NEXT_TO_NOTHING:
            continue
        share = seen.tiny / seen.nonzero
        subject = f"{facts.who(index)} {verb} {'a weight' if facts.is_weight(name) else 'a tensor'}"
        least, born = number(FP16_TINY), facts.born(name) if verb == "reads" else ""
        if verb == "reads" and name == divisor and seen.tiny:
            divides = "it divides by" if facts.node(index).op_type != "Sqrt" else "its root is divided by as well"
            reason = (
                f"{facts.who(index)} reads {seen.tiny} values under {least}{born}, and they become 0, which {divides}"
            )
            yield Finding(within(BREAKS, 1 / FP16_TINY), "vanishing divisor", reason)
        elif seen.absmax < FP16_TINY:
            reason = f"{subject} of values up to {number(seen.absmax)}, under {least}{born}: all become 0"
            yield Finding(within(LOSES, FP16_TINY / seen.absmax) + 0.5, "underflow", reason)
        elif seen.absmax < FP16_NORMAL:
            reason = f"{subject} of values up to {number(seen.absmax)}{born}, which have fewer digits in fp16"
            yield Finding(within(LOSES, FP16_NORMAL / seen.absmax), "underflow", reason)
        elif verb == "reads" and name == divisor and (few := _few_digits(facts, name)):
            small = f"{few} values under {number(FP16_NORMAL)}{born}"
            reason = f"{facts.who(index)} divides by {small}, which have fewer digits in fp16"
            yield Finding(LOSES, "small divisor", reason)
        elif share >= _LOST_SHARE:
            reason = f"{subject} in which {share:.0%} of the values are under {least}{born}"
            yield Finding(MAY + 0.5 * share, "underflow", reason)


def _few_digits(facts: Facts, name: str) -> int:
    """How many values are numbers that fp16 has not all digits of."""
    values = facts.value(name)
    if values is None:
        return 0
    return sum(int(np.count_nonzero((np.abs(block) < FP16_NORMAL) & (block != 0))) for block in blocks(values))


def _slots(facts: Facts, index: int) -> Iterator[tuple[str, str]]:
    """The tensors of a node, each once, and whether it ``reads`` or ``makes`` them."""
    yield from ((name, "reads") for name in dict.fromkeys(facts.reads(index)))
    yield from ((name, "makes") for name in facts.makes(index))


def _divisor(facts: Facts, index: int) -> str | None:
    """The input of which no value may become 0."""
    node = facts.node(index)
    if node.op_type == "Pow":
        exponent = facts.scalar(node.input[1])
        return node.input[0] if exponent is not None and exponent < 0 else None
    if node.op_type == "Sqrt":  # an epsilon that keeps its root from 0 has to last until there
        readers = facts.network.consumers.get(node.output[0], ())
        return node.input[0] if any(_divisor(facts, reader) == node.output[0] for reader in readers) else None
    return node.input[_DIVISORS[node.op_type]] if node.op_type in _DIVISORS else None


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
