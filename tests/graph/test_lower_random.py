from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import (
    FLOAT,
    FLOAT16,
    HALF_EPSILON,
    LEVELS,
    Array,
    checked,
    computed,
    evaluate,
    model,
    ops,
    ort_run,
    weight,
    with_outputs,
)
from onnx import ModelProto, NodeProto, helper, numpy_helper

from bisect_trt.graph.lower import lower_fp16, lower_roundtrip, tensor_dtypes

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Softmax", "Softplus", "Abs")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
COMPOSED = ("MatMul", "Norm", "Mean", "ConcatSplit", "Transpose")


@st.composite
def random_models(draw: st.DrawFn) -> ModelProto:
    """Some operators on tensors of [4, 4], with the edges and the outputs at random."""
    pool, nodes = ["x", "z", "w"], list[NodeProto]()
    for step in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(UNARY + BINARY + COMPOSED))
        a, b, out = draw(st.sampled_from(pool)), draw(st.sampled_from(pool)), f"t{step}"
        nodes.extend(_step(kind, a, b, out))
        pool.append(out)
    results = sorted(draw(st.sets(st.sampled_from(pool[3:]), min_size=1)) | {pool[-1]})
    weights = [
        weight("w", np.random.default_rng(draw(st.integers(0, 9))).normal(size=(4, 4))),
        weight("two", 2.0),
        weight("eps", 1e-2),
    ]
    used = {name for node in nodes for name in node.input}
    return model(
        nodes,
        results,
        [tensor for tensor in weights if tensor.name in used],
        inputs=[("x", FLOAT, (4, 4)), ("z", FLOAT, (4, 4))],
    )


def _step(kind: str, a: str, b: str, out: str) -> list[NodeProto]:
    node = helper.make_node
    mean = node("ReduceMean", [a], [f"{out}_m"], axes=[-1])
    composed = {
        "MatMul": [node("MatMul", [a, b], [out])],
        "Transpose": [node("Transpose", [a], [out], perm=[1, 0])],
        "Mean": [mean, node("Add", [b, f"{out}_m"], [out])],
        "ConcatSplit": [
            node("Concat", [a, b], [f"{out}_c"], axis=0),
            node("Split", [f"{out}_c"], [out, f"{out}_rest"], axis=0),
        ],
        "Norm": [
            mean,
            node("Sub", [a, f"{out}_m"], [f"{out}_d"]),
            node("Pow", [f"{out}_d", "two"], [f"{out}_p"]),
            node("ReduceMean", [f"{out}_p"], [f"{out}_v"], axes=[-1]),
            node("Add", [f"{out}_v", "eps"], [f"{out}_e"]),
            node("Sqrt", [f"{out}_e"], [f"{out}_s"]),
            node("Div", [f"{out}_d", f"{out}_s"], [out]),
        ],
    }
    return composed.get(kind) or [node(kind, [a] if kind in UNARY else [a, b], [out])]


def feeds_for(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(4, 4)).astype(np.float32) for name in "xz"}


@settings(deadline=None, max_examples=60)
@given(source=random_models(), seed=st.integers(0, 99), level=st.sampled_from(LEVELS))
def test_round_trips_are_what_real_fp16_nodes_compute(source: ModelProto, seed: int, level: str) -> None:
    """Node by node: each, as a real fp16 node, makes of the values before it what the round trips have after it."""
    feeds = feeds_for(seed)
    values = ort_run(checked(lower_roundtrip, with_outputs(source, computed(source))), feeds, level)
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


@settings(deadline=None, max_examples=60)
@given(source=random_models(), seed=st.integers(0, 99))
def test_real_fp16_models_hold_fp16_from_end_to_end(source: ModelProto, seed: int) -> None:
    lowered = checked(lower_fp16, source)
    types = tensor_dtypes(lowered)
    for node in lowered.graph.node:
        if node.op_type != "Cast":
            assert {types[name] for name in (*node.input, *node.output)} == {FLOAT16}, node.op_type
    outputs = {value.name for value in source.graph.output}
    assert ops(lowered)["Cast"] <= 2 + len(outputs)
    rounded = {name: value.astype(np.float16).astype(np.float32) for name, value in feeds_for(seed).items()}
    for name, value in evaluate(lowered, feeds_for(seed)).items():
        assert value.dtype == np.float32
        assert np.array_equal(value, evaluate(lowered, rounded)[name])


@settings(deadline=None, max_examples=40)
@given(source=random_models())
def test_marking_tensors_changes_no_value(source: ModelProto) -> None:
    """The same nodes as without; for real fp16 nodes, Casts of what is marked besides."""
    marked = with_outputs(source, computed(source))
    assert lower_roundtrip(marked).graph.node == lower_roundtrip(source).graph.node
    before, after = ([node for node in lower_fp16(m).graph.node if node.op_type != "Cast"] for m in (source, marked))
    assert after == before
