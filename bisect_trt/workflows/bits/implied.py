"""Activations that stand nowhere in a quantized model: ONNX Runtime's quantizer drops a Relu whose result is quantized.

With a zero point at the end of the type nothing below 0 is left, so that the Q/DQ pair is the Relu too. Who takes the pair out
has to put the Relu in. Which pairs are one is seen in the original model, where that is given. Else the tensor's name may say
so; else the numbers have to: the zero point is the least of the type, and the scale has room for what is above 0 alone. Where
one of the two was made bad the other still tells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bisect_trt.graph.network import Network
from bisect_trt.graph.qdq import Group, Pair
from bisect_trt.graph.unquantize import Stored, unquantize
from bisect_trt.probing.activations import Reference
from bisect_trt.tensors.grid import Grid
from bisect_trt.workflows.bits.counting import clip_bound
from bisect_trt.workflows.bits.stored import constant_of
from bisect_trt.workflows.subject import Subject

_NAMED = re.compile(r"(?i)(?<![a-z])(relu6?|clip)(?![a-z])")
_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu", "ThresholdedRelu", "Elu", "Selu", "Celu", "HardSwish", "Max")
_ROUNDS = 4
_NEGATIVE = 5e-3
"""The share of values below 0 from which on it makes a difference."""
_NEAR, _FAR = 0.4, 0.6
"""Bits that a scale may be off from what fits, to be taken for right, and has to be off to be taken for wrong."""
_MOST, _LEAN = 0.7, 0.3
"""The share of tensors in the same place that says something, and the bits that it is worth."""
_SIX = 6.0
Clip = tuple[float, float | None]


@dataclass(frozen=True)
class _Seen:
    """A tensor's values, and how it is quantized."""

    pair: Pair
    low: float
    high: float
    negative: float
    above_six: bool
    scale: float
    zero: float
    grid: Grid

    @property
    def at_end(self) -> bool:
        """Whether there is nothing below 0."""
        return self.zero == self.grid.low

    @property
    def room(self) -> float:
        """From its least to its largest value."""
        return self.scale * (self.grid.high - self.grid.low)

    @property
    def misplaced(self) -> bool:
        """Whether the zero point is not where all of the values need it, by its own scale or by the one that they need."""
        steps = self.grid.high - self.grid.low
        scales = self.scale, (self.high - min(self.low, 0.0)) / steps
        wanted = [self.grid.low - self.low / scale if scale > 0 else math.inf for scale in scales]
        return any(abs(each - self.zero) > steps / 8 for each in wanted)

    def off(self, size: float, usual: float) -> float:
        """How many bits the scale is off from what values of a range of ``size`` need."""
        return abs(math.log2(self.room / size / usual)) if size > 0 and self.room > 0 else math.inf


def with_implied(subject: Subject, groups: Sequence[Group], weights: Stored, original: Network | None) -> list[Group]:
    """The groups, with the Relu or Clip that each pair is too.

    Args:
        subject: The model.
        groups: Its groups.
        weights: The weights that are stored quantized, in floats.
        original: The model that it was made from, if that is known.
    """
    network = subject.network
    open_ones = [pair for group in groups for pair in group.pairs if _may_imply(network, pair)]
    clips: dict[str, Clip | None] = {}
    if original is not None:
        clips = {
            pair.tensor: _of_original(network, original, pair, index)
            for pair in open_ones
            if (index := maker_of(original, pair.tensor)) is not None
        }
        open_ones = [pair for pair in open_ones if pair.tensor not in clips]
    if not open_ones:
        return _with(groups, clips)
    known = {pair.tensor: (_scalar(subject, pair.scale), _scalar(subject, pair.zero_point)) for pair in open_ones}
    grids = {pair.tensor: Grid.of(pair.type_name) for pair in open_ones}
    named = {pair.tensor for pair in open_ones if _NAMED.search(pair.tensor)}
    for pair in open_ones:  # as a first guess: by the name, else by the zero point
        zero, grid = known[pair.tensor][1], grids[pair.tensor]
        relu = pair.tensor in named or (not named and grid is not None and zero == grid.low)
        clips[pair.tensor] = (0.0, None) if relu else None
    at_end = {
        tensor: grid is not None and known[tensor][1] == grid.low for tensor, grid in grids.items() if grid is not None
    }
    votes = _votes(network, open_ones, at_end)
    for number in range(_ROUNDS):
        plain = Network(unquantize(network, [p for g in _with(groups, clips) for p in g.pairs], weights))
        reference = Reference(
            plain, subject.samples[0], subject.workspace, subject.models, 6001 + number, subject.swap_limit
        )
        seen = _look(plain, reference, open_ones, known)
        better = _decide(seen, named, votes)
        if all(clips[tensor] == clip for tensor, clip in better.items()):
            break
        clips |= better
    return _with(groups, clips)


def _may_imply(network: Network, pair: Pair) -> bool:
    """Whether a pair may be an activation too: what is quantized is not one, and not something that the model is fed."""
    maker = network.producer.get(pair.tensor)
    if pair.kind != "activation" or maker is None or network.nodes[maker].op_type in _ACTIVATIONS:
        return False
    return Grid.of(pair.type_name) is not None and "float" not in pair.type_name


def _scalar(subject: Subject, name: str | None) -> float | None:
    if name is None:
        return 0.0
    value = constant_of(subject, name)
    return float(value.astype(np.float64).reshape(())) if value is not None and value.size == 1 else None


def maker_of(original: Network, tensor: str) -> int | None:
    """Who makes a tensor in the original: ONNX Runtime's quantizer renames an output of the model that it quantizes."""
    return original.producer.get(tensor, original.producer.get(tensor.removesuffix("_QuantizeLinear_Input")))


def _of_original(network: Network, original: Network, pair: Pair, index: int) -> Clip | None:
    """The Relu or Clip that makes the tensor there, where something else makes it here."""
    node = original.nodes[index]
    here = network.nodes[network.producer[pair.tensor]]
    if node.op_type == here.op_type or node.op_type not in ("Relu", "Clip"):
        return None
    if node.op_type == "Relu":
        return (0.0, None)
    low, high = (clip_bound(original, node, place, name) for place, name in ((1, "min"), (2, "max")))
    return (low if low is not None else -math.inf, high)


def _look(
    plain: Network,
    reference: Reference,
    pairs: Sequence[Pair],
    known: Mapping[str, tuple[float | None, float | None]],
) -> list[_Seen]:
    """What the tensors would be without an activation."""
    found = []
    for pair in pairs:
        scale, zero = known[pair.tensor]
        grid = Grid.of(pair.type_name)
        if scale is None or zero is None or grid is None or pair.tensor not in plain.producer:
            continue
        value = reference.select([pair.tensor]).get(pair.tensor)
        if value is None or value.dtype.kind != "f" or not value.size or not np.isfinite(value).all():
            continue
        low, high = float(value.min()), float(value.max())
        six = bool((value > _SIX).any())
        found.append(_Seen(pair, low, high, float(np.mean(value < 0)), six, scale, zero, grid))
    return found


def _is_relu(seen: _Seen, positive: float, both: float, vote: float | None) -> bool:
    """Whether the numbers of a tensor, and tensors in the same place elsewhere, say that it is an activation too.

    Args:
        seen: The tensor.
        positive: How many bits its scale is off from what its values above 0 need.
        both: The same of all of its values.
        vote: The share of tensors in its place that have nothing below 0; ``None`` where there are few.
    """
    lean = 0.0 if vote is None else _LEAN if vote > _MOST else -_LEAN if vote < 1 - _MOST else 0.0
    if seen.at_end and _is_six(seen, _SIX / 1000):
        return True
    if seen.at_end:  # but where the scale has room for all, the zero point is what is wrong
        return not (both < _NEAR - lean and positive > _FAR + lean)
    # Calibrated on more than one sample, a scale may well have more room than this one's values need, but hardly less.
    has_room, has_less = seen.room > max(seen.high, 0.0), seen.room < seen.high - min(seen.low, 0.0)
    near, far = (_FAR, _NEAR) if has_room and has_less else (_NEAR, _FAR)
    return seen.misplaced and (lean > 0 or (positive < near and both > far)) and positive < both + lean


def _votes(network: Network, pairs: Sequence[Pair], at_end: Mapping[str, bool]) -> dict[str, float]:
    """Of each tensor, the share of the others in its place (made and read by the same operators) that have nothing below 0."""
    places: dict[str, tuple[str, tuple[str, ...]]] = {}
    for pair in pairs:
        readers = [
            network.nodes[reader].op_type
            for index in pair.dequantize
            for reader in network.consumers.get(network.nodes[index].output[0], ())
        ]
        places[pair.tensor] = network.nodes[network.producer[pair.tensor]].op_type, tuple(sorted(readers))
    found = {}
    for tensor, place in places.items():
        others = [
            at_end[each] for each, other in places.items() if other == place and each != tensor and each in at_end
        ]
        if len(others) > 1:
            found[tensor] = sum(others) / len(others)
    return found


def _decide(seen: Sequence[_Seen], named: set[str], votes: Mapping[str, float]) -> dict[str, Clip | None]:
    """Which are activations, of tensors whose values are known."""
    telling = [each for each in seen if each.negative > _NEGATIVE]
    usual = _usual(telling)
    found: dict[str, Clip | None] = {}
    for each in telling:
        positive, both = each.off(max(each.high, 0.0), usual), each.off(each.high - min(each.low, 0.0), usual)
        symmetric = each.grid.signed and each.zero == 0
        if named:
            relu = each.pair.tensor in named
        elif symmetric:
            relu = False
        else:
            relu = _is_relu(each, positive, both, votes.get(each.pair.tensor))
        found[each.pair.tensor] = _clip(each) if relu else None
    return found


def _usual(seen: Sequence[_Seen]) -> float:
    """How many times what fits the scales usually are."""
    ratios = [
        each.scale * (each.grid.high - each.grid.low) / size
        for each in seen
        if (size := max(each.high, 0.0) if each.at_end else each.high - min(each.low, 0.0)) > 0 and each.scale > 0
    ]
    return min(max(float(np.median(ratios)), 0.5), 8.0) if ratios else 1.0


def _clip(seen: _Seen) -> Clip:
    """A Relu, or a Relu6 where the type's end is at 6 and values go past it."""
    return (0.0, _SIX if _is_six(seen, _SIX / (100 if seen.above_six else 1000)) else None)


def _is_six(seen: _Seen, near: float) -> bool:
    """Whether the type ends at 6."""
    return abs((seen.grid.high - seen.zero) * seen.scale - _SIX) < near


def _with(groups: Sequence[Group], clips: Mapping[str, Clip | None]) -> list[Group]:
    return [
        replace(
            group,
            pairs=tuple(replace(pair, clip=clips.get(pair.tensor) if pair.quantize else None) for pair in group.pairs),
        )
        for group in groups
    ]
