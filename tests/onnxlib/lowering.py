"""What the tests of fp16 lowering share: small models, ways to run them, and what holds of each lowered one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from building import evaluate, ort_run, proto_of
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.roundings import lower_roundtrip

Array = npt.NDArray[Any]
Lowering = Callable[..., ModelProto]
FLOAT = TensorProto.FLOAT
FLOAT16 = TensorProto.FLOAT16
INT64 = TensorProto.INT64
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
HALF_EPSILON = float(np.finfo(np.float16).eps)
both = pytest.mark.parametrize("lower", [lower_roundtrip, lower_fp16])


def weight(name: str, value: npt.ArrayLike) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, np.float32), name)


def model(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    weights: Sequence[TensorProto] = (),
    *,
    inputs: Sequence[tuple[str, int, Sequence[int | str]]] = (("x", FLOAT, (2, 3)),),
    opset: int = 13,
    ir: int = 8,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> ModelProto:
    stored = {tensor.name: tensor for tensor in weights}
    fields: dict[str, Any] = {
        "opset": opset,
        "ir_version": ir,
        "domains": domains,
        "functions": functions,
    }
    result = proto_of(nodes, inputs, outputs, stored, **fields)
    return with_outputs(result, outputs)


def with_outputs(source: ModelProto, names: Sequence[str]) -> ModelProto:
    """The same with these outputs, with the types and shapes that ONNX infers or, failing that, those of ``x``."""
    inferred = onnx.shape_inference.infer_shapes(source).graph
    infos = {
        value.name: value for value in (*inferred.value_info, *inferred.output, *inferred.input)
    }
    result = ModelProto()
    result.CopyFrom(source)
    del result.graph.output[:]
    for name in names:
        value = infos[name]
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.CopyFrom(source.graph.input[0].type.tensor_type.shape)
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = FLOAT
        result.graph.output.append(value)
    return result


def run_as_lowered(
    lower: Lowering, source: ModelProto, feeds: dict[str, Array]
) -> dict[str, Array]:
    """Run a lowered model where it means what it says: ONNX Runtime's CPU provider widens real fp16 nodes."""
    return (ort_run if lower is lower_roundtrip else evaluate)(source, feeds)


def ops(source: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in source.graph.node)


def checked(lower: Lowering, source: ModelProto, **options: object) -> ModelProto:
    """Lower, and hold what has to be true of every lowered model."""
    before = source.SerializeToString(deterministic=True)
    lowered = lower(source, **options)
    assert source.SerializeToString(deterministic=True) == before, "the original was changed"
    onnx.checker.check_model(lowered)
    assert [(v.name, v.type) for v in lowered.graph.input] == [
        (v.name, v.type) for v in source.graph.input
    ]
    assert [(v.name, v.type) for v in lowered.graph.output] == [
        (v.name, v.type) for v in source.graph.output
    ]
    return lowered


X900 = {"x": np.full((2, 3), 900, np.float32)}


def computed(source: ModelProto) -> list[str]:
    return [name for node in source.graph.node for name in node.output]


# Random models for property tests of lowering: operators that round, overflow, choose and move, on
# tensors of [4, 4].


UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Softmax", "Softplus", "Abs")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
COMPOSED = ("MatMul", "Norm", "Mean", "ConcatSplit", "Transpose")


@st.composite
def random_models(draw: st.DrawFn) -> ModelProto:
    """Some operators on tensors of [4, 4], with the edges and the outputs at random."""
    pool = ["x", "z", "w"]
    nodes = list[NodeProto]()
    for step in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(UNARY + BINARY + COMPOSED))
        a = draw(st.sampled_from(pool))
        b = draw(st.sampled_from(pool))
        out = f"t{step}"
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
