"""Each node by itself, in one model: every node is fed values from outside, so that none sees another's error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import captured_names
from bisect_trt.graph.surgeon import selection, splice
from bisect_trt.tensors.info import TensorInfo

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
    shape = info.shape or ()
    return info.dtype.kind in "iu" and info.is_static and len(shape) <= 1 and _size(info) <= FROZEN_ELEMENTS


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
    wanted = sorted({network.producer[name] for name in names}, key=network.rank.__getitem__)
    left_out: dict[str, str] = {}
    chosen = [index for index in wanted if not _leave_out(network, index, infos, frozen, left_out)]
    outputs = [name for index in chosen for name in network.made(index) if name in infos]
    computed = set(network.computed)
    read = dict.fromkeys(name for index in chosen for name in network.reads[index])
    renamed = _fresh_names(network, [name for name in read if name in computed])
    ends = {renamed.get(name, name): name for name in read if name in computed or name in network.inputs}
    inputs = tuple(end for end, name in ends.items() if name not in frozen)
    skeleton = network.skeleton.copy()
    piece = gs.Graph([skeleton.nodes[index] for index in (*_makers_of_weights(network, chosen), *chosen)])
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


def _makers_of_weights(network: Network, nodes: Iterable[int]) -> list[int]:
    """The nodes that make weights for these, in topological order."""
    found: set[int] = set()
    pending = list(nodes)
    while pending:
        parents = {parent for parent in network.parents(pending.pop()) if network.constant[parent]} - found
        found |= parents
        pending += parents
    return sorted(found, key=network.rank.__getitem__)


def _fresh_names(network: Network, names: Iterable[str]) -> dict[str, str]:
    """A name for each tensor that nothing in the model has, bodies of control flow included."""
    taken = set(network.producer) | set(network.inputs) | set(network.initializers) | set(network.sparse_initializers)
    for node in network.nodes:
        taken |= captured_names(node)
    fresh: dict[str, str] = {}
    for name in names:
        new = f"{name}_reference"
        while new in taken:
            new += "_"
        taken.add(new)
        fresh[name] = new
    return fresh


def _size(info: TensorInfo) -> int:
    return prod(int(dim or 0) for dim in info.shape or ())
