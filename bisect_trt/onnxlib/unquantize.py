"""Copies of a model without some of its QuantizeLinear/DequantizeLinear pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import TensorProto, helper

from bisect_trt.onnxlib.cleanup import remove_unread
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone, keep_only, rename_reads
from bisect_trt.onnxlib.qdq import Pair, is_dequantize

Stored = Mapping[str, TensorProto]
"""Initializers by name."""


def unquantize(network: Network, pairs: Iterable[Pair], weights: Stored) -> onnx.ModelProto:
    """The model without some of its pairs, and without what only they read. Names of what is left do not change.

    Args:
        network: The model.
        pairs: What is taken out.
        weights: For weights that are stored quantized, by what dequantizes them makes: the same in floats.
    """
    model = clone(network.proto)
    graph = model.graph
    gone: set[int] = set()
    instead: dict[str, str] = {}
    passed: dict[int, Pair] = {}
    retyped: set[str] = set()
    for pair in pairs:
        gone.update(pair.nodes)
        for index in pair.quantize:
            node = network.nodes[index]
            instead[node.output[0]] = node.input[0]
            retyped.update(_moved(network, node.output[0]))
        for index in pair.dequantize:
            node = network.nodes[index]
            if not pair.quantize:
                graph.initializer.append(weights[node.output[0]])
            elif node.output[0] in network.returned or pair.clip is not None or _is_cast(network, pair, node):
                passed[index] = pair  # an output keeps its name, and a tensor its type
            else:
                instead[node.output[0]] = node.input[0]
    final = {name: _end(name, instead) for name in instead}
    kept: list[onnx.NodeProto] = []
    for index, node in enumerate(network.nodes):
        if index in passed:
            source = node.input[0]
            kept += _passed_on(network, passed[index], final.get(source, source), node.output[0])
        elif index not in gone:
            kept.append(rename_reads(node, final))
    keep_only(graph.node, kept)
    retyped.update(network.nodes[index].output[0] for index in gone.difference(passed))
    keep_only(graph.value_info, [value for value in graph.value_info if value.name not in retyped])
    remove_unread(model)
    return model


def _moved(network: Network, name: str) -> list[str]:
    """A quantized tensor and those behind it, up to what dequantizes them: they become floats."""
    readers = [index for index in network.consumers.get(name, ()) if not is_dequantize(network.nodes[index])]
    return [name, *(each for index in readers for made in network.made(index) for each in _moved(network, made))]


def _end(name: str, instead: Mapping[str, str]) -> str:
    while name in instead:
        name = instead[name]
    return name


def _is_cast(network: Network, pair: Pair, node: onnx.NodeProto) -> bool:
    """Whether floats of another type are made than were quantized."""
    ends = (network.nodes[pair.quantize[0]].input[0], node.output[0])
    return len({network.element_types[name] for name in ends if name in network.element_types}) > 1


def _passed_on(network: Network, pair: Pair, name: str, to: str) -> Iterator[onnx.NodeProto]:
    """What gives a tensor another name, its type where that is another one, and its activation where the pair was that too."""
    before, after = (network.element_types.get(each, 0) for each in (name, to))
    cast = bool(before and after and before != after)
    low, high = pair.clip or (None, None)
    steps = [("Relu", None)] if low == 0 and high is None else [("Max", low), ("Min", high)]
    steps = [(op, bound) for op, bound in steps if op == "Relu" or (bound is not None and math.isfinite(bound))]
    # Max and Min with a constant are the same in all operator sets; Clip is not.
    for place, (op, bound) in enumerate(steps if pair.clip else ()):
        last = place == len(steps) - 1 and not cast
        made, inputs = to if last else f"{to}/{op}_output", [name]
        if bound is not None:
            limit = f"{to}/{op}_bound"
            value = helper.make_tensor(f"{limit}_value", before or TensorProto.FLOAT, [], [bound])
            yield helper.make_node("Constant", [], [limit], name=limit, value=value)
            inputs.append(limit)
        yield helper.make_node(op, inputs, [made], name=f"{to}/{op}")
        name = made
    if cast:
        yield helper.make_node("Cast", [name], [to], name=f"{to}/unquantized", to=after)
    elif name != to:
        yield helper.make_node("Identity", [name], [to], name=f"{to}/unquantized")
