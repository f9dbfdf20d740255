"""Which units probably need fp32, by the reference's values: a table of rules, run before anything is probed.

Each rule looks at one node that would be lowered, and yields reasons to suspect it. The strongest reason of each node counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx

from bisect_trt.commands.subject import Subject
from bisect_trt.commands.value_ranges import FP16_MAX, FP16_NORMAL, FP16_TINY, Facts
from bisect_trt.onnxlib.emulation import EXACT_OPS
from bisect_trt.onnxlib.nodes import attribute, bodies
from bisect_trt.tensors.comparison import ComparisonKind
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

BREAKS = 4.0
"""In low precision there will be an Inf, a NaN or a 0 in place of a divisor."""
INSIDE = 3.0
"""What the operator computes inside breaks, if it is computed in low precision there too."""
LOSES = 2.0
"""Most of the digits get lost."""
MAY = 1.0
"""Something is odd, and mostly harmless."""

_DIGITS = {"fp16": 11, "bf16": 8}
"""Binary digits of a number."""
_LOST_SHARE = 0.1
"""Of the values that are not 0. Softmax makes a few that are too small, which is harmless."""
_CANCELLED = 1e-2
"""Rounding of a difference, relative to its root mean square, that is reported."""
_NOTABLE = 0.1
"""A node's own error that is reported, in tolerances; rounding alone takes about 0.02."""
_DIVIDES = ("Sqrt", "Div", "Log", "Reciprocal", "Pow")
_CENTRED = {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}
_NORMS = _CENTRED | {"ReduceL2", "LpNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}


@dataclass(frozen=True)
class Finding:
    """A reason to suspect a node.

    Attributes:
        score: How much it weighs: one of the bands above, and up to 1 more within the band.
        rule: The name of the rule.
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
        more: Further reasons, strongest first.
    """

    unit: int
    score: float
    rule: str
    reason: str
    more: tuple[str, ...] = ()


Rule = Callable[[Facts, int], Iterator[Finding]]


def within(band: float, ratio: float) -> float:
    """The score of something that is so many times too large, or too small; nearly the same for nearly the same."""
    return round(band + min(math.log10(max(ratio, 1.0)) / 50, 0.9), 2)


def number(value: float) -> str:
    """A number for a sentence."""
    return f"{value:.6g}"


def overflow(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs past 65504, which become Inf. Masks, which are meant to, have a rule of their own."""
    for name, reads in _tensors(facts, index):
        seen = facts.magnitudes(name)
        if seen is None or seen.absmax <= FP16_MAX or facts.is_mask(name):
            continue
        verb = "reads" if reads else "reaches"
        if facts.is_weight(name):
            verb = f"{'reads' if reads else 'makes'} a weight that reaches"
        extreme = number(seen.high if seen.high >= -seen.low else seen.low)
        born = facts.born(name) if reads else ""
        reason = f"{facts.who(index)} {verb} {extreme}, past {number(FP16_MAX)}{born}"
        yield Finding(within(BREAKS, seen.absmax / FP16_MAX), "overflow", reason)


def mask(facts: Facts, index: int) -> Iterator[Finding]:
    """Masks of -1e9 or so become -Inf: harmless, but for NaN where a whole row is hidden or where they are multiplied by 0."""
    who, reads = facts.who(index), facts.reads(index)
    if index in facts.hidden_rows:
        rows = f"{facts.hidden_rows[index]} rows of which all scores are masked"
        yield Finding(BREAKS + 0.95, "masked row", f"{who} reads {rows}: all -Inf in fp16, so they become NaN")
        return
    name = next((name for name in (*reads, *facts.makes(index)) if facts.is_mask(name)), None)
    seen = None if name is None else facts.magnitudes(name)
    if seen is None:
        return
    verb = {"Add": "adds", "Sub": "subtracts", "Mul": "multiplies"}.get(who, "reads") if name in reads else "makes"
    reason = f"{who} {verb} a mask of {number(seen.low)}, past -{number(FP16_MAX)}: it becomes -Inf"
    others = [facts.magnitudes(other) for other in reads if other != name]
    if who == "Mul" and any(other is not None and other.nonzero < other.size for other in others):
        yield Finding(BREAKS + 0.95, "mask", f"{reason}, and NaN where it is multiplied by 0")
    elif index in facts.leads_to_hidden_rows:
        yield Finding(BREAKS + 0.9, "mask", f"{reason}, and NaN in Softmax where it hides a whole row")
    else:
        yield Finding(MAY + 0.9, "mask", f"{reason}, which hides as well as long as no whole row is hidden")


def underflow(facts: Facts, index: int) -> Iterator[Finding]:
    """Inputs, weights and outputs that become 0, or keep few digits; above all those that are divided by."""
    divisor, operator, least = _divisor(facts, index), facts.who(index), number(FP16_TINY)
    for name, reads in _tensors(facts, index):
        seen = facts.magnitudes(name)
        if seen is None or not seen.nonzero:
            continue
        if seen.size == 1 and facts.is_weight(name) and operator in ("Add", "Sub", "Max", "Clip"):
            continue  # an epsilon, which has a rule of its own
        born, kind = facts.born(name) if reads else "", "a weight" if facts.is_weight(name) else "a tensor"
        said = f"{operator} {'reads' if reads else 'makes'} {kind}"
        if reads and name == divisor and seen.tiny:
            divides = "it divides by" if operator != "Sqrt" else "its root is divided by as well"
            reason = f"{operator} reads {seen.tiny} values under {least}{born}, and they become 0, which {divides}"
            yield Finding(within(BREAKS, 1 / FP16_TINY), "vanishing divisor", reason)
        elif seen.absmax < FP16_TINY:
            reason = f"{said} of values up to {number(seen.absmax)}, under {least}{born}: all become 0"
            yield Finding(within(LOSES, FP16_TINY / seen.absmax) + 0.5, "underflow", reason)
        elif seen.absmax < FP16_NORMAL:
            reason = f"{said} of values up to {number(seen.absmax)}{born}, which have fewer digits in fp16"
            yield Finding(within(LOSES, FP16_NORMAL / seen.absmax), "underflow", reason)
        elif seen.tiny >= _LOST_SHARE * seen.nonzero:
            share = seen.tiny / seen.nonzero
            reason = f"{said} in which {share:.0%} of the values are under {least}{born}"
            yield Finding(MAY + 0.5 * share, "underflow", reason)


def vanishing_epsilon(facts: Facts, index: int) -> Iterator[Finding]:
    """A small constant that is added before a division, and becomes 0."""
    node = facts.node(index)
    small = next((n for n in node.input if n and 0 < abs(facts.scalar(n) or 0.0) < FP16_TINY), None)
    readers = facts.network.consumers.get(node.output[0], [])
    divides = any(facts.who(reader) in _DIVIDES for reader in readers)
    if node.op_type not in ("Add", "Max", "Clip") or small is None or not divides:
        return
    value = facts.value(node.output[0])
    zeros = 0 if value is None else int(np.count_nonzero(np.abs(value) < FP16_TINY))
    reason = f"{node.op_type} has an epsilon of {number(facts.scalar(small) or 0.0)}, which becomes 0"
    more = (
        f", and {zeros} values that it keeps away from 0 with it"
        if zeros
        else "; what it is added to is large enough without"
    )
    yield Finding(BREAKS + 0.5 if zeros else MAY, "vanishing epsilon", f"{reason}{more}")


def accumulated(facts: Facts, index: int) -> Iterator[Finding]:
    """Sums and sums of squares that norms and means compute inside, past 65504."""
    node = facts.node(index)
    read, made = next(iter(facts.reads(index)), None), next(iter(facts.makes(index)), None)
    sums = node.op_type in ("ReduceMean", "GlobalAveragePool")
    values = facts.value(read) if read and made and (sums or node.op_type in _NORMS) else None
    if values is None or made is None or not values.size or not np.isfinite(values).all():
        return
    if sums:
        result = facts.magnitudes(made)
        count = values.size // max(result.size, 1) if result is not None else 0
        if result is not None and result.absmax * count > FP16_MAX >= result.absmax:
            total = result.absmax * count
            reason = f"{node.op_type} adds up {count} values to {number(total)} inside, past {number(FP16_MAX)}"
            yield Finding(within(INSIDE, total / FP16_MAX), "sum inside", reason)
        return
    axes = _axes(facts, node, values.ndim)
    elements = values.astype(np.float64)
    if node.op_type in _CENTRED:
        elements -= elements.mean(axis=axes, keepdims=True)
    total = float(np.square(elements, out=elements).sum(axis=axes).max())
    if total > FP16_MAX:
        reason = f"{node.op_type} adds squares up inside, to {number(total)}, past {number(FP16_MAX)}"
        yield Finding(within(INSIDE, total / FP16_MAX), "sum of squares inside", reason)


def cancellation(facts: Facts, index: int) -> Iterator[Finding]:
    """A difference of nearly equal numbers, whose rounding errors are as large as the difference."""
    node = facts.node(index)
    reads = [facts.magnitudes(name) for name in node.input] if node.op_type in ("Sub", "Add") else []
    made = facts.magnitudes(node.output[0]) if reads else None
    known = [seen for seen in reads if seen is not None]
    past = facts.precision == "fp16" and any(seen.absmax > FP16_MAX for seen in known)
    if made is None or not made.rms or len(known) < len(reads) or past:
        return
    largest = min(seen.rms for seen in known)
    error = largest * 2.0 ** -(_DIGITS[facts.precision] + 1) / made.rms
    if error > _CANCELLED:
        reason = (
            f"{node.op_type} takes the difference of values of about {number(largest)} to {number(made.rms)}: their "
            f"rounding is {error:.0%} of it"
        )
        yield Finding(within(LOSES + 0.4, error / _CANCELLED), "cancellation", reason)


RULES: dict[str, tuple[Rule, ...]] = {
    "fp16": (cancellation, overflow, underflow, accumulated, vanishing_epsilon, mask),
    "bf16": (cancellation,),  # it has fp32's range
}


def suspect(subject: Subject, precision: str = "fp16") -> list[Suspect]:
    """The units that may need fp32, most suspicious first.

    Args:
        subject: The model, with its reference run.
        precision: The precision of the other units, ``fp16`` or ``bf16``.

    Returns:
        One entry for each unit that a rule applies to. Those of the same score are in topological order.
    """
    facts = Facts(subject, precision)
    found: dict[int, list[Finding]] = {index: [] for index in facts.nodes}
    for index in facts.nodes:
        for rule in RULES[precision]:
            found[index] += rule(facts, index)
    for index, finding in own_errors(facts).items():
        # An Inf that another rule explains may be harmless.
        if finding.rule != "new Inf" or not any(each.score >= BREAKS or each.rule == "mask" for each in found[index]):
            found[index].append(finding)
    suspects = []
    for index, findings in found.items():
        if findings:
            first, *rest = sorted(findings, key=lambda finding: -finding.score)
            more = tuple(dict.fromkeys(finding.reason for finding in rest))
            suspects.append(Suspect(facts.network.rank[index], first.score, first.rule, first.reason, more))
    return sorted(suspects, key=lambda entry: (-entry.score, entry.unit))


def own_errors(facts: Facts) -> dict[int, Finding]:
    """The nodes whose own result is notably off in the low precision, fed the reference's values."""
    from bisect_trt.commands.marking import Marking, compare_own  # noqa: PLC0415 - not needed for the first probe

    subject, precision = facts.subject, facts.precision
    target = replace(subject.models.reference, fp16=precision == "fp16", bf16=precision == "bf16")
    computes = (i for i in facts.nodes if facts.node(i).op_type not in EXACT_OPS and not any(bodies(facts.node(i))))
    names = {name: index for index in computes for name in facts.makes(index)}
    tolerance = ToleranceOptions(precision=Precision(precision), nonfinite_equal=True)
    found: dict[int, Finding] = {}
    for name, seen in compare_own(Marking(subject, target, tolerance), list(names), most=1).tensors.items():
        index, who = names[name], facts.who(names[name])
        average = (seen.mean_abs or 0.0) / seen.atol if seen.atol else 0.0
        finding = None
        if seen.kind in (ComparisonKind.NAN, ComparisonKind.INF):
            new = "new NaN" if seen.kind is ComparisonKind.NAN else "new Inf"
            finding = Finding(BREAKS, new, f"{who} makes {new} in {precision} of the reference's own values")
        elif not seen.passed:
            reason = f"{who} alone is off by {seen.severity:.3g} times the tolerance in {precision}"
            finding = Finding(within(MAY + 0.1, seen.severity), "own error", reason)
        elif average >= _NOTABLE:
            reason = f"{who} alone is off by {average:.0%} of the tolerance on average in {precision}"
            finding = Finding(MAY * min(average, 1.0), "own error", reason)
        if finding is not None and (index not in found or found[index].score < finding.score):
            found[index] = finding
    return found


def _tensors(facts: Facts, index: int) -> Iterator[tuple[str, bool]]:
    """The tensors of a node in low precision, and whether it reads them, or else makes them."""
    yield from ((name, True) for name in facts.reads(index))
    yield from ((name, False) for name in facts.makes(index))


def _divisor(facts: Facts, index: int) -> str | None:
    """The input of which no value may become 0."""
    node = facts.node(index)
    if node.op_type == "Pow":
        exponent = facts.scalar(node.input[1])
        return node.input[0] if exponent is not None and exponent < 0 else None
    if node.op_type == "Sqrt":  # an epsilon that keeps its root from 0 has to last until there
        readers = facts.network.consumers.get(node.output[0], ())
        return node.input[0] if any(_divisor(facts, reader) == node.output[0] for reader in readers) else None
    place = {"Div": 1, "Log": 0, "Reciprocal": 0}.get(node.op_type)
    return None if place is None else str(node.input[place])


def _axes(facts: Facts, node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    """The axes that a norm goes over."""
    operator = node.op_type
    if operator in ("InstanceNormalization", "GroupNormalization"):
        return tuple(range(2, rank))
    if operator in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        return tuple(range(int(attribute(node, "axis", -1)) % rank, rank))
    if operator == "LpNormalization":
        return (int(attribute(node, "axis", -1)) % rank,)
    given = attribute(node, "axes", [0, 2, 3] if operator == "MeanVarianceNormalization" else None)
    if given is None and len(node.input) > 1:
        given = facts.constant(node.input[1])
    return tuple(range(rank)) if given is None else tuple(int(axis) % rank for axis in given)
