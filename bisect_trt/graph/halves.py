"""Which tensors of a model are rounded to 16 bits, or computed from such ones: a model may be in fp16 or bf16 of itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from bisect_trt.graph.nodes import attribute, held, reads
from bisect_trt.graph.quantized import MOVE, UNTOLD, Values, is_quantized, steps_of
from bisect_trt.tensors.tolerance import Precision, Step, coarser, precision_of

_TYPES: dict[int, Precision] = {TensorProto.FLOAT16: Precision.FP16, TensorProto.BFLOAT16: Precision.BF16}
_TELL = tuple(b"\n\x02to\x18" + bytes([kind]) for kind in _TYPES)
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
    try:
        content = model.read_bytes()
        half = any(precision_of(value.dtype) is not Precision.FP32 for value in fed.values())
        half, quantized = half or any(word in content for word in _TELL), is_quantized(content)
        if not half and not quantized:
            return {}, {}
        graph = onnx.load_model_from_string(content).graph
    except Exception:  # an engine need not have its model beside it; each of ONNX's formats raises its own
        return {}, {}
    return steps_of(graph, values) if quantized else {}, lows_of(graph) if half else {}


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
