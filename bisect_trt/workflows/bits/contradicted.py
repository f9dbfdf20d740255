"""Stored weights that the scales behind them contradict, where nothing is known of what they were made of.

With a wrong scale of a stored weight the model in floats is wrong too, and calibrated scales that were right no longer fit its
values: all that follow, up to the next norm, are blamed for one. So where several do not fit, the weight before the first of
them is scaled as that one says; if the others fit then, one fault explains what would else be many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from onnx import numpy_helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.unquantize import unquantize
from bisect_trt.probing.activations import Reference
from bisect_trt.workflows.bits.measured import find_misfits
from bisect_trt.workflows.bits.misfit import Misfit, pair_outputs
from bisect_trt.workflows.bits.odd_weights import OUT_OF_LINE
from bisect_trt.workflows.bits.plain import Plain
from bisect_trt.workflows.subject import Subject

CONTRADICTED = "contradicted"
_LEAST, _MOST = 3, 4
"""Scales that one weight has to explain, for fewer may be wrong themselves, unless it is out of line itself; and weights that
are tried."""
_LEFT = 1 / 3
"""Of the scales that do not fit, what may be left that a weight does not explain."""


def with_contradictions(subject: Subject, plain: Plain, misfits: list[list[Misfit]]) -> list[list[Misfit]]:
    """Say of a stored weight how many scales would fit if its own were another one."""
    every = [each for found in misfits for each in found]
    off = _off(every)
    if plain.original is not None or not off:
        return misfits
    pairs = [each.pair for each in every]
    activations = [pair for pair in pairs if pair.kind == "activation"]
    tried = 0
    for weight, behind in _explaining(subject.network, every, off):
        least = 1 if any(rule == OUT_OF_LINE for rule, _ in weight.problems) else _LEAST
        if len(behind) < least:
            continue
        if tried == _MOST:
            break
        ratio = behind[0].ratio or 1
        scaled = dict(plain.weights)
        for name in pair_outputs(subject.network, weight.pair):
            value = numpy_helper.to_array(scaled[name])
            scaled[name] = numpy_helper.from_array((value * ratio).astype(value.dtype), name)
        network = Network(unquantize(subject.network, pairs, scaled))
        run = Reference(
            network, subject.samples[0], subject.workspace, subject.models, 6101 + tried, subject.swap_limit
        )
        tried += 1
        left = _off(find_misfits(subject, replace(plain, network=network), activations, [run]))
        scales = {each.pair.scale for each in behind}
        if len(scales - left) >= least and len(scales & left) <= len(scales) * _LEFT and len(left) < len(off):
            how = f"{1 / ratio:.3g} times too large" if ratio < 1 else f"{ratio:.3g} times too small"
            which = (
                "the scale that does"
                if len(scales) == 1
                else f"{len(scales - left)} of the {len(scales)} scales that do"
            )
            said = (
                f"{which} not fit the values behind it would, if this one's were not about {how}: so it is this one that is "
                "wrong, not what is behind it"
            )
            added = replace(weight, problems=((CONTRADICTED, said), *weight.problems))
            return [[added if each is weight else each for each in found] for found in misfits]
    return misfits


def _explaining(network: Network, every: Sequence[Misfit], off: Collection[str]) -> list[tuple[Misfit, list[Misfit]]]:
    """The stored weights before scales that do not fit, those of the first of these first, each with the ones behind it."""
    bad = [each for each in every if each.pair.scale in off and each.bad and each.pair.kind == "activation"]
    bad.sort(key=lambda each: network.rank[each.pair.nodes[0]])
    found: dict[int, tuple[Misfit, list[Misfit]]] = {}
    for each in bad:
        for weight in _before(network, every, each):
            found.setdefault(id(weight), (weight, []))[1].append(each)
    return list(found.values())


def _off(misfits: Collection[Misfit]) -> set[str]:
    """The scales of activations that do not fit."""
    known = [each for each in misfits if each.pair.kind == "activation" and each.ratio]
    return {each.pair.scale for each in known if each.bad and not np.isclose(each.ratio or 1, 1, rtol=0.1)}


def _before(network: Network, misfits: Sequence[Misfit], first: Misfit) -> list[Misfit]:
    """The stored weights of which a tensor is made, the nearest first, not past what is quantized by a scale that fits."""
    by_node = {index: each for each in misfits for index in each.pair.nodes}
    stored = {each.pair.scale for each in misfits if each.pair.kind == "weight" and not each.pair.quantize}
    found: dict[int, Misfit] = {}
    waiting, seen = [first.pair.tensor], set[int]()
    while waiting:
        maker = network.producer.get(waiting.pop(0))
        if maker is None or maker in seen:
            continue
        seen.add(maker)
        own = by_node.get(maker)
        if own is not None and own.pair.kind == "weight" and not own.pair.quantize:
            found.setdefault(id(own), own)
        elif own is None or own.bad or own.pair.scale in stored:
            waiting += network.nodes[maker].input[: 1 if own is not None else None]
    return list(found.values())
