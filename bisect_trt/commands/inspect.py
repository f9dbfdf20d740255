"""``inspect``: the contents of a model, an engine or saved values, as JSON and as a tree."""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from msgspec import convert, to_builtins
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import ConflictError, MissingOptionError
from bisect_trt.onnxlib.load import load_model, tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, module_of
from bisect_trt.onnxlib.shapes import element_dtype
from bisect_trt.options.commands import Inspect, Show
from bisect_trt.report.parts import Model
from bisect_trt.report.result import Result
from bisect_trt.report.text import Entry, print_tree
from bisect_trt.session.call import Call
from bisect_trt.steps.build_choices import ENGINES, describe_engine
from bisect_trt.tensors.files import load_runs
from bisect_trt.tensors.info import Array, TensorInfo, count_nonfinite, is_raw, to_float

Infos = Mapping[str, TensorInfo]
_STATISTICS = ("min", "max", "mean", "median", "std", "rms")


class FileKind(NamedTuple):
    """A kind of file: the suffixes that it is known by, the details that ``--show`` adds, and what reads it."""

    suffixes: tuple[str, ...]
    details: frozenset[Show]
    describe: Callable[[Path, Inspect], Entry]


def run(call: Call) -> Result:
    """Show the contents of a file."""
    options = call[Inspect]
    name, file = read_words(options.file_kind, options.path)
    kind = _KINDS[name]
    if odd := set(options.show) - kind.details:
        raise ConflictError(
            f"--show {min(odd).value} does not apply to {name}; choose from: {', '.join(sorted(kind.details))}."
        )
    plain = kind.describe(file, options)
    if name == "model":
        call.result.model = convert(plain, Model)
    elif name == "engine":
        call.result.engine = plain
    else:
        call.result.data = plain
    print_tree(str(file), plain)
    return call.result.end()


def read_words(word: str | None, path: Path | None) -> tuple[str, Path]:
    """Return the kind and the file of ``KIND FILE``, or of ``FILE`` by its suffix; folders hold data.

    Raises:
        UsageError: There is no such kind, or no file, or the suffix does not show the kind.
    """
    if word is None:
        raise MissingOptionError("no file to inspect; name one.")
    # One word is a file; its suffix tells the kind.
    if path is None:
        path = Path(word)
        suffix = Path(word).suffix.lower()
        word = next((name for name, kind in _KINDS.items() if suffix in kind.suffixes), "")
        word = "data" if path.is_dir() else word
    if word not in _KINDS:
        raise MissingOptionError(
            f"the kind of {path} is unknown{f', {word!r} is none' if word else ''}; write one of {', '.join(_KINDS)} before "
            f"the file: `bisect-trt inspect model {shlex.quote(str(path))}`."
        )
    return word, path


def describe_model(path: Path, show: Collection[Show]) -> Entry:
    """Return a model's inputs, outputs, operators and weights; files with external weights are not read.

    Args:
        path: The ``.onnx`` file.
        show: What to add: the layers, their attributes, the weights' names and shapes.

    Raises:
        UnavailableError: The model cannot be read.
    """
    proto = load_model(path, structure=True)
    network = Network(proto)
    infos = network.infos
    tensors = proto.graph.initializer
    plain: Entry = {
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
            {
                "name": tensor.name,
                "dtype": _dtype(tensor),
                "shape": list(tensor.dims),
                "external": uses_external_data(tensor),
            }
            for tensor in tensors
        ]
    return plain


def _operator(node: onnx.NodeProto) -> str:
    return (
        f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else str(node.op_type)
    )


def _describe_tensor(name: str, infos: Infos) -> Entry:
    """Return name, type and shape of a tensor; unknown values are ``None``."""
    info = infos.get(name)
    shape = None if info is None or info.shape is None else list(info.shape)
    return {"name": name, "dtype": None if info is None else info.dtype.name, "shape": shape}


def _describe_layers(
    nodes: Iterable[onnx.NodeProto], infos: Infos, *, attributes: bool
) -> list[Entry]:
    """Return nodes, with the nodes of their branches and loop bodies."""
    layers = []
    for node in nodes:
        layer: Entry = {
            "name": node.name,
            "op": _operator(node),
            "inputs": [_describe_tensor(name, infos) for name in node.input],
            "outputs": [_describe_tensor(name, infos) for name in node.output],
        }
        if (module := module_of(node)) is not None:
            layer["module"] = to_builtins(module)
        if attributes:
            layer["attributes"] = {
                attribute.name: _describe_attribute(attribute) for attribute in node.attribute
            }
        if graphs := [attribute for attribute in node.attribute if attribute.HasField("g")]:
            layer["bodies"] = [
                _describe_layers(graph.g.node, infos, attributes=attributes) for graph in graphs
            ]
            layer["branches"] = [graph.name for graph in graphs]
        layers.append(layer)
    return layers


def _describe_attribute(attribute: onnx.AttributeProto) -> Any:  # noqa: ANN401 - of JSON
    """Return a number, a text or a list of them; a summary of a tensor or graph."""
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    return (
        _plain(value)
        if isinstance(value, bytes) or not isinstance(value, Iterable)
        else list(map(_plain, value))
    )


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return f"{_dtype(value)} {list(value.dims)}"
    return (
        value
        if isinstance(value, int | float)
        else type(value).__name__.removesuffix("Proto").lower()
    )


def _dtype(tensor: onnx.TensorProto) -> str:
    return (
        "string"
        if tensor.data_type == onnx.TensorProto.STRING
        else element_dtype(tensor.data_type).name
    )


def describe_data(path: Path, values: int | None = None) -> Entry:
    """Return type, shape and statistics of saved tensors.

    Args:
        path: A file that :func:`bisect_trt.tensors.files.load_runs` reads.
        values: How many values to give of each end of an axis, -1 for all; none where it is
            ``None``.

    Raises:
        UsageError: The file cannot be read.
    """

    def described(tensor: Array) -> Entry:
        plain = _statistics(tensor)
        if values is None:
            return plain
        # NumPy shortens arrays of more elements than this.
        limit = sys.maxsize if values < 0 else 2 * values
        text = np.array2string(tensor, threshold=limit, edgeitems=max(values, 1), separator=", ")
        return {**plain, "values": " ".join(text.split())}

    return {
        "runs": [
            {
                "name": run.name,
                "samples": [
                    {name: described(np.asarray(sample[name])) for name in sample}
                    for sample in run.samples
                ],
            }
            for run in load_runs(path)
        ]
    }


def _statistics(tensor: Array) -> Entry:
    """Return statistics of the finite elements, ``None`` if there are none; strings and raw bytes have no statistics."""
    if tensor.dtype.kind in "OU":
        return {"dtype": "string", "shape": list(tensor.shape)}
    if is_raw(tensor.dtype):
        return {"dtype": tensor.dtype.name, "shape": list(tensor.shape)}
    numbers = to_float(tensor)
    finite, (nan, inf) = np.asarray(numbers[np.isfinite(numbers)]), count_nonfinite(tensor)
    plain = {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "nan": nan, "inf": inf}
    plain["zeros"] = int(np.count_nonzero(finite == 0))
    if not finite.size:
        return {**plain, **dict.fromkeys(_STATISTICS)}
    # The square of numbers next to the largest float64 overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        statistics = [finite.min(), finite.max(), finite.mean(), np.median(finite), finite.std()]
        statistics.append(np.sqrt(np.mean(np.square(finite))))
    values = [float(value) if math.isfinite(value) else None for value in statistics]
    return {**plain, **dict(zip(_STATISTICS, values, strict=True))}


_KINDS = {
    "model": FileKind(
        (".onnx", ".pb", ".onnxtxt", ".onnxjson", ".textproto", ".prototxt", ".pbtxt"),
        frozenset({Show.LAYERS, Show.ATTRS, Show.WEIGHTS}),
        lambda path, options: describe_model(path, options.show),
    ),
    "engine": FileKind(
        ENGINES, frozenset({Show.LAYERS}), lambda path, _: describe_engine(path)
    ),  # they are always shown
    "data": FileKind(
        (".npz", ".json"),
        frozenset({Show.VALUES}),
        lambda path, options: describe_data(path, options.num_items if options.show else None),
    ),
}
