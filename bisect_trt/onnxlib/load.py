"""Read and check an ONNX file; every error names the file and the reason.

:func:`check_model` makes sure of what this package relies on. ONNX's checker asks for more, and refuses models that run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto
from onnx.helper import find_min_ir_version_for

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.cut import IR_WITHOUT_INITIALIZER_INPUTS
from bisect_trt.onnxlib.external_data import external_files, model_tensors, tensor_bytes
from bisect_trt.onnxlib.nodes import all_nodes, inner_nodes, label

EXPANDED_NODES = 250_000
"""The most nodes that a model's functions may make, written out where they are called: shape inference and runtimes do that."""
_IR_WITH_ATTRIBUTE_TYPES, _IR_WITH_OPSETS = 2, 3
"""The versions that brought the type of an attribute, and operator sets."""
_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""NumPy's own limit."""
_PER_BYTE = {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}
"""Types of which several elements share a byte (``onnx.proto``, TensorProto)."""
_NAMES: dict[int, str] = {number: name for name, number in TensorProto.DataType.items()}
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_REASON_LENGTH = 200
_Key = tuple[str, str, str]


def load_model(path: Path, weights: Path | None = None, *, structure: bool = False) -> ModelProto:
    """Read a model without pulling its external weights into memory.

    Args:
        path: The ``.onnx`` file.
        weights: The folder with its external weights, if that is not its own.
        structure: Whether the files of its weights may be missing.

    Returns:
        The model; initializers stored outside stay references to their files.

    Raises:
        UnavailableError: The file is missing, empty, not an ONNX model, cut short, not valid, or names weights that are
            not there.
        UsageError: Its weights lie outside its folder.
    """
    if not path.exists():
        raise UnavailableError(f"{path}: no such file; give the path of an ONNX model.")
    if path.is_dir():
        raise UnavailableError(f"{path} is a folder; give the path of an ONNX model file.")
    model = _read(path)
    # A text file can by chance parse as an empty message, and a cut file as one without a graph.
    if not model.HasField("graph") or not model.ir_version:
        raise UnavailableError(
            f"{path} holds no ONNX graph: it is another kind of file or was cut short; export or copy it again."
        )
    if model.ir_version >= _IR_WITH_OPSETS and not model.opset_import:
        raise UnavailableError(
            f"{path} names no operator set, which stands at the end of a model: it was cut short; copy it again."
        )
    if not model.graph.node:
        raise UnavailableError(f"{path} has no nodes, so there is nothing to search.")
    try:
        check_model(model)
    except UnavailableError as error:
        raise UnavailableError(f"{path}: {error}") from error
    if not structure:
        check_external_files(model, path, weights)
    return model


def _read(path: Path) -> ModelProto:
    try:
        if path.stat().st_size == 0:
            raise UnavailableError(f"{path} is empty; export the model again.")
        return onnx.load(str(path), load_external_data=False)
    except UnavailableError:
        raise
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be read: {error.strerror}; check the path and its permissions."
        ) from error
    except Exception as error:  # each of ONNX's formats (by the file's suffix: binary, JSON, text) raises its own
        reason = " ".join(str(error).split())[:_REASON_LENGTH].rstrip(".")
        raise UnavailableError(
            f"{path} cannot be read as an ONNX model ({reason}): it is another kind of file or was cut short; "
            "export or copy it again."
        ) from error


def check_external_files(model: ModelProto, path: Path, weights: Path | None = None) -> None:
    """Make sure that the files with the model's weights are there and long enough.

    Raises:
        UnavailableError: One is missing or too short, as is their folder, or a weight does not say which it is in.
        UsageError: One lies outside the model's folder, by its name or through a link, which ONNX forbids.
    """
    if weights is not None and not weights.is_dir():
        raise UnavailableError(
            f"--external-data-dir: there is no folder {weights}; name the one with the model's weights."
        )
    try:
        files = external_files(model)
    except UnavailableError as error:
        raise UnavailableError(f"{path}: {error}") from error
    for location, needed in files.items():
        keeps = f"{path} keeps weights in {location}"
        outside = "outside its own folder, which ONNX forbids; move them beside the model."
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise UsageError(f"{keeps}, {outside}")
        file = (weights or path.parent) / location
        try:
            real, is_file = file.resolve(), file.is_file()
        except (
            OSError,
            RuntimeError,
        ) as error:  # too long a name, or a loop of links (RuntimeError before Python 3.13)
            raise UnavailableError(f"{keeps}, which cannot be read: {error}.") from error
        # A model that is a link itself may have its weights beside the file that it leads to.
        if not any(real.is_relative_to(folder.resolve()) for folder in (weights or path.parent, path.resolve().parent)):
            raise UsageError(f"{keeps}, which leads to {real}, {outside}")
        if not is_file:
            raise UnavailableError(
                f"{path} keeps weights in {file}, which does not exist; copy it there, or name the folder that has it with "
                "--external-data-dir."
            )
        if file.stat().st_size < needed:
            raise UnavailableError(
                f"{path} keeps weights in {file}, which has {file.stat().st_size} bytes where {needed} are needed; copy it again."
            )


def check_model(model: ModelProto) -> None:
    """Make sure that a model's names are text, its functions end, and its weights have the bytes of their shapes.

    Raises:
        UnavailableError: Something does not hold.
    """
    _check_names(model)
    for node in inner_nodes(model.graph.node):
        for attribute in node.attribute:
            # A reference to the caller's attribute means something inside functions only.
            if attribute.ref_attr_name or not (attribute.type or model.ir_version < _IR_WITH_ATTRIBUTE_TYPES):
                raise UnavailableError(
                    f"the attribute '{attribute.name}' of the {node.op_type} '{label(node)}' has no value"
                    " of a type that is known, so the model is not valid ONNX or newer than this version of it."
                )
    _check_functions(model)
    for tensor in model_tensors(model):
        _check_tensor(tensor)


def _invalid(what: str) -> UnavailableError:
    return UnavailableError(f"{what}, so the model is not valid ONNX; export it again.")


def _check_names(model: ModelProto) -> None:
    graph = model.graph
    weights = [tensor.name for tensor in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    for what, names in (("a graph input", inputs), ("a weight", weights), ("a graph output", outputs)):
        _check_text(what, names)
        if not all(names):
            raise _invalid(f"{what} has no name")
    for what, texts in _texts(model):
        _check_text(what, texts)
    for node in all_nodes(model):
        _check_text("a node", (node.name, node.op_type, node.domain))
        _check_text("a tensor", (*node.input, *node.output))
        _check_text("an attribute", (attribute.name for attribute in node.attribute))
        if not node.op_type:
            raise _invalid(f"the node '{label(node)}' names no operator")


def _texts(model: ModelProto) -> Iterator[tuple[str, Iterable[object]]]:
    """All other names outside of nodes, by what they name."""
    graph = model.graph
    declared = (*graph.input, *graph.output, *graph.value_info)
    yield "a tensor", (value.name for value in graph.value_info)
    yield "the model", (model.domain, graph.name)
    yield "a dimension", (dim.dim_param for value in declared for dim in value.type.tensor_type.shape.dim)
    for function in model.functions:
        yield "a function", (function.name, function.domain, *function.input, *function.output)
    yield "an operator set", (each.domain for each in model.opset_import)


def _check_text(what: str, names: Iterable[object]) -> None:
    """Names that are not UTF-8 are bytes to protobuf, whatever their type says."""
    for name in names:
        if isinstance(name, bytes):
            raise _invalid(f"the name {name!r} of {what} is not UTF-8 text")


def _check_functions(model: ModelProto) -> None:
    """Make sure that no function is there twice, or leads to itself, and that all of them written out are not too many."""
    functions: dict[_Key, FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name, _overload(function))
        if key in functions:
            raise _invalid(f"the function '{function.name}' is there twice")
        functions[key] = function
    sizes: dict[_Key, int] = {}
    for start in functions:
        path = [start]  # depth first, without recursion: functions may be nested thousands deep
        while path:
            key = path[-1]
            calls = _calls(functions[key].node)
            missing = next((call for call in calls if call in functions and call not in sizes), None)
            if missing is None:
                sizes[key] = sum(sizes.get(call, 1) for call in calls)
                path.pop()
            elif missing in path:
                raise _invalid(f"the function '{missing[1]}' calls itself")
            else:
                path.append(missing)
    whole = sum(sizes.get(call, 1) for call in _calls(model.graph.node))
    if functions and whole > EXPANDED_NODES:
        amount = f"{whole:,}" if whole < 10**12 else f"about 1e{len(str(whole)) - 1}"
        raise UnavailableError(
            f"its functions, written out where they are called, make {amount} nodes, more than the {EXPANDED_NODES:,} "
            "that are read; export it without nested functions."
        )


def _calls(nodes: Iterable[NodeProto]) -> list[_Key]:
    """The operator or function of each node, those in bodies too."""
    return [(node.domain, node.op_type, _overload(node)) for node in inner_nodes(nodes)]


def _overload(message: NodeProto | FunctionProto) -> str:
    return str(getattr(message, "overload", ""))  # since IR version 10


def _check_tensor(tensor: TensorProto) -> None:
    where = f"the weight '{tensor.name}'"
    _check_text("a weight", [tensor.name])
    if not tensor.data_type:
        raise _invalid(f"{where} has no element type")
    if tensor.HasField("segment"):
        raise UnavailableError(f"{where} is stored in segments, which no runtime reads; export the model again.")
    if len(tensor.dims) > _MOST_DIMENSIONS:
        raise UnavailableError(
            f"{where} has {len(tensor.dims)} dimensions, more than the {_MOST_DIMENSIONS} that NumPy has; export it again."
        )
    if any(dim < 0 for dim in tensor.dims):
        raise _invalid(f"{where} has the shape {list(tensor.dims)}")
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
    packed = -(-math.prod(tensor.dims) // _PER_BYTE.get(name, 1))
    size = packed if name in _PER_BYTE else tensor_bytes(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        length = {entry.key: entry.value for entry in tensor.external_data}.get("length", "")
        return (int(length), size, "bytes") if length.isdigit() else None
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), size, "bytes"
    values = sum(len(getattr(tensor, field)) for field in _TYPED)
    return values, packed * (2 if name.startswith("COMPLEX") else 1), "values"


_FIELD_VERSIONS = {
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
"""The IR version that brought a field (onnx.proto, ``Version``). Notes (``metadata_props``) are not here: a runtime that does not
know the field passes over it."""
_TYPE_VERSIONS = {
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 9),
    **dict.fromkeys(("UINT4", "INT4"), 10),
    **dict.fromkeys(("FLOAT4E2M1",), 11),
    **dict.fromkeys(("FLOAT8E8M0",), 12),
    **dict.fromkeys(("UINT2", "INT2"), 13),
}
"""The IR version that brought an element type."""
_EVERY_VERSION = frozenset({"opset_import", "shape", "metadata_props"})
"""Fields with messages that every version has."""


def needed_ir_version(model: ModelProto) -> int:
    """The lowest IR version, of 4 and later, that has all that is in a model; the model's own where that is not known.

    Exporters write the newest version they know, and runtimes refuse a version that is newer than they are: ONNX Runtime
    before 1.18 refuses a model of opset 13 that is written as IR version 10. Before version 4 an initializer means
    something else.
    """
    if not IR_WITHOUT_INITIALIZER_INPUTS < model.ir_version <= onnx.IR_VERSION:
        return model.ir_version
    opsets = [*model.opset_import, *(each for function in model.functions for each in function.opset_import)]
    standard = [each for each in opsets if not each.domain or each.domain.split(".")[:2] == ["ai", "onnx"]]
    try:
        least = max(IR_WITHOUT_INITIALIZER_INPUTS, find_min_ir_version_for(standard))
    except ValueError:  # an operator set that this ONNX does not know
        return model.ir_version
    if least >= model.ir_version:
        return model.ir_version
    return min(model.ir_version, max((least, *_needed_versions(model))))


def _needed_versions(model: ModelProto) -> Iterator[int]:
    """The version that brought each field and element type in a model."""
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, TensorProto):  # its values are not walked
            yield _type_version(message.data_type)
            continue
        for field, value in message.ListFields():
            yield _FIELD_VERSIONS.get(f"{message.DESCRIPTOR.name}.{field.name}", 0)
            if field.name == "elem_type" and isinstance(value, int):
                yield _type_version(value)
            elif field.message_type is not None and field.name not in _EVERY_VERSION:
                waiting += _messages(value)


def _messages(value: Any) -> list[Message]:  # noqa: ANN401 - what a field holds
    return [value] if isinstance(value, Message) else list(value)


def _type_version(number: int) -> int:
    return 0 if number <= TensorProto.BFLOAT16 else _TYPE_VERSIONS.get(_NAMES.get(number, ""), onnx.IR_VERSION)
