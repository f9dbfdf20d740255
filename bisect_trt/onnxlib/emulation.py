"""Emulated precisions: fp16 and bf16 by rounding the results of fp32 nodes, and fp32 in float64.

ONNX Runtime's CPU provider computes an fp16 node without a kernel in fp32, and drops the Casts between two such nodes, so a model
of fp16 nodes rounds and overflows less there than on a GPU. It has no bf16 kernels. It keeps a Cast to fp16 or bf16 and back to
fp32 behind an fp32 node, at every optimization level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from bisect_trt.onnxlib.load import model_tensors, read_weight
from bisect_trt.onnxlib.lower import Rewriter, lower_fp16
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, all_nodes, attribute, bodies, clone, keep_only

EXACT_OPS = frozenset({
    "Abs", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Neg", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
"""Operators that are exact in the low precision: they move or select values, or change signs."""


def lower_roundtrip(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
    low: int = TensorProto.FLOAT16,
) -> ModelProto:
    """Return the model lowered and emulated; see :func:`lower_fp16` and :func:`emulate`."""
    return emulate(lower_fp16(model, keep, dtypes, low), low)


def emulate(model: ModelProto, low: int = TensorProto.FLOAT16) -> ModelProto:
    """Return the model with each low-precision node in fp32, and its results rounded by round trips.

    All names except weights' stay, for fp32 tensors of the same values. Graph inputs and outputs become fp32 too, and inputs
    are rounded.

    Args:
        model: A model that declares its low-precision tensors, as :func:`lower_fp16` does, nodes in topological order, without
            low precision in bodies of control flow.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    work = _Emulation(model, low)
    graph = work.model.graph
    inner = {value.name for value in graph.value_info if _element(value) == low}
    lowered = inner.union(value.name for value in graph.output if _element(value) == low)
    # The fp32 copy of an inner tensor becomes the same tensor.
    casts = [node for node in work.source if node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT]
    merged = {cast.input[0]: cast.output[0] for cast in casts if cast.input[0] in inner}
    renamed = merged | work.widen_weights()
    for value in graph.input:
        if _element(value) == low and value.name not in renamed:
            renamed[value.name] = work.fresh(f"{value.name}_rounded")
            work.round_trip(value.name, renamed[value.name])
    keep_only(graph.value_info, [value for value in graph.value_info if value.name not in merged])
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _element(value) == low:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in work.source:
        if node.op_type != "Cast" or merged.get(node.input[0]) != node.output[0]:
            work.node(node, lowered, renamed)
    return work.model


def _element(value: ValueInfoProto) -> int:
    """Return the declared element type; 0 for none."""
    return int(value.type.tensor_type.elem_type)


class _Emulation(Rewriter):
    """A rewriter that writes round trips."""

    def widen_weights(self) -> dict[str, str]:
        """Make low-precision weights fp32: stored, or by Casts if external; return the new names of the latter."""
        renamed: dict[str, str] = {}
        for tensor in self.model.graph.initializer:
            if tensor.data_type != self.low:
                continue
            if uses_external_data(tensor):
                renamed[tensor.name] = self.fresh(f"{tensor.name}_fp32")
                self.cast(tensor.name, renamed[tensor.name], TensorProto.FLOAT)
            else:
                tensor.CopyFrom(widen_tensor(tensor, tensor.name))
        return renamed

    def node(self, node: NodeProto, lowered: Collection[str], renamed: Mapping[str, str]) -> None:
        """Write a node in fp32, and round its outputs that are ``lowered`` tensors."""
        new = clone(node)
        new.input[:] = [renamed.get(name, name) for name in node.input]
        for each in new.attribute:
            if each.HasField("t") and each.t.data_type == self.low:
                each.t.CopyFrom(widen_tensor(each.t, each.t.name))
        if node.op_type == "Cast" and attribute(node, "to", 0) == self.low:
            self.round_trip(new.input[0], renamed.get(node.output[0], node.output[0]), new)
            return
        raw: dict[str, str] = {}
        new.output[:] = [renamed.get(name, name) for name in node.output]
        if not (node.op_type in EXACT_OPS and node.domain in DEFAULT_DOMAINS):
            rounded = [renamed.get(name, name) for name in node.output if name in lowered]
            raw = {name: self.fresh(f"{name}_raw") for name in rounded}
            new.output[:] = [raw.get(name, name) for name in new.output]
        self.append(new)
        for name, source in raw.items():
            self.round_trip(source, name)

    def round_trip(self, source: str, target: str, cast: NodeProto | None = None) -> None:
        """Write a Cast to the low precision (``cast`` if given) and one back."""
        low = self.fresh_low(target)
        if cast is None:
            self.cast(source, low, self.low)
        else:
            cast.output[0] = low
            self.append(cast)
        self.cast(low, target, TensorProto.FLOAT)


def widen_tensor(tensor: TensorProto, name: str) -> TensorProto:
    """Return an fp16 or bf16 tensor, not an external one, as float32."""
    if tensor.data_type == TensorProto.FLOAT16:
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), name)
    bits = clone(tensor)
    bits.data_type = TensorProto.UINT16
    values = numpy_helper.to_array(bits).astype(np.uint32) << np.uint32(16)
    return numpy_helper.from_array(values.view(np.float32), name)


def widened(model: ModelProto, weights: Path) -> ModelProto:
    """Return the model in float64: every float32 tensor, weight, constant and Cast to float32 becomes float64.

    Other types stay: a Cast to fp16 is the model's own rounding. ``weights`` is the folder of its external weights.
    """
    wide = clone(model)
    for tensor in model_tensors(wide):
        if tensor.data_type == TensorProto.FLOAT:
            values = read_weight(tensor, weights).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    nodes = list(all_nodes(wide))
    for graph in (wide.graph, *(body for node in nodes for body in bodies(node))):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if _element(value) == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in nodes:
        _widen_attributes(node)
    return wide


def _widen_attributes(node: NodeProto) -> None:
    for each in node.attribute:
        if each.name in ("to", "dtype", "stash_type", "output_dtype") and each.i == TensorProto.FLOAT:
            each.i = TensorProto.DOUBLE
        if node.op_type == "Constant" and each.name in ("value_float", "value_floats"):
            value = each.f if each.name == "value_float" else list(each.floats)
            tensor = numpy_helper.from_array(np.array(value, np.float32).astype(np.float64))
            each.CopyFrom(helper.make_attribute("value", tensor))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, np.float64))
        node.attribute.append(helper.make_attribute("value", zero))
