"""Inputs for a quantized model where none are given: of the law that its scales were calibrated for, as far as they tell.

Whether a scale fits depends on the values, and uniform ones within [0, 1] are right for few models. So values of several laws
are tried, and those taken for which the scales of the model fit best: the middle one, which a few bad scales do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bisect_trt.graph.qdq import is_quantize
from bisect_trt.probing.activations import Reference
from bisect_trt.tensors.grid import Grid
from bisect_trt.tensors.inputs import Sample
from bisect_trt.workflows.bits.measured import find_misfits
from bisect_trt.workflows.bits.plain import Plain
from bisect_trt.workflows.bits.stored import constant_of
from bisect_trt.workflows.precision.rounds import table_sizes
from bisect_trt.workflows.subject import Subject

_WORST = 4.0
"""Bits; a scale that is further off is bad, and by how much says nothing of the law."""
_CLEARLY = 0.1
Law = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]


def guess_inputs(subject: Subject, plain_of: Callable[[], Plain]) -> str | None:
    """Give a model the inputs that its scales fit best.

    Args:
        subject: The model; its samples are changed.
        plain_of: Makes the float form of it, which may depend on the samples.

    Returns:
        What they are, in words; ``None`` where nothing else than what there was fits better.
    """
    own = list(subject.samples)
    best, least, words = own, np.inf, None
    for name, samples in _laws(subject, plain_of, own):
        subject.samples = samples
        plain = plain_of()
        reference = Reference(plain.network, samples[0], subject.workspace, subject.models, 7001, subject.swap_limit)
        pairs = [pair for group in plain.groups for pair in group.pairs if pair.kind == "activation"]
        found = find_misfits(subject, plain, pairs, [reference])
        ratios = [each.ratio for each in found if each.ratio is not None and np.isfinite(each.ratio) and each.ratio > 0]
        if not ratios:
            continue
        off = float(np.median(np.minimum(np.abs(np.log2(ratios)), _WORST)))
        if off < least - _CLEARLY:
            best, least, words = samples, off, name
    subject.samples = best
    return words


def _laws(
    subject: Subject, plain_of: Callable[[], Plain], own: Sequence[Sample]
) -> Iterator[tuple[str | None, list[Sample]]]:
    """What is tried: what there is, with ids of whole tables; then other laws of what is real."""
    sizes = table_sizes(plain_of().network)
    seed = subject.settings.data.seed
    given = _each(own, sizes, {}, seed)
    yield ("ids of the whole table" if sizes else None), given
    reals = [name for name, value in own[0].items() if value.dtype.kind == "f"]
    if not reals:
        return
    yield "N(0, 1)", _each(own, sizes, dict.fromkeys(reals, _normal), seed)
    ranges = {name: found for name in reals if (found := _calibrated(subject, name)) is not None}
    if ranges:
        uniform: dict[str, Law] = {name: _uniform(low, high) for name, (low, high) in ranges.items()}
        yield "uniform over the range that its input is quantized for", _each(own, sizes, uniform, seed)
        bells: dict[str, Law] = {name: _bell(low, high) for name, (low, high) in ranges.items()}
        yield "normal within the range that its input is quantized for", _each(own, sizes, bells, seed)


def _each(own: Sequence[Sample], sizes: dict[str, int], laws: dict[str, Law], seed: int) -> list[Sample]:
    rng, found = np.random.default_rng([seed, 11]), []
    for sample in own:
        values: Sample = dict(sample)
        for name, value in sample.items():
            if name in laws:
                values[name] = laws[name](value.astype(np.float64), rng).astype(value.dtype)
            elif name in sizes and value.dtype.kind in "iu":
                values[name] = rng.integers(0, sizes[name], size=value.shape).astype(value.dtype)
        found.append(values)
    return found


def _normal(value: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.standard_normal(value.shape)


def _uniform(low: float, high: float) -> Law:
    return lambda value, rng: rng.uniform(low, high, value.shape)


def _bell(low: float, high: float) -> Law:
    """Of which next to nothing is outside: four deviations to either side."""
    return lambda value, rng: ((low + high) / 2 + (high - low) / 8 * rng.standard_normal(value.shape)).clip(low, high)


def _calibrated(subject: Subject, name: str) -> tuple[float, float] | None:
    """The range that an input is quantized for."""
    network = subject.network
    for index in network.consumers.get(name, ()):
        node = network.nodes[index]
        if not is_quantize(node):
            continue
        scale = constant_of(subject, node.input[1])
        zero = constant_of(subject, node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1)
        declared = network.declared.get(node.output[0]) or network.inferred.get(node.output[0])
        kind = declared.type.tensor_type.elem_type if declared is not None else 2
        grid = Grid.of(str(TensorProto.DataType.Name(kind)).lower())
        if scale is None or zero is None or scale.size != 1 or grid is None:
            continue
        low, high = grid.ends(scale.astype(np.float64).reshape(()), zero.astype(np.float64).reshape(()))
        if np.isfinite(low) and np.isfinite(high) and low < high:
            return float(low), float(high)
    return None
