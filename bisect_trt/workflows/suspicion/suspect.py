"""The story: every rule looks at every node that would be lowered; the strongest finding of each counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion.digits import cancellation, large_angles, large_integers, vanishing_epsilon
from bisect_trt.workflows.suspicion.facts import BREAKS, Facts, Finding, Suspect
from bisect_trt.workflows.suspicion.inside import inside
from bisect_trt.workflows.suspicion.isolated import NEW_INF, own_errors
from bisect_trt.workflows.suspicion.ranges import Masks, past_the_largest, under_the_smallest

Rule = Callable[[Facts, int], Iterator[Finding]]

_DIGITS: tuple[Rule, ...] = (large_integers, large_angles, cancellation)
_RANGE: tuple[Rule, ...] = (past_the_largest, under_the_smallest, inside, vanishing_epsilon)
"""Rules about fp16's range; bf16 has fp32's."""


_EXPLAINED = ("overflow", "mask", "masked row", "vanishing divisor", "vanishing epsilon")


def suspect(subject: Subject, precision: str = "fp16") -> list[Suspect]:
    """The units that may need fp32, most suspicious first.

    Args:
        subject: The model; its reference run is what is looked at.
        precision: What the others would be lowered to, ``fp16`` or ``bf16``.

    Returns:
        One entry for each unit against which something was found. Those of the same score are in topological order.
    """
    facts = Facts(subject, precision)
    rules = _rules(facts)
    found: dict[int, list[Finding]] = {index: [] for index in facts.nodes}
    for index in facts.nodes:
        for rule in rules:
            found[index] += rule(facts, index)
    for index, finding in own_errors(facts).items():
        # An Inf is what the rules for ranges are about, and they know whether it does harm.
        if finding.rule != NEW_INF or not any(each.rule in _EXPLAINED for each in found[index]):
            found[index].append(finding)
    suspects = [_merge(facts.network.rank[index], findings) for index, findings in found.items() if findings]
    return sorted(suspects, key=lambda entry: (-entry.score, entry.unit))


def first_to_break(subject: Subject, precision: str = "fp16", go_on: Callable[[], object] = bool) -> int | None:
    """The first unit in topological order that breaks by what the reference run shows; nothing is run for it.

    Args:
        subject: The model.
        precision: As in :func:`suspect`.
        go_on: Called before each node is looked at, and may raise.
    """
    facts = Facts(subject, precision)
    rules = _rules(facts)
    for index in facts.nodes:
        go_on()
        if any(finding.score >= BREAKS for rule in rules for finding in rule(facts, index)):
            return facts.network.rank[index]
    return None


def _rules(facts: Facts) -> list[Rule]:
    if facts.precision != "fp16":
        return [*_DIGITS]
    masks = Masks(facts)
    return [*_DIGITS, *_RANGE, lambda _, index: masks.findings(index)]


def _merge(unit: int, findings: list[Finding]) -> Suspect:
    strongest, *rest = sorted(findings, key=lambda finding: -finding.score)
    more = tuple(dict.fromkeys(finding.reason for finding in rest))
    return Suspect(unit, strongest.score, strongest.rule, strongest.reason, more)
