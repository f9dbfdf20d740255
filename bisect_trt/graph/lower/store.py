"""Weights that lie in another file, in the low precision."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from bisect_trt.graph.lower.rewriter import captured_names
from bisect_trt.graph.lower.round import lower_tensor


def store_weights(model: ModelProto, folder: Path, low: int = TensorProto.FLOAT16) -> None:
    """Rounds the external weights that pass a Cast to the low precision, and stores them in the model instead.

    One weight is read at a time. Those that fp32 nodes read too stay as they are as well.

    Args:
        model: What ``lower_fp16`` made with external data unloaded; changed in place.
        folder: Where its external data lies.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    graph = model.graph
    listed = {value.name for value in graph.input}  # an input may be overridden
    weights = {t.name: t for t in graph.initializer if uses_external_data(t) and t.name not in listed}
    stored: set[str] = set()
    nodes = []
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in weights and node.attribute[0].i == low:
            tensor = TensorProto()
            tensor.CopyFrom(weights[node.input[0]])
            load_external_data_for_tensor(tensor, str(folder))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
            graph.initializer.append(lower_tensor(tensor, node.output[0], low, back=False))
            stored.add(node.input[0])
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    used.update(value.name for value in graph.output)
    for name in stored - used:
        graph.initializer.remove(weights[name])
