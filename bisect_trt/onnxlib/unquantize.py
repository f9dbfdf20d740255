"""Take QuantizeLinear/DequantizeLinear pairs out of a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx
from onnx import TensorProto, helper

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import reads, rename_reads
from bisect_trt.onnxlib.qdq import Pair

Stored = Mapping[str, TensorProto]
"""Initializers by name."""


def unquantize(network: Network, pairs: Iterable[Pair], weights: Stored) -> onnx.ModelProto:
    """A model without some of its pairs. Names of what is left do not change.

    Args:
        network: The model.
        pairs: What is taken out.
        weights: For weights that are stored quantized, by what dequantizes them makes: the same in floats.

    Returns:
        The model; what only the pairs read is gone too.
    """
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    graph = model.graph
    gone: set[int] = set()
    instead: dict[str, str] = {}
    moved: list[str] = []
    outputs, passed = set(network.outputs), dict[int, Pair]()
    for pair in pairs:
        gone.update(pair.nodes)
        for index in pair.quantize:
            node = network.nodes[index]
            instead[node.output[0]] = node.input[0]
            moved += _moved(network, node.output[0])
        for index in pair.dequantize:
            node = network.nodes[index]
            if pair.quantize:
                instead[node.output[0]] = node.input[0]
                if node.output[0] in outputs or pair.clip is not None or _is_cast(network, pair, node):
                    passed[index] = pair  # an output keeps its name, and a tensor its type
            else:
                graph.initializer.append(weights[node.output[0]])
    ends = {index: network.nodes[index].output[0] for index in passed}
    sources = {index: instead.pop(made) for index, made in ends.items()}
    finally_ = {name: _end(name, instead) for name in instead}
    kept = []
    for index, node in enumerate(graph.node):
        if index in passed:
            kept += _passed_on(network, passed[index], finally_.get(sources[index], sources[index]), ends[index])
        elif index not in gone:
            kept.append(rename_reads(node, finally_))
    del graph.node[:]
    graph.node.extend(kept)
    _forget(graph, {*moved, *(network.nodes[index].output[0] for index in gone.difference(passed))})
    drop_unused(model)
    return model


def _moved(network: Network, name: str) -> list[str]:
    """The quantized tensors behind one, up to what dequantizes them: they become floats."""
    found = [name]
    for index in network.consumers.get(name, ()):
        if network.nodes[index].op_type != "DequantizeLinear":
            found += [each for made in network.made(index) for each in _moved(network, made)]
    return found


def _end(name: str, instead: Mapping[str, str]) -> str:
    while name in instead:
        name = instead[name]
    return name


def _type(network: Network, name: str) -> int:
    declared = network.declared.get(name) or network.inferred.get(name)
    return 0 if declared is None else int(declared.type.tensor_type.elem_type)


def _is_cast(network: Network, pair: Pair, node: onnx.NodeProto) -> bool:
    """Whether floats of another type are made than were quantized."""
    before, after = _type(network, network.nodes[pair.quantize[0]].input[0]), _type(network, node.output[0])
    return bool(before and after and before != after)


def _passed_on(network: Network, pair: Pair, name: str, to: str) -> list[onnx.NodeProto]:
    """What gives a tensor another name, its type where that is another one, and its activation where the pair was that too."""
    before, after = _type(network, name), _type(network, to)
    cast = bool(before and after and before != after)
    if pair.clip is None:
        node = helper.make_node("Identity", [name], [to], name=f"{to}/unquantized")
        return [helper.make_node("Cast", [name], [to], name=f"{to}/unquantized", to=after) if cast else node]
    (low, high), made = pair.clip, f"{to}/clipped" if cast else to
    if high is None and low == 0:
        nodes = [helper.make_node("Relu", [name], [made], name=f"{to}/Relu")]
    else:
        nodes = list(_bounded(name, to, {"Max": low, "Min": high}, before or TensorProto.FLOAT))
        nodes[-1].output[0] = made
    if cast:
        nodes.append(helper.make_node("Cast", [made], [to], name=f"{to}/unquantized", to=after))
    return nodes


def _bounded(name: str, to: str, bounds: Mapping[str, float | None], element: int) -> Iterator[onnx.NodeProto]:
    """A Clip, in operators that are the same in all operator sets: Max and Min with a constant."""
    for op, bound in bounds.items():
        if bound is None or not math.isfinite(bound):
            continue
        limit, made = f"{to}/{op}_bound", f"{to}/{op}_output"
        value = helper.make_tensor(f"{limit}_value", element, [], [bound])
        yield helper.make_node("Constant", [], [limit], name=limit, value=value)
        yield helper.make_node(op, [name, limit], [made], name=f"{to}/{op}")
        name = made


def _forget(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Drop what is declared of tensors that are gone, or of another type now."""
    kept = [value for value in graph.value_info if value.name not in names]
    if len(kept) < len(graph.value_info):
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
        del graph.value_info[:]
        graph.value_info.extend(copies)


def drop_unused(model: onnx.ModelProto) -> None:
    """Drop initializers, and nodes that make constants, that nobody reads, in place."""
    graph = model.graph
    while True:
        read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
        spare = [
            i
            for i, node in enumerate(graph.node)
            if not any(name in read for name in node.output) and (not any(node.input) or _is_scale_of(node))
        ]
        for index in reversed(spare):
            del graph.node[index]
        if not spare:
            break
    given = {value.name for value in graph.input}
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in read | given:
            del graph.initializer[place]


def _is_scale_of(node: onnx.NodeProto) -> bool:
    return node.op_type in ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")
