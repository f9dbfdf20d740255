"""Which tensors of a model are rounded, to 16 bits or to the steps of a quantized type, or computed from such ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bisect_trt.onnxlib.nodes import attribute, held, reads
from bisect_trt.tensors.tolerance import Precision, Step, coarser, precision_of

Values = Callable[[str], "NDArray[Any] | None"]
ONE = np.ones(1, np.float64)
_ROUND = ("QuantizeLinear", "DynamicQuantizeLinear", "QGemm", "QAttention", "QEmbedLayerNormalization")
"""What makes integers by rounding, and all that begins with ``QLinear``."""
_TELL = (b"QuantizeLinear", b"QLinear", b"QGemm", b"QAttention", b"QEmbedLayerNormalization")
MOVE = re.compile(
    "Identity|Reshape|Transpose|Flatten|Squeeze|Unsqueeze|Slice|Split|Gather|GatherElements|GatherND|Expand|Tile|Pad|Concat|"
    "MaxPool|GlobalMaxPool|ReduceMax|ReduceMin|Relu|Clip|Max|Min|DepthToSpace|SpaceToDepth|Dropout|Where|Compress|"
    "ReverseSequence"
)
"""What makes no new values, but for constants, so that a step stays what it is."""
UNTOLD = re.compile("Shape|Size|NonZero|ArgMax|ArgMin|TopK|Equal|Greater|Less|And|Or|Not|Xor")
"""What says nothing of how far off its input is: an index off by one is no tie."""


def is_quantized(content: bytes) -> bool:
    """Whether a model's file tells of anything quantized: most do not, and need not be taken apart."""
    return any(word in content for word in _TELL)


def steps_of(graph: onnx.GraphProto, values: Values) -> dict[str, Step]:
    """The steps of all tensors of a main graph that are rounded to a grid, and of those computed from them.

    What a model is fed is taken as it is: a piece of one that begins after a rounding has no ties.

    Args:
        graph: It.
        values: The value of a tensor that is no constant, where it is known: a scale that is computed.
    """
    stored: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if (tensor := held(node)) is not None:
            stored[node.output[0]] = tensor

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
    if not read or UNTOLD.fullmatch(node.op_type):
        return {}
    first, size, after = steps.get(node.input[0]), read[0].size, any(step.after for step in read)
    made = Step(None, after=True)
    if node.op_type == "DequantizeLinear" and first is not None and first.size is not None:
        if (scale := value(node.input[1])) is not None:
            sizes = np.abs(scale.astype(np.float64)).reshape(-1) * first.size
            made = Step(sizes, after=after, axis=attribute(node, "axis", 1))
    elif (
        size is not None and size.size == 1 and MOVE.fullmatch(node.op_type) and all(_same(step, size) for step in read)
    ):
        made = Step(size, after=after)
    return dict.fromkeys(outputs, made)


def _same(step: Step, size: NDArray[np.float64]) -> bool:
    return step.size is not None and np.array_equal(step.size, size)


_TYPES: dict[int, Precision] = {TensorProto.FLOAT16: Precision.FP16, TensorProto.BFLOAT16: Precision.BF16}
_CASTS = tuple(b"\n\x02to\x18" + bytes([kind]) for kind in _TYPES)
"""A Cast to one of them, as it is in a file: the attribute's name, and its integer."""


def find_roundings(
    model: Path, fed: Mapping[str, np.ndarray[Any, Any]], values: Values
) -> tuple[dict[str, Step], dict[str, Precision]]:
    """The steps of a model's quantized tensors, and what rounds most of all that tensors were computed in, if less than fp32.

    A type of 16 bits comes into a model by a Cast or by what it is fed, else the model need not be taken apart.

    Args:
        model: The ONNX file, which is read once; of one that cannot be read nothing is known.
        fed: What it is fed.
        values: The value of a tensor that is no constant, where it is known.
    """
    half = any(precision_of(value.dtype) is not Precision.FP32 for value in fed.values())
    try:
        state = model.stat()
        graph, lows = _read(model, (state.st_mtime_ns, state.st_size, state.st_ino), half=half)
    except Exception:  # an engine need not have its model beside it; each of ONNX's formats raises its own
        return {}, {}
    return {} if graph is None else steps_of(graph, values), lows


@lru_cache(maxsize=1)  # each sample of a candidate asks
def _read(
    model: Path,
    written: tuple[int, int, int],  # noqa: ARG001 - so that a file that changed is read again
    *,
    half: bool,
) -> tuple[onnx.GraphProto | None, dict[str, Precision]]:
    """The graph of a quantized model, and what :func:`lows_of` says of one with types of 16 bits."""
    content = model.read_bytes()
    half, quantized = half or any(word in content for word in _CASTS), is_quantized(content)
    if not half and not quantized:
        return None, {}
    graph = onnx.load_model_from_string(content).graph
    return graph if quantized else None, lows_of(graph) if half else {}


def lows_of(graph: onnx.GraphProto) -> dict[str, Precision]:
    """What rounds most of all that tensors of a main graph were computed in, where that is less than fp32.

    What is fed or stored in 16 bits is exact, and so is what a Cast makes of it; what a node computes in them is not.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    typed = {name: _TYPES[kind] for name, kind in types.items() if kind in _TYPES}
    lows: dict[str, Precision] = {}
    for node in graph.node:
        outputs = [name for name in node.output if name]
        stored = held(node)
        if stored is not None:
            made = _TYPES.get(stored.data_type)
        elif node.op_type == "Cast":
            made = _TYPES.get(attribute(node, "to", 0))
        else:
            made = coarser(*(typed.get(name) for name in reads(node)))
        typed |= {name: made for name in outputs if made is not None}
        before = None if UNTOLD.fullmatch(node.op_type) else coarser(*(lows.get(name) for name in reads(node)))
        keeps = stored is not None or MOVE.fullmatch(node.op_type) is not None
        if node.op_type == "Cast":
            keeps = made is None or node.input[0] in typed
        low = before if keeps else coarser(before, made)
        lows |= {name: low for name in outputs if low is not None}
    return lows
