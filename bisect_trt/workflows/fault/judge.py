"""From what others make of a minimal case to whose fault it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bisect_trt.probing.builtin import CRASHED
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.fault.evidence import Evidence, Values
from bisect_trt.workflows.fault.fault import (
    EVALUATOR,
    MUCH_WORSE,
    Error,
    Fault,
    how_far,
    of_the_types,
    times_worse,
    who_arbitrates,
)
from bisect_trt.workflows.fault.nobodys import drawing, drawn_at_random, inherent_rounding, tied


def judge(  # noqa: PLR0911 - one for each way in which it ends
    evidence: Evidence, tolerance: ToleranceOptions, who: str, reference: str
) -> Fault:
    """Whose fault a failure is."""
    arbiter = evidence.arbiter
    own = None if isinstance(arbiter, str) else _own(evidence, arbiter, tolerance)
    if isinstance(evidence.target, str):
        return _refused(evidence, own, who, reference)
    if (neither := drawn_at_random(evidence, who) or tied(evidence, evidence.target, tolerance)) is not None:
        return neither
    seen = how_far(evidence, evidence.reference, evidence.target, tolerance)
    figures: dict[str, Any] = {"target_error": seen.largest, "severity": seen.severity}
    if seen.passed:
        why = "run once more beside the others, the target did not show the failure"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}.", figures)
    if (inherent := inherent_rounding(evidence, tolerance, who, reference)) is not None:
        return inherent
    if own is not None and not isinstance(arbiter, str):
        figures |= {"reference_error": own.largest, "arbiter": who_arbitrates(evidence)}
        if not own.passed:
            return _reference_is_off(evidence, arbiter, own, tolerance, who, reference, figures)
    if evidence.low is not None:
        return _rounding(evidence, evidence.low, seen, own, tolerance, who, figures)
    if evidence.others:
        why = f"rounding to {' and '.join(evidence.others)} is not emulated here"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}.", figures)
    if own is None:
        why = f"{EVALUATOR} does not run the case ({_short(str(arbiter))})"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}, so there is no third opinion.", figures)
    return Fault(
        "target",
        f"It is a bug of {who}: {who_arbitrates(evidence)} and {reference} agree to within {own.words()}, and {who} is off "
        f"by {seen.words()}.{_in_32_bits(evidence, who)}",
        figures,
    )


def _in_32_bits(evidence: Evidence, who: str) -> str:
    """A word on integers of 64 bits of which the target gives none that 32 bits do not hold, where the reference gives some."""
    assert not isinstance(evidence.target, str)
    short, found = np.iinfo(np.int32), 0
    for name, value in evidence.reference.items():
        made = evidence.target.get(name)
        if value.dtype != np.int64 or made is None or made.dtype.kind != "i":
            continue
        if ((made < short.min) | (made > short.max)).any():
            return ""
        found += int(np.count_nonzero((value < short.min) | (value > short.max)))
    if not found:
        return ""
    past = "1 of its int64 values is" if found == 1 else f"{found} of its int64 values are"
    return f" {past} past what 32 bits hold, and {who} gives none that is: it computes them in int32."


def _own(evidence: Evidence, arbiter: Values, tolerance: ToleranceOptions) -> Error | None:
    """How far the reference is off; ``None`` where it has made nothing."""
    return (
        how_far(evidence, arbiter, evidence.reference, of_the_types(tolerance, evidence)) if evidence.outputs else None
    )


def _refused(evidence: Evidence, own: Error | None, who: str, reference: str) -> Fault:
    if own is None:
        why = f"{EVALUATOR} does not run it either ({_short(str(evidence.arbiter))})"
        if not evidence.outputs:
            why = f"nor does {reference}"
        return Fault("unknown", f"Whose fault it is cannot be told: {who} does not run the case, and {why}.")
    figures = {"reference_error": own.largest, "arbiter": who_arbitrates(evidence)}
    if (drawn := drawing(evidence)) is not None:
        sentence = (
            f"It is a bug of {who}{_or_lack(evidence)}: {who_arbitrates(evidence)} and {reference} both run it. "
            f"They make other numbers of it each time, for {drawn[0]} draws them. {drawn[2]}"
        )
        return Fault("target", sentence, figures)
    if not own.passed:
        return Fault(
            "unknown",
            f"{who} does not run the case, and {who_arbitrates(evidence)} and {reference}, which do, differ by {own.words()}.",
            figures,
        )
    agree = f"{who_arbitrates(evidence)} and {reference} both run it, and agree to within {own.words()}"
    return Fault("target", f"It is a bug of {who}{_or_lack(evidence)}: {agree}.", figures)


def _or_lack(evidence: Evidence) -> str:
    """What a refusal may be beside a bug; a crash is nothing else."""
    crashed = isinstance(evidence.target, str) and evidence.target.startswith(CRASHED)
    return ", which crashes" if crashed else ", or an operator that it has not"


def _reference_is_off(
    evidence: Evidence,
    arbiter: Values,
    own: Error,
    tolerance: ToleranceOptions,
    who: str,
    reference: str,
    figures: dict[str, Any],
) -> Fault:
    """The reference is not what float64 says: is the target?"""
    assert not isinstance(evidence.target, str)
    beside = how_far(evidence, arbiter, evidence.target, tolerance)
    figures["target_error"] = beside.largest
    second = evidence.evaluator if not isinstance(evidence.evaluator, str) else arbiter
    if beside.passed and how_far(evidence, second, evidence.target, tolerance).passed:
        sentence = (
            f"The reference is wrong: {who_arbitrates(evidence)} agrees with {who} to within {beside.words()}, and "
            f"{reference} is off by {own.words()}."
        )
        return Fault("reference", sentence, figures)
    if beside.passed:
        sentence = (
            f"The reference is off: {who_arbitrates(evidence)} agrees with {who} to within {beside.words()}. Node by node in "
            f"fp32 {EVALUATOR} is off as well, as {reference} is by {own.words()}; {who} loses less on the way."
        )
        return Fault("reference", sentence, figures)
    worse = times_worse(beside, own)
    figures["times_worse"] = worse
    if worse >= MUCH_WORSE:
        sentence = (
            f"It is a bug of {who}: it is off what {who_arbitrates(evidence)} says by {beside.words()}, and {reference}, "
            f"which rounds too, by {own.words()}."
        )
        return Fault("target", sentence, figures)
    sentence = (
        f"Whose fault it is cannot be told: {who} is off what {who_arbitrates(evidence)} says by {beside.words()}, and so is "
        f"{reference}, by {own.words()}."
    )
    return Fault("unknown", sentence, figures)


def _rounding(
    evidence: Evidence,
    low: str,
    seen: Error,
    own: Error | None,
    tolerance: ToleranceOptions,
    who: str,
    figures: dict[str, Any],
) -> Fault:
    """Does rounding by itself, without the target, make the same error?"""
    if evidence.rounded is None or isinstance(evidence.rounded, str):
        why = f"rounding to {low} cannot be emulated ({_short(str(evidence.rounded))})"
        return Fault("unknown", f"Whose fault it is cannot be told: {why}.", figures)
    alone = how_far(evidence, evidence.reference, evidence.rounded, tolerance)
    figures |= {"rounding_error": alone.largest, "rounding_severity": alone.severity, "precision": low}
    worse = times_worse(seen, alone)
    figures["times_worse"] = worse
    if not alone.passed and worse <= MUCH_WORSE:
        return Fault("precision", f"{_cannot_hold(evidence, low, alone)} {_no_bug(who)}", figures)
    if own is None:
        why = f"{EVALUATOR} does not run the case ({_short(str(evidence.arbiter))})"
        sentence = f"Whose fault it is cannot be told: rounding to {low} alone is off by {alone.words()}, and {why}."
        return Fault("unknown", sentence, figures)
    times = "" if not math.isfinite(worse) else f", {worse:.3g} times as {_what_is_more(seen, alone, worse)}"
    sentence = (
        f"It is a bug of {who}: rounding to {low} alone is off by {alone.words()}"
        f"{'' if not alone.passed else ', which is within the tolerance'}, and {who} by {seen.words()}{times}."
    )
    return Fault("target", sentence, figures)


def _what_is_more(one: Error, other: Error, worse: float) -> str:
    """What is so many times as much: the errors that are said, or, where a small value is further off, what they are of it."""
    return "much" if math.isclose(one.largest, worse * other.largest, rel_tol=0.1) else "far past the tolerance"


def _cannot_hold(evidence: Evidence, low: str, alone: Error) -> str:
    limit = 65504.0 if low == "fp16" else float(np.finfo(np.float32).max)
    values = [value for value in (*evidence.inputs.values(), *evidence.reference.values()) if value.dtype.kind == "f"]
    largest = max((float(np.max(np.abs(v[np.isfinite(v)]), initial=0.0)) for v in values), default=0.0)
    if not math.isfinite(alone.severity) and largest > limit:
        return f"{low} cannot hold this value: {largest:.5g} is past its largest, {limit:.5g}."
    what = "NaN or Inf" if not math.isfinite(alone.severity) else f"an error of {alone.words()}"
    return f"{low} cannot hold these values: rounding to it alone, without the target, makes {what}."


def _no_bug(who: str) -> str:
    return f"Rounding alone makes the same error, so it is no bug of {who}, but a matter of choosing the precision."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:157]}..."
