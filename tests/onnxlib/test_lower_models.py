from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from light import LIGHT
from lowering import (
    FLOAT,
    FLOAT16,
    HALF_EPSILON,
    INT64,
    LEVELS,
    X900,
    Lowering,
    both,
    checked,
    computed,
    model,
    ops,
    ort_run,
    overflowed,
    run_as_lowered,
    weight,
    with_outputs,
)
from onnx import TensorProto, helper, numpy_helper

from benchmarks.cases import light_model
from bisect_trt.onnxlib.emulation import lower_roundtrip


@both
def test_ir_3_lists_its_weights_as_inputs(lower: Lowering) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    listed = [("x", FLOAT, (2, 3)), ("w", FLOAT, (1,))]
    lowered = checked(lower, model(nodes, ["y"], [weight("w", [1e5])], inputs=listed, opset=9, ir=3))
    assert np.isposinf(run_as_lowered(lower, lowered, {"x": np.zeros((2, 3), np.float32)})["y"]).all()


@both
@pytest.mark.parametrize("mark", [False, True])
def test_arithmetic_on_shapes_stays_exact(lower: Lowering, mark: bool) -> None:
    """4097 columns, halved: as fp16 numbers they would be 4096, then 2048. Looking at them changes nothing."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["columns"]),
        helper.make_node("Cast", ["columns"], ["as_float"], to=FLOAT),
        helper.make_node("Mul", ["as_float", "half"], ["halved"]),
        helper.make_node("Ceil", ["halved"], ["up"]),
        helper.make_node("Cast", ["up"], ["as_int"], to=INT64),
        helper.make_node("Slice", ["x", "zero", "as_int", "one"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array([n]), name) for n, name in enumerate(("zero", "one"))]
    source = model(nodes, ["y"], [*weights, weight("half", 0.5)], inputs=[("x", FLOAT, (1, "n"))])
    source = with_outputs(source, computed(source)) if mark else source
    assert ort_run(checked(lower, source), {"x": np.zeros((1, 4097), np.float32)})["y"].shape == (1, 2049)


@both
def test_a_mask_made_from_a_shape_is_data(lower: Lowering) -> None:
    """(1 - mask) * -1e9, filled by a ConstantOfShape: 0 times -Inf is NaN in fp16."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["mask"], value=weight("v", [1])),
        helper.make_node("Sub", ["one", "mask"], ["inverse"]),
        helper.make_node("Mul", ["inverse", "low"], ["penalty"]),
        helper.make_node("Add", ["x", "penalty"], ["y"]),
    ]
    source = model(nodes, ["y"], [weight("one", 1), weight("low", -1e9)])
    lowered, x = checked(lower, source), {"x": np.ones((2, 3), np.float32)}
    assert np.isnan(run_as_lowered(lower, lowered, x)["y"]).all()


@both
def test_resize_keeps_its_scales(lower: Lowering) -> None:
    """A scale of 1.0001 makes 10001 columns of 10000; fp16 has 1 in its place."""
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")]
    source = model(nodes, ["y"], [weight("scales", [1, 1.0001])], inputs=[("x", FLOAT, (1, 10000))])
    assert ort_run(checked(lower, source), {"x": np.zeros((1, 10000), np.float32)})["y"].shape == (1, 10001)


@both
def test_indices_that_are_floats_stay_exact(lower: Lowering) -> None:
    """2049 is no fp16 number."""
    nodes = [helper.make_node("OneHot", ["x", "depth", "values"], ["hot"]), helper.make_node("Neg", ["hot"], ["y"])]
    weights = [weight("depth", 2050), weight("values", [0, 1])]
    source = model(nodes, ["y"], weights, inputs=[("x", FLOAT, (1,))])
    got = ort_run(checked(lower, source), {"x": np.array([2049], np.float32)})["y"]
    assert got.shape == (1, 2050)
    assert np.flatnonzero(got).tolist() == [2049]


@both
def test_what_a_schema_does_not_allow_stays(lower: Lowering) -> None:
    """NonMaxSuppression takes float32 alone; Range counts; RandomNormalLike's type follows its input or does not."""
    nodes = [
        helper.make_node("Range", ["start", "limit", "delta"], ["steps"]),
        helper.make_node("Add", ["steps", "x"], ["y"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"]),
        helper.make_node("RandomNormalLike", ["y"], ["noise"], seed=1.0),
        helper.make_node("Mul", ["noise", "y"], ["noisy"]),
    ]
    weights = [
        weight("start", 0),
        weight("limit", 3),
        weight("delta", 1),
        numpy_helper.from_array(np.array([5]), "most"),
    ]
    boxes = [("boxes", FLOAT, (1, 2, 4)), ("scores", FLOAT, (1, 1, 2))]
    source = model(nodes, ["y", "noise", "noisy", "chosen"], weights, inputs=[("x", FLOAT, (3,)), *boxes])
    feeds = {
        "x": np.zeros(3, np.float32),
        "boxes": np.array([[[0, 0, 1, 1], [5, 5, 6, 6]]], np.float32),
        "scores": np.ones((1, 1, 2), np.float32),
    }
    got = ort_run(checked(lower, source), feeds)
    assert got["y"].tolist() == [0, 1, 2]
    assert got["chosen"].shape == (2, 3)
    assert np.isfinite(got["noisy"]).all()


def branch(name: str, op: str) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node(op, ["outer", "w"], [name])], name, [], [helper.make_tensor_value_info(name, FLOAT, (2, 3))]
    )


@both
@pytest.mark.parametrize("flag", [True, False])
def test_bodies_of_control_flow_capture_outer_tensors(lower: Lowering, flag: bool) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["outer"]),
        helper.make_node("If", ["flag"], ["z"], then_branch=branch("t", "Add"), else_branch=branch("e", "Sub")),
        helper.make_node("Mul", ["z", "w"], ["y"]),
    ]
    source = model(nodes, ["y"], [weight("w", 0.3)], inputs=[("x", FLOAT, (2, 3)), ("flag", TensorProto.BOOL, ())])
    feeds = {"x": np.full((2, 3), 0.3, np.float32), "flag": np.array(flag)}
    lowered = checked(lower, source)
    for level in LEVELS:
        got, full = ort_run(lowered, feeds, level)["y"], ort_run(source, feeds, level)["y"]
        np.testing.assert_allclose(got, full, rtol=8 * HALF_EPSILON)


@both
def test_functions_of_the_model_and_sequences_are_taken_as_a_whole(lower: Lowering) -> None:
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Twice", ["e"], ["t"], domain="own"),
        helper.make_node("SplitToSequence", ["t"], ["parts"], axis=0),
        helper.make_node("ConcatFromSequence", ["parts"], ["whole"], axis=0),
        helper.make_node("Sqrt", ["whole"], ["y"]),
    ]
    source = model(nodes, ["whole", "y"], domains=["own"], functions=[twice])
    got = ort_run(checked(lower, source), {"x": np.ones((2, 3), np.float32)})["y"]
    np.testing.assert_allclose(got, np.sqrt(2 * np.e), rtol=3 * HALF_EPSILON)


@both
def test_a_type_that_onnx_cannot_infer_may_be_told(lower: Lowering) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("Pow", ["g", "two"], ["p"]),
        helper.make_node("Sqrt", ["p"], ["y"]),
    ]
    source = model(nodes, ["y"], [weight("two", 2.0)], domains=["com.microsoft"])
    lowered = checked(lower, source, dtypes={"g": FLOAT, "p": FLOAT})
    if lower is lower_roundtrip:
        assert overflowed(ort_run(lowered, X900)["y"])
    else:
        # Beyond Gelu, Pow is an fp16 node: its operands are cast, though Gelu itself is fp32.
        power = next(node for node in lowered.graph.node if node.op_type == "Pow")
        into_power = next(node for node in lowered.graph.node if node.output[0] == power.input[0])
        assert (into_power.op_type, into_power.attribute[0].i) == ("Cast", FLOAT16)


@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name: str) -> None:
    source = onnx.load(light_model(name))
    lowered = checked(lower_roundtrip, source)
    compute = Counter({op: count for op, count in ops(source).items() if op != "Cast"})
    assert not compute - ops(lowered), "a node was lost"
    if name in ("squeezenet", "shufflenet", "inception_v2"):
        weights = {tensor.name for tensor in source.graph.initializer}
        entry = next(value for value in source.graph.input if value.name not in weights)
        shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        got = ort_run(lowered, {entry.name: np.random.default_rng(0).random(shape, np.float32)})
        assert list(got) == [value.name for value in source.graph.output]
        for output, value in got.items():
            assert value.dtype == np.float32
            assert np.array_equal(value.astype(np.float16).astype(np.float32), value, equal_nan=True), output
