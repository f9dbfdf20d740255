"""A cut without graphsurgeon, straight from the messages: what the package's own is held against."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx

from bisect_trt.onnxlib.cut import PRODUCER, Cut, Spliced
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import value_info
from bisect_trt.tensors.info import TensorInfo

_IR_WITHOUT_INITIALIZER_INPUTS = 4
"""Before IR version 4 every initializer had to be listed among the graph's inputs."""

ConstantValue = Callable[[str], onnx.TensorProto]
"""Gives the value of a tensor that a constant node makes."""


def cut_by_hand(
    network: Network,
    chosen: Collection[int],
    infos: Mapping[str, TensorInfo],
    stored: ConstantValue,
) -> Cut:
    """Make a model of exactly the chosen nodes.

    Its inputs are the non-constant tensors that they read and do not make; its outputs what they make and a node outside
    reads, or the graph returns. A chosen node that nothing reads keeps its outputs, so that no runtime drops it. A weight
    whose maker is not chosen becomes an initializer.

    Args:
        network: The original.
        chosen: Node numbers.
        infos: Type and shape of each tensor that may become an input or an output, where known.
        stored: Gives the values of the weights whose makers are not chosen.

    Returns:
        The model; names of nodes and tensors are the original's.
    """
    nodes = sorted(chosen, key=network.rank.__getitem__)
    inside = set(nodes)
    fed = set(network.inputs)
    inputs: dict[str, None] = {}
    weights: dict[str, onnx.TensorProto | None] = {}
    for index in nodes:
        for name in network.reads[index]:
            maker = network.producer.get(name)
            if maker in inside:
                continue
            if name in fed or (maker is not None and not network.constant[maker]):
                inputs[name] = None
            elif name not in weights:
                weights[name] = None if maker is None else stored(name)
    outputs = _outputs(network, nodes, inside)
    proto = _assemble(network, nodes, tuple(inputs), outputs, weights, infos)
    return Cut(Spliced(proto.SerializeToString(deterministic=True), inside=False), tuple(inputs), tuple(outputs))


def _outputs(network: Network, nodes: Sequence[int], inside: set[int]) -> list[str]:
    returned = set(network.outputs)
    outputs: list[str] = []
    for index in nodes:
        made = network.made(index)
        read_inside = False
        shown: list[str] = []
        for name in made:
            readers = network.consumers.get(name, ())
            outside = not inside.issuperset(readers)
            read_inside = read_inside or not inside.isdisjoint(readers)
            # A weight that others read too is not a result: they bring its maker along, or store it.
            if name in returned or (outside and not network.constant[index]):
                shown.append(name)
        outputs += shown if shown or read_inside else made
    return outputs


def _assemble(
    network: Network,
    nodes: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Mapping[str, onnx.TensorProto | None],
    infos: Mapping[str, TensorInfo],
) -> onnx.ModelProto:
    """Make a model of nodes whose ends are known.

    Args:
        network: The original.
        nodes: Node numbers, in topological order.
        inputs: What to feed, in order.
        outputs: What to give back, in order.
        weights: All other tensors that the nodes read and do not make; ``None`` stands for the original's initializer.
        infos: As for :func:`cut_by_hand`.
    """
    source = network.proto
    model = onnx.ModelProto(ir_version=source.ir_version, producer_name=PRODUCER, domain=source.domain)
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    graph = model.graph
    graph.name = source.graph.name or "graph"
    graph.node.extend(network.nodes[index] for index in nodes)
    boundary = {*inputs, *outputs}
    # Shape inference costs a moment, and says what a run cannot: the types of sequences, and of what did not run.
    types = network.declared if boundary <= infos.keys() else {**network.declared, **network.inferred}
    graph.input.extend(value_info(name, infos, types) for name in inputs)
    graph.output.extend(value_info(name, infos, types) for name in outputs)
    for name, value in weights.items():
        if value is not None:
            graph.initializer.append(value)
        elif name in network.initializers:
            graph.initializer.append(network.initializers[name])
        else:
            graph.sparse_initializer.append(network.sparse_initializers[name])
    if model.ir_version < _IR_WITHOUT_INITIALIZER_INPUTS:
        graph.input.extend(_initializer_inputs(graph.initializer, network.declared))
    inner = {name for index in nodes for name in network.made(index)} - boundary
    graph.value_info.extend(value for value in source.graph.value_info if value.name in inner)
    return model


def _initializer_inputs(
    initializers: Iterable[onnx.TensorProto], declared: Mapping[str, onnx.ValueInfoProto]
) -> Iterable[onnx.ValueInfoProto]:
    for tensor in initializers:
        known = declared.get(tensor.name)
        yield known or onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def normalised(model: onnx.ModelProto) -> bytes:
    """A model's bytes with all that has no order of its own sorted by name, its nodes too."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    for field in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer, graph.sparse_initializer):
        entries = sorted((entry.SerializeToString(deterministic=True), entry) for entry in field)
        kept = [type(entry).FromString(content) for content, entry in entries]
        del field[:]
        field.extend(kept)
    return bytes(copy.SerializeToString(deterministic=True))
