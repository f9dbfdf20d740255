"""What a model is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from bisect_trt.graph.exported import in_module, module_of
from bisect_trt.graph.externals import tensor_bytes
from bisect_trt.graph.load import load_model
from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import DEFAULT_DOMAINS, bodies, reads
from bisect_trt.graph.shapes import inferred_infos
from bisect_trt.graph.values import element_dtype, value_info
from bisect_trt.reporting.tree import Branch
from bisect_trt.tensors.info import TensorInfo

_EDGE_ITEMS = 3
"""Values that are shown of each end of a tensor."""


def describe_model(
    path: Path, show: Collection[str], weights: Path | None = None, *, structure: bool = False
) -> dict[str, Any]:
    """A model as plain values.

    Args:
        path: The ``.onnx`` file.
        show: What to say beside the summary: ``layers``, their attributes (``attrs``), the values of ``weights``.
        weights: The folder with its external weights, if that is not its own.
        structure: Whether values of external weights are left out, so that their files may be missing.

    Raises:
        UnavailableError: It cannot be read.
    """
    proto = load_model(path, weights, structure=structure)
    network = Network(proto)
    infos = inferred_infos(network)
    tensors = proto.graph.initializer
    plain: dict[str, Any] = {
        "ir_version": proto.ir_version,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "inputs": [_tensor(name, infos) for name in network.inputs],
        "outputs": [_tensor(name, infos) for name in network.outputs],
        "weights": {"count": len(tensors), "bytes": sum(map(tensor_bytes, tensors))},
        "nodes": len(network.nodes),
        "operators": dict(Counter(_operator(node) for node in network.nodes).most_common()),
        "functions": [f"{function.domain}.{function.name}" for function in proto.functions],
    }
    if not {"layers", "attrs"}.isdisjoint(show):
        plain["layers"] = _layers(network, infos, attributes="attrs" in show)
    if "weights" in show:
        plain["weights"]["tensors"] = [
            _weight(tensor, weights or path.absolute().parent, structure=structure) for tensor in tensors
        ]
    return plain


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else str(node.op_type)


def _tensor(name: str, infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Name, type and shape; ``None`` for what is not known."""
    info = infos.get(name)
    if info is None:
        return {"name": name, "dtype": None, "shape": None}
    dtype = "string" if info.dtype.kind == "O" else info.dtype.name
    return {"name": name, "dtype": dtype, "shape": None if info.shape is None else list(info.shape)}


def _layers(network: Network, infos: Mapping[str, TensorInfo], *, attributes: bool) -> list[dict[str, Any]]:
    nodes = [network.nodes[index] for index in network.order]
    return [_layer(node, infos, network.proto, attributes=attributes) for node in nodes]


def _body(
    body: onnx.GraphProto, infos: Mapping[str, TensorInfo], model: onnx.ModelProto, *, attributes: bool
) -> list[dict[str, Any]]:
    """The layers of a branch or a loop's body; what it takes from outside has the type and shape that it has there."""
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    alone.graph.CopyFrom(body)
    named = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    named |= {name for node in body.node for name in node.output}
    taken = {name for node in body.node for name in reads(node)} | {value.name for value in body.output}
    alone.graph.input.extend(value_info(name, infos, {}) for name in sorted(taken - named))
    network = Network(alone)
    return _layers(network, {**infos, **inferred_infos(network)}, attributes=attributes)


def _layer(
    node: onnx.NodeProto, infos: Mapping[str, TensorInfo], model: onnx.ModelProto, *, attributes: bool
) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": node.name,
        "op": _operator(node),
        "inputs": [_tensor(name, infos) for name in node.input],
        "outputs": [_tensor(name, infos) for name in node.output],
    }
    if (module := module_of(node)) is not None:
        plain["module"] = module.to_json()
    if attributes:
        plain["attributes"] = {each.name: _attribute(each) for each in node.attribute}
    if inner := [_body(body, infos, model, attributes=attributes) for body in bodies(node)]:
        plain["bodies"] = inner
        graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        plain["branches"] = [
            each.name for each in node.attribute if each.type in graphs for _ in range(len(each.graphs) or 1)
        ]
    return plain


def _attribute(attribute: onnx.AttributeProto) -> Any:  # noqa: ANN401 - of JSON
    """A number, a text or a list of them; of a tensor and of a graph what it is."""
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return _summary(attribute.t)
    if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
        return "graph"
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, int | float):
        return value
    return [each.decode(errors="replace") if isinstance(each, bytes) else _plain(each) for each in value or ()]


def _plain(value: object) -> object:
    return value if isinstance(value, int | float) else str(value)


def _summary(tensor: onnx.TensorProto) -> str:
    return f"{_dtype(tensor)} {list(tensor.dims)}"


def _dtype(tensor: onnx.TensorProto) -> str:
    return "string" if tensor.data_type == onnx.TensorProto.STRING else element_dtype(tensor.data_type).name


def _weight(tensor: onnx.TensorProto, folder: Path, *, structure: bool) -> dict[str, Any]:
    """A weight with its first and last values; it is in memory only while they are taken."""
    external = uses_external_data(tensor)
    plain = {"name": tensor.name, "dtype": _dtype(tensor), "shape": list(tensor.dims), "external": external}
    if external and structure:
        return {**plain, "values": "not read"}
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    if external:
        load_external_data_for_tensor(copy, str(folder))
        copy.data_location = onnx.TensorProto.DEFAULT
    values = numpy_helper.to_array(copy)
    shown = np.array2string(values, threshold=2 * _EDGE_ITEMS, edgeitems=_EDGE_ITEMS, separator=", ")
    return {**plain, "values": " ".join(shown.split())}


def model_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The same for the terminal."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in plain["opsets"].items())
    weights = plain["weights"]
    tree = Branch(
        title,
        [
            Branch(f"IR {plain['ir_version']}, opset {opsets}, made by {plain['producer'] or 'nobody who says so'}"),
            Branch.of(f"{len(plain['inputs'])} input(s)", map(_tensor_line, plain["inputs"])),
            Branch.of(f"{len(plain['outputs'])} output(s)", map(_tensor_line, plain["outputs"])),
            Branch.of(f"{weights['count']} weight(s), {weights['bytes']} bytes", _weight_lines(weights)),
            Branch.of(
                f"{plain['nodes']} node(s)", [f"{count} {operator}" for operator, count in plain["operators"].items()]
            ),
        ],
    )
    if plain["functions"]:
        tree.branches.append(Branch.of("functions", plain["functions"]))
    if "layers" in plain:
        tree.branches.append(Branch("layers", [_layer_branch(layer) for layer in plain["layers"]]))
    return tree


def _weight_lines(weights: Mapping[str, Any]) -> Iterable[str]:
    return (f"{_tensor_line(tensor)} {tensor['values']}" for tensor in weights.get("tensors", ()))


def _tensor_line(tensor: Mapping[str, Any]) -> str:
    shape = tensor["shape"]
    dims = "shape not known" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"
    return f"{tensor['name']}: {tensor['dtype'] or 'type not known'} {dims}"


def _layer_branch(layer: Mapping[str, Any]) -> Branch:
    branch = Branch(f"{layer['op']} {layer['name']}".rstrip() + in_module(layer))
    branch.branches += [Branch(f"reads {_tensor_line(tensor)}") for tensor in layer["inputs"] if tensor["name"]]
    branch.branches += [Branch(f"makes {_tensor_line(tensor)}") for tensor in layer["outputs"] if tensor["name"]]
    said = (
        (name, value) for name, value in layer.get("attributes", {}).items() if name not in layer.get("branches", ())
    )
    branch.branches += [Branch(f"{name} = {value}") for name, value in said]
    inner = zip(layer.get("branches", ()), layer.get("bodies", ()), strict=True)
    branch.branches += [Branch(name, [_layer_branch(each) for each in body]) for name, body in inner]
    return branch
