"""What of a tensor's values its readers see: a scale needs room for that, and for nothing else.

A Relu or a Clip cuts off what quantizers leave no room for (ONNX Runtime's calibrates what is before one to the range of what is
behind it). A Softmax makes 0 of what a mask hides, however far down that is; but a scale with room for -1e9 has no step for
the scores beside it. So masks are moved up to just where they still hide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import attribute, held
from bisect_trt.graph.qdq import Pair

_HIDES = 20.0
"""So far below the largest score of its row, a value is e**-20 = 2e-9 after Softmax."""
_ALIVE = 1000.0
"""Rows so far below the others are all mask."""
_FAR = 8.0
"""Masks are so many times as far down as scores are apart."""
_BY_ROWS = 13
"""The operator set from which on Softmax is along one axis."""
Bounds = tuple[float | None, float | None]


def what_counts(network: Network, pair: Pair, value: NDArray[Any]) -> NDArray[Any]:
    """A tensor's values as far as its readers see them, of the same shape.

    Args:
        network: The model.
        pair: Where the tensor is quantized.
        value: Its values, in floats; all finite.
    """
    readers = [
        network.nodes[reader]
        for index in pair.dequantize
        for name in network.made(index)
        for reader in network.consumers.get(name, ())
    ]
    if any(name in network.outputs for index in pair.dequantize for name in network.made(index)) or not readers:
        return value
    if all(node.op_type in ("Relu", "Clip") for node in readers):
        lows, highs = zip(*(_bounds(network, node) for node in readers), strict=True)
        low = None if None in lows else min(low for low in lows if low is not None)
        high = None if None in highs else max(high for high in highs if high is not None)
        return value if low is None and high is None else np.asarray(np.clip(value, low, high))
    if all(node.op_type == "Softmax" for node in readers):
        bottom = min(_bottom(value, _axes(network, node, value.ndim)) for node in readers)
        return np.asarray(np.maximum(value, np.asarray(bottom, value.dtype)))
    return value


def _bounds(network: Network, node: onnx.NodeProto) -> Bounds:
    """Between what a Relu or Clip lets values through; ``None`` for no bound, or one that is not stored."""
    if node.op_type == "Relu":
        return 0.0, None
    low, high = (clip_bound(network, node, place, name) for place, name in ((1, "min"), (2, "max")))
    return low, high


def clip_bound(network: Network, node: onnx.NodeProto, place: int, name: str) -> float | None:
    """A bound of a Clip, in either of the two ways in which operator sets have it; ``None`` if it is not stored."""
    if len(node.input) > place and node.input[place]:
        tensor = network.initializers.get(node.input[place])
        maker = network.producer.get(node.input[place])
        if tensor is None and maker is not None:
            tensor = held(network.nodes[maker])
        return None if tensor is None else float(numpy_helper.to_array(tensor).reshape(()))
    bound = attribute(node, name)
    return None if bound is None else float(bound)


def _axes(network: Network, node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    """The axes of a row."""
    opset = max(
        (each.version for each in network.proto.opset_import if each.domain in ("", "ai.onnx")), default=_BY_ROWS
    )
    by_rows = opset >= _BY_ROWS
    axis = int(attribute(node, "axis", -1 if by_rows else 1)) % max(rank, 1)
    return (axis,) if by_rows else tuple(range(axis, rank))


def _bottom(value: NDArray[Any], axes: tuple[int, ...]) -> float:
    """The least value that matters to a Softmax: where there is a mask, as far down as it has to be to hide."""
    exact = value.astype(np.float64)
    if not exact.size or not exact.ndim:
        return -np.inf
    top = exact.max(axis=axes, keepdims=True)
    alive = top >= top.max() - _ALIVE
    scores = exact[alive & (exact >= top - _HIDES)]
    low = float(scores.min())
    near = exact[exact >= low - _FAR * max(float(scores.max()) - low, _HIDES)]
    return -np.inf if near.size == exact.size else float(min(near.min(), top[alive].min() - _HIDES))
