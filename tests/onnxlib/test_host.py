"""Nodes that are left to the CPU in a Loop: the model computes the same, with the same inputs and outputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from bisect_trt.onnxlib.host import keep_on_host
from bisect_trt.onnxlib.network import Network

OUTPUTS = ["tall", "wide", "top", "both", "y"]
FEED = {
    "x": np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32),
    "flag": np.array(True),
}


def network(opset: int) -> onnx.ModelProto:
    """Nodes with two outputs, with an omitted input, with stored inputs, and an If that captures."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["wide"], [f"{name}_out"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [None, 6])],
        )
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["tall"]),
        helper.make_node("Clip", ["tall", "", "one"], ["wide"]),
        helper.make_node("TopK", ["wide", "k"], ["top", "places"], axis=1),
        helper.make_node("If", ["flag"], ["both"], **branches),
        helper.make_node("ReduceSum", ["both", *(["axis"] if opset >= 13 else [])], ["y"]),
    ]
    weights = [
        helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("k", TensorProto.INT64, [1], [3]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in OUTPUTS],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values: list[np.ndarray] = session.run(OUTPUTS, FEED)
    return values


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("kept", [*([name] for name in OUTPUTS), OUTPUTS, []])
def test_it_computes_the_same(opset: int, kept: list[str]) -> None:
    model = network(opset)
    moved = keep_on_host(model, kept, Network(model).infos)
    onnx.checker.check_model(moved)
    assert [node.op_type for node in moved.graph.node].count("Loop") == len(kept)
    assert [value.name for value in moved.graph.output] == OUTPUTS
    for expected, got in zip(run(model), run(moved), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("op", "reads", "loops"),
    [("DequantizeLinear", ["w", "scale", "zero"], 2), ("QuickGelu", ["floats"], 0)],
)
def test_a_node_stays_where_the_type_of_a_weight_is_not_known(
    op: str, reads: list[str], loops: int
) -> None:
    """ONNX infers none behind a runtime's operator, except for Q/DQ: a Loop would read it from outside."""
    domain = "com.microsoft"
    nodes = [
        helper.make_node(op, reads, ["wide"], domain=domain),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    weights = [
        helper.make_tensor("w", TensorProto.UINT16, [6, 6], range(36)),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("zero", TensorProto.UINT16, [], [7]),
        helper.make_tensor("floats", TensorProto.FLOAT, [6, 6], np.linspace(-1, 1, 36)),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 6]) for name in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    moved = keep_on_host(model, ["wide", "y"], Network(model).infos)
    assert [node.op_type for node in moved.graph.node].count("Loop") == loops
    results = [
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": FEED["x"]}
        )
        for each in (model, moved)
    ]
    np.testing.assert_array_equal(*results)
