"""Which part of a model is on which rung of a ladder of precisions, and what an assignment of them costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from bisect_trt.graph.lower import LOW_TYPES, first_output
from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import attribute, held
from bisect_trt.graph.qdq import is_dequantize, is_quantize
from bisect_trt.graph.qdq_groups import HUB, find_quantized
from bisect_trt.options.choices import Cost
from bisect_trt.workflows.precision.lowering import known_types
from bisect_trt.workflows.precision.task import Task

_EPILOGUES = (
    *("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
    *("Add", "Mul", "BatchNormalization"),
)
"""What runtimes compute together with the operator before it, where the result is quantized again."""
_BITS = {
    **dict.fromkeys(("double", "int64", "uint64"), 64),
    **dict.fromkeys(("float", "int32", "uint32"), 32),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    **dict.fromkeys(("int2", "uint2"), 2),
}
"""Bits of an element, by its type; 8 where it is not said."""


def quantized_nodes(network: Network) -> dict[int, str]:
    """The nodes that are computed in quantized types, and their Q/DQ, each with its rung; what is left is in floats.

    An operator is, if what it reads comes out of Q/DQ; what follows it up to the next Q, one after the other, is computed
    with it. Of what more than a few operators read (a mask of all layers) that says nothing.
    """
    found: dict[int, str] = {}
    quantized = find_quantized(network)
    found |= dict.fromkeys(quantized.left, "int8")
    for group in quantized.groups:
        found |= {index: group.rung for pair in group.pairs for index in pair.nodes}
        if len(group.pairs) == 1 and len(group.operators) > HUB:
            continue
        for operator in group.operators:
            found |= dict.fromkeys((operator, *_epilogue(network, operator)), group.rung)
    return found


def _epilogue(network: Network, index: int) -> list[int]:
    """The nodes from an operator to the Q that quantizes what comes of it; none where there is none."""
    chain: list[int] = []
    while True:
        made = network.made(index)
        readers = [reader for name in made for reader in network.consumers.get(name, ())]
        if any(is_quantize(network.nodes[reader]) for reader in readers):
            return chain
        if len(readers) != 1 or network.nodes[readers[0]].op_type not in _EPILOGUES:
            return []
        index = readers[0]
        others = [name for name in network.nodes[index].input if name and name not in made]
        if any(name not in network.initializers and not _is_constant(network, name) for name in others):
            return []
        chain.append(index)


def _is_constant(network: Network, name: str) -> bool:
    maker = network.producer.get(name)
    return maker is not None and network.constant[maker]


def node_rungs(
    network: Network, quantized: Mapping[int, str], low: Collection[int], half: str | None, types: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Every node that computes in floats or quantized types, with its rung, in topological order.

    Args:
        network: The model, what is not to stay quantized taken back to floats.
        quantized: As :func:`quantized_nodes` says.
        low: The nodes that run in ``half``.
        half: The rung between; ``None`` if there is none.
        types: ONNX's element type of each tensor.
    """
    nodes = []
    for index in network.order:
        node = network.nodes[index]
        if network.constant[index] or is_quantize(node) or is_dequantize(node):
            continue
        if not any(types.get(name) == TensorProto.FLOAT for name in (*node.input, *node.output)):
            continue
        rung = quantized.get(index) or (half if index in low and half is not None else "fp32")
        nodes.append({**network.plain(index), "rung": rung})
    return nodes


def kept_units(task: Task) -> frozenset[int]:
    """The units of a search among nodes that its answer keeps in fp32."""
    network = task.subject.network
    kept = {name for node in task.result.extra["keep_fp32"] for name in node["outputs"]}
    return frozenset(u for u in task.lowering.units if not kept.isdisjoint(network.nodes[network.order[u]].output))


def rungs_of_nodes(task: Task) -> dict[str, Any]:
    """For the result of a search among nodes alone: which is on which rung."""
    network, rungs = task.subject.network, task.settings.rungs
    kept = kept_units(task)
    low = {network.order[unit] for unit in task.lowering.units if unit not in kept}
    nodes = node_rungs(network, {}, low, task.settings.half, known_types(task.subject))
    return {
        "rungs": [*rungs],
        "counts": {rung: sum(node["rung"] == rung for node in nodes) for rung in rungs},
        "nodes": nodes,
    }


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of what a model stores, each tensor in the type that its readers take it in.

    A weight that only QuantizeLinear or a Cast to a half precision reads counts as what these make: a runtime stores that.
    """
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if (tensor := held(node)) is not None:
            stored[node.output[0]] = tensor
    types = {name: tensor.data_type for name, tensor in stored.items()}
    taken: dict[str, list[int]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in stored:
                taken.setdefault(name, []).append(_taken_as(node, place, types))
    bits = 0
    for name, tensor in stored.items():
        as_types = taken.get(name, [])
        each = max((_bits(kind or tensor.data_type) for kind in as_types), default=_bits(tensor.data_type))
        bits += math.prod(tensor.dims) * each
    return (bits + 7) // 8


def _bits(kind: int) -> int:
    return _BITS.get(TensorProto.DataType.Name(kind).lower(), 8)


def _taken_as(node: onnx.NodeProto, place: int, types: Mapping[str, int]) -> int:
    """The type that a reader makes of a stored tensor; 0 where it takes it as it is."""
    if place == 0 and is_quantize(node):
        return types.get(node.input[2], TensorProto.UINT8) if len(node.input) > 2 else TensorProto.UINT8
    if node.op_type == "Cast":
        to = attribute(node, "to", 0)
        return int(to) if to in LOW_TYPES.values() else 0
    return 0


@dataclass(frozen=True)
class Assignment:
    """Precisions for all of a model, and what they cost.

    Attributes:
        name: The rungs that it uses, in words.
        bytes: Of weights; ``None`` where that is not known.
        latency: Milliseconds of one run; ``None`` where that was not measured.
    """

    name: str
    bytes: int | None
    latency: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "bytes": self.bytes, "latency_ms": self.latency}

    def cost(self, by: Cost) -> float:
        """What is compared; infinite where it is not known."""
        if by is Cost.BYTES:
            return math.inf if self.bytes is None else self.bytes
        return math.inf if self.latency is None else self.latency


def outputs_of(network: Network, nodes: Collection[int]) -> set[str]:
    """The names that nodes go by in all models that are made of one."""
    return {first_output(network.nodes[index]) for index in nodes}
