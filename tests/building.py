"""Models of any types, declarations and versions; ``support.model_of`` makes those of the usual ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    parser,
)

tensor_info = helper.make_tensor_value_info
BARE = ValueInfoProto
End = str | ValueInfoProto | tuple[str, int, Sequence[int | str | None] | None]
"""An input or output: by name alone, as it is declared, or its name, type and shape."""


def proto_of(
    nodes: Sequence[NodeProto],
    inputs: Iterable[End],
    outputs: Iterable[End],
    weights: Mapping[str, NDArray[Any] | np.generic | TensorProto] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Iterable[str] = (),
    **fields: Any,
) -> ModelProto:
    """Make a model; outputs without a declaration get what ONNX infers."""
    tensors = [
        value
        if isinstance(value, TensorProto)
        else numpy_helper.from_array(np.asarray(value), name)
        for name, value in (weights or {}).items()
    ]
    graph = helper.make_graph(
        list(nodes), "test", [*map(_info, inputs)], [*map(_info, outputs)], tensors
    )
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(domain, 1) for domain in domains),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **fields)


def _info(end: End) -> ValueInfoProto:
    if isinstance(end, ValueInfoProto):
        return end
    return BARE(name=end) if isinstance(end, str) else tensor_info(*end)


def save_proto(path: Path | str, *parts: Any, **fields: Any) -> Path:
    """The same, written to a file without a look at what it is."""
    Path(path).write_bytes(proto_of(*parts, **fields).SerializeToString())
    return Path(path)


def ort_run(
    model: ModelProto | Path, feeds: Mapping[str, Any], level: str = "ORT_DISABLE_ALL"
) -> dict[str, Any]:
    """The outputs of ONNX Runtime on the CPU; an optional value is in a list, as a sequence is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    outputs = session.get_outputs()
    values = zip(
        outputs, session.run([output.name for output in outputs], dict(feeds)), strict=True
    )
    return {
        output.name: [value] if output.type.startswith("optional") else value
        for output, value in values
    }


def evaluate(model: ModelProto | str, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The outputs of ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(model)
        outputs = evaluator.run(None, dict(feeds))
        return dict(zip(evaluator.output_names, map(np.asarray, outputs), strict=True))


def overflowed(root: NDArray[Any]) -> bool:
    """Whether all of a square root comes of squares that fp16 does not hold."""
    import onnxruntime

    # ONNX Runtime's own Sqrt makes NaN of Inf before 1.21.
    keeps_inf = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 21)
    return bool(np.isposinf(root).all() if keeps_inf else not np.isfinite(root).any())


def text_model(
    ends: str,
    body: str,
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 13,
    functions: str = "",
    domains: Sequence[str] = ("own",),
) -> ModelProto:
    """A model in ONNX's text format; nodes without a name get that of their first output.

    Args:
        ends: Inputs and outputs, such as ``(float[2] x) => (float[2] y)``.
        body: The nodes.
        weights: Initializers, of which those are stored that are read.
        opset: The version of ONNX's operators.
        functions: What follows the graph.
        domains: Further domains of operators, in version 1.
    """
    imported = "".join(f', "{domain}" : 1' for domain in domains)
    head = f'<ir_version: 8, opset_import: ["" : {opset}{imported}]>'
    model = parser.parse_model(f"{head} g {ends} {{ {body} }} {functions}")
    given = {
        name: np.asarray(value)
        for name, value in (weights or {}).items()
        if name in _read(model.graph)
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(
            value.astype(np.float32) if value.dtype == np.float64 else value, name
        )
        for name, value in given.items()
    )
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return model


def save_text(path: Path | str, *parts: Any, **more: Any) -> Path:
    """The same, written."""
    onnx.save(text_model(*parts, **more), str(path))
    return Path(path)


def _read(graph: GraphProto) -> set[str]:
    inner = (attribute.g for node in graph.node for attribute in node.attribute)
    return {name for node in graph.node for name in node.input}.union(*map(_read, inner))
