"""The nodes of a minimal model, for whoever has to find the reason: operators, attributes, tensors with type and shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS
from bisect_trt.report.text import code, prose

_SHOWN = 12
_SHOWN_KINDS = 3
_SHOWN_VALUES = 8


def guilty_first(model: onnx.ModelProto, blamed: Sequence[int]) -> list[onnx.NodeProto]:
    """The nodes at these places in the graph, then the others."""
    places = dict.fromkeys([*blamed, *range(len(model.graph.node))])
    return [model.graph.node[place] for place in places]


def kinds(nodes: Sequence[onnx.NodeProto]) -> str:
    """The operators, each once."""
    found = list(dict.fromkeys(_operator(node) for node in nodes))
    more = [f"{len(found) - _SHOWN_KINDS} more"] if len(found) > _SHOWN_KINDS else []
    words = [*found[:_SHOWN_KINDS], *more]
    return (
        words[0]
        if len(words) == 1
        else f"{', '.join(words[:-1])} and {words[-1]}"
        if words
        else "a model without nodes"
    )


def describe_nodes(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], written: Mapping[str, str] | None = None
) -> str:
    """A list of a model's nodes in Markdown.

    Args:
        model: The model.
        nodes: Those of its nodes that are listed.
        written: Where nodes were written, in words, by the first thing that each makes.
    """
    tensors = dict(_tensors(model))
    rows = [_describe(node, tensors) + _written(node, written or {}) for node in nodes[:_SHOWN]]
    rows += [f"- and {len(nodes) - _SHOWN} more"] if len(nodes) > _SHOWN else []
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import)
    return "\n".join([*rows, "", f"Opsets: {prose(opsets)}."])


def _describe(node: onnx.NodeProto, tensors: Mapping[str, str]) -> str:
    ends = [", ".join(_end(name, tensors) for name in names if name) for names in (node.input, node.output)]
    name = node.name or next((each for each in node.output if each), "")
    row = f"- {prose(_operator(node))} {code(name)}: {ends[0] or 'no inputs'} → {ends[1]}"
    attributes = [f"{attribute.name}={_value(attribute)}" for attribute in node.attribute]
    return row + (f"; {', '.join(map(code, attributes))}" if attributes else "")


def _written(node: onnx.NodeProto, written: Mapping[str, str]) -> str:
    words = next((written[name] for name in node.output if name in written), None)
    return "" if words is None else f"; in module {code(words)}"


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else node.op_type


def _end(name: str, tensors: Mapping[str, str]) -> str:
    return f"{code(name)}{f' {code(tensors[name])}' if name in tensors else ''}"


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """The type and shape of each tensor whose are known."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # ONNX's own: what it does not know stays unsaid
        graph = model.graph
    for value in (*graph.value_info, *graph.output, *graph.input):
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type"):
            dims = [
                str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim
            ]
            known = f"[{', '.join(dims)}]" if tensor.HasField("shape") else ""
            yield value.name, f"{_type(tensor.elem_type)}{known}"
    for weight in model.graph.initializer:
        yield weight.name, f"{_shaped(weight)} (weight)"


def _shaped(tensor: onnx.TensorProto) -> str:
    return f"{_type(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"


def _type(element: int) -> str:
    return str(TensorProto.DataType.Name(element)).lower()


def _value(attribute: onnx.AttributeProto) -> str:
    value: Any = helper.get_attribute_value(attribute) if attribute.type else None
    known = {bytes: lambda: repr(value.decode(errors="backslashreplace")), onnx.TensorProto: lambda: _shaped(value)}
    known |= {onnx.GraphProto: lambda: f"a graph of {len(value.node)} nodes"}
    known |= dict.fromkeys((int, float), lambda: f"{value:.9g}")
    if type(value) in known:
        return known[type(value)]()
    if isinstance(value, list | tuple) and all(isinstance(each, int | float) for each in value):
        shown = [f"{each:.9g}" for each in value[:_SHOWN_VALUES]]
        return f"[{', '.join([*shown, '...'] if len(value) > _SHOWN_VALUES else shown)}]"
    return str(onnx.AttributeProto.AttributeType.Name(attribute.type)).lower()
