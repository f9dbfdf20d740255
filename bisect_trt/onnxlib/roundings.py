"""Roundings of a model's own: tensors of 16 bits or of a quantized type's steps, and tensors computed from these."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

from bisect_trt.onnxlib.nodes import attribute, held, reads
from bisect_trt.tensors.tolerance import Precision, Step, coarser, precision_of

Values = Callable[[str], "NDArray[Any] | None"]
_ONE = np.ones(1, np.float64)
_ROUND = re.compile("(Dynamic)?QuantizeLinear|QGemm|QAttention|QEmbedLayerNormalization|QLinear.*")
"""Operators that round to integers."""
_QUANTIZED = (b"QuantizeLinear", b"QLinear", b"QGemm", b"QAttention", b"QEmbedLayerNormalization")
_MOVE = re.compile(
    "Identity|Reshape|Transpose|Flatten|Squeeze|Unsqueeze|Slice|Split|Gather|GatherElements|GatherND|Expand|Tile|Pad|Concat|"
    "MaxPool|GlobalMaxPool|ReduceMax|ReduceMin|Relu|Clip|Max|Min|DepthToSpace|SpaceToDepth|Dropout|Where|Compress|"
    "ReverseSequence"
)
"""Operators that make no new values, constants aside, so that steps stay the same."""
_DISCRETE = re.compile("Shape|Size|NonZero|ArgMax|ArgMin|TopK|Equal|Greater|Less|And|Or|Not|Xor")
"""Operators with outputs that do not show the errors of their inputs: an index off by one is no tie."""
_LOW: dict[int, Precision] = {TensorProto.FLOAT16: Precision.FP16, TensorProto.BFLOAT16: Precision.BF16}
_CASTS = tuple(b"\n\x02to\x18" + bytes([kind]) for kind in _LOW)
"""The bytes of a Cast to one of them in a file: the attribute's name and integer."""


def find_roundings(
    model: Path, fed: Mapping[str, np.ndarray[Any, Any]], values: Values
) -> tuple[dict[str, Step], dict[str, Precision]]:
    """Return the steps of a model's quantized tensors, and the coarsest precision below fp32 of each tensor.

    16-bit types come from a Cast or an input; a model without either is not parsed. A file that cannot be read has no known
    roundings. ``values`` returns the value of a tensor that is no constant, where it is known.
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
    """Return the graph of a quantized model, and :func:`lows_of` one with types of 16 bits."""
    content = model.read_bytes()
    half = half or any(word in content for word in _CASTS)
    quantized = any(word in content for word in _QUANTIZED)
    if not half and not quantized:
        return None, {}
    graph = onnx.load_model_from_string(content).graph
    return graph if quantized else None, lows_of(graph) if half else {}


def steps_of(graph: onnx.GraphProto, values: Values) -> dict[str, Step]:
    """Return the steps of all tensors of a main graph that are rounded to a grid, and of those computed from them.

    Inputs count as exact: a piece of a model that begins after a rounding has no ties. ``values`` is for computed scales.
    """
    stored: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
    stored |= {node.output[0]: tensor for node in graph.node if (tensor := held(node)) is not None}

    def value(name: str) -> NDArray[Any] | None:
        known = stored.get(name)
        if known is None or known.external_data:  # a scale is small, and so not external
            return values(name)
        return np.asarray(numpy_helper.to_array(known))

    steps: dict[str, Step] = {}
    for node in graph.node:
        steps |= _steps_made(node, steps, value)
    return steps


def _steps_made(node: NodeProto, steps: Mapping[str, Step], value: Values) -> dict[str, Step]:
    """Return the steps of one node's outputs."""
    read = [steps[name] for name in node.input if name in steps]
    outputs = [name for name in node.output if name]
    if _ROUND.fullmatch(node.op_type):
        # Scale and zero point of dynamic quantization come from the same values, rounded as usual.
        return {outputs[0]: Step(_ONE, after=bool(read))}
    if not read or _DISCRETE.fullmatch(node.op_type):
        return {}
    first, size, after = steps.get(node.input[0]), read[0].size, any(step.after for step in read)
    made = Step(None, after=True)
    if node.op_type == "DequantizeLinear" and first is not None and first.size is not None:
        if (scale := value(node.input[1])) is not None:
            sizes = np.abs(scale.astype(np.float64)).reshape(-1) * first.size
            made = Step(sizes, after=after, axis=attribute(node, "axis", 1))
    elif size is not None and size.size == 1 and _MOVE.fullmatch(node.op_type) and _equal(read):
        made = Step(size, after=after)
    return dict.fromkeys(outputs, made)


def _equal(steps: Sequence[Step]) -> bool:
    sizes = [step.size for step in steps]
    return all(size is not None and sizes[0] is not None and np.array_equal(size, sizes[0]) for size in sizes)


def lows_of(graph: onnx.GraphProto) -> dict[str, Precision]:
    """Return the coarsest precision below fp32 in the computation of each tensor of a main graph.

    Inputs and weights of 16 bits are exact, and so are Casts of them; computed results are not.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    typed = {name: _LOW[kind] for name, kind in types.items() if kind in _LOW}
    lows: dict[str, Precision] = {}
    for node in graph.node:
        outputs = [name for name in node.output if name]
        stored = held(node)
        if stored is not None:
            made = _LOW.get(stored.data_type)
        elif node.op_type == "Cast":
            made = _LOW.get(attribute(node, "to", 0))
        else:
            made = coarser(*(typed.get(name) for name in reads(node)))
        typed |= {name: made for name in outputs if made is not None}
        before = None if _DISCRETE.fullmatch(node.op_type) else coarser(*(lows.get(name) for name in reads(node)))
        keeps = stored is not None or _MOVE.fullmatch(node.op_type) is not None
        if node.op_type == "Cast":
            keeps = made is None or node.input[0] in typed
        low = before if keeps else coarser(before, made)
        lows |= {name: low for name in outputs if low is not None}
    return lows
