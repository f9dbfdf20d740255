"""Element types: those that a model can be lowered to, and those that its tensors have."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import onnx
from onnx import ModelProto, TensorProto, helper

from bisect_trt.errors import UsageError

LOW_TYPES: dict[str, int] = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""The precisions that a model can be lowered to, and ONNX's element types for them."""
LOW_NAMES = {element: name for name, element in LOW_TYPES.items()}
FIRST_OPSET: dict[int, int] = {TensorProto.FLOAT16: 6, TensorProto.BFLOAT16: 13}
"""The first opset with a Cast to it; Cast names its type by number, as lowering does, since opset 6."""
FIRST_IR_WITH_FREE_INITIALIZERS = 4  # before it, every initializer is listed as a graph input too
DEFAULT_DOMAINS = ("", "ai.onnx")
CONSTANT_OPS = ("Constant", "ConstantOfShape")


def tensor_dtypes(model: ModelProto, known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Finds the element type of the main graph's tensors.

    Types need no values, so shape inference sees the weights as inputs: it is then never given more than 2 GB.

    Args:
        model: The model; external data is not read.
        known: Types that ONNX cannot infer, such as those behind a custom operator.

    Returns:
        ``TensorProto.DataType`` by tensor name. Sequences, optionals and what nobody knows are not in it.
    """
    graph = model.graph
    skeleton = ModelProto(ir_version=max(model.ir_version, FIRST_IR_WITH_FREE_INITIALIZERS))
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    bare = skeleton.graph
    bare.name = graph.name
    bare.node.extend(graph.node)
    bare.output.extend(graph.output)
    bare.value_info.extend(graph.value_info)
    bare.input.extend(graph.input)
    listed = {value.name for value in graph.input}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights.update({sparse.values.name: sparse.values for sparse in graph.sparse_initializer})
    for name, tensor in weights.items():
        if name not in listed:
            bare.input.append(helper.make_tensor_value_info(name, tensor.data_type, None))
    with contextlib.suppress(Exception):  # a model ONNX cannot infer (an opset newer than it, say) keeps what it states
        bare = onnx.shape_inference.infer_shapes(skeleton).graph
    dtypes = dict(known or {})
    for value in (*bare.value_info, *bare.output, *bare.input):
        if value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.elem_type:
            dtypes[value.name] = value.type.tensor_type.elem_type
    return dtypes


def check_opset(model: ModelProto, low: int) -> int | None:
    """Make sure that the model's operators can be lowered.

    Returns:
        The version of ONNX's own operators; ``None`` if the model has only others.

    Raises:
        UsageError: Its opset has no Cast to ``low``.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx"))
    if opset is not None and opset < FIRST_OPSET[low]:
        raise UsageError(
            f"The model has opset {opset}; {LOW_NAMES[low]} lowering needs {FIRST_OPSET[low]} or later: convert it with "
            "onnx.version_converter first."
        )
    return opset
