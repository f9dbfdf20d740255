"""Fusion barriers: a node between a tensor and its readers that computes nothing, and that no runtime looks through."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import rename_reads
from bisect_trt.tensors.info import TensorInfo

_SINCE = {"f": 8, "i": 12, "u": 12}
"""From which opset on ``Max`` takes values of this kind, and as many as one likes."""
_WIDE = 4
"""Bytes of the integers that it takes everywhere."""


def can_bar(info: TensorInfo | None, opset: int) -> bool:
    """Whether there is a barrier for a tensor of this type."""
    if info is None or info.dtype.kind not in _SINCE or opset < _SINCE[info.dtype.kind]:
        return False
    return info.dtype.kind == "f" or info.dtype.itemsize >= _WIDE


def with_barriers(network: Network, names: Collection[str]) -> onnx.ModelProto:
    """The model with a barrier behind each of some tensors: ``Max(t, t)``, which their readers read instead.

    Element by element the greater of a value and itself is that value, NaN too, in any precision. Names of the tensors stay,
    also where they are outputs.

    Args:
        network: The model; it is not changed.
        names: Inputs of the graph, or tensors that nodes make.
    """
    taken = {*network.inputs, *network.initializers, *network.producer}
    barred: dict[str, str] = {}
    for name in names:
        new = f"{name}/barrier"
        while new in taken:
            new += "_"
        barred[name] = new
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    graph = model.graph
    del graph.node[:]
    graph.node.extend(_barrier(name, barred) for name in network.inputs if name in barred)
    order = range(len(network.nodes)) if network.is_sorted else network.order
    for index in order:
        reads = barred.keys() & set(network.reads[index])
        graph.node.append(rename_reads(network.nodes[index], barred) if reads else network.nodes[index])
        graph.node.extend(_barrier(name, barred) for name in network.made(index) if name in barred)
    return model


def _barrier(name: str, barred: Mapping[str, str]) -> onnx.NodeProto:
    return onnx.helper.make_node("Max", [name, name], [barred[name]], name=barred[name])
