"""ONNX's own evaluator, and what it has not of itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from building import text_model

from bisect_trt.targets.evaluator import EvaluatorSession


@pytest.mark.parametrize(
    ("opset", "axis"), [(10, None), (13, None), (13, 0), (18, -1), (19, 1), (21, 0)]
)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_models_of_every_opset(
    opset: int, axis: int | None, dtype: type[np.integer]
) -> None:
    shape: Sequence[int] = () if axis is None else ((3, 5)[axis],)
    rng = np.random.default_rng(opset)
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = rng.integers(0, 9, shape).astype(dtype)
    along = "" if axis is None else f"<axis = {axis}>"
    body = f"q = QuantizeLinear{along}(x, s, z) y = DequantizeLinear{along}(q, s, z)"
    model = text_model(
        "(float[3, 5] x) => (float[3, 5] y)", body, {"s": scale, "z": zero}, opset=opset
    )
    onnx.checker.check_model(model)
    fed = {"x": rng.standard_normal((3, 5)).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)[0]
    np.testing.assert_array_equal(EvaluatorSession(model).run(fed)["y"], wanted)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_types_of_16_bits_before_opset_21_as_the_quantizer_writes_them(axis: int | None) -> None:
    """With operators of ONNX Runtime."""
    shape: Sequence[int] = () if axis is None else ((3, 5)[axis],)
    rng = np.random.default_rng(5)
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = rng.integers(100, 900, shape).astype(np.uint16)
    along = "" if axis is None else f"<axis = {axis}>"
    body = f"q = QuantizeLinear{along}(x, s, z) y = DequantizeLinear{along}(q, s, z)"
    model = text_model(
        "(float[3, 5] x) => (float[3, 5] y)", body, {"s": scale, "z": zero}, opset=17
    )
    for node in model.graph.node:
        node.domain = "com.microsoft"
    model.opset_import.add(domain="com.microsoft", version=1)
    feed = {"x": rng.standard_normal((3, 5)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    np.testing.assert_array_equal(EvaluatorSession(model).run(feed)["y"], expected)
