"""Models of single nodes, and of slices of the graph: the layerwise comparison and the reference run compute with them.

An isolated model feeds every node from outside, so that none sees another's error. With every tensor an output no runtime can
fuse nodes, so a model computes the same in one piece and in slices that hand their tensors on; each slice needs only its own
weights and tensors in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.onnxlib.cut import cut, nothing_stored, selection, splice
from bisect_trt.onnxlib.external_data import tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import free_name
from bisect_trt.tensors.info import TensorInfo, is_extension

FROZEN_ELEMENTS = 64
"""An integer tensor of one axis and so few elements is taken for a shape, a pad or an index."""


@dataclass(frozen=True)
class Isolated:
    """A model in which no node reads what another makes.

    Attributes:
        proto: The model; its outputs go by the original's names.
        fed: The original's tensor that an input stands for, by the input's name; none for graph inputs.
        outputs: The tensors that it gives back, in topological order.
        left_out: Tensors that were asked for and that it lacks, with the reason.
    """

    proto: onnx.ModelProto
    fed: dict[str, str]
    outputs: tuple[str, ...]
    left_out: dict[str, str]


def is_frozen(info: TensorInfo) -> bool:
    """Whether a tensor is stored in an isolated model: TensorRT has to know shapes when it builds."""
    size, vector = info.nbytes, len(info.shape or ()) <= 1
    return info.dtype.kind in "iu" and vector and size is not None and size <= FROZEN_ELEMENTS * info.dtype.itemsize


def isolate(
    network: Network,
    names: Iterable[str],
    infos: Mapping[str, TensorInfo],
    frozen: Mapping[str, NDArray[Any]],
) -> Isolated:
    """Make the model that computes tensors, each by its own node from values that are fed.

    A computed tensor that some node reads becomes an input under a new name, because its own name is that of the output
    of its maker. Graph inputs keep their names. Nodes that only make weights come along.

    Args:
        network: The original; it is not changed.
        names: Tensors that nodes make which depend on a graph input.
        infos: Types and shapes of the tensors whose values are known.
        frozen: Values of computed tensors and graph inputs that are stored in the model instead of fed.
    """
    import onnx_graphsurgeon as gs  # noqa: PLC0415 - the start of a search would wait for it

    wanted = sorted({network.producer[name] for name in names}, key=network.rank.__getitem__)
    left_out: dict[str, str] = {}
    chosen = [index for index in wanted if not _leave_out(network, index, infos, frozen, left_out)]
    outputs = [name for index in chosen for name in network.made(index) if name in infos]
    computed = set(network.computed)
    read = dict.fromkeys(name for index in chosen for name in network.reads[index])
    renamed = {name: free_name(f"{name}_reference", network.names) for name in read if name in computed}
    ends = {renamed.get(name, name): name for name in read if name in computed or name in network.inputs}
    inputs = tuple(end for end, name in ends.items() if name not in frozen)
    makers = sorted(network.leading_to(chosen, constants=True).difference(chosen), key=network.rank.__getitem__)
    skeleton = network.skeleton.copy()
    piece = gs.Graph([skeleton.nodes[index] for index in (*makers, *chosen)])
    apart = {name: gs.Variable(end) for name, end in renamed.items()}
    for index in chosen:
        node = skeleton.nodes[index]
        node.inputs = [apart.get(tensor.name, tensor) for tensor in node.inputs]
    tensors = piece.tensors()
    piece.inputs, piece.outputs = ([tensors[name] for name in names] for names in (inputs, outputs))
    known = {**infos, **{end: replace(infos[ends[end]], name=end) for end in inputs}}
    model = splice(
        network, selection(network, piece), known, lambda end: numpy_helper.from_array(frozen[ends[end]], end)
    )
    fed = {end: ends[end] for end in inputs if end not in network.inputs}
    return Isolated(model.proto, fed, tuple(outputs), left_out)


def _leave_out(
    network: Network,
    index: int,
    infos: Mapping[str, TensorInfo],
    frozen: Collection[str],
    left_out: dict[str, str],
) -> bool:
    """Note why a node cannot be fed by itself, if so."""
    computed = [name for name in network.reads[index] if not network.is_weight(name)]
    unknown = next((name for name in computed if name not in infos), None)
    if unknown is not None:
        why = f"the reference has no value of '{unknown}', which its node reads"
    elif all(name in frozen for name in computed):
        why = "its node reads nothing but shapes, indices and weights"
    else:
        return False
    left_out.update(dict.fromkeys(network.made(index), why))
    return True


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
        cost = sum(_bytes(infos, name) for name in made) + sum(_weight(network, infos, name) for name in fresh)
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
    inside = network.leading_to({*stretch, *constants}, constants=True)
    nodes = tuple(sorted(inside, key=network.rank.__getitem__))
    made = {name for index in nodes for name in network.made(index)}
    read = dict.fromkeys(name for index in nodes for name in network.reads[index])
    inputs = tuple(name for name in read if name not in made and not network.is_weight(name))
    kept = (index for index in nodes if not network.constant[index] or index in constants)
    return Slice(nodes, inputs, tuple(name for index in kept for name in network.made(index)))


def slice_model(network: Network, part: Slice, infos: Mapping[str, TensorInfo]) -> onnx.ModelProto:
    """The model of a slice, with every tensor that it makes as an output."""
    return cut(network, part.nodes, infos, nothing_stored, part.tensors).proto


def _weight(network: Network, infos: Mapping[str, TensorInfo], name: str) -> int:
    initializer = network.initializers.get(name)
    return _bytes(infos, name) if initializer is None else tensor_bytes(initializer)


def _bytes(infos: Mapping[str, TensorInfo], name: str) -> int:
    return (infos[name].nbytes or 0) if name in infos else 0


def _can_be_fed(info: TensorInfo | None) -> bool:
    return info is not None and not is_extension(info.dtype)
