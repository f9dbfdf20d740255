"""``inspect``: what a model, an engine, saved values or the choices of a build hold, as JSON and as a tree for the terminal."""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import uses_external_data

from bisect_trt.commands.build_choices import describe_choices, describe_engine
from bisect_trt.commands.call import Call
from bisect_trt.errors import ConflictError, MissingOptionError, UnreadableFileError
from bisect_trt.onnxlib.exported import module_of
from bisect_trt.onnxlib.load import load_model, read_weight, tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, bodies, reads
from bisect_trt.onnxlib.shapes import element_dtype, value_info
from bisect_trt.options.choices import Show
from bisect_trt.options.commands import Inspect
from bisect_trt.report.result import Result
from bisect_trt.report.text import print_tree
from bisect_trt.tensors.info import TensorInfo, is_extension, is_string
from bisect_trt.tensors.saved import load_runs
from bisect_trt.tensors.stats import count_nonfinite
from bisect_trt.worker.guard import scratch

Infos = Mapping[str, TensorInfo]
Plain = Mapping[str, Any]
"""What JSON holds."""


class FileKind(str, Enum):
    """The kind of a file."""

    MODEL = "model"
    ENGINE = "engine"
    DATA = "data"
    TACTICS = "tactics"


_FITTING = {
    FileKind.MODEL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
    FileKind.ENGINE: {Show.LAYERS},  # they are always shown
    FileKind.DATA: {Show.VALUES},
    FileKind.TACTICS: {Show.LAYERS},
}
_MAGIC = {b"ftrt": FileKind.ENGINE, b"PK\x03\x04": FileKind.DATA}
"""The first bytes of TensorRT engines and of zip files, which ``.npz`` files are."""
_SUFFIXES = {
    **dict.fromkeys((".onnx", ".pb", ".onnxtxt", ".onnxjson", ".textproto", ".prototxt", ".pbtxt"), FileKind.MODEL),
    **dict.fromkeys((".engine", ".plan", ".trt"), FileKind.ENGINE),
    **dict.fromkeys((".npz", ".json"), FileKind.DATA),
}
_IR_VERSION = b"\x08"
"""The first byte of an ONNX model: the tag of its first field in protobuf."""
_STATISTICS = ("min", "max", "mean", "median", "std", "rms")
_EDGE_ITEMS = 3
"""Elements of a weight that are shown at each end of an axis."""


def guess_kind(path: Path) -> FileKind:
    """Return the kind of a file, from its first bytes where they are unique, else from its suffix.

    Raises:
        UnavailableError: There is no such file.
        UsageError: Neither shows the kind.
    """
    if path.is_dir():
        return FileKind.DATA
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
    except OSError:  # reported when the file is read
        beginning = b""
    known = _MAGIC.get(beginning) or _SUFFIXES.get(path.suffix.lower())
    if known is None and beginning.startswith(_IR_VERSION):
        known = FileKind.MODEL
    if known is not None:
        return known
    if not path.exists():
        raise UnreadableFileError(f"{path}: no such file; give the path of a model, an engine or saved values.")
    raise MissingOptionError(
        f"{path} does not show whether it is a model, an engine or saved values; say which: "
        f"`bisect-trt inspect model {shlex.quote(str(path))}`, `inspect engine` or `inspect data`."
    )


def describe_model(
    path: Path, show: Collection[str], weights: Path | None = None, *, structure: bool = False
) -> dict[str, Any]:
    """Return a model's inputs, outputs, operators and weights.

    Args:
        path: The ``.onnx`` file.
        show: What to add: ``layers``, their attributes (``attrs``), the values of ``weights``.
        weights: The folder with its external weights, if it is not the model's.
        structure: Whether to leave the values of external weights out, so that their files may be missing.

    Raises:
        UnavailableError: The model cannot be read.
    """
    proto = load_model(path, weights, structure=structure)
    network = Network(proto)
    infos, tensors = network.infos, proto.graph.initializer
    plain: dict[str, Any] = {
        "ir_version": proto.ir_version,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "inputs": [_describe_tensor(name, infos) for name in network.inputs],
        "outputs": [_describe_tensor(name, infos) for name in network.outputs],
        "weights": {"count": len(tensors), "bytes": sum(map(tensor_bytes, tensors))},
        "nodes": len(network.nodes),
        "operators": dict(Counter(map(_operator, network.nodes)).most_common()),
        "functions": [f"{function.domain}.{function.name}" for function in proto.functions],
    }
    if not {"layers", "attrs"}.isdisjoint(show):
        plain["layers"] = _describe_layers(network, infos, attributes="attrs" in show)
    if "weights" in show:
        folder = weights or path.absolute().parent
        plain["weights"]["tensors"] = [_describe_weight(tensor, folder, structure=structure) for tensor in tensors]
    return plain


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else str(node.op_type)


def _describe_tensor(name: str, infos: Infos) -> dict[str, Any]:
    """Return name, type and shape of a tensor; ``None`` where unknown."""
    info = infos.get(name)
    if info is None:
        return {"name": name, "dtype": None, "shape": None}
    dtype = "string" if info.dtype.kind == "O" else info.dtype.name
    return {"name": name, "dtype": dtype, "shape": None if info.shape is None else list(info.shape)}


def _describe_layers(network: Network, infos: Infos, *, attributes: bool) -> list[dict[str, Any]]:
    """Return the nodes in topological order, with those of their branches and loop bodies."""
    layers = []
    for node in (network.nodes[index] for index in network.order):
        layer: dict[str, Any] = {
            "name": node.name,
            "op": _operator(node),
            "inputs": [_describe_tensor(name, infos) for name in node.input],
            "outputs": [_describe_tensor(name, infos) for name in node.output],
        }
        if (module := module_of(node)) is not None:
            layer["module"] = module.to_json()
        if attributes:
            layer["attributes"] = {each.name: _describe_attribute(each) for each in node.attribute}
        if inner := [_body_network(body, infos, network.proto) for body in bodies(node)]:
            layer["bodies"] = [_describe_layers(body, {**infos, **body.infos}, attributes=attributes) for body in inner]
            graphs = [each for each in node.attribute if each.HasField("g") or each.graphs]
            layer["branches"] = [each.name for each in graphs for _ in range(len(each.graphs) or 1)]
        layers.append(layer)
    return layers


def _body_network(body: onnx.GraphProto, infos: Infos, model: onnx.ModelProto) -> Network:
    """Return a branch or loop body as a model, with the types of the outer tensors it reads."""
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    alone.graph.CopyFrom(body)
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for node in body.node for name in node.output}
    taken = {name for node in body.node for name in reads(node)} | {value.name for value in body.output}
    alone.graph.input.extend(value_info(name, infos, {}) for name in sorted(taken - own))
    return Network(alone)


def _describe_attribute(attribute: onnx.AttributeProto) -> Any:  # noqa: ANN401 - of JSON
    """Return a number, a text or a list of them; a summary of a tensor or graph."""
    if attribute.type == onnx.AttributeProto.TENSOR:
        return f"{_dtype(attribute.t)} {list(attribute.t.dims)}"
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return "graph"
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"

    def plain(value: object) -> object:
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return value if isinstance(value, int | float) else str(value)

    value = onnx.helper.get_attribute_value(attribute)
    return plain(value) if isinstance(value, bytes | int | float) else [plain(each) for each in value or ()]


def _dtype(tensor: onnx.TensorProto) -> str:
    return "string" if tensor.data_type == onnx.TensorProto.STRING else element_dtype(tensor.data_type).name


def _describe_weight(tensor: onnx.TensorProto, folder: Path, *, structure: bool) -> dict[str, Any]:
    """Return a weight with its first and last values; external data is in memory only meanwhile."""
    external = uses_external_data(tensor)
    plain = {"name": tensor.name, "dtype": _dtype(tensor), "shape": list(tensor.dims), "external": external}
    if external and structure:
        return {**plain, "values": "not read"}
    return {**plain, "values": _values(read_weight(tensor, folder), _EDGE_ITEMS)}


def _values(array: NDArray[Any], edge_items: int) -> str:
    """Return the first and last elements of each axis as one line; all elements where the number is negative."""
    limit = sys.maxsize if edge_items < 0 else 2 * edge_items
    return " ".join(np.array2string(array, threshold=limit, edgeitems=max(edge_items, 1), separator=", ").split())


def describe_data(path: Path, values: int | None = None) -> dict[str, Any]:
    """Return type, shape and statistics of saved tensors.

    Args:
        path: A file that :func:`bisect_trt.tensors.saved.load_runs` reads.
        values: How many values to give of each end of an axis, -1 for all; none where it is ``None``.

    Raises:
        UsageError: The file cannot be read.
    """

    def described(tensor: NDArray[Any]) -> dict[str, Any]:
        plain = _statistics(tensor)
        return plain if values is None else {**plain, "values": _values(tensor, values)}

    return {
        "runs": [
            {
                "name": run.name,
                "samples": [{name: described(np.asarray(each[name])) for name in each} for each in run.samples],
            }
            for run in load_runs(path)
        ]
    }


def _statistics(tensor: NDArray[Any]) -> dict[str, Any]:
    """Return statistics of the finite elements: ``None`` where there are none, and missing for strings."""
    if is_string(tensor.dtype):
        return {"dtype": "string", "shape": list(tensor.shape)}
    real = tensor.astype(np.float32) if is_extension(tensor.dtype) else tensor
    numbers = np.abs(real) if real.dtype.kind == "c" else real.astype(np.float64)
    finite, (nan, inf) = np.asarray(numbers[np.isfinite(numbers)]), count_nonfinite(tensor)
    plain = {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "nan": nan, "inf": inf}
    plain["zeros"] = int(np.count_nonzero(finite == 0))
    if not finite.size:
        return {**plain, **dict.fromkeys(_STATISTICS)}
    with np.errstate(over="ignore", invalid="ignore"):  # the square of numbers next to the largest float64
        known = [finite.min(), finite.max(), finite.mean(), np.median(finite), finite.std()]
        known.append(np.sqrt(np.mean(np.square(finite))))
    shown = [float(value) if math.isfinite(value) else None for value in known]
    return {**plain, **dict(zip(_STATISTICS, shown, strict=True))}


def run(call: Call) -> Result:
    """Show the contents of a file.

    Raises:
        UnavailableError: The file cannot be read, or is an engine and there is no TensorRT.
        UsageError: An option does not apply to a file of this kind.
    """
    own, result = call[Inspect], call.result
    kind, file = read_words(own.said, own.path)
    if kind is not FileKind.MODEL and (own.external_data_dir or own.ignore_external_data):
        flag = "--external-data-dir" if own.external_data_dir else "--ignore-external-data"
        raise ConflictError(f"{flag} is about models, and this is to be read as {kind.value}; leave it out.")
    if odd := set(own.show) - _FITTING[kind]:
        raise ConflictError(
            f"--show {min(word.value for word in odd)} does not apply to {kind.value}; choose from: "
            f"{', '.join(sorted(word.value for word in _FITTING[kind]))}."
        )
    # A scratch folder stays behind when the command is killed, so there is one only where it is needed.
    with scratch() if kind is FileKind.ENGINE else nullcontext("") as folder:
        if kind is FileKind.MODEL:
            words = {word.value for word in own.show}
            plain = describe_model(file, words, own.external_data_dir, structure=own.ignore_external_data)
        elif kind is FileKind.DATA:
            plain = describe_data(file, own.num_items if own.show else None)
        elif kind is FileKind.TACTICS:
            plain = describe_choices(file)
        else:
            plain = describe_engine(file, Path(folder))
    print_tree(str(file), plain)
    result.extra[kind.value] = plain
    result.status, result.minimality = "found", "1-minimal"
    return result


def read_words(said: str | None, path: Path | None) -> tuple[FileKind, Path]:
    """The kind and the file of ``KIND FILE`` or of ``FILE``.

    Raises:
        UnavailableError: The file is not there.
        UsageError: There is no such kind, or no file, or the file does not show its kind.
    """
    kinds = [kind.value for kind in FileKind]
    if said is None:
        raise MissingOptionError("there is no file to inspect; name one.")
    if path is not None:
        if said not in kinds:
            raise MissingOptionError(
                f"there is nothing to inspect as '{said}'; write {', '.join(kinds)}, or the file alone."
            )
        return FileKind(said), path
    if said in kinds and not Path(said).exists():
        raise MissingOptionError(f"there is no file to inspect as {said}; name one.")
    return guess_kind(Path(said)), Path(said)
