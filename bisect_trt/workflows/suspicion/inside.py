"""What an operator computes inside: squares, sums and exponentials that are never seen as a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bisect_trt.workflows.suspicion.facts import (
    FP16_MAX,
    FP16_TINY,
    INSIDE,
    MAY,
    Facts,
    Finding,
    Values,
    number,
    within,
)

_EXPONENTIALS = ("Sigmoid", "HardSwish", "Softplus", "Mish", "ReduceLogSumExp", "Selu", "Elu", "Celu")
_LARGEST_EXPONENT = math.log(FP16_MAX)
_MOST_PRODUCTS = 1 << 31
"""So many multiplications are worth knowing a sum of products exactly."""
_CENTRED = {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}
_NORMS = _CENTRED | {"ReduceL2", "LpNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}


def inside(facts: Facts, index: int) -> Iterator[Finding]:
    """Everything that a node computes inside."""
    node = facts.node(index)
    made = next(iter(facts.makes(index)), None)
    read = next(iter(facts.reads(index)), None)
    values = None if read is None else facts.value(read)
    if made is None or read is None or values is None or not values.size or not np.isfinite(values).all():
        return
    if node.op_type in _NORMS:
        yield from _squares(facts, index, values)
    elif node.op_type in ("ReduceMean", "GlobalAveragePool"):
        yield from _sums(facts, index, values, made)
    elif node.op_type in _EXPONENTIALS:
        yield from _exponentials(facts, index, read)
    elif node.op_type in ("MatMul", "Gemm", "Conv"):
        yield from _products(facts, index)


def _squares(facts: Facts, index: int, values: Values) -> Iterator[Finding]:
    """Norms square what they read, less its mean, and add the squares up."""
    axes = _axes(facts, index, values.ndim)
    elements = values.astype(np.float64)
    if facts.node(index).op_type in _CENTRED:
        elements -= elements.mean(axis=axes, keepdims=True)
    squares = np.square(elements, out=elements)
    largest, sums = float(squares.max()), squares.sum(axis=axes)
    total = float(sums.max())
    if largest > FP16_MAX:
        reason = f"{facts.who(index)} squares inside, up to {number(largest)}, past {number(FP16_MAX)}"
        yield Finding(within(INSIDE + 0.1, largest / FP16_MAX), "squares inside", reason)
    elif total > FP16_MAX:
        reason = f"{facts.who(index)} adds squares up inside, to {number(total)}, past {number(FP16_MAX)}"
        yield Finding(within(INSIDE, total / FP16_MAX), "sum of squares inside", reason)
    vanishing = int(np.count_nonzero((sums > 0) & (sums < FP16_TINY)))
    if vanishing:
        reason = f"{facts.who(index)} divides by {vanishing} sums of squares under {number(FP16_TINY)}, which become 0"
        yield Finding(within(INSIDE, FP16_TINY / float(sums[sums > 0].min())), "vanishing squares inside", reason)


def _axes(facts: Facts, index: int, rank: int) -> tuple[int, ...]:
    """The axes that a norm goes over."""
    operator = facts.node(index).op_type
    if operator in ("InstanceNormalization", "GroupNormalization"):
        return tuple(range(2, rank))
    if operator in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        return tuple(range(int(facts.attribute(index, "axis", -1)) % rank, rank))
    if operator == "LpNormalization":
        return (int(facts.attribute(index, "axis", -1)) % rank,)
    given = facts.attribute(index, "axes", [0, 2, 3] if operator == "MeanVarianceNormalization" else None)
    if given is None and len(facts.node(index).input) > 1:
        given = facts.constant(facts.node(index).input[1])
    return tuple(range(rank)) if given is None else tuple(int(axis) % rank for axis in given)


def _sums(facts: Facts, index: int, values: Values, made: str) -> Iterator[Finding]:
    """A mean is a sum first."""
    result = facts.magnitudes(made)
    info = facts.subject.infos.get(made)
    if result is None or info is None or not result.size:
        return
    count = values.size // result.size
    total = result.absmax * count
    if total > FP16_MAX >= result.absmax:
        reason = f"{facts.who(index)} adds up {count} values to {number(total)} inside, past {number(FP16_MAX)}"
        yield Finding(within(INSIDE, total / FP16_MAX), "sum inside", reason)


def _exponentials(facts: Facts, index: int, read: str) -> Iterator[Finding]:
    """Some operators raise e to what they read, or to its negative."""
    seen = facts.magnitudes(read)
    adds = facts.node(index).op_type == "ReduceLogSumExp"
    power = 0.0 if seen is None else max(seen.high, 0.0) if adds else seen.absmax
    if power > _LARGEST_EXPONENT:
        reason = f"{facts.who(index)} may compute exp({number(power)}) inside, past {number(FP16_MAX)}"
        yield Finding(within(INSIDE if adds else MAY, power / _LARGEST_EXPONENT), "exponential inside", reason)


def _products(facts: Facts, index: int) -> Iterator[Finding]:
    """Sums of products, whose terms may be larger than what they add up to."""
    node = facts.node(index)
    left, right = (facts.value(name) for name in node.input[:2])
    seen = [facts.magnitudes(name) for name in node.input[:2]]
    if left is None or right is None or seen[0] is None or seen[1] is None:
        return
    if node.op_type == "Gemm":
        left = left.T if facts.attribute(index, "transA", 0) else left
        right = right.T if facts.attribute(index, "transB", 0) else right
    terms = right[0].size if node.op_type == "Conv" else left.shape[-1]
    bound = terms * seen[0].absmax * seen[1].absmax
    if bound <= FP16_MAX or max(seen[0].absmax, seen[1].absmax) > FP16_MAX:
        return  # there is nothing to find, or it is said of the input already
    if node.op_type == "Conv":
        bound = seen[0].absmax * float(np.abs(right).reshape(right.shape[0], -1).sum(axis=1).max())
    elif left.size * right.shape[-1] <= _MOST_PRODUCTS:
        bound = float(np.matmul(np.abs(left), np.abs(right)).max())
    if bound > FP16_MAX:
        reason = f"{facts.who(index)} may add up products to {number(bound)} inside, past {number(FP16_MAX)}"
        yield Finding(within(MAY, bound / FP16_MAX), "products inside", reason)
