"""ONNX's shape inference of a network, a stretch of nodes at a time.

Its C++ part takes some 2 kB a node beside the model, which Python's memory cannot use afterwards: 40 MB for 20,000 nodes, where
the parsed model has 11. What it finds of a node follows from the types of what the node reads, from initializers and from
``Constant`` nodes, so a large network is done in stretches that hand their types on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import onnx

from bisect_trt.graph.values import Declarations

if TYPE_CHECKING:
    from bisect_trt.graph.network import Network

AT_ONCE = 2048
"""Nodes of a stretch. Below twice as many the whole is done at once."""
_LIMIT_BYTES = 1 << 30
"""Shape inference makes a copy, and no message can be of more than twice this."""
_IR_WITHOUT_INITIALIZER_INPUTS = 4
"""From this version on an initializer need not be an input too, so that no stretch has to say so."""


def infer(network: Network, at_once: int = AT_ONCE) -> Declarations:
    """The types that are found, together with the declared ones, of sequences too, by name; none where inference gives up.

    Args:
        network: The model.
        at_once: Nodes of a stretch.
    """
    if network.proto.ByteSize() > _LIMIT_BYTES:
        return Declarations()
    try:
        if len(network.nodes) < 2 * at_once:
            graph = onnx.shape_inference.infer_shapes(_sorted(network)).graph
            return Declarations(chain(graph.value_info, graph.output))
        graph = network.proto.graph
        found = Declarations(value for value in chain(graph.value_info, graph.output) if value.HasField("type"))
        known = network.declared | found
        for start in range(0, len(network.order), at_once):
            stretch = network.order[start : start + at_once]
            for value in _of(network, stretch, known):
                found.put(value)
            made = (name for index in stretch for name in network.made(index))
            known.kinds.update((name, found.kinds[name]) for name in made if name in found)
    except Exception:  # it gives up as a whole on what it does not understand, in several ways
        return Declarations()
    return found


def _sorted(network: Network) -> onnx.ModelProto:
    """The model, with its nodes in an order that inference takes."""
    if network.is_sorted:
        return network.proto
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    del model.graph.node[:]
    model.graph.node.extend(network.nodes[index] for index in network.order)
    return model


def _of(network: Network, stretch: Sequence[int], known: Declarations) -> Iterable[onnx.ValueInfoProto]:
    """What is found of a stretch.

    Args:
        network: The model.
        stretch: Nodes that follow each other in topological order.
        known: What is known of the tensors that it reads.
    """
    source, inside = network.proto, set(stretch)
    before = {parent for index in stretch for parent in network.parents(index)} - inside
    constants = [index for index in sorted(before) if network.nodes[index].op_type == "Constant"]
    nodes = [*constants, *stretch]
    made = {name for index in nodes for name in network.made(index)}
    model = onnx.ModelProto(ir_version=max(source.ir_version, _IR_WITHOUT_INITIALIZER_INPUTS))
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    graph = model.graph
    graph.node.extend(network.nodes[index] for index in nodes)
    for name in dict.fromkeys(name for index in stretch for name in network.reads[index]):
        if name in network.initializers:
            graph.initializer.append(network.initializers[name])
        elif name in network.sparse_initializers:
            graph.sparse_initializer.append(network.sparse_initializers[name])
        elif name not in made and name in known:
            graph.input.append(known[name])
    graph.value_info.extend(known[name] for name in made if name in known and name not in network.returned)
    graph.output.extend(known[name] for name in network.outputs if name in made and name in known)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return (*inferred.value_info, *inferred.output)
