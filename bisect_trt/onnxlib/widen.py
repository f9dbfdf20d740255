"""A copy of a model that computes in float64 what the original computes in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from bisect_trt.onnxlib.external_data import model_tensors
from bisect_trt.onnxlib.nodes import bodies

_TYPES = ("to", "dtype", "stash_type", "output_dtype")
"""Attributes that name an element type."""


def widened(model: onnx.ModelProto, weights: Path) -> onnx.ModelProto:
    """The model in float64: every float32 tensor, weight, constant and Cast to float32 becomes float64.

    Other types stay what they are: a Cast to fp16 is a rounding that the model asks for.

    Args:
        model: The model; it is not changed.
        weights: The folder of the files of its weights.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in model_tensors(wide):
        if tensor.data_type == TensorProto.FLOAT and uses_external_data(tensor):  # all others stay where they are
            load_external_data_for_tensor(tensor, str(weights))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    _widen_graph(wide.graph)
    for function in wide.functions:
        for node in function.node:
            _widen_node(node)
    return wide


def _widen_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.array(value, np.float32).astype(np.float64))
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, np.float64))
        node.attribute.append(onnx.helper.make_attribute("value", zero))
    for body in bodies(node):
        _widen_graph(body)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
