"""The IR version that a model needs, by what is in it: runtimes refuse a file whose version is newer than they are.

What a version brought is what onnx.proto says of it (``Version``), and which one an operator set came with is in ONNX's own table
(``onnx.helper.OP_SET_ID_VERSION_MAP``). Exporters write the newest version they know, whatever the model is made of: a model of
opset 13 that is written as IR version 10 is refused by ONNX Runtime before 1.18 for that number alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import TensorProto
from onnx.helper import find_min_ir_version_for

from bisect_trt.graph.surgeon import IR_WITHOUT_INITIALIZER_INPUTS

_FIELDS = {
    "GraphProto.quantization_annotation": 5,
    "GraphProto.sparse_initializer": 6,
    "AttributeProto.sparse_tensor": 6,
    "AttributeProto.sparse_tensors": 6,
    "ModelProto.training_info": 7,
    "ModelProto.functions": 8,
    "AttributeProto.tp": 8,
    "AttributeProto.type_protos": 8,
    "TypeProto.optional_type": 8,
    "TypeProto.sparse_tensor_type": 8,
    "FunctionProto.attribute_proto": 9,
    "FunctionProto.overload": 10,
    "FunctionProto.value_info": 10,
    "NodeProto.overload": 10,
    "ModelProto.configuration": 11,
    "NodeProto.device_configurations": 11,
}
"""The version that brought a field. Notes (``metadata_props``, of nodes since 10) are not here: they say nothing of what is
computed, and a runtime that does not know the field passes over it, as protobuf does."""
_TYPES = {
    "FLOAT8E4M3FN": 9,
    "FLOAT8E4M3FNUZ": 9,
    "FLOAT8E5M2": 9,
    "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10,
    "INT4": 10,
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    "UINT2": 13,
    "INT2": 13,
}
"""The version that brought an element type."""
_PLAIN = frozenset({"opset_import", "shape", "metadata_props"})
"""Fields with messages that are of every version."""
_NAMES: dict[int, str] = {number: name for name, number in TensorProto.DataType.items()}
_STANDARD = "ai.onnx"


def needed_ir_version(model: onnx.ModelProto) -> int:
    """The lowest IR version, of 4 and later, that has all that is in a model; the model's own where that cannot be told.

    Before version 4 an initializer means something else.
    """
    if not IR_WITHOUT_INITIALIZER_INPUTS < model.ir_version <= onnx.IR_VERSION:
        return model.ir_version
    opsets = [*model.opset_import, *(each for function in model.functions for each in function.opset_import)]
    standard = [each for each in opsets if not each.domain or each.domain.split(".")[:2] == _STANDARD.split(".")]
    try:
        least = max(IR_WITHOUT_INITIALIZER_INPUTS, find_min_ir_version_for(standard))
    except ValueError:  # an operator set that this ONNX does not know
        return model.ir_version
    if least >= model.ir_version:
        return model.ir_version
    return min(model.ir_version, max((least, *_needs(model))))


def _needs(model: onnx.ModelProto) -> Iterator[int]:
    """The version that brought each thing in a model which older ones lack."""
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, TensorProto):  # of which the values are not copied
            yield _type(message.data_type)
            continue
        kind = message.DESCRIPTOR.name
        for field, value in message.ListFields():
            yield _FIELDS.get(f"{kind}.{field.name}", 0)
            if field.name == "elem_type" and isinstance(value, int):
                yield _type(value)
            elif field.message_type is not None and field.name not in _PLAIN:
                waiting += _messages(value)


def _messages(value: Any) -> Sequence[Message]:  # noqa: ANN401 - what a field holds
    return [value] if isinstance(value, Message) else list(value)


def _type(number: int) -> int:
    return 0 if number <= TensorProto.BFLOAT16 else _TYPES.get(_NAMES.get(number, ""), onnx.IR_VERSION)
