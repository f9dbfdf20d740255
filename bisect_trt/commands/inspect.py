"""``inspect``: the contents of a model, an engine or saved values, as JSON and as a tree."""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import uses_external_data

from bisect_trt.commands.build_choices import describe_engine
from bisect_trt.commands.call import Call
from bisect_trt.errors import ConflictError, MissingOptionError, UnreadableFileError
from bisect_trt.onnxlib.load import load_model, tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, module_of
from bisect_trt.onnxlib.shapes import element_dtype
from bisect_trt.options.commands import Inspect, Show
from bisect_trt.report.result import Result
from bisect_trt.report.text import print_tree
from bisect_trt.tensors.info import TensorInfo, count_nonfinite, is_extension
from bisect_trt.tensors.saved import load_runs
from bisect_trt.worker.guard import scratch

Infos = Mapping[str, TensorInfo]


class FileKind(str, Enum):
    """The kind of a file."""

    MODEL = "model"
    ENGINE = "engine"
    DATA = "data"


_FITTING = {
    FileKind.MODEL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
    FileKind.ENGINE: {Show.LAYERS},  # they are always shown
    FileKind.DATA: {Show.VALUES},
}
_SUFFIXES = {
    **dict.fromkeys((".onnx", ".pb", ".onnxtxt", ".onnxjson", ".textproto", ".prototxt", ".pbtxt"), FileKind.MODEL),
    **dict.fromkeys((".engine", ".plan", ".trt"), FileKind.ENGINE),
    **dict.fromkeys((".npz", ".json"), FileKind.DATA),
}
_STATISTICS = ("min", "max", "mean", "median", "std", "rms")


def run(call: Call) -> Result:
    """Show the contents of a file."""
    own = call[Inspect]
    kind, file = read_words(own.file_kind, own.path)
    if odd := set(own.show) - _FITTING[kind]:
        raise ConflictError(
            f"--show {min(word.value for word in odd)} does not apply to {kind.value}; choose from: "
            f"{', '.join(sorted(word.value for word in _FITTING[kind]))}."
        )
    if kind is FileKind.MODEL:
        plain = describe_model(file, own.show)
    elif kind is FileKind.DATA:
        plain = describe_data(file, own.num_items if own.show else None)
    else:
        with scratch() as folder:
            plain = describe_engine(file, Path(folder))
    print_tree(str(file), plain)
    call.result.extra[kind.value] = plain
    return call.result.end()


def read_words(word: str | None, path: Path | None) -> tuple[FileKind, Path]:
    """Return the kind and the file of ``KIND FILE``, or of ``FILE`` by its suffix.

    Raises:
        UnavailableError: The file does not exist.
        UsageError: There is no such kind, or no file, or the suffix does not show the kind.
    """
    kinds = [kind.value for kind in FileKind]
    if word is None or (path is None and word in kinds and not Path(word).exists()):
        raise MissingOptionError(f"no file to inspect as {word}; name one.")
    if path is not None:
        if word not in kinds:
            raise MissingOptionError(f"'{word}' is no kind of file; use {', '.join(kinds)}, or the file alone.")
        return FileKind(word), path
    file = Path(word)
    known = FileKind.DATA if file.is_dir() else _SUFFIXES.get(file.suffix.lower())
    if known is None and not file.exists():
        raise UnreadableFileError(f"{file}: no such file; give the path of a model, an engine or saved values.")
    if known is None:
        raise MissingOptionError(
            f"the suffix of {file} does not show its kind; write one of {', '.join(kinds)} before it: "
            f"`bisect-trt inspect model {shlex.quote(word)}`."
        )
    return known, file


def describe_model(path: Path, show: Collection[Show]) -> dict[str, Any]:
    """Return a model's inputs, outputs, operators and weights; files with external weights are not read.

    Args:
        path: The ``.onnx`` file.
        show: What to add: the layers, their attributes, the weights' names and shapes.

    Raises:
        UnavailableError: The model cannot be read.
    """
    proto = load_model(path, structure=True)
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
    if not {Show.LAYERS, Show.ATTRS}.isdisjoint(show):
        nodes = (network.nodes[index] for index in network.order)
        plain["layers"] = _describe_layers(nodes, infos, attributes=Show.ATTRS in show)
    if Show.WEIGHTS in show:
        plain["weights"]["tensors"] = [
            {"name": each.name, "dtype": _dtype(each), "shape": list(each.dims), "external": uses_external_data(each)}
            for each in tensors
        ]
    return plain


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else str(node.op_type)


def _describe_tensor(name: str, infos: Infos) -> dict[str, Any]:
    """Return name, type and shape of a tensor; unknown values are ``None``."""
    info = infos.get(name)
    shape = None if info is None or info.shape is None else list(info.shape)
    return {"name": name, "dtype": None if info is None else info.dtype.name, "shape": shape}


def _describe_layers(nodes: Iterable[onnx.NodeProto], infos: Infos, *, attributes: bool) -> list[dict[str, Any]]:
    """Return nodes, with the nodes of their branches and loop bodies."""
    layers = []
    for node in nodes:
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
        if graphs := [each for each in node.attribute if each.HasField("g")]:
            layer["bodies"] = [_describe_layers(each.g.node, infos, attributes=attributes) for each in graphs]
            layer["branches"] = [each.name for each in graphs]
        layers.append(layer)
    return layers


def _describe_attribute(attribute: onnx.AttributeProto) -> Any:  # noqa: ANN401 - of JSON
    """Return a number, a text or a list of them; a summary of a tensor or graph."""
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    return _plain(value) if isinstance(value, bytes) or not isinstance(value, Iterable) else list(map(_plain, value))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return f"{_dtype(value)} {list(value.dims)}"
    return value if isinstance(value, int | float) else type(value).__name__.removesuffix("Proto").lower()


def _dtype(tensor: onnx.TensorProto) -> str:
    return "string" if tensor.data_type == onnx.TensorProto.STRING else element_dtype(tensor.data_type).name


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
        if values is None:
            return plain
        limit = sys.maxsize if values < 0 else 2 * values
        text = np.array2string(tensor, threshold=limit, edgeitems=max(values, 1), separator=", ")
        return {**plain, "values": " ".join(text.split())}

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
    """Return statistics of the finite elements; ``None`` if there are none. Strings, as weights may be, have no statistics."""
    if tensor.dtype.kind == "O":
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
