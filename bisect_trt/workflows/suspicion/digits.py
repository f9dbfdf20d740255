"""Digits that a low precision does not have: epsilons that vanish, large integers, angles of many turns, cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.stats import blocks
from bisect_trt.workflows.suspicion.facts import (
    BREAKS,
    FP16_MAX,
    FP16_TINY,
    LOSES,
    MAY,
    Facts,
    Finding,
    Magnitudes,
    number,
    within,
)

_DIGITS = {"fp16": 11, "bf16": 8}
"""Binary digits of a number; integers up to 2 to this power are exact."""
_CANCELLED = 1e-2
"""What rounding alone does to a difference, relative to its root mean square, that is worth a word."""
_ROUNDINGS = 16
"""So many of a number near 1 an angle may be off before it is another one: nearly what the automatic tolerance takes."""
_DIVIDES = ("Sqrt", "Div", "Log", "Reciprocal", "Pow")


def vanishing_epsilon(facts: Facts, index: int) -> Iterator[Finding]:
    """A small constant that is added so that nobody divides by 0, or an ``epsilon`` attribute, that becomes 0."""
    node = facts.node(index)
    inside = facts.attribute(index, "epsilon")
    if inside is not None and 0 < inside < FP16_TINY:
        reason = f"{facts.who(index)} has an epsilon of {number(inside)}, under {number(FP16_TINY)}: it becomes 0"
        yield Finding(MAY, "vanishing epsilon", reason)
    if node.op_type not in ("Add", "Max", "Clip"):
        return
    small = next((n for n in node.input if n and 0 < abs(facts.scalar(n) or 0.0) < FP16_TINY), None)
    readers = facts.network.consumers.get(node.output[0], [])
    if small is None or not any(facts.node(reader).op_type in _DIVIDES for reader in readers):
        return
    value = facts.value(node.output[0])
    zeros = 0 if value is None else int(np.count_nonzero(np.abs(value) < FP16_TINY))
    reason = f"{facts.who(index)} has an epsilon of {number(facts.scalar(small) or 0.0)}, which becomes 0"
    if zeros:
        reason += f", and {zeros} values that it keeps away from 0 with it"
        yield Finding(BREAKS + 0.5, "vanishing epsilon", reason)
    else:
        yield Finding(MAY, "vanishing epsilon", reason + "; what it is added to is large enough without")


def large_integers(facts: Facts, index: int) -> Iterator[Finding]:
    """Positions and counts that are carried in floats, past the integers that the precision has all of."""
    exact = 2 ** _DIGITS[facts.precision]
    for name in dict.fromkeys((*facts.reads(index), *facts.makes(index))):
        seen = facts.magnitudes(name)
        most = FP16_MAX if facts.precision == "fp16" else np.inf
        if seen is None or not exact < seen.absmax <= most or not _inexact_integers(facts, name, exact):
            continue
        kind = "a weight of integers" if facts.is_weight(name) else "integers"
        reason = f"{facts.who(index)} carries {kind} up to {number(seen.absmax)}; past {exact} not all of them exist"
        reason += facts.born(name) if name in facts.node(index).input else ""
        yield Finding(within(LOSES + 0.3, seen.absmax / exact), "large integers", reason)
        return


def _inexact_integers(facts: Facts, name: str, exact: int) -> bool:
    """Whether a tensor holds only integers, and some that are rounded. A lone round number is no count."""
    values = facts.value(name)
    if values is None or values.size < 2:
        return False
    if not all(bool((block == np.rint(block)).all()) for block in blocks(values)):
        return False
    mantissas = (np.frexp(block.astype(np.float64))[0] * exact for block in blocks(values))
    return any(bool((mantissa != np.rint(mantissa)).any()) for mantissa in mantissas)


def large_angles(facts: Facts, index: int) -> Iterator[Finding]:
    """Angles of many turns, which the precision holds to a part of a turn: what comes of them is another point of the circle."""
    if facts.node(index).op_type not in ("Sin", "Cos", "Tan"):
        return
    (name,) = facts.reads(index)
    values, seen = facts.value(name), facts.magnitudes(name)
    if values is None or seen is None or _overflows(facts, seen):
        return
    digits = _DIGITS[facts.precision]
    off, much = max((_rounded_off(block, digits) for block in blocks(values)), default=0.0), _ROUNDINGS * 2.0**-digits
    if off > much:
        reason = (
            f"{facts.who(index)} reads angles up to {number(seen.absmax)}, which {facts.precision} holds to within "
            f"{number(off)}, and a turn is 6.28{facts.born(name)}"
        )
        yield Finding(within(LOSES + 0.5, off / much), "large angles", reason)


def _rounded_off(values: NDArray[Any], digits: int) -> float:
    """The most that is lost of finite values with so many binary digits."""
    mantissas, exponents = np.frexp(values[np.isfinite(values)].astype(np.float64))
    scaled = np.ldexp(mantissas, digits)
    return float(np.max(np.ldexp(np.abs(scaled - np.rint(scaled)), exponents - digits), initial=0.0))


def cancellation(facts: Facts, index: int) -> Iterator[Finding]:
    """A difference of nearly equal numbers, whose rounding errors are as large as the difference."""
    node = facts.node(index)
    if node.op_type not in ("Sub", "Add"):
        return
    reads = [facts.magnitudes(name) for name in node.input]
    made = facts.magnitudes(node.output[0])
    if made is None or not made.rms or any(seen is None or _overflows(facts, seen) for seen in reads):
        return
    largest = min(seen.rms for seen in reads if seen is not None)
    error = largest * 2.0 ** -(_DIGITS[facts.precision] + 1) / made.rms
    if error > _CANCELLED:
        reason = (
            f"{facts.who(index)} takes the difference of values of about {number(largest)} to {number(made.rms)}: their "
            f"rounding is {error:.0%} of it"
        )
        yield Finding(within(LOSES + 0.4, error / _CANCELLED), "cancellation", reason)


def _overflows(facts: Facts, seen: Magnitudes) -> bool:
    return facts.precision == "fp16" and seen.absmax > FP16_MAX
