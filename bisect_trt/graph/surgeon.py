"""Pieces of a model: selected with onnx-graphsurgeon, spliced together of the original's own messages.

graphsurgeon rebuilds each node from Python values, and cannot rebuild all: it raises on an empty list attribute and on a
string attribute that is not text (TensorRT plugins serialise their state into one), drops doc strings, and knows no
optional types. A tool that looks for what breaks in a model must not change it on the way. So what is imported is a
skeleton (``Network.skeleton``): nodes without attributes, tensors without types and data, what the bodies of a node take
from outside among its inputs. graphsurgeon selects on that, and the messages of what it selected are spliced in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from itertools import chain

import onnx
import onnx_graphsurgeon as gs

from bisect_trt.graph.network import Network, bodies
from bisect_trt.graph.values import value_info
from bisect_trt.tensors.info import TensorInfo

PRODUCER = "bisect-trt"
IR_WITHOUT_INITIALIZER_INPUTS = 4
"""Before IR version 4 every initializer had to be listed among the graph's inputs."""

StoredValue = Callable[[str], onnx.TensorProto]
"""Gives the value of a tensor that a piece reads, that it neither makes nor is fed, and that is no initializer."""


def nothing_stored(name: str) -> onnx.TensorProto:
    """For pieces that have the makers of all their weights."""
    raise AssertionError(f"the maker of {name} was left out")


def number(node: gs.Node) -> int:
    """Which of the original's nodes a node of a skeleton stands for."""
    return int(node.name)


def select(network: Network, nodes: Iterable[int], outputs: Sequence[str] | None = None) -> gs.Graph:
    """The piece of exactly these nodes, in the file's order wherever that is valid.

    Its inputs are the non-constant tensors that they read and do not make; its outputs, unless they are given, what they
    make and a node outside reads, or the graph returns. A chosen node that nothing reads keeps its outputs, so that no
    runtime drops it.

    Args:
        network: The original.
        nodes: Node numbers.
        outputs: Tensors that these nodes make, in order.

    Returns:
        A graph of the skeleton's own nodes: it is for reading.
    """
    ordered = network.in_file_order(nodes)
    skeleton, tensors = network.skeleton.nodes, network.tensors
    piece = gs.Graph()
    piece.nodes = [skeleton[index] for index in ordered]  # its constructor would look into each for functions
    unmade, _ = _ends(map(network.reads.__getitem__, ordered), map(network.made, ordered))
    piece.inputs = [tensors[name] for name in unmade if not network.is_weight(name)]
    if outputs is None:
        inside = set(ordered)
        outputs = [name for index in ordered for name in given_back(network, index, inside)]
    piece.outputs = [tensors[name] for name in outputs]
    return piece


def given_back(network: Network, index: int, inside: Set[int]) -> list[str]:
    """What a node of a piece makes that is an output of the piece.

    Args:
        network: The original.
        index: The node's number.
        inside: The numbers of all nodes of the piece.
    """
    outside, read = [], False
    for name in network.made(index):
        readers = network.consumers.get(name, ())
        others = [reader for reader in readers if reader not in inside]
        read = read or len(others) < len(readers)
        # A weight that others read too is not a result: they bring its maker along, or store it.
        if name in network.returned or (others and not network.constant[index]):
            outside.append(name)
    return outside if outside or read else network.made(index)


def between(network: Network, inputs: Collection[str], outputs: Sequence[str]) -> gs.Graph:
    """The piece that computes some tensors from others.

    Args:
        network: The original.
        inputs: Where to stop walking back. Graph inputs and weights end it too.
        outputs: What to compute, in this order.

    Returns:
        A copy of the part of the skeleton that is needed. Its inputs are those given, in their order, and then the
        graph's, of both those that are needed.
    """
    piece = network.skeleton.copy()
    tensors = piece.tensors()
    piece.inputs = [tensors[name] for name in dict.fromkeys((*inputs, *network.inputs)) if name in tensors]
    piece.outputs = [tensors[name] for name in outputs]
    piece.cleanup(remove_unused_graph_inputs=True)
    nodes = {number(node): node for node in piece.nodes}
    piece.nodes = [nodes[index] for index in network.in_file_order(nodes)]
    return piece


def splice(network: Network, piece: gs.Graph, infos: Mapping[str, TensorInfo], stored: StoredValue) -> onnx.ModelProto:
    """The model of a piece, of the original's messages; a tensor that has another name in the piece is renamed in them.

    Args:
        network: The original.
        piece: A graph of nodes of its skeleton, or of a copy of that, with the piece's inputs and outputs.
        infos: Type and shape of each tensor that is an input or an output, where known.
        stored: Gives the values of weights that are not the original's initializers.
    """
    source = network.proto
    model = onnx.ModelProto(ir_version=source.ir_version, producer_name=PRODUCER, domain=source.domain)
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    graph = model.graph
    graph.name = source.graph.name or "graph"
    skeleton, numbers = network.skeleton.nodes, list(map(number, piece.nodes))
    # What stands as it stood is known by its number; to ask the skeleton's objects takes several times as long.
    same = [node is skeleton[index] for index, node in zip(numbers, piece.nodes, strict=True)]
    graph.node.extend(
        network.nodes[index] if kept else _renamed(network, index, node)
        for index, node, kept in zip(numbers, piece.nodes, same, strict=True)
    )
    unmade, made = _ends(
        (
            network.reads[index] if kept else [tensor.name for tensor in node.inputs]
            for index, node, kept in zip(numbers, piece.nodes, same, strict=True)
        ),
        map(network.made, numbers),
    )
    inputs, outputs = ([tensor.name for tensor in ends] for ends in (piece.inputs, piece.outputs))
    fed, boundary = set(inputs), {*inputs, *outputs}
    # Shape inference costs a moment, and says what a run cannot: the types of sequences, and of what did not run.
    types = network.declared if boundary <= infos.keys() else {**network.declared, **network.inferred}
    graph.input.extend(value_info(name, infos, types) for name in inputs)
    graph.output.extend(value_info(name, infos, types) for name in outputs)
    for name in unmade:
        if name in fed:
            continue
        if name in network.sparse_initializers:
            graph.sparse_initializer.append(network.sparse_initializers[name])
        else:
            graph.initializer.append(network.initializers.get(name) or stored(name))
    if model.ir_version < IR_WITHOUT_INITIALIZER_INPUTS:
        graph.input.extend(
            network.declared.get(tensor.name)
            or onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            for tensor in graph.initializer
        )
    graph.value_info.extend(value for name, value in network.stated if name in made and name not in boundary)
    return model


def _ends(reads: Iterable[Iterable[str]], makes: Iterable[Iterable[str]]) -> tuple[list[str], set[str]]:
    """Of what the nodes of a piece read and make: what none makes, in the order in which it is read, and what is made."""
    made = set(chain.from_iterable(makes))
    return [name for name in dict.fromkeys(chain.from_iterable(reads)) if name not in made], made


def _renamed(network: Network, index: int, node: gs.Node) -> onnx.NodeProto:
    names = dict(zip(network.reads[index], (tensor.name for tensor in node.inputs), strict=True))
    renamed = {old: new for old, new in names.items() if old != new}
    return rename_reads(network.nodes[index], renamed) if renamed else network.nodes[index]


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a node that reads other tensors, in its bodies too."""
    new = onnx.NodeProto()
    new.CopyFrom(node)
    new.input[:] = [names.get(name, name) for name in node.input]
    for body in bodies(new):
        _rename_captured(body, names)
    return new


def _rename_captured(body: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename what a body takes from outside; what it names so itself is its own."""
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {tensor.values.name for tensor in body.sparse_initializer}
    own |= {name for inner in body.node for name in inner.output}
    outer = {name: new for name, new in names.items() if name not in own}
    renamed = [rename_reads(inner, outer) for inner in body.node]
    del body.node[:]
    body.node.extend(renamed)
    for value in body.output:
        value.name = outer.get(value.name, value.name)
