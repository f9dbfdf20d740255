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
from bisect_trt.workflows.bits.plain import Plain
from bisect_trt.workflows.subject import Subject

CONTRADICTED = "contradicted"
_LEAST, _MOST = 3, 4
"""Scales that one weight has to explain, for fewer may be wrong themselves; and weights that are tried."""
_LEFT = 1 / 3
"""Of the scales that do not fit, what may be left that a weight does not explain."""


def with_contradictions(subject: Subject, plain: Plain, misfits: list[list[Misfit]]) -> list[list[Misfit]]:
    """Say of a stored weight how many scales would fit if its own were another one."""
    every = [each for found in misfits for each in found]
    off = _off(every)
    if plain.original is not None or len(off) < _LEAST:
        return misfits
    rank = subject.network.rank
    first = min((each for each in every if each.pair.scale in off and each.bad), key=lambda e: rank[e.pair.nodes[0]])
    pairs = [each.pair for each in every]
    activations = [pair for pair in pairs if pair.kind == "activation"]
    for place, weight in enumerate(_before(subject.network, every, first)[:_MOST]):
        scaled = dict(plain.weights)
        for name in pair_outputs(subject.network, weight.pair):
            value = numpy_helper.to_array(scaled[name])
            scaled[name] = numpy_helper.from_array((value * (first.ratio or 1)).astype(value.dtype), name)
        network = Network(unquantize(subject.network, pairs, scaled))
        run = Reference(
            network, subject.samples[0], subject.workspace, subject.models, 6101 + place, subject.swap_limit
        )
        left = _off(find_misfits(subject, replace(plain, network=network), activations, [run]))
        if len(off - left) >= _LEAST and len(left) <= len(off) * _LEFT:
            times = 1 / (first.ratio or 1)
            how = f"{times:.3g} times too large" if times > 1 else f"{1 / times:.3g} times too small"
            said = (
                f"{len(off - left)} of the {len(off)} scales that do not fit the values behind it would, if this one's were "
                f"not about {how}: so it is this one that is wrong, not those"
            )
            added = replace(weight, problems=((CONTRADICTED, said), *weight.problems))
            return [[added if each is weight else each for each in found] for found in misfits]
    return misfits


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
