"""The inputs of a graph: their types and shapes, and the tables that they index."""

from __future__ import annotations

import onnx

from bisect_trt.errors import ModelFileError, UnsuitableModelError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import attribute
from bisect_trt.onnxlib.shapes import declare_input, element_dtype, to_info
from bisect_trt.tensors.info import TensorInfo

_KEEPS_VALUES = (
    "Cast",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Flatten",
    "Identity",
    "Transpose",
    "Expand",
)
"""Operators that leave the values of indices as they are."""


def table_sizes(network: Network) -> dict[str, int]:
    """The number of entries of the smallest table that a graph input indexes, by the input's name.

    An input that also indexes a tensor of another size than a stored table's is left out.
    """
    sizes: dict[str, int] = {}
    for input_name in network.inputs:
        reached = [input_name]
        tables = list[int | None]()
        # The list grows while it is read.
        for name in reached:
            for node in (network.nodes[reader] for reader in network.consumers.get(name, ())):
                if node.op_type.startswith(("Gather", "Scatter")) and node.input[1] == name:
                    tables.append(_entries(network, node))
                if node.op_type in _KEEPS_VALUES and node.input[0] == name:
                    reached.append(node.output[0])
        counts = [size for size in tables if size is not None]
        if counts and len(counts) == len(tables):
            sizes[input_name] = min(counts)
    return sizes


def _entries(network: Network, node: onnx.NodeProto) -> int | None:
    """Return the number of entries of the table of a Gather; ``None`` if it is not stored, or another operator indexes."""
    name = node.input[0]
    # A quantized or converted table has the entries of the stored one.
    while (maker := network.producer.get(name)) is not None:
        if network.nodes[maker].op_type not in ("DequantizeLinear", "Cast", "Identity"):
            break
        name = network.nodes[maker].input[0]
    table = network.stored(name)
    if node.op_type != "Gather" or table is None or not table.dims:
        return None
    return int(table.dims[attribute(node, "axis", 0)])


def input_infos(network: Network) -> list[TensorInfo]:
    """Return the type and shape of each graph input that must be fed, in order.

    Raises:
        UsageError: An input is no tensor (a sequence, map or optional).
        UnavailableError: An input declares no type, or an unknown one.
    """
    infos = []
    for name in network.inputs:
        value = network.declared.get(name)
        if value is None:
            raise ModelFileError(
                f"the input '{name}' declares no type, so the model is not valid ONNX; export it again."
            )
        info = to_info(value)
        if info is None:
            if value.type.tensor_type.elem_type:
                # Raises the error with the reason.
                element_dtype(value.type.tensor_type.elem_type)
            raise UnsuitableModelError(
                f"the input '{name}' is no plain tensor; bisect-trt feeds only plain tensors."
            )
        infos.append(info)
    return infos


def take_input_shapes(model: onnx.ModelProto, network: Network) -> None:
    """Declare a model's inputs with the shapes of another graph's inputs, free dimensions included."""
    for info in input_infos(network):
        for value in model.graph.input:
            if value.name == info.name and info.shape is not None and to_info(value) != info:
                declare_input(value, info.shape)
