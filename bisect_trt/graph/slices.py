"""Take a model apart into slices that fit into memory one at a time.

With every tensor an output no runtime can fuse nodes, so a model computes the same in one piece and in slices that hand
their tensors on. Each slice then needs only its own weights and tensors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    """The model of a slice, with every tensor that it makes as an output.

    Args:
        network: The whole model.
        part: The slice.
        infos: Types and shapes of its inputs.
    """
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
