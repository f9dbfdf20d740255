"""Read and check an ONNX file and its weights; every error names the file and the reason.

ONNX's own checker refuses models that run, so :func:`check_model` checks only what this package
relies on.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.helper import find_min_ir_version_for

from bisect_trt.errors import ModelFileError, UnavailableError, UnsuitableModelError
from bisect_trt.onnxlib.nodes import (
    IR_WITHOUT_INITIALIZER_INPUTS,
    all_nodes,
    bodies,
    clone,
    function_key,
    inner_nodes,
)
from bisect_trt.tensors.files import read_inside

EXPANDED_NODES = 250_000
"""The most nodes of a model with its functions inlined; shape inference inlines them."""
_IR_WITH_OPSETS = 3
"""The IR version that introduced operator sets."""
_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""NumPy's own limit."""
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_REASON_LENGTH = 200
_MOST_BYTES = 1 << 30
"""The largest compiled context: a model of more than 2 GiB cannot be written."""
_BITS = {"FLOAT": 32, "DOUBLE": 64}
_ELEMENT_TYPES = frozenset(TensorProto.DataType.values())


@cache
def element_bits(element_type: int) -> int:
    """Return the bits of an element, which its type's name has; 8 for a string."""
    name = TensorProto.DataType.Name(element_type)
    digits = re.search(r"\d+", name)
    return _BITS.get(name, 8) if digits is None else int(digits[0])


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's elements in a file; a string counts as one."""
    return -(-math.prod(int(dim) for dim in tensor.dims) * element_bits(tensor.data_type) // 8)


def model_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every weight of a model: initializers and the tensors in attributes, those in bodies and functions too."""
    yield from model.graph.initializer
    for node in all_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in bodies(node):
            yield from body.initializer


class WeightPlace(NamedTuple):
    """The range of a file that holds a weight: ``length`` bytes from ``offset`` on."""

    location: str
    offset: int
    length: int


def place_of(tensor: TensorProto) -> WeightPlace:
    """Return the place of an external weight; a missing length follows from its shape."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    # `length` is optional in ONNX's external data.
    length = int(entries.get("length", 0)) or tensor_bytes(tensor)
    return WeightPlace(entries["location"], int(entries.get("offset", 0)), length)


def external_files(model: ModelProto) -> dict[str, int]:
    """Return the files of a model's external weights, each with its least length in bytes.

    Raises:
        UnavailableError: A weight does not name its file or its range.
    """
    files: dict[str, int] = {}
    for tensor in filter(uses_external_data, model_tensors(model)):
        try:
            place = place_of(tensor)
            location = Path(place.location).as_posix()
        except (KeyError, TypeError, ValueError):
            location = ""
        if (
            not location
            or min(place.offset, place.length) < 0
            or location == "."
            or "\0" in location
        ):
            raise ModelFileError(
                f"the external weight '{tensor.name}' names no valid file and range; export the model again."
            )
        # Several weights share a file; it has to reach to the end of the last.
        files[location] = max(files.get(location, 0), place.offset + place.length)
    return files


def has_external_data(model: ModelProto) -> bool:
    """Return whether any weight lies outside the model file."""
    return any(map(uses_external_data, model_tensors(model)))


def folder_with(model: ModelProto, folders: Iterable[Path]) -> Path | None:
    """Return the first folder with all files of a model's weights."""
    files = external_files(model)
    return next(
        (folder for folder in folders if all((folder / location).exists() for location in files)),
        None,
    )


def load_inside(tensor: TensorProto, folder: Path) -> None:
    """Read an external weight from its file in a folder into the model.

    ONNX's own loader refuses files with several hard links, and without a length reads to the end
    of the file.
    """
    place = place_of(tensor)
    with (folder / place.location).open("rb") as file:
        file.seek(place.offset)
        tensor.raw_data = file.read(place.length)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def load_all_inside(model: ModelProto, folder: Path) -> None:
    """Read all external weights from files in a folder into a model."""
    for tensor in filter(uses_external_data, model_tensors(model)):
        load_inside(tensor, folder)


def read_weight(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """Return the values of a weight; an external one is read from its file in a folder."""
    if uses_external_data(tensor):
        tensor = clone(tensor)
        load_inside(tensor, folder)
    return np.asarray(numpy_helper.to_array(tensor))


def load_model(
    path: Path,
    weights: Path | None = None,
    *,
    structure: bool = False,
) -> ModelProto:
    """Return a model without reading its external weights into memory.

    Args:
        path: The ``.onnx`` file.
        weights: The folder with its external weights, if not its own.
        structure: Whether the files of its weights may be missing.

    Raises:
        UnavailableError: The file is missing, empty, not an ONNX model, cut short or not valid, or
            its weights are missing.
        UsageError: Its weights lie outside its folder.
    """
    model = _read(path)
    # A text file can parse as an empty message by chance, and a truncated file as one without a
    # graph.
    if not model.HasField("graph") or not model.ir_version:
        raise _unreadable(
            path,
            "holds no ONNX graph: it is another kind of file or truncated; export or copy it again",
        )
    if model.ir_version >= _IR_WITH_OPSETS and not model.opset_import:
        raise ModelFileError(
            f"{path} names no operator set, which is at the end of a model: it is truncated; copy it again."
        )
    if not model.graph.node:
        raise ModelFileError(f"{path} has no nodes, so there is nothing to search.")
    try:
        check_model(model)
        if not structure:
            _check_external_files(model, path, weights)
            _embed_contexts(model, path.parent)
    except UnavailableError as error:
        raise ModelFileError(f"{path}: {error}") from error
    return model


def _embed_contexts(model: ModelProto, folder: Path) -> None:
    """Take the compiled contexts of a provider into the model, so that it can be written elsewhere.

    Source: ONNX Runtime's documentation, "EP context design": ``embed_mode`` 0 names a file beside
    the model, 1 holds its content.

    Raises:
        UnavailableError: The file of a context is missing.
    """
    for node in model.graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        mode = attributes.get("embed_mode")
        context = attributes.get("ep_cache_context")
        if node.op_type != "EPContext" or mode is None or mode.i or context is None:
            continue
        file = os.fsdecode(context.s)
        try:
            context.s = read_inside(folder, file, _MOST_BYTES)
        except OSError as error:
            raise ModelFileError(
                f"the compiled context {file} cannot be read: {error.strerror}; copy it beside the model."
            ) from error
        # The file is named relative to the model, which candidates are not beside.
        mode.i = 1


_OTHER_FILES: tuple[tuple[int, bytes, str], ...] = (
    (
        0,
        b"PK\x03\x04",
        "is a PyTorch file: export it with torch.onnx.export, or give the module to bisect_trt.diagnose(module, inputs)",
    ),
    (
        1,
        b"trt",  # after f or p
        "is a TensorRT engine: `bisect-trt run MODEL --trt --load-engine {}` compares it with its ONNX model",
    ),
    (
        4,
        b"TFL3",
        "is a TensorFlow Lite model: `python -m tf2onnx.convert --tflite {} --output model.onnx` converts it",
    ),
    (
        4,
        b"ORTM",
        "is a model in ONNX Runtime's own format: give the ONNX model that it was made from",
    ),
    (
        0,
        b"\x89HDF",
        "is a Keras model: `python -m tf2onnx.convert --keras {} --output model.onnx` converts it",
    ),
    (0, b"<?xml", "is an OpenVINO model: give the ONNX model that it was converted from"),
    (0, b"\x80", "is a pickle, as old PyTorch files are: export the module with torch.onnx.export"),
)
"""The offset and the first bytes of files that people take for ONNX models, and the way from them to one."""


def _recognized(path: Path) -> str | None:
    """Return what a file is that is no ONNX model, and the command for it; ``None`` if that is not known."""
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return f"is a TensorFlow SavedModel: `python -m tf2onnx.convert --saved-model {path} --output model.onnx` converts it"
        models = sorted(path.glob("*.onnx"))
        return f"is a directory; give a file{f' in it, such as {models[0]}' if models else ''}"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        first = file.read(16)
    for offset, magic, sentence in _OTHER_FILES:
        if first[offset:].startswith(magic):
            return sentence.format(shlex.quote(str(path)))
    return None


def _unreadable(path: Path, reason: str) -> ModelFileError:
    """Return the error for a file that is no ONNX model: the kind of file that it is, if that is known."""
    return ModelFileError(f"{path} {_recognized(path) or reason}.")


def _read(path: Path) -> ModelProto:
    try:
        return onnx.load(str(path), load_external_data=False)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; give the path of an ONNX model"
        raise _unreadable(path, reason) from error
    except Exception as error:
        # Each of ONNX's formats (binary, JSON, text) raises its own error.
        reason = " ".join(str(error).split())[:_REASON_LENGTH].rstrip(".")
        reason = f"cannot be read as an ONNX model ({reason}): it is another kind of file or truncated; export or copy it again"
        raise _unreadable(path, reason) from error


def _check_external_files(model: ModelProto, path: Path, weights: Path | None) -> None:
    """Check that the files of the model's weights are in its folder, as ONNX requires, and long enough."""
    if weights is not None and not weights.is_dir():
        raise ModelFileError(
            f"--external-data-dir: there is no folder {weights}; name the one with the model's weights."
        )
    # A model that is a link may have its weights beside the link's target.
    folders = [(weights or path.parent).resolve(), path.resolve().parent]
    for location, needed in external_files(model).items():
        file = (weights or path.parent) / location
        keeps = f"it keeps weights in {location}"
        try:
            real = file.resolve()
            size = file.stat().st_size if file.is_file() else None
        except (OSError, RuntimeError) as error:
            # Too long a name, or a loop of links.
            raise ModelFileError(f"{keeps}, which cannot be read: {error}.") from error
        plain = not Path(location).is_absolute() and ".." not in Path(location).parts
        if not plain or not any(map(real.is_relative_to, folders)):
            raise UnsuitableModelError(
                f"{path}: {keeps}, outside its own folder ({real}), which ONNX forbids; move them beside the model."
            )
        if size is None:
            raise ModelFileError(
                f"it keeps weights in {file}, which does not exist; copy it there, or name its folder with --external-data-dir."
            )
        if size < needed:
            raise ModelFileError(
                f"{keeps}, which has {size} bytes where {needed} are needed; copy it again."
            )


def check_model(model: ModelProto) -> None:
    """Check that a model's names are text, its functions do not recurse, and its weights are dense and as long as their shapes.

    Raises:
        UnavailableError: A check failed.
    """
    graph = model.graph
    for weight in graph.sparse_initializer:
        raise ModelFileError(
            f"the weight '{weight.values.name}' is sparse; export the model with dense weights."
        )
    for name in _names(model):
        # Protobuf returns text that is not UTF-8 as bytes, whatever its type says.
        if isinstance(name, bytes):
            raise _invalid(f"the name {name!r} is not UTF-8 text")
    for kind, field in (
        ("graph input", graph.input),
        ("weight", graph.initializer),
        ("graph output", graph.output),
    ):
        if not all(entry.name for entry in field):
            raise _invalid(f"a {kind} has no name")
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_rank(f"the tensor '{value.name}'", value.type.tensor_type.shape.dim)
    for tensor in model_tensors(model):
        _check_tensor(tensor)
    if model.functions:
        _check_functions(model)


def _names(model: ModelProto) -> Iterator[object]:
    yield from (model.domain, model.graph.name, *(opset.domain for opset in model.opset_import))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        yield from (value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim))
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
    for node in all_nodes(model):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (parameter.name for parameter in node.attribute)
    yield from (tensor.name for tensor in model_tensors(model))


def _invalid(defect: str) -> UnavailableError:
    return ModelFileError(f"{defect}, so the model is not valid ONNX; export it again.")


def _check_functions(model: ModelProto) -> None:
    """Check that no function is defined twice or calls itself, and that inlining all makes not too many nodes."""
    calls = {}
    for function in model.functions:
        key = function_key(function)
        if key in calls:
            raise _invalid(f"there are two functions '{function.name}'")
        calls[key] = _calls(function.node)
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        # Callees come before their callers.
        for key in TopologicalSorter(calls).static_order():
            sizes[key] = sum(sizes[call] for call in calls[key]) if key in calls else 1
    except CycleError as error:
        raise _invalid(f"the function '{error.args[1][0][1]}' calls itself") from None
    expanded = sum(sizes.get(call, 1) for call in _calls(model.graph.node))
    if expanded > EXPANDED_NODES:
        amount = f"{expanded:,}" if expanded < 10**12 else f"about 1e{len(str(expanded)) - 1}"
        raise ModelFileError(
            f"inlining its functions makes {amount} nodes, more than the limit of {EXPANDED_NODES:,}; export it without "
            "nested functions."
        )


def _calls(nodes: Iterable[NodeProto]) -> list[tuple[str, str, str]]:
    """Return the operator or function of each node, also in bodies."""
    return [*map(function_key, inner_nodes(nodes))]


def _check_rank(description: str, dims: Sequence[object]) -> None:
    if len(dims) > _MOST_DIMENSIONS:
        raise ModelFileError(
            f"{description} has {len(dims)} dimensions, more than NumPy's limit of {_MOST_DIMENSIONS}; export it again."
        )


def _check_tensor(tensor: TensorProto) -> None:
    subject = f"the weight '{tensor.name}'"
    if not tensor.data_type:
        raise _invalid(f"{subject} has no element type")
    if tensor.data_type not in _ELEMENT_TYPES:
        raise ModelFileError(
            f"{subject} has the element type {tensor.data_type}, which is unknown to ONNX {onnx.__version__}; upgrade onnx."
        )
    if tensor.HasField("segment"):
        raise ModelFileError(
            f"{subject} is stored in segments, which no runtime reads; export the model again."
        )
    _check_rank(subject, tensor.dims)
    if any(dim < 0 for dim in tensor.dims):
        raise _invalid(f"{subject} has the shape {list(tensor.dims)}")
    # A truncated download parses: protobuf needs no end.
    stored = _stored(tensor)
    if stored is not None and stored[0] != stored[1]:
        raise ModelFileError(
            f"{subject} has {stored[0]} {stored[2]}, and its shape {list(tensor.dims)} needs {stored[1]}: the model is truncated "
            "or not valid ONNX; export it again."
        )


def _stored(tensor: TensorProto) -> tuple[int, int, str] | None:
    """Return the number of bytes or values, the right number, and the unit; ``None`` where it is not known."""
    name = str(TensorProto.DataType.Name(tensor.data_type))
    # ONNX has not settled the layout of 6-bit elements.
    if name.startswith("FLOAT6"):
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
    """Return the lowest IR version from 4 on that has a model's operator sets; its own if it has newer constructs.

    Exporters write their newest version, and runtimes refuse versions newer than themselves: ONNX
    Runtime before 1.18 refuses a model of opset 13 with IR version 10. Before version 4
    initializers have another meaning.
    """
    graph = model.graph
    current = int(model.ir_version)
    newer = model.functions or model.training_info or graph.quantization_annotation
    if newer or not IR_WITHOUT_INITIALIZER_INPUTS < current <= onnx.IR_VERSION:
        return current
    if any(tensor.data_type > TensorProto.BFLOAT16 for tensor in model_tensors(model)):
        return current
    standard = [
        opset
        for opset in model.opset_import
        if not opset.domain or opset.domain.split(".")[:2] == ["ai", "onnx"]
    ]
    try:
        return min(current, max(IR_WITHOUT_INITIALIZER_INPUTS, find_min_ir_version_for(standard)))
    except ValueError:
        # The model has an operator set that this ONNX does not know.
        return current
