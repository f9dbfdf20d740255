"""Which units probably need fp32: a table of rules on the reference's values, and each node's own error, before any probe.

Each rule looks at one node that would be lowered, and yields reasons to suspect it. What a node makes wrong by itself (a
difference of nearly equal numbers, say) is measured: it is fed the reference's values. The strongest reason of each node counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.emulation import EXACT_OPS
from bisect_trt.onnxlib.load import read_weight
from bisect_trt.onnxlib.lower import LOW_TYPES, plan_slots
from bisect_trt.onnxlib.nodes import attribute, bodies, held
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.comparison import ComparisonKind
from bisect_trt.tensors.stats import blocks
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

BREAKS = 4.0
"""In low precision there will be an Inf, a NaN or a 0 in place of a divisor."""
INSIDE = 3.0
"""What the operator computes inside breaks, if it is computed in low precision there too."""
LOSES = 2.0
"""Most of the digits get lost."""
MAY = 1.0
"""Something is odd, and mostly harmless."""
FP16_MAX = 65504.0
_TINY = 2.0**-24
"""The smallest fp16 number, 6e-8; numbers under half of it become 0."""
_NORMAL = 2.0**-14
"""Under this fp16 has fewer digits."""
_MASK = -1e6
"""The lowest value of a tensor from which on it is taken for a mask, which hides scores before a Softmax."""
_NOTABLE = 0.1
"""A node's own error that is reported, in tolerances; rounding alone takes about 0.02."""
_DIVISORS = {"Div": 1, "Log": 0, "Reciprocal": 0}
_CENTRED = {"LayerNormalization", "InstanceNormalization", "GroupNormalization"}
_NORMS = _CENTRED | {"ReduceL2", "RMSNormalization", "SimplifiedLayerNormalization"}


@dataclass(frozen=True)
class Suspect:
    """A unit that may need fp32.

    Attributes:
        unit: The unit.
        score: How suspicious it is, one of the bands above and up to 1 more within it; from ``BREAKS`` on it is known to
            give an Inf, a NaN or a 0.
        rule: The name of the strongest rule that applies.
        reason: The reason in words.
        more: Further reasons, strongest first.
    """

    unit: int
    score: float
    rule: str
    reason: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Magnitudes:
    """The range of a float tensor, NaN and Inf left out; ``tiny`` counts what is not 0 and under the smallest fp16 number."""

    low: float = 0.0
    high: float = 0.0
    nonzero: int = 0
    tiny: int = 0
    size: int = 0

    @property
    def absmax(self) -> float:
        """Largest magnitude."""
        return max(-self.low, self.high)


def magnitudes(values: NDArray[Any]) -> Magnitudes:
    """The range of a tensor, read once, a block at a time."""
    seen = Magnitudes(np.inf, -np.inf)
    for block in blocks(values):
        finite = block[np.isfinite(block)]
        if finite.size:
            seen = Magnitudes(
                min(seen.low, float(finite.min())),
                max(seen.high, float(finite.max())),
                seen.nonzero + int(np.count_nonzero(finite)),
                seen.tiny + int(np.count_nonzero((np.abs(finite) < _TINY) & (finite != 0))),
                seen.size + finite.size,
            )
    return seen if seen.size else Magnitudes()


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
        self.subject, self.network, self.precision = subject, subject.network, precision
        types = {name: element_type(info.dtype) for name, info in subject.infos.items()}
        self._slots = plan_slots(self.network.proto, (), types, LOW_TYPES[precision])
        searched = (self.network.order[unit] for unit in subject.units.searched)
        self.nodes = [index for index in searched if self._slots[index].inputs or self._slots[index].outputs]
        self._magnitudes: dict[str, Magnitudes | None] = {}

    def op(self, index: int) -> str:
        """A node's operator."""
        return str(self.network.nodes[index].op_type)

    def reads(self, index: int) -> list[str]:
        """The tensors that a node reads in low precision, each once."""
        inputs = self.network.nodes[index].input
        return list(dict.fromkeys(inputs[place] for place in sorted(self._slots[index].inputs) if inputs[place]))

    def makes(self, index: int) -> list[str]:
        """The tensors that a node makes in low precision."""
        outputs = self.network.nodes[index].output
        return [outputs[place] for place in sorted(self._slots[index].outputs) if outputs[place]]

    def touches(self, index: int) -> Iterator[tuple[str, str, Magnitudes]]:
        """The tensors of a node in low precision: the verb, the name, and the range where it is known."""
        for verb, names in (("reads", self.reads(index)), ("makes", self.makes(index))):
            for name in names:
                if (seen := self.magnitudes(name)) is not None:
                    yield verb, name, seen

    def is_weight(self, name: str) -> bool:
        """Whether a tensor depends on no input."""
        maker = self.network.producer.get(name)
        return name in self.network.initializers if maker is None else self.network.constant[maker]

    def value(self, name: str) -> NDArray[Any] | None:
        """A tensor's values, if they are known: of the reference run, an initializer or a Constant node."""
        known = self.subject.reference.select([name])
        if name in known:
            return known[name]
        tensor = self.network.initializers.get(name)
        if tensor is None and name in self.network.producer and self.is_weight(name):
            tensor = held(self.network.nodes[self.network.producer[name]])
        folder = self.subject.workspace.weights.folder_of(self.network.proto)
        return None if tensor is None else read_weight(tensor, folder)

    def magnitudes(self, name: str) -> Magnitudes | None:
        """The range of a float tensor, if its values are known; computed once."""
        if name not in self._magnitudes:
            value = self.value(name)
            self._magnitudes[name] = magnitudes(value) if value is not None and value.dtype.kind == "f" else None
        return self._magnitudes[name]

    def is_mask(self, name: str) -> bool:
        """Whether what is past fp16's range in a tensor is a large negative number, which hides scores."""
        seen = self.magnitudes(name)
        return seen is not None and seen.low <= _MASK and seen.high <= min(FP16_MAX, -seen.low / 1000)

    @cached_property
    def hidden_rows(self) -> set[int]:
        """The softmaxes that read a row without a score that fp16 has, and the nodes that make it so."""
        pending: list[int] = []
        for index in self.nodes:
            node = self.network.nodes[index]
            if node.op_type not in ("Softmax", "LogSoftmax") or not self.is_mask(node.input[0]):
                continue
            scores = self.value(node.input[0])
            if scores is not None and (scores.max(axis=int(attribute(node, "axis", -1))) < -FP16_MAX).any():
                pending.append(index)
        passed = set(pending)
        while pending:
            for name in self.network.reads[pending.pop()]:
                maker = self.network.producer.get(name)
                if maker is not None and maker not in passed and self.is_mask(name):
                    passed.add(maker)
                    pending.append(maker)
        return passed


Finding = tuple[float, str]
"""The score, and the reason in words without the operator."""
Rule = Callable[[Facts, int], Iterator[Finding]]


def _within(band: float, ratio: float) -> float:
    """The score of something that is so many times too large, or too small; nearly the same for nearly the same."""
    return round(band + min(math.log10(max(ratio, 1.0)) / 50, 0.9), 2)


def _overflow(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs past 65504, which become Inf. Masks, which are meant to, have a rule of their own."""
    for verb, name, seen in facts.touches(index):
        if seen.absmax > FP16_MAX and not facts.is_mask(name):
            what = "a weight of " if facts.is_weight(name) else ""
            extreme = seen.high if seen.high >= -seen.low else seen.low
            yield _within(BREAKS, seen.absmax / FP16_MAX), f"{verb} {what}{extreme:.6g}, past {FP16_MAX:.6g}"


def _mask(facts: Facts, index: int) -> Iterator[Finding]:
    """Masks of -1e9 or so become -Inf: harmless, but for NaN where a whole row is hidden or where they are multiplied by 0."""
    masks = [(name, seen) for _, name, seen in facts.touches(index) if facts.is_mask(name)]
    if not masks:
        return
    (name, seen), *_ = masks
    reason = f"has a mask of {seen.low:.6g}, past -{FP16_MAX:.6g}: it becomes -Inf"
    others = [facts.magnitudes(other) for other in facts.reads(index) if other != name]
    if facts.op(index) == "Mul" and any(other is not None and other.nonzero < other.size for other in others):
        yield BREAKS + 0.95, f"{reason}, and NaN where it is multiplied by 0"
    elif index in facts.hidden_rows:
        last = facts.op(index) in ("Softmax", "LogSoftmax")
        yield BREAKS + (0.95 if last else 0.9), f"{reason}, and NaN in Softmax where all scores of a row are masked"
    else:
        yield MAY + 0.9, f"{reason}, which hides as well as long as no whole row is hidden"


def _underflow(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs that become 0, or keep few digits; above all those that are divided by."""
    for verb, name, seen in facts.touches(index):
        if not seen.nonzero or (seen.size == 1 and facts.is_weight(name)):  # an epsilon counts where it is missing
            continue
        if verb == "reads" and seen.tiny and name == _divisor(facts, index):
            yield _within(BREAKS, 1 / _TINY), f"divides by {seen.tiny} values under {_TINY:.6g}, which become 0"
        elif seen.absmax < _TINY:
            reason = f"{verb} values up to {seen.absmax:.6g}, under {_TINY:.6g}: all become 0"
            yield _within(LOSES, _TINY / seen.absmax) + 0.5, reason
        elif seen.absmax < _NORMAL:
            reason = f"{verb} values up to {seen.absmax:.6g}, which have fewer digits in fp16"
            yield _within(LOSES, _NORMAL / seen.absmax), reason


def _divisor(facts: Facts, index: int) -> str | None:
    """The input of which no value may become 0, because the node, or the one that reads its root, divides by it."""
    node = facts.network.nodes[index]
    if node.op_type == "Sqrt":
        readers = facts.network.consumers.get(node.output[0], ())
        return node.input[0] if any(_divisor(facts, reader) == node.output[0] for reader in readers) else None
    return str(node.input[_DIVISORS[node.op_type]]) if node.op_type in _DIVISORS else None


def _sum_inside(facts: Facts, index: int) -> Iterator[Finding]:
    """Sums, or sums of squares, that means and norms compute inside, past 65504."""
    node, made = facts.network.nodes[index], next(iter(facts.makes(index)), None)
    mean = node.op_type in ("ReduceMean", "GlobalAveragePool")
    values = facts.value(node.input[0]) if made is not None and (mean or node.op_type in _NORMS) else None
    result = None if made is None else facts.magnitudes(made)
    if values is None or result is None or not values.size or not np.isfinite(values).all():
        return
    if mean:
        total = result.absmax * (values.size // max(result.size, 1)) if result.absmax <= FP16_MAX else 0.0
    else:
        elements, axes = values.astype(np.float64), _axes(facts, node, values.ndim)
        if node.op_type in _CENTRED:
            elements -= elements.mean(axis=axes, keepdims=True)
        total = float(np.square(elements, out=elements).sum(axis=axes).max())
    if total > FP16_MAX:
        squares = "" if mean else " of squares"
        yield _within(INSIDE, total / FP16_MAX), f"has a sum{squares} of {total:.6g} inside, past {FP16_MAX:.6g}"


def _headroom(facts: Facts, index: int) -> Iterator[Finding]:
    """Exponentials and squares that overflow where the node reads values twice as large."""
    node, made = facts.network.nodes[index], next(iter(facts.makes(index)), None)
    result = None if made is None else facts.magnitudes(made)
    read = facts.magnitudes(node.input[0]) if node.input else None
    if result is None or read is None or not 0 < result.absmax <= FP16_MAX:
        return
    power = None
    if node.op_type == "Pow":
        power = facts.value(node.input[1])
    elif node.op_type == "Mul" and node.input[0] == node.input[1]:
        power = np.asarray(2.0)
    doubled = math.exp(min(2 * read.high, 700.0)) if node.op_type == "Exp" else 0.0
    if power is not None and power.size == 1:
        doubled = result.absmax * 2.0 ** min(float(power.reshape(())), 64.0)
    if doubled > FP16_MAX:
        yield INSIDE, f"makes values up to {result.absmax:.6g}, past {FP16_MAX:.6g} where it reads twice as large ones"


def _axes(facts: Facts, node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    """The axes that a norm goes over."""
    if node.op_type in ("InstanceNormalization", "GroupNormalization"):
        return tuple(range(2, rank))
    if node.op_type != "ReduceL2":
        return tuple(range(int(attribute(node, "axis", -1)) % rank, rank))
    given = attribute(node, "axes", facts.value(node.input[1]) if len(node.input) > 1 else None)
    return tuple(range(rank)) if given is None else tuple(int(axis) % rank for axis in given)


RULES: dict[str, dict[str, Rule]] = {
    "fp16": {
        "overflow": _overflow,
        "underflow": _underflow,
        "sum inside": _sum_inside,
        "mask": _mask,
        "headroom": _headroom,
    },
    "bf16": {},  # it has fp32's range
}


def suspect(subject: Subject, precision: str = "fp16") -> list[Suspect]:
    """The units that may need fp32, most suspicious first.

    Args:
        subject: The model, with its reference run.
        precision: The precision of the other units, ``fp16`` or ``bf16``.

    Returns:
        One entry for each unit that a rule applies to. Those of the same score are in topological order.
    """
    if subject.models.build_only:  # no values are known
        return []
    facts, suspects = Facts(subject, precision), []
    own = _own_errors(facts)
    for index in facts.nodes:
        found = [(score, rule, why) for rule, run in RULES[precision].items() for score, why in run(facts, index)]
        explained = any(score >= BREAKS or rule == "mask" for score, rule, _ in found)
        found += [each for each in own.get(index, ()) if each[1] != "new Inf" or not explained]
        if found:
            (score, rule, why), *rest = sorted(found, key=lambda each: -each[0])
            more = dict.fromkeys(f"{facts.op(index)} {each}" for _, _, each in rest)
            suspects.append(Suspect(subject.network.rank[index], score, rule, f"{facts.op(index)} {why}", tuple(more)))
    return sorted(suspects, key=lambda entry: (-entry.score, entry.unit))


def _own_errors(facts: Facts) -> dict[int, list[tuple[float, str, str]]]:
    """The nodes whose own result is notably off in the low precision, fed the reference's values: scores, rules, reasons."""
    from bisect_trt.commands.marking import Marking, compare_own  # noqa: PLC0415 - not needed for the first probe

    subject, precision, nodes = facts.subject, facts.precision, facts.network.nodes
    target = replace(subject.models.reference, fp16=precision == "fp16", bf16=precision == "bf16")
    computes = (
        index for index in facts.nodes if nodes[index].op_type not in EXACT_OPS and not any(bodies(nodes[index]))
    )
    names = {name: index for index in computes for name in facts.makes(index)}
    look = Marking(subject, target, ToleranceOptions(precision=Precision(precision), nonfinite_equal=True))
    found: dict[int, list[tuple[float, str, str]]] = {}
    for name, seen in compare_own(look, list(names), most=1).tensors.items():
        average = (seen.mean_abs or 0.0) / seen.atol if seen.atol else 0.0
        off = f"alone is off by {seen.severity:.3g} times the tolerance in {precision}"
        if seen.kind in (ComparisonKind.NAN, ComparisonKind.INF):
            new = "new NaN" if seen.kind is ComparisonKind.NAN else "new Inf"
            finding = (BREAKS, new, f"makes {new} in {precision} of the reference's own values")
        elif not seen.passed:
            finding = (_within(LOSES, seen.severity), "own error", off)
        elif average >= _NOTABLE:
            finding = (MAY * min(average, 1.0), "own error", f"{off}, on average by {average:.0%}")
        else:
            continue
        found.setdefault(names[name], []).append(finding)
    return found
