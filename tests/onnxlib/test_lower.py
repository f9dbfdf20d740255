from __future__ import annotations

import numpy as np
import pytest
from lowering import (
    FLOAT,
    HALF_EPSILON,
    INT64,
    LEVELS,
    X900,
    Lowering,
    both,
    checked,
    model,
    ops,
    ort_run,
    overflowed,
    run_as_lowered,
    weight,
)
from onnx import ModelProto, helper, numpy_helper

from bisect_trt.onnxlib.emulation import lower_roundtrip
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.network import Network


def pow_sqrt() -> ModelProto:
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squared"], name="pow"),
        helper.make_node("Sqrt", ["squared"], ["y"], name="sqrt"),
    ]
    return model(nodes, ["y"], [weight("two", 2.0)])


@pytest.mark.parametrize("level", LEVELS)
def test_a_middle_tensor_overflows_at_every_optimisation_level(level: str) -> None:
    source = pow_sqrt()
    assert np.array_equal(ort_run(source, X900, level)["y"], X900["x"])
    assert overflowed(ort_run(checked(lower_roundtrip, source), X900, level)["y"])


@both
def test_a_kept_node_sees_and_writes_full_precision(lower: Lowering) -> None:
    """900 squared, times 1e-3 and a weight of 1 + 2**-20, all kept; only the last node is lowered."""
    exact = np.float32(1 + 2**-20)
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squared"]),
        helper.make_node("Mul", ["squared", "w"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "tiny"], ["small"]),
        helper.make_node("Mul", ["small", "w"], ["y"]),
    ]
    source = model(nodes, ["small", "y"], [weight("two", 2.0), weight("w", exact), weight("tiny", 1e-3)])
    kept = ["squared", "scaled", "small"]
    lowered = checked(lower, source, keep=kept)
    got, full = run_as_lowered(lower, lowered, X900), run_as_lowered(lower, source, X900)
    assert np.array_equal(got["small"], full["small"])
    assert np.array_equal(got["y"], full["y"].astype(np.float16).astype(np.float32))
    assert np.isinf(run_as_lowered(lower, checked(lower, source), X900)["y"]).all(), "without keep it has to overflow"
    if lower is lower_fp16:
        types = Network(lowered).element_types
        inner = [node for node in lowered.graph.node if node.op_type in ("Pow", "Mul")][:3]
        assert {types[name] for node in inner for name in (*node.input, *node.output)} == {FLOAT}


@both
def test_a_cast_that_kept_nodes_read_is_exact(lower: Lowering) -> None:
    nodes = [helper.make_node("Cast", ["i"], ["f"], to=FLOAT), helper.make_node("Neg", ["f"], ["y"])]
    source = model(nodes, ["y"], inputs=[("i", INT64, (1,))])
    feeds = {"i": np.array([4097])}
    assert run_as_lowered(lower, checked(lower, source, keep=["y"]), feeds)["y"] == -4097
    assert run_as_lowered(lower, checked(lower, source), feeds)["y"] == -4096


def test_casts_are_shared_and_only_where_needed() -> None:
    """Three readers of one input, one Cast."""
    nodes = [helper.make_node("Relu", ["x"], [name]) for name in "abc"]
    nodes.append(helper.make_node("Sum", ["a", "b", "c"], ["y"]))
    for name in "xa":  # these read any type
        nodes.append(helper.make_node("Shape", [name], [f"{name}_shape"]))
        nodes.append(helper.make_node("Size", [name], [f"{name}_size"]))
    lowered = checked(lower_fp16, model(nodes, ["y", "x_shape", "a_shape", "x_size", "a_size"]))
    assert ops(lowered)["Cast"] == 2  # x going in, y coming out


@both
def test_weights_and_constants_are_rounded_in_place(lower: Lowering) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], value=weight("c", [[1e5], [1 / 3]])),
        helper.make_node("Constant", [], ["s"], value_float=1e-9),
        helper.make_node("ConstantOfShape", ["shape"], ["fill"], value=weight("f", [0.1])),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Sum", ["x", "w", "c", "fill", "zeros", "s"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([2, 3]), "shape")
    source = model(nodes, ["y"], [weight("w", np.full((2, 3), 1 / 7)), shape])
    lowered = checked(lower, source)
    assert lower is lower_roundtrip or ops(lowered)["Cast"] == 2
    assert (ops(lowered)["Constant"], ops(lowered)["ConstantOfShape"]) == (2, 2)
    assert len(lowered.graph.initializer) == 2
    x = np.zeros((2, 3), np.float32)
    third, seventh, tenth = (np.float32(np.float16(1 / n)) for n in (3, 7, 10))
    expected = np.array([[np.inf] * 3, [np.float32(np.float16(third + seventh + tenth))] * 3])
    for level in LEVELS:
        np.testing.assert_allclose(ort_run(lowered, {"x": x}, level)["y"], expected, rtol=2 * HALF_EPSILON)
