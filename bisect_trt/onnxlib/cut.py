"""Models of some of a network's nodes: any subset, the nodes between tensors, isolated nodes, slices.

A search for a fault must not change the model. graphsurgeon rebuilds each node from Python values,
and is not lossless: it raises on an empty list attribute and on a string attribute that is not text
(the state of TensorRT plugins), drops doc strings, and has no optional types. So graphsurgeon walks
a skeleton (``Network.skeleton``), and the messages of the selected nodes are copied. Searches
select nodes by number, without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import onnx
from msgspec import Struct
from onnx import numpy_helper
from onnx.helper import make_tensor_value_info

from bisect_trt.aliases import Names
from bisect_trt.errors import UnknownNameError, quoted
from bisect_trt.onnxlib.load import has_external_data, tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    IR_WITHOUT_INITIALIZER_INPUTS,
    clone,
    drop,
    free_name,
    keep_only,
    reads,
    rename_reads,
)
from bisect_trt.onnxlib.shapes import value_info
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.info import TensorInfo

PRODUCER = "bisect-trt"

StoredValue = Callable[[str], onnx.TensorProto]
"""Returns the value of a tensor that a piece reads and has no other source for."""
Infos = Mapping[str, TensorInfo]
"""Types and shapes of tensors, where known."""


def nothing_stored(name: str) -> onnx.TensorProto:
    """Fail; for pieces with the makers of all their weights."""
    raise AssertionError(f"the maker of {name} was left out")


class Selection(Struct, frozen=True):
    """Nodes of a network for a model, in order, with its inputs and outputs; ``renamed`` nodes read other tensors."""

    nodes: Sequence[int]
    inputs: Sequence[str]
    outputs: Sequence[str]
    renamed: Mapping[int, onnx.NodeProto] = {}


class Cut(Struct, frozen=True, dict=True):
    """A model as a file's bytes, since most are written and never parsed again; ``inside`` if it has no external weight."""

    content: bytes
    inputs: Names
    outputs: Names
    inside: bool

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The parsed message; read-only."""
        model = onnx.ModelProto()
        model.ParseFromString(self.content)
        return model

    @cached_property
    def has_external_data(self) -> bool:
        """Whether any weight is external."""
        return not self.inside and has_external_data(self.proto)


def select(
    network: Network, nodes: Iterable[int], outputs: Sequence[str] | None = None
) -> Selection:
    """Return the piece of exactly these nodes, in the file's order wherever that is valid.

    Its inputs are the non-constant tensors that the nodes read and do not make. Its outputs, unless
    given, are the tensors that a node outside reads or the graph returns; a node that nothing reads
    keeps its outputs, so that no runtime drops it.

    Args:
        network: The original model.
        nodes: The nodes, by their number in the file.
        outputs: The names of its outputs; ``None`` for those that something else needs.
    """
    inside = frozenset(nodes)
    ordered = network.in_file_order(inside)
    read = (
        name
        for index in ordered
        for name in network.reads[index]
        if network.producer.get(name) not in inside
    )
    inputs = [name for name in dict.fromkeys(read) if not network.is_weight(name)]
    if outputs is None:
        outputs = [name for index in ordered for name in given_back(network, index, inside)]
    return Selection(ordered, inputs, outputs)


def given_back(network: Network, index: int, inside: frozenset[int] | set[int]) -> Sequence[str]:
    """Return the outputs of a piece, the nodes ``inside``, that one of its nodes makes.

    Args:
        network: The original model.
        index: The number of the node.
        inside: The numbers of the nodes of the piece.
    """
    outside = []
    read = False
    constant = network.constant[index]
    for name in network.made(index):
        readers = network.consumers.get(name, ())
        # A tensor that nodes inside read keeps its maker from being dropped as unused.
        read = read or not inside.isdisjoint(readers)
        # A weight with other readers is no result: they include its maker, or store it.
        if name in network.returned or not (constant or inside.issuperset(readers)):
            outside.append(name)
    return outside if outside or read else network.made(index)


def between(network: Network, inputs: Collection[str], outputs: Sequence[str]) -> Selection:
    """Return the piece that computes some tensors from others, from graph inputs and from weights.

    Args:
        network: The original model.
        inputs: The tensors from which others are computed; they need not all be needed.
        outputs: The tensors to compute.

    Returns:
        The needed nodes; and the needed inputs, the given ones in their order, then the graph's.
    """
    # A skeleton: copies of it cost nothing, however large the weights are.
    piece = network.skeleton.copy()
    tensors = piece.tensors()
    piece.inputs = [
        tensors[name] for name in dict.fromkeys((*inputs, *network.inputs)) if name in tensors
    ]
    piece.outputs = [tensors[name] for name in outputs]
    piece.cleanup(remove_unused_graph_inputs=True)
    nodes = network.in_file_order(int(node.name) for node in piece.nodes)
    return Selection(nodes, [tensor.name for tensor in piece.inputs], list(outputs))


def splice(network: Network, piece: Selection, infos: Infos, stored: StoredValue) -> Cut:
    """Return the model of a piece, with copies of the original's nodes and weights.

    Args:
        network: The original model.
        piece: The nodes, and the tensors that become inputs and outputs.
        infos: Types and static shapes of tensors as a run saw them; declared or inferred types are
            used for others.
        stored: Returns the value of a weight that is no initializer of the original.

    Returns:
        The serialized model. Names, attributes and weights are unchanged.
    """
    source = network.proto
    model = onnx.ModelProto(
        ir_version=source.ir_version,
        producer_name=PRODUCER,
        domain=source.domain,
        opset_import=source.opset_import,
        functions=source.functions,
    )
    graph = model.graph
    graph.name = source.graph.name or "graph"
    boundary = {*piece.inputs, *piece.outputs}
    made = {*network.made_by(piece.nodes)}
    # Shape inference takes time, and finds types that a run cannot: those of sequences, and of
    # nodes that did not run.
    types = network.declared if all(name in infos for name in boundary) else network.inferred
    graph.input.extend(value_info(name, infos, types) for name in piece.inputs)
    graph.output.extend(value_info(name, infos, types) for name in piece.outputs)
    graph.node.extend(piece.renamed.get(index, network.nodes[index]) for index in piece.nodes)
    read = (
        reads(piece.renamed[i]) if i in piece.renamed else network.reads[i] for i in piece.nodes
    )
    available = made.union(piece.inputs)
    outer = (name for names in read for name in names if name not in available)
    for name in dict.fromkeys(outer):
        tensor = network.initializers[name] if name in network.initializers else stored(name)
        graph.initializer.append(tensor)
        # Before IR version 4 every initializer has to be a graph input too.
        if source.ir_version < IR_WITHOUT_INITIALIZER_INPUTS:
            stored_type = make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
            graph.input.append(network.declared.get(name, stored_type))
    made -= boundary
    graph.value_info.extend(value for value in source.graph.value_info if value.name in made)
    content = model.SerializeToString(deterministic=True)
    inside = not network.has_external_data
    return Cut(content, tuple(piece.inputs), tuple(piece.outputs), inside)


def cut(
    network: Network,
    chosen: Iterable[int],
    infos: Infos,
    stored: StoredValue,
    outputs: Sequence[str] | None = None,
) -> Cut:
    """Return the model of exactly the chosen nodes; see :func:`select` and :func:`splice`.

    Args:
        network: The original model.
        chosen: The nodes, by their number in the file.
        infos: Types and static shapes of tensors, by name, where they are known.
        stored: Returns the value of a weight that is no initializer of the original.
        outputs: The names of its outputs; ``None`` for those that something else needs.
    """
    return splice(network, select(network, chosen, outputs), infos, stored)


def mark_outputs(network: Network, names: Sequence[str], infos: Infos) -> onnx.ModelProto:
    """Return a copy of the model with exactly these outputs, in this order.

    Args:
        network: The original model.
        names: The names of the outputs.
        infos: Types and static shapes of tensors, by name, where they are known.
    """
    model = clone(network.proto)
    model.producer_name = PRODUCER
    drop(model.graph.value_info, set(names))
    keep_only(model.graph.output, [value_info(name, infos, network.declared) for name in names])
    return model


def extract(
    network: Network, inputs: Sequence[str], outputs: Sequence[str], infos: Infos
) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model that computes some tensors from others.

    Args:
        network: The original.
        inputs: The ends of the walk against the edges, beside graph inputs and weights.
        outputs: The tensors to compute, in this order; without any, the graph outputs that nodes
            compute.
        infos: Types and shapes of the tensors, where known.

    Returns:
        The model, and its inputs: the given ones in their order, then the needed graph inputs.

    Raises:
        UsageError: A name is no tensor of the model, an output is an input too, an input is not
            needed, or its maker is.
    """
    inputs = tuple(dict.fromkeys(inputs))
    computed = (name for name in network.outputs if name in network.producer and name not in inputs)
    outputs = tuple(dict.fromkeys(outputs)) or tuple(computed)
    tensor_names = set(network.inputs).union(network.producer, network.initializers)
    for option, names in (("--inputs", inputs), ("--outputs", outputs)):
        for name in names:
            if name not in tensor_names:
                raise _no_tensor(network, option, name)
    for name in outputs:
        if name in inputs or name not in network.producer:
            raise UnknownNameError(
                f"--outputs: '{name}' is not computed from the inputs, so there is nothing to extract."
            )
    if not outputs:
        raise UnknownNameError(
            "--outputs: no node computes an output of the model; name a tensor that one computes."
        )
    piece = between(network, inputs, outputs)
    chosen = set(piece.nodes)
    reached = set(piece.inputs)
    for name in inputs:
        maker = network.producer.get(name)
        # A node cannot be cut from one of its outputs and computed for another.
        if maker in chosen:
            raise UnknownNameError(
                f"--inputs: {network.describe(maker)}, which makes '{name}', is needed for its other outputs; name those too."
            )
        if name not in reached:
            raise UnknownNameError(f"--inputs: no output depends on '{name}'; drop it.")
    return splice(network, piece, infos, nothing_stored).proto, list(piece.inputs)


def _no_tensor(network: Network, option: str, name: str) -> UnknownNameError:
    """Return the error for another name, such as a node's, in place of a tensor's."""
    for index, node in enumerate(network.nodes):
        if node.name == name:
            outputs = quoted(network.made(index))
            return UnknownNameError(
                f"{option}: '{name}' is a node ({node.op_type}), not a tensor; name its output: {outputs}."
            )
    listed = "`bisect-trt inspect model FILE --show layers` lists all"
    names = (*network.inputs, *network.producer, *network.initializers)
    return UnknownNameError(f"{option}: the model has no tensor '{name}'. {listed}.", name, names)


_FROZEN_ELEMENTS = 64
"""The most elements of an integer vector that is treated as a shape, a pad or an index."""


class Isolated(Struct, frozen=True):
    """A model in which no node reads another's output.

    Attributes:
        proto: The model; its outputs have the original's names.
        fed: The original's tensor for each input that is no graph input.
        outputs: The outputs, in topological order.
        left_out: Requested tensors that are no outputs, with the reason.
    """

    proto: onnx.ModelProto
    fed: dict[str, str]
    outputs: Names
    left_out: dict[str, str]


def is_frozen(info: TensorInfo) -> bool:
    """Return whether a tensor is stored in an isolated model: TensorRT has to know shapes when it builds."""
    size = info.nbytes
    vector = len(info.shape or ()) <= 1
    return (
        info.dtype.kind in "iu"
        and vector
        and size is not None
        and size <= _FROZEN_ELEMENTS * info.dtype.itemsize
    )


def _why_not_isolated(computed: Sequence[str], infos: Infos, frozen: Values) -> str | None:
    """Return why a node that reads some computed tensors has nothing to show alone, if so."""
    for name in computed:
        if name not in infos:
            return f"the reference has no value of '{name}', which its node reads"
    if frozen.keys() >= {*computed}:
        return "its node reads nothing but shapes, indices and weights"
    return None


def isolate(network: Network, names: Iterable[str], infos: Infos, frozen: Values) -> Isolated:
    """Return the model that computes each tensor by its own node from reference values, so that no error spreads.

    A computed tensor that some node reads becomes an input with a new name, because its own name is
    an output's; the tensors in ``frozen`` are stored instead. Graph inputs keep their names. Nodes
    that only make weights are included.

    Args:
        network: The original model.
        names: The tensors to compute; the nodes that make them are isolated.
        infos: Types and static shapes of all tensors of which the reference has a value.
        frozen: Values of the tensors to store in the model, by name; see :func:`is_frozen`.
    """
    chosen: list[int] = []
    left_out: dict[str, str] = {}
    read: dict[str, None] = {}
    for index in network.in_order({network.producer[name] for name in names}):
        computed = network.computed_reads(index)
        reason = _why_not_isolated(computed, infos, frozen)
        if reason is None:
            chosen.append(index)
            read |= dict.fromkeys(computed)
        else:
            left_out |= dict.fromkeys(network.made(index), reason)
    outputs = [name for name in network.made_by(chosen) if name in infos]
    graph_inputs = set(network.inputs)
    renamed = {
        name: free_name(f"{name}_reference", network.names)
        for name in read
        if name not in graph_inputs
    }
    ends = {renamed.get(name, name): name for name in read}
    inputs = [end for end, name in ends.items() if name not in frozen]
    makers = network.in_order(network.leading_to(chosen, network.is_weight).difference(chosen))
    detached = {index: rename_reads(network.nodes[index], renamed) for index in chosen}
    isolated_infos = {
        **infos,
        **{end: replace(infos[ends[end]], name=end) for end in inputs},
    }
    model = splice(
        network,
        Selection([*makers, *chosen], inputs, outputs, detached),
        isolated_infos,
        lambda end: numpy_helper.from_array(frozen[ends[end]], end),
    )
    return Isolated(
        model.proto,
        {end: ends[end] for end in inputs if end not in graph_inputs},
        tuple(outputs),
        left_out,
    )


MOST_NODES = 8192
"""The most nodes of a slice, in networks of up to sixteen slices. ONNX Runtime 1.31.1 opens a model
with every tensor as an output in quadratic time: 0.2 s for 5,000 nodes, 2.2 s for 20,000, 9.5 s for
50,000."""
_MOST_SLICES = 16
"""The most slices: each rewrites the index of the activations."""


def plan_slices(
    network: Network, nodes: Sequence[int], limit: int, max_nodes: int = MOST_NODES
) -> list[list[int]]:
    """Divide the nodes that make no weights into slices that run in turn, with less memory than the whole and opened faster.

    Runtimes cannot fuse nodes if every tensor is an output, so the slices compute the same as the
    whole.

    Args:
        network: The model.
        nodes: Some of its nodes, in topological order.
        limit: The most bytes of weights and tensors of a slice, where their sizes are known; a
            single node may have more.
        max_nodes: The most nodes of a slice; a sixteenth of all nodes if that is more.
    """
    # A large network gets larger slices rather than more: each slice has a fixed cost.
    max_nodes = max(max_nodes, len(nodes) // _MOST_SLICES)
    infos = network.infos
    slices = list[list[int]]([[]])
    size = 0
    weights = set[str]()
    for index in nodes:
        if network.constant[index]:
            continue
        fresh = {name for name in network.reads[index] if name in network.initializers} - weights
        output_bytes = sum(infos[name].nbytes or 0 for name in network.made(index) if name in infos)
        cost = output_bytes + sum(tensor_bytes(network.initializers[name]) for name in fresh)
        if slices[-1] and (size + cost > limit or len(slices[-1]) >= max_nodes):
            slices.append([])
            size = 0
            weights = set()
        slices[-1].append(index)
        size += cost
        # In place: a copy for each node takes seconds for 20,000.
        weights |= fresh
    return slices
