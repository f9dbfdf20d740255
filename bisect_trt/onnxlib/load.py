"""Read and check an ONNX file; every error names the file and the reason.

:func:`check_model` makes sure of what this package relies on. ONNX's own checker refuses more, models that run among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto
from onnx.helper import find_min_ir_version_for

from bisect_trt.errors import ModelFileError, UnavailableError, UnsuitableModelError
from bisect_trt.onnxlib.external_data import element_bits, external_files, model_tensors, tensor_bytes
from bisect_trt.onnxlib.nodes import IR_WITHOUT_INITIALIZER_INPUTS, all_nodes, inner_nodes, label

EXPANDED_NODES = 250_000
"""The most nodes that a model's functions may make, written out where they are called: shape inference does that."""
_IR_WITH_ATTRIBUTE_TYPES, _IR_WITH_OPSETS = 2, 3
"""The versions that brought the type of an attribute, and operator sets."""
_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""NumPy's own limit."""
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_REASON_LENGTH = 200


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
        raise ModelFileError(f"{path}: no such file; give the path of an ONNX model.")
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder; give the path of an ONNX model file.")
    model = _read(path)
    # A text file can by chance parse as an empty message, and a cut file as one without a graph.
    if not model.HasField("graph") or not model.ir_version:
        raise ModelFileError(
            f"{path} holds no ONNX graph: it is another kind of file or was cut short; export or copy it again."
        )
    if model.ir_version >= _IR_WITH_OPSETS and not model.opset_import:
        raise ModelFileError(
            f"{path} names no operator set, which stands at the end of a model: it was cut short; copy it again."
        )
    if not model.graph.node:
        raise ModelFileError(f"{path} has no nodes, so there is nothing to search.")
    try:
        check_model(model)
    except UnavailableError as error:
        raise ModelFileError(f"{path}: {error}") from error
    if not structure:
        check_external_files(model, path, weights)
    return model


def _read(path: Path) -> ModelProto:
    try:
        if path.stat().st_size == 0:
            raise ModelFileError(f"{path} is empty; export the model again.")
        return onnx.load(str(path), load_external_data=False)
    except UnavailableError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}; check the path and its permissions.") from error
    except Exception as error:  # each of ONNX's formats (binary, JSON, text) raises its own
        reason = " ".join(str(error).split())[:_REASON_LENGTH].rstrip(".")
        raise ModelFileError(
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
        raise ModelFileError(
            f"--external-data-dir: there is no folder {weights}; name the one with the model's weights."
        )
    try:
        files = external_files(model)
    except UnavailableError as error:
        raise ModelFileError(f"{path}: {error}") from error
    # A model that is a link itself may have its weights beside the file that it leads to.
    folders = [(weights or path.parent).resolve(), path.resolve().parent]
    for location, needed in files.items():
        file, keeps = (weights or path.parent) / location, f"{path} keeps weights in {location}"
        try:
            real, size = file.resolve(), file.stat().st_size if file.is_file() else None
        except (OSError, RuntimeError) as error:  # too long a name, or a loop of links
            raise ModelFileError(f"{keeps}, which cannot be read: {error}.") from error
        plain = not Path(location).is_absolute() and ".." not in Path(location).parts
        if not plain or not any(map(real.is_relative_to, folders)):
            raise UnsuitableModelError(
                f"{keeps}, outside its own folder ({real}), which ONNX forbids; move them beside the model."
            )
        if size is None:
            raise ModelFileError(
                f"{path} keeps weights in {file}, which does not exist; copy it there, or name the folder that has it with "
                "--external-data-dir."
            )
        if size < needed:
            raise ModelFileError(
                f"{path} keeps weights in {file}, which has {size} bytes where {needed} are needed; copy it again."
            )


def check_model(model: ModelProto) -> None:
    """Make sure that a model's names are text, its functions end, and its weights have the bytes of their shapes.

    Raises:
        UnavailableError: Something does not hold.
    """
    graph = model.graph
    weights = [tensor.name for tensor in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    for what, names in (("a graph input", inputs), ("a weight", weights), ("a graph output", outputs)):
        _check_text(what, names)
        if not all(names):
            raise _invalid(f"{what} has no name")
    for what, texts in _texts(model):
        _check_text(what, texts)
    _check_nodes(model)
    _check_functions(model)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_rank(f"the tensor '{value.name}'", value.type.tensor_type.shape.dim)
    for tensor in model_tensors(model):
        _check_tensor(tensor)


def _check_nodes(model: ModelProto) -> None:
    for node in all_nodes(model):
        if not node.op_type:
            raise _invalid(f"the node '{label(node)}' names no operator")
    for node in inner_nodes(model.graph.node):
        for attribute in node.attribute:
            # A reference to the caller's attribute means something inside functions only.
            if attribute.ref_attr_name or not (attribute.type or model.ir_version < _IR_WITH_ATTRIBUTE_TYPES):
                raise ModelFileError(
                    f"the attribute '{attribute.name}' of the {node.op_type} '{label(node)}' has no value"
                    " of a type that is known, so the model is not valid ONNX or newer than this version of it."
                )


def _invalid(what: str) -> UnavailableError:
    return ModelFileError(f"{what}, so the model is not valid ONNX; export it again.")


def _texts(model: ModelProto) -> Iterator[tuple[str, Iterable[object]]]:
    """All names but those of inputs, outputs and initializers, by what they name."""
    graph = model.graph
    declared = (*graph.input, *graph.output, *graph.value_info)
    yield "a tensor", (value.name for value in graph.value_info)
    yield "the model", (model.domain, graph.name)
    yield "a dimension", (dim.dim_param for value in declared for dim in value.type.tensor_type.shape.dim)
    yield "an operator set", (each.domain for each in model.opset_import)
    for function in model.functions:
        yield "a function", (function.name, function.domain, *function.input, *function.output)
    for node in all_nodes(model):
        yield "a node", (node.name, node.op_type, node.domain)
        yield "a tensor", (*node.input, *node.output)
        yield "an attribute", (attribute.name for attribute in node.attribute)


def _check_text(what: str, names: Iterable[object]) -> None:
    """Names that are not UTF-8 are bytes to protobuf, whatever their type says."""
    for name in names:
        if isinstance(name, bytes):
            raise _invalid(f"the name {name!r} of {what} is not UTF-8 text")


def _check_functions(model: ModelProto) -> None:
    """Make sure that no function is there twice or calls itself, and that all of them written out are not too many."""
    calls = {}
    for function in model.functions:
        key = (function.domain, function.name, _overload(function))
        if key in calls:
            raise _invalid(f"the function '{function.name}' is there twice")
        calls[key] = _calls(function.node)
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():  # what a function calls comes before it
            sizes[key] = sum(sizes[call] for call in calls[key]) if key in calls else 1
    except CycleError as error:
        raise _invalid(f"the function '{error.args[1][0][1]}' calls itself") from None
    whole = sum(sizes.get(call, 1) for call in _calls(model.graph.node))
    if calls and whole > EXPANDED_NODES:
        amount = f"{whole:,}" if whole < 10**12 else f"about 1e{len(str(whole)) - 1}"
        raise ModelFileError(
            f"its functions, written out where they are called, make {amount} nodes, more than the {EXPANDED_NODES:,} "
            "that are read; export it without nested functions."
        )


def _calls(nodes: Iterable[NodeProto]) -> list[tuple[str, str, str]]:
    """The operator or function of each node, those in bodies too."""
    return [(node.domain, node.op_type, _overload(node)) for node in inner_nodes(nodes)]


def _overload(message: NodeProto | FunctionProto) -> str:
    return str(getattr(message, "overload", ""))  # since IR version 10


def _check_rank(what: str, dims: Sequence[object]) -> None:
    if len(dims) > _MOST_DIMENSIONS:
        raise ModelFileError(
            f"{what} has {len(dims)} dimensions, more than the {_MOST_DIMENSIONS} that NumPy has; export it again."
        )


def _check_tensor(tensor: TensorProto) -> None:
    where = f"the weight '{tensor.name}'"
    _check_text("a weight", [tensor.name])
    if not tensor.data_type:
        raise _invalid(f"{where} has no element type")
    if tensor.HasField("segment"):
        raise ModelFileError(f"{where} is stored in segments, which no runtime reads; export the model again.")
    _check_rank(where, tensor.dims)
    if any(dim < 0 for dim in tensor.dims):
        raise _invalid(f"{where} has the shape {list(tensor.dims)}")
    stored = _stored(tensor)
    if stored is not None and stored[0] != stored[1]:
        raise ModelFileError(
            f"{where} holds {stored[0]} {stored[2]} where its shape {list(tensor.dims)} needs {stored[1]}: the model was cut "
            "short or is not valid ONNX; export it again."
        )


def _stored(tensor: TensorProto) -> tuple[int, int, str] | None:
    """How many bytes or values there are, and should be; ``None`` where that is not known."""
    known = tensor.data_type in TensorProto.DataType.values()
    name = str(TensorProto.DataType.Name(tensor.data_type)) if known else ""
    if not name or name.startswith("FLOAT6"):  # newer than this version of ONNX, or of no settled layout
        return None
    size = tensor_bytes(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        length = {entry.key: entry.value for entry in tensor.external_data}.get("length", "")
        return (int(length), size, "bytes") if length.isdigit() else None
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), size, "bytes"
    values = sum(len(getattr(tensor, field)) for field in _TYPED)
    needed = size if element_bits(tensor.data_type) < 8 else math.prod(tensor.dims)
    return values, needed * (2 if name.startswith("COMPLEX") else 1), "values"


def needed_ir_version(model: ModelProto) -> int:
    """The lowest IR version, of 4 and later, that has a model's operator sets; the model's own if it has newer constructs.

    Exporters write the newest version they know, and runtimes refuse a version that is newer than they are: ONNX Runtime
    before 1.18 refuses a model of opset 13 that is written as IR version 10. Before version 4 an initializer means
    something else.
    """
    graph, own = model.graph, int(model.ir_version)
    newer = model.functions or model.training_info or graph.sparse_initializer or graph.quantization_annotation
    newer = newer or any(tensor.data_type > TensorProto.BFLOAT16 for tensor in model_tensors(model))
    if newer or not IR_WITHOUT_INITIALIZER_INPUTS < own <= onnx.IR_VERSION:
        return own
    standard = [each for each in model.opset_import if not each.domain or each.domain.split(".")[:2] == ["ai", "onnx"]]
    try:
        return min(own, max(IR_WITHOUT_INITIALIZER_INPUTS, find_min_ir_version_for(standard)))
    except ValueError:  # an operator set that this ONNX does not know
        return own
