from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import (
    FLOAT,
    FLOAT16,
    HALF_EPSILON,
    LEVELS,
    checked,
    computed,
    evaluate,
    model,
    ops,
    ort_run,
    with_outputs,
)
from onnx import ModelProto, numpy_helper
from random_lowering import feeds_for, random_models
from support import examples

from bisect_trt.onnxlib.emulation import lower_roundtrip
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.network import Network


@settings(deadline=None, max_examples=examples(60))
@given(source=random_models(), seed=st.integers(0, 99), level=st.sampled_from(LEVELS))
def test_round_trips_are_what_real_fp16_nodes_compute(source: ModelProto, seed: int, level: str) -> None:
    """Node by node: each, as a real fp16 node, makes of the values before it what the round trips have after it."""
    feeds = feeds_for(seed)
    emulated = checked(lower_roundtrip, with_outputs(source, computed(source)))
    onnx.checker.check_model(emulated, full_check=True)
    types = Network(emulated).element_types
    inner = [node for node in emulated.graph.node if node.op_type != "Cast"]
    assert all(types[name] == FLOAT for node in inner for name in (*node.input, *node.output))
    values = ort_run(emulated, feeds, level)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    halves = {name: value.astype(np.float16) for name, value in {**values, **feeds, **weights}.items()}
    for name, value in values.items():
        assert np.array_equal(halves[name].astype(np.float32), value), f"{name} holds values that fp16 has not"
    for node in source.graph.node:
        alone = model(
            [node],
            node.output,
            inputs=[(name, FLOAT16, halves[name].shape) for name in dict.fromkeys(node.input)],
        )
        expected = evaluate(alone, {name: halves[name] for name in node.input})
        for name in node.output:
            # The evaluator also rounds within a node (sums, exponentials); that error grows with what is summed.
            scale = max(float(np.abs(halves[read].astype(np.float32)).max()) for read in node.input)
            scale = max(scale, scale**2 if node.op_type in ("MatMul", "Mul", "Pow") else 0, 1)
            np.testing.assert_allclose(
                values[name], expected[name], rtol=4 * HALF_EPSILON, atol=4 * HALF_EPSILON * scale
            )


@settings(deadline=None, max_examples=examples(60))
@given(source=random_models(), seed=st.integers(0, 99))
def test_real_fp16_models_hold_fp16_from_end_to_end(source: ModelProto, seed: int) -> None:
    lowered = checked(lower_fp16, source)
    types = Network(lowered).element_types
    for node in lowered.graph.node:
        if node.op_type != "Cast":
            assert {types[name] for name in (*node.input, *node.output)} == {FLOAT16}, node.op_type
    outputs = {value.name for value in source.graph.output}
    assert ops(lowered)["Cast"] <= 2 + len(outputs)
    rounded = {name: value.astype(np.float16).astype(np.float32) for name, value in feeds_for(seed).items()}
    for name, value in evaluate(lowered, feeds_for(seed)).items():
        assert value.dtype == np.float32
        assert np.array_equal(value, evaluate(lowered, rounded)[name])


@settings(deadline=None, max_examples=examples(40))
@given(source=random_models())
def test_marking_tensors_changes_no_value(source: ModelProto) -> None:
    """The same nodes as without, and Casts of what is marked besides."""
    marked = with_outputs(source, computed(source))
    before, after = ([n for n in lower_fp16(m).graph.node if n.op_type != "Cast"] for m in (source, marked))
    assert after == before
