"""The quantized tensors of a model, and the size of one step of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.tensors.step import Step

Values = Callable[[str], "NDArray[Any] | None"]
ONE = np.ones(1, np.float64)
_ROUND = ("QuantizeLinear", "DynamicQuantizeLinear", "QGemm", "QAttention", "QEmbedLayerNormalization")
"""What makes integers by rounding, and all that begins with ``QLinear``."""
_EXACT_INTEGERS = ("ConvInteger", "MatMulInteger")
_MOVE = frozenset(
    "Identity Reshape Transpose Flatten Squeeze Unsqueeze Slice Split Gather GatherElements GatherND Expand Tile Pad Concat "
    "MaxPool GlobalMaxPool ReduceMax ReduceMin Relu Clip Max Min DepthToSpace SpaceToDepth Dropout Where Compress "
    "ReverseSequence".split()
)
"""What makes no new values, but for constants, so that a step stays what it is."""
_UNTOLD = frozenset("Shape Size NonZero ArgMax ArgMin TopK Equal Greater Less And Or Not Xor".split())
"""What says nothing of how far off its input is: an index off by one is no tie."""


def is_quantized(content: bytes) -> bool:
    """Whether a model, as a file's bytes, may have a quantized tensor at all."""
    return b"QuantizeLinear" in content or b"QLinear" in content or b"QGemm" in content or b"QAttention" in content


def quantization_steps(graph: onnx.GraphProto, values: Values) -> dict[str, Step]:
    """The steps of all tensors that are rounded to a grid, and of those computed from them.

    What a graph is fed is taken as it is: a piece of a model that begins after a rounding has no ties.

    Args:
        graph: The model's main graph.
        values: The value of a tensor that is no constant, where it is known: a scale that is computed.
    """
    stored: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            stored |= {node.output[0]: attribute.t for attribute in node.attribute if attribute.name == "value"}

    def value(name: str) -> NDArray[Any] | None:
        known = stored.get(name)
        if known is None or known.external_data:  # a scale is small, and lies in the file
            return values(name)
        return np.asarray(numpy_helper.to_array(known))

    steps: dict[str, Step] = {}
    for node in graph.node:
        steps |= _made(node, steps, value)
    return steps


def _made(node: onnx.NodeProto, steps: Mapping[str, Step], value: Values) -> dict[str, Step]:
    """The steps of what one node makes."""
    read = [steps[name] for name in node.input if name in steps]
    outputs = [name for name in node.output if name]
    if node.op_type in _ROUND or node.op_type.startswith("QLinear"):
        # Scale and zero point of what is quantized as it runs come of the same values, rounded as usual.
        return {outputs[0]: Step(ONE, after=bool(read))}
    if not read or node.op_type in _UNTOLD:
        return {}
    if node.op_type == "DequantizeLinear":
        scale = value(node.input[1])
        first = steps.get(node.input[0])
        if first is None or first.size is None or scale is None:
            return dict.fromkeys(outputs, Step(None, after=True))
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        sizes = np.abs(scale.astype(np.float64)).reshape(-1) * first.size
        return {outputs[0]: Step(sizes, after=first.after, axis=axis)}
    if node.op_type in _EXACT_INTEGERS:
        return dict.fromkeys(outputs, Step(None, after=True))
    size = read[0].size
    alike = size is not None and size.size == 1 and all(step.size is not None and np.array_equal(step.size, size) for step in read)
    if node.op_type in _MOVE and alike:
        return dict.fromkeys(outputs, Step(size, after=any(step.after for step in read)))
    return dict.fromkeys(outputs, Step(None, after=True))
