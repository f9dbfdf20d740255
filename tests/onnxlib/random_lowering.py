"""Random models for property tests of lowering: operators that round, overflow, choose and move, on tensors of [4, 4]."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from lowering import FLOAT, Array, model, weight
from onnx import ModelProto, NodeProto, helper

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
