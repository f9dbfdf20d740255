"""What has to hold of a model for anything here to read it; ONNX's checker asks for more, and also refuses what runs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.externals import model_tensors, tensor_bytes
from bisect_trt.graph.nodes import all_nodes, inner_nodes, label

EXPANDED_NODES = 250_000
"""A model whose functions would make more nodes than this, written out where they are called, is not read: shape
inference and runtimes write them out."""
_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""NumPy's own limit."""
_IR_WITH_ATTRIBUTE_TYPES = 2
_PER_BYTE = {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}
"""Types of which several elements share a byte (``onnx.proto``, TensorProto)."""
_NAMES: dict[int, str] = {number: name for name, number in TensorProto.DataType.items()}
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")

_Key = tuple[str, str, str]


def check_model(model: ModelProto) -> None:
    """Make sure that a model's names are text, its functions end, and its weights have the bytes of their shapes.

    Raises:
        UnavailableError: Something does not hold.
    """
    nodes = list(all_nodes(model))
    _check_names(model, nodes)
    _check_attributes(model)
    _check_functions(model)
    for tensor in model_tensors(model):
        _check_tensor(tensor)


def _check_names(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    graph = model.graph
    weights = [tensor.name for tensor in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    for what, names in (
        ("a graph input", [value.name for value in graph.input]),
        ("a weight", weights),
        ("a graph output", [value.name for value in graph.output]),
    ):
        _check_text(what, names)
        if not all(names):
            raise UnavailableError(f"{what} has no name, so the model is not valid ONNX; export it again.")
    _check_text("a tensor", (value.name for value in graph.value_info))
    _check_text("the model", (model.domain, graph.name))
    declared = (*graph.input, *graph.output, *graph.value_info)
    _check_text("a dimension", (dim.dim_param for value in declared for dim in value.type.tensor_type.shape.dim))
    for function in model.functions:
        _check_text("a function", (function.name, function.domain, *function.input, *function.output))
    _check_text("an operator set", (each.domain for each in model.opset_import))
    for node in nodes:
        _check_text("a node", (node.name, node.op_type, node.domain))
        _check_text("a tensor", (*node.input, *node.output))
        _check_text("an attribute", (attribute.name for attribute in node.attribute))
        if not node.op_type:
            raise UnavailableError(
                f"the node '{label(node)}' names no operator, so the model is not valid ONNX; export it again."
            )


def _check_attributes(model: ModelProto) -> None:
    """Make sure that what nodes outside functions are told is told: a reference means something inside them only."""
    for node in inner_nodes(model.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name or not (attribute.type or model.ir_version < _IR_WITH_ATTRIBUTE_TYPES):
                raise UnavailableError(
                    f"the attribute '{attribute.name}' of the {node.op_type} '{label(node)}' has no value"
                    " of a type that is known, so the model is not valid ONNX or newer than this version of it."
                )


def _check_text(what: str, names: Iterable[object]) -> None:
    """Names that are not UTF-8 are bytes to protobuf, whatever their type says."""
    for name in names:
        if isinstance(name, bytes):
            raise UnavailableError(
                f"the name {name!r} of {what} is not UTF-8 text, so the model is not valid ONNX; export it again."
            )


def _check_functions(model: ModelProto) -> None:
    """Make sure that no function is there twice, or leads to itself, and that all of them written out are not too many."""
    functions: dict[_Key, FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name, _overload(function))
        if key in functions:
            raise UnavailableError(
                f"the function '{function.name}' is there twice, so the model is not valid ONNX; export it again."
            )
        functions[key] = function
    sizes: dict[_Key, int] = {}
    for start in functions:
        path = [start]  # depth first, without recursion: functions may be nested thousands deep
        while path:
            key = path[-1]
            calls = [call for call in _calls(functions[key].node) if call in functions]
            missing = next((call for call in calls if call not in sizes), None)
            if missing is None:
                sizes[key] = sum(sizes.get(call, 1) for call in _calls(functions[key].node))
                path.pop()
            elif missing in path:
                raise UnavailableError(
                    f"the function '{missing[1]}' calls itself, so the model is not valid ONNX; export it again."
                )
            else:
                path.append(missing)
    whole = sum(sizes.get(call, 1) for call in _calls(model.graph.node))
    if functions and whole > EXPANDED_NODES:
        raise UnavailableError(
            f"its functions, written out where they are called, make {_amount(whole)} nodes, more than the {EXPANDED_NODES:,} "
            "that are read; export it without nested functions."
        )


def _amount(count: int) -> str:
    return f"{count:,}" if count < 10**12 else f"about 1e{len(str(count)) - 1}"


def _calls(nodes: Iterable[NodeProto]) -> list[_Key]:
    """What each node calls, those in bodies too: a function, if there is one of this name."""
    return [(node.domain, node.op_type, _overload(node)) for node in inner_nodes(nodes)]


def _overload(message: NodeProto | FunctionProto) -> str:
    return str(getattr(message, "overload", ""))  # since IR version 10


def _check_tensor(tensor: TensorProto) -> None:
    where = f"the weight '{tensor.name}'"
    _check_text("a weight", [tensor.name])
    if not tensor.data_type:
        raise UnavailableError(f"{where} has no element type, so the model is not valid ONNX; export it again.")
    if tensor.HasField("segment"):
        raise UnavailableError(f"{where} is stored in segments, which no runtime reads; export the model again.")
    if len(tensor.dims) > _MOST_DIMENSIONS:
        raise UnavailableError(
            f"{where} has {len(tensor.dims)} dimensions, more than the {_MOST_DIMENSIONS} that NumPy has; export it again."
        )
    if any(dim < 0 for dim in tensor.dims):
        raise UnavailableError(
            f"{where} has the shape {list(tensor.dims)}, so the model is not valid ONNX; export it again."
        )
    stored = _stored(tensor)
    if stored is not None and stored[0] != stored[1]:
        raise UnavailableError(
            f"{where} holds {stored[0]} {stored[2]} where its shape {list(tensor.dims)} needs {stored[1]}: the model was cut "
            "short or is not valid ONNX; export it again."
        )


def _stored(tensor: TensorProto) -> tuple[int, int, str] | None:
    """How many bytes or values there are, and should be; ``None`` where that is not known."""
    name = _NAMES.get(tensor.data_type, "")
    if not name or name.startswith("FLOAT6"):  # newer than this version of ONNX, or of no settled layout
        return None
    count = math.prod(tensor.dims)
    packed = -(-count // _PER_BYTE.get(name, 1))
    size = packed if name in _PER_BYTE else tensor_bytes(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        length = {entry.key: entry.value for entry in tensor.external_data}.get("length", "")
        return (int(length), size, "bytes") if length.isdigit() else None
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), size, "bytes"
    values = sum(len(getattr(tensor, field)) for field in _TYPED)
    return values, packed * (2 if name.startswith("COMPLEX") else 1), "values"
