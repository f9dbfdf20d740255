"""Take a model apart into slices that fit into memory one at a time.

With every tensor an output no runtime can fuse nodes, so a model computes the same in one piece and in slices that hand
their tensors on. Each slice then needs only its own weights and tensors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import onnx

from bisect_trt.graph.cut import cut, mark_outputs
from bisect_trt.graph.externals import tensor_bytes
from bisect_trt.graph.network import Network
from bisect_trt.graph.surgeon import nothing_stored
from bisect_trt.tensors.info import TensorInfo, is_extension

MOST_NODES = 8192
"""Nodes of a slice, in networks of up to sixteen such. The time in which ONNX Runtime 1.31.1 opens a model of which every tensor
is an output grows with the square of its nodes: 0.2 s for 5,000, 2.2 s for 20,000, 9.5 s for 50,000."""
_MOST_SLICES = 16
"""And past that: each slice that is added to the activations writes their index anew."""


@dataclass(frozen=True)
class Slice:
    """Some nodes that follow each other in topological order.

    Attributes:
        nodes: Node numbers, in topological order, with those that make the weights they read.
        inputs: The tensors that they read of other slices, or that the graph is fed.
        tensors: The tensors that they make, weights left out.
    """

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    tensors: tuple[str, ...]


def plan_slices(
    network: Network,
    nodes: Sequence[int],
    infos: Mapping[str, TensorInfo],
    limit: int,
    most: int = MOST_NODES,
) -> list[Slice]:
    """Divide nodes into slices.

    Args:
        network: The model.
        nodes: Which of its nodes, in topological order.
        infos: Types and shapes of tensors, where known. A tensor that is not known to be a plain one of a type that can
            be fed never goes from one slice to another.
        limit: How many bytes of weights and tensors a slice may have; one node may have more.
        most: How many nodes that compute a slice may have, or a sixteenth of all of them if that is more.

    Returns:
        The slices, in order; one if all fits.
    """
    chosen = set(nodes)
    most = max(most, len(nodes) // _MOST_SLICES)
    stretches: list[list[int]] = [[]]
    size, weights, unread = 0, set[str](), dict[str, int]()
    for index in nodes:
        if network.constant[index]:
            continue
        made, read = network.made(index), network.reads[index]
        fresh = {name for name in read if network.is_weight(name)} - weights
        cost = sum(_bytes(infos.get(name)) for name in made) + sum(_weight(network, infos, name) for name in fresh)
        full = size + cost > limit or len(stretches[-1]) >= most
        if stretches[-1] and full and not unread:
            stretches.append([])
            size, weights = 0, set()
        stretches[-1].append(index)
        size += cost
        weights |= fresh  # in place: a copy for each node takes seconds for 20,000
        for name in made:
            readers = chosen.intersection(network.consumers.get(name, ()))
            if readers and not _can_be_fed(infos.get(name)):
                unread[name] = len(readers)
        for name in read:
            if name in unread:
                unread[name] -= 1
                if not unread[name]:
                    del unread[name]
    returned = [network.producer[name] for name in network.outputs if name in network.producer]
    last = [index for index in returned if index in chosen and network.constant[index]]
    return [
        _slice(network, stretch, last if place == len(stretches) - 1 else ()) for place, stretch in enumerate(stretches)
    ]


_HELD: dict[int, float] = {onnx.TensorProto.FLOAT16: 2.5, onnx.TensorProto.BFLOAT16: 2.5}
"""Bytes that ONNX Runtime holds on the CPU for a byte of a weight: it casts 16 bits to fp32 as it opens a model."""
_HELD_ELSE = 2.0
"""The weight, and a copy laid out for its kernels."""


def held_bytes(model: onnx.ModelProto) -> int:
    """About how much memory a runtime takes for the weights of a model that are stored in it or beside it."""
    return sum(map(_held, model.graph.initializer))


def _held(tensor: onnx.TensorProto) -> int:
    return int(tensor_bytes(tensor) * _HELD.get(tensor.data_type, _HELD_ELSE))


def plan_narrow_slices(network: Network, infos: Mapping[str, TensorInfo], limit: int) -> list[Slice]:
    """Divide a whole model into slices whose tensors stay inside: cut where the fewest bytes go from one to the next.

    Args:
        network: The model.
        infos: As for :func:`plan_slices`.
        limit: How many bytes the weights of a slice may take as a runtime holds them; one node may take more.

    Returns:
        The slices, in order; each is half full at least, where there is a place to cut. One if all fits.
    """
    nodes = [index for index in network.order if not network.constant[index]]
    crossing = _crossing(network, nodes, infos)
    cuts = [0]
    size, place, weights = 0, 0, set[str]()
    filled: dict[int, int] = {}
    while place < len(nodes):
        if place > cuts[-1] and crossing[place] < math.inf:
            filled[place] = size
        fresh = {name for name in network.reads[nodes[place]] if network.is_weight(name)} - weights
        more = sum(_held_weight(network, infos, name) for name in fresh)
        if filled and size + more > limit:
            full = [each for each in filled if 2 * filled[each] >= limit]
            place = min(full, key=lambda each: (crossing[each], -each)) if full else max(filled)
            cuts.append(place)
            size, weights, filled = 0, set(), {}
            continue
        size += more
        weights |= fresh
        place += 1
    last = [network.producer[name] for name in network.outputs if name in network.producer]
    constants = [index for index in last if network.constant[index]]
    ends = [*cuts[1:], len(nodes)]
    return [
        _slice(network, nodes[start:end], constants if end == len(nodes) else ())
        for start, end in zip(cuts, ends, strict=True)
    ]


def _held_weight(network: Network, infos: Mapping[str, TensorInfo], name: str) -> int:
    initializer = network.initializers.get(name)
    return int(_HELD_ELSE * _bytes(infos.get(name))) if initializer is None else _held(initializer)


def _crossing(network: Network, nodes: Sequence[int], infos: Mapping[str, TensorInfo]) -> list[float]:
    """For each place in an order of nodes, the bytes of what is made before it and read from it on; infinite if not to be fed."""
    places = {index: place for place, index in enumerate(nodes)}
    change = [0] * (len(nodes) + 1)
    fixed = [0] * (len(nodes) + 1)
    for index, place in places.items():
        for name in network.made(index):
            until = max(
                (places[reader] for reader in network.consumers.get(name, ()) if reader in places), default=place
            )
            able = _can_be_fed(infos.get(name))
            for counts, amount in ((change, _bytes(infos.get(name))), (fixed, 0 if able else 1)):
                counts[place + 1] += amount
                counts[until + 1] -= amount
    held, stuck = accumulate(change), accumulate(fixed)
    return [math.inf if stays else size for size, stays in zip(held, stuck, strict=True)]


def _slice(network: Network, stretch: Iterable[int], constants: Iterable[int]) -> Slice:
    """A slice of some nodes; ``constants`` are those that make weights which the graph returns."""
    constants = set(constants)
    inside = set(stretch) | constants
    pending = list(inside)
    while pending:
        for parent in network.parents(pending.pop()):
            if parent not in inside and network.constant[parent]:
                inside.add(parent)
                pending.append(parent)
    nodes = tuple(sorted(inside, key=network.rank.__getitem__))
    made = {name for index in nodes for name in network.made(index)}
    read = dict.fromkeys(name for index in nodes for name in network.reads[index])
    inputs = tuple(name for name in read if name not in made and not network.is_weight(name))
    kept = (index for index in nodes if not network.constant[index] or index in constants)
    return Slice(nodes, inputs, tuple(name for index in kept for name in network.made(index)))


def slice_model(network: Network, part: Slice, infos: Mapping[str, TensorInfo]) -> onnx.ModelProto:
    """The model of a slice, with every tensor that it makes as an output."""
    return mark_outputs(Network(cut(network, part.nodes, infos, nothing_stored).proto), part.tensors, {})


def _weight(network: Network, infos: Mapping[str, TensorInfo], name: str) -> int:
    initializer = network.initializers.get(name)
    return _bytes(infos.get(name)) if initializer is None else tensor_bytes(initializer)


def _bytes(info: TensorInfo | None) -> int:
    if info is None or info.shape is None:
        return 0
    return info.dtype.itemsize * math.prod(dim if isinstance(dim, int) else 1 for dim in info.shape)


def _can_be_fed(info: TensorInfo | None) -> bool:
    return info is not None and not is_extension(info.dtype)
