"""Pieces of a model: selected on the graph's numbers or with onnx-graphsurgeon, spliced together of the original's own messages.

graphsurgeon rebuilds each node from Python values, and cannot rebuild all: it raises on an empty list attribute and on a
string attribute that is not text (TensorRT plugins serialise their state into one), drops doc strings, and knows no
optional types. A tool that looks for what breaks in a model must not change it on the way. So what is imported is a
skeleton (``Network.skeleton``): nodes without attributes, tensors without types and data, what the bodies of a node take
from outside among its inputs. graphsurgeon walks and edits that, and the messages of what is left of it are spliced in. Where
it is known already which nodes a piece has, as in each candidate of a search, no object is made for any of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import onnx
from onnx.helper import make_tensor_value_info

from bisect_trt.errors import UnknownNameError, UsageError, quoted
from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.onnxlib.network import Network, model_bytes
from bisect_trt.onnxlib.nodes import IR_WITHOUT_INITIALIZER_INPUTS, clone, keep_only, rename_reads
from bisect_trt.onnxlib.shapes import value_info
from bisect_trt.tensors.info import TensorInfo

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs


PRODUCER = "bisect-trt"

StoredValue = Callable[[str], onnx.TensorProto]
"""Gives the value of a tensor that a piece reads, that it neither makes nor is fed, and that is no initializer."""


def nothing_stored(name: str) -> onnx.TensorProto:
    """For pieces that have the makers of all their weights."""
    raise AssertionError(f"the maker of {name} was left out")


@dataclass(frozen=True)
class Selection:
    """Nodes of a network that make a model.

    Attributes:
        nodes: Their numbers, in the order of the model.
        inputs: The tensors that it is fed, in order.
        outputs: The tensors that it gives back, in order.
        unmade: All that they read and do not make, its inputs and weights, in the order in which it is read.
        renamed: Those that read other tensors than in the original, by number.
    """

    nodes: Sequence[int]
    inputs: Sequence[str]
    outputs: Sequence[str]
    unmade: Sequence[str]
    renamed: Mapping[int, onnx.NodeProto] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A model made of some of another's nodes, as a file's bytes: most are written and never looked into.

    Attributes:
        content: The bytes.
        inputs: The tensors it has to be fed, in order.
        outputs: The tensors it gives back, in order.
        inside: Whether it is known that no weight lies outside of it.
    """

    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inside: bool

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The message; treat it as read-only."""
        model = onnx.ModelProto()
        model.ParseFromString(self.content)
        return model

    @cached_property
    def has_external_data(self) -> bool:
        """Whether any weight lies outside."""
        return not self.inside and has_external_data(self.proto)


def number(node: gs.Node) -> int:
    """Which of the original's nodes a node of a skeleton stands for."""
    return int(node.name)


def select(network: Network, nodes: Iterable[int], outputs: Sequence[str] | None = None) -> Selection:
    """The piece of exactly these nodes, in the file's order wherever that is valid.

    Its inputs are the non-constant tensors that they read and do not make; its outputs, unless they are given, what they
    make and a node outside reads, or the graph returns. A chosen node that nothing reads keeps its outputs, so that no
    runtime drops it.
    """
    inside = frozenset(nodes)
    ordered = network.in_file_order(inside)
    readers, makers = _rim(network, inside)
    reads = (name for index in ordered if index in readers for name in network.reads[index])
    unmade = [name for name in dict.fromkeys(reads) if network.producer.get(name) not in inside]
    inputs = [name for name in unmade if not network.is_weight(name)]
    if outputs is None:
        outputs = [name for index in ordered if index in makers for name in given_back(network, index, inside)]
    return Selection(ordered, inputs, outputs, unmade)


def _rim(network: Network, inside: Set[int]) -> tuple[Set[int], Set[int]]:
    """The nodes that may read what a piece does not make, and those that may make what goes out of it.

    Of a piece that is most of a network this takes as long as what is outside is large.
    """
    if 2 * len(inside) < len(network.nodes):
        return inside, inside
    readers, makers = set(network.first_readers), set(network.last_makers)
    for index in range(len(network.nodes)):
        if index not in inside:
            makers.update(network.parents(index))
            for name in network.made(index):
                readers.update(network.consumers.get(name, ()))
    return readers, makers


def given_back(network: Network, index: int, inside: Set[int]) -> Sequence[str]:
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


def between(network: Network, inputs: Collection[str], outputs: Sequence[str]) -> Selection:
    """The piece that computes some tensors from others.

    Args:
        network: The original.
        inputs: Where to stop walking back. Graph inputs and weights end it too.
        outputs: What to compute, in this order.

    Returns:
        What is needed for that. Its inputs are those given, in their order, and then the graph's, of both those that are
        needed.
    """
    piece = network.skeleton.copy()
    tensors = piece.tensors()
    piece.inputs = [tensors[name] for name in dict.fromkeys((*inputs, *network.inputs)) if name in tensors]
    piece.outputs = [tensors[name] for name in outputs]
    piece.cleanup(remove_unused_graph_inputs=True)
    nodes = {number(node): node for node in piece.nodes}
    piece.nodes = [nodes[index] for index in network.in_file_order(nodes)]
    return selection(network, piece)


def selection(network: Network, piece: gs.Graph) -> Selection:
    """What is left of a copy of a network's skeleton; a tensor that has another name there is renamed in the messages.

    Args:
        network: The original.
        piece: Nodes of the copy, with the piece's inputs and outputs.
    """
    numbers = list(map(number, piece.nodes))
    reads = {index: [tensor.name for tensor in node.inputs] for index, node in zip(numbers, piece.nodes, strict=True)}
    renamed: dict[int, onnx.NodeProto] = {}
    for index, now in reads.items():
        names = {old: new for old, new in zip(network.reads[index], now, strict=True) if old != new}
        if names:
            renamed[index] = rename_reads(network.nodes[index], names)
    made = {name for index in numbers for name in network.made(index)}
    unmade = [name for name in dict.fromkeys(name for index in numbers for name in reads[index]) if name not in made]
    inputs, outputs = ([tensor.name for tensor in ends] for ends in (piece.inputs, piece.outputs))
    return Selection(numbers, inputs, outputs, unmade, renamed)


def splice(network: Network, piece: Selection, infos: Mapping[str, TensorInfo], stored: StoredValue) -> Cut:
    """The model of a piece: bytes of the original's nodes, which are written once, with what else belongs to a model.

    Args:
        network: The original.
        piece: What of it.
        infos: Type and shape of each tensor that is an input or an output, where known.
        stored: Gives the values of weights that are not the original's initializers.
    """
    source = network.proto
    ends, sparse = onnx.GraphProto(), onnx.GraphProto()
    fed, boundary = set(piece.inputs), {*piece.inputs, *piece.outputs}
    # Shape inference costs a moment, and says what a run cannot: the types of sequences, and of what did not run.
    types = network.declared if all(name in infos for name in boundary) else network.inferred
    ends.input.extend(value_info(name, infos, types) for name in piece.inputs)
    ends.output.extend(value_info(name, infos, types) for name in piece.outputs)
    nodes, weights = bytearray(), bytearray()
    for index in piece.nodes:
        node = piece.renamed.get(index)
        nodes += network.written_nodes[index] if node is None else network.written_nodes.other(node)
    for name in piece.unmade:
        if name in fed:
            continue
        if name in network.sparse_initializers:
            sparse.sparse_initializer.append(network.sparse_initializers[name])
            continue
        if name in network.initializers:
            tensor = network.initializers[name]
            weights += network.written_weight(name)
        else:
            tensor = stored(name)
            weights += network.written_weights.other(tensor)
        if source.ir_version < IR_WITHOUT_INITIALIZER_INPUTS:
            known = network.declared.get(name)
            ends.input.append(known or make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    inside = set(piece.nodes if network.stated else ())
    parts = (
        nodes,
        onnx.GraphProto(name=source.graph.name or "graph").SerializeToString(),
        weights,
        ends.SerializeToString(deterministic=True),
        *(field for name, field in network.stated if network.producer.get(name) in inside and name not in boundary),
        sparse.SerializeToString(deterministic=True),
    )
    head = onnx.ModelProto(ir_version=source.ir_version, producer_name=PRODUCER, domain=source.domain)
    tail = onnx.ModelProto(opset_import=source.opset_import, functions=source.functions)
    content = model_bytes(head.SerializeToString(), parts, tail.SerializeToString(deterministic=True))
    return Cut(content, tuple(piece.inputs), tuple(piece.outputs), not network.has_external_data)


def cut(
    network: Network,
    chosen: Iterable[int],
    infos: Mapping[str, TensorInfo],
    stored: StoredValue,
    outputs: Sequence[str] | None = None,
) -> Cut:
    """Make a model of exactly the chosen nodes; :func:`~bisect_trt.onnxlib.cut.select` says what goes in and out.

    Args:
        network: The original.
        chosen: Node numbers.
        infos: Type and shape of each tensor that may become an input or an output, where known.
        stored: Gives the values of the weights whose makers are not chosen; they become initializers.
        outputs: What to give back, where that is not all that something outside reads.

    Returns:
        The model; names of nodes and tensors are the original's, and so is the order of nodes wherever it is valid.
    """
    return splice(network, select(network, chosen, outputs), infos, stored)


def mark_outputs(network: Network, names: Sequence[str], infos: Mapping[str, TensorInfo]) -> onnx.ModelProto:
    """The same model with other outputs.

    Args:
        network: The original; it is not changed.
        names: The tensors to give back, in this order.
        infos: Types and shapes, where known.

    Returns:
        A new model with exactly these outputs.
    """
    model = clone(network.proto)
    model.producer_name = PRODUCER
    marked = set(names)
    keep_only(model.graph.value_info, [value for value in model.graph.value_info if value.name not in marked])
    keep_only(model.graph.output, [value_info(name, infos, network.declared) for name in names])
    return model


def extract(
    network: Network, inputs: Sequence[str], outputs: Sequence[str], infos: Mapping[str, TensorInfo]
) -> tuple[onnx.ModelProto, list[str]]:
    """The model that computes some tensors from others.

    Args:
        network: The original.
        inputs: Where to stop walking back. Graph inputs and weights end it too.
        outputs: What to compute, in this order; without any, those of the graph's outputs that nodes compute.
        infos: Types and shapes of the tensors, where known.

    Returns:
        The model, and its inputs: the given ones in their order, then the graph inputs that are needed besides.

    Raises:
        UsageError: A name is no tensor of the model, an output is an input as well, an input is not needed, or the node
            that makes it has to stay.
    """
    inputs = tuple(dict.fromkeys(inputs))
    outputs = tuple(dict.fromkeys(outputs)) or _computed_outputs(network, inputs)
    _check_names(network, inputs, outputs)
    piece = between(network, inputs, outputs)
    _check_inputs(network, inputs, set(piece.nodes), set(piece.inputs))
    return splice(network, piece, infos, nothing_stored).proto, list(piece.inputs)


def _computed_outputs(network: Network, inputs: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in network.outputs if name in network.producer and name not in inputs)


def _check_names(network: Network, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    known = network.producer.keys() | set(network.inputs)
    known |= network.initializers.keys() | network.sparse_initializers.keys()
    for option, names in (("--inputs", inputs), ("--outputs", outputs)):
        for name in names:
            if name not in known:
                raise _no_tensor(network, option, name, known)
    for name in outputs:
        if name in inputs or name not in network.producer:
            raise UnknownNameError(
                f"--outputs: '{name}' is not computed from the inputs, so there is nothing to extract."
            )
    if not outputs:
        raise UnknownNameError("--outputs: no node computes an output of the model; name a tensor that one computes.")


def _no_tensor(network: Network, option: str, name: str, known: Collection[str]) -> UsageError:
    """Why a name is no tensor: it is a node's, or a misspelt one."""
    for index, node in enumerate(network.nodes):
        if node.name == name:
            return UnknownNameError(
                f"{option}: '{name}' is a node ({node.op_type}), not a tensor; name what it makes: "
                f"{quoted(network.made(index))}."
            )
    close = difflib.get_close_matches(name, known)
    near = f"; close to it: {quoted(close)}" if close else ""
    return UnknownNameError(
        f"{option}: the model has no tensor '{name}'{near}. `bisect-trt inspect model FILE --show layers` lists all."
    )


def _check_inputs(network: Network, inputs: Sequence[str], chosen: set[int], reached: set[str]) -> None:
    for name in inputs:
        maker = network.producer.get(name)
        if maker in chosen:
            raise UnknownNameError(
                f"--inputs: {network.describe(maker)}, which makes '{name}', is needed for what else it makes; "
                "name that too."
            )
        if name not in reached:
            raise UnknownNameError(f"--inputs: no output depends on '{name}'; leave it out.")
