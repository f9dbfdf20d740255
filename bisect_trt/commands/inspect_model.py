"""``inspect model``: inputs, outputs, weights, operators and layers of an ONNX model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from bisect_trt.onnxlib.exported import in_module, module_of
from bisect_trt.onnxlib.external_data import tensor_bytes
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, bodies, reads
from bisect_trt.onnxlib.shapes import element_dtype, inferred_infos, value_info
from bisect_trt.report.tree import Branch
from bisect_trt.tensors.info import TensorInfo

_EDGE_ITEMS = 3
"""Values that are shown of each end of a tensor."""
Infos = Mapping[str, TensorInfo]


def describe_model(
    path: Path, show: Collection[str], weights: Path | None = None, *, structure: bool = False
) -> dict[str, Any]:
    """A model as JSON.

    Args:
        path: The ``.onnx`` file.
        show: What to add to the summary: ``layers``, their attributes (``attrs``), the values of ``weights``.
        weights: The folder with its external weights, if that is not its own.
        structure: Whether values of external weights are left out, so that their files may be missing.

    Raises:
        UnavailableError: It cannot be read.
    """
    proto = load_model(path, weights, structure=structure)
    network = Network(proto)
    infos, tensors = inferred_infos(network), proto.graph.initializer
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
        folder = weights or path.absolute().parent
        plain["weights"]["tensors"] = [_weight(tensor, folder, structure=structure) for tensor in tensors]
    return plain


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else str(node.op_type)


def _tensor(name: str, infos: Infos) -> dict[str, Any]:
    """Name, type and shape; ``None`` where unknown."""
    info = infos.get(name)
    if info is None:
        return {"name": name, "dtype": None, "shape": None}
    dtype = "string" if info.dtype.kind == "O" else info.dtype.name
    return {"name": name, "dtype": dtype, "shape": None if info.shape is None else list(info.shape)}


def _layers(network: Network, infos: Infos, *, attributes: bool) -> list[dict[str, Any]]:
    return [_layer(network.nodes[index], infos, network.proto, attributes=attributes) for index in network.order]


def _layer(node: onnx.NodeProto, infos: Infos, model: onnx.ModelProto, *, attributes: bool) -> dict[str, Any]:
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
        graphs = [each for each in node.attribute if each.HasField("g") or each.graphs]
        plain["bodies"] = inner
        plain["branches"] = [each.name for each in graphs for _ in range(len(each.graphs) or 1)]
    return plain


def _body(body: onnx.GraphProto, infos: Infos, model: onnx.ModelProto, *, attributes: bool) -> list[dict[str, Any]]:
    """The layers of a branch or a loop's body; tensors from outside have their type and shape there."""
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    alone.graph.CopyFrom(body)
    named = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    named |= {name for node in body.node for name in node.output}
    taken = {name for node in body.node for name in reads(node)} | {value.name for value in body.output}
    alone.graph.input.extend(value_info(name, infos, {}) for name in sorted(taken - named))
    network = Network(alone)
    return _layers(network, {**infos, **inferred_infos(network)}, attributes=attributes)


def _attribute(attribute: onnx.AttributeProto) -> Any:  # noqa: ANN401 - of JSON
    """A number, a text or a list of them; a summary of a tensor or graph."""
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


def _weight(tensor: onnx.TensorProto, folder: Path, *, structure: bool) -> dict[str, Any]:
    """A weight with its first and last values; it is in memory only while they are read."""
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
    """The result of :func:`describe_model` for the terminal."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in plain["opsets"].items())
    weights, operators = plain["weights"], [f"{count} {name}" for name, count in plain["operators"].items()]
    values = [f"{_line(tensor)} {tensor['values']}" for tensor in weights.get("tensors", ())]
    tree = Branch(
        title,
        [
            Branch(f"IR {plain['ir_version']}, opset {opsets}, made by {plain['producer'] or 'nobody who says so'}"),
            Branch.of(f"{len(plain['inputs'])} input(s)", map(_line, plain["inputs"])),
            Branch.of(f"{len(plain['outputs'])} output(s)", map(_line, plain["outputs"])),
            Branch.of(f"{weights['count']} weight(s), {weights['bytes']} bytes", values),
            Branch.of(f"{plain['nodes']} node(s)", operators),
        ],
    )
    if plain["functions"]:
        tree.branches.append(Branch.of("functions", plain["functions"]))
    if "layers" in plain:
        tree.branches.append(Branch("layers", [_layer_branch(layer) for layer in plain["layers"]]))
    return tree


def _line(tensor: Mapping[str, Any]) -> str:
    shape = tensor["shape"]
    dims = "shape not known" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"
    return f"{tensor['name']}: {tensor['dtype'] or 'type not known'} {dims}"


def _layer_branch(layer: Mapping[str, Any]) -> Branch:
    branches, inner = layer.get("branches", ()), layer.get("bodies", ())
    lines = [f"reads {_line(tensor)}" for tensor in layer["inputs"] if tensor["name"]]
    lines += [f"makes {_line(tensor)}" for tensor in layer["outputs"] if tensor["name"]]
    lines += [f"{name} = {value}" for name, value in layer.get("attributes", {}).items() if name not in branches]
    branch = Branch.of(f"{layer['op']} {layer['name']}".rstrip() + in_module(layer), lines)
    named = zip(branches, inner, strict=True)
    branch.branches += [Branch(name, [_layer_branch(each) for each in body]) for name, body in named]
    return branch
