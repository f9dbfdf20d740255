"""Models of which some nodes stay in fp32: types, Casts and values, for random models and random nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import evaluate, ort_run, text_model
from hypothesis import given, settings
from hypothesis import strategies as st
from light import LIGHT
from lowering import (
    FLOAT,
    FLOAT16,
    HALF_EPSILON,
    LEVELS,
    X900,
    Array,
    Lowering,
    both,
    checked,
    computed,
    feeds_for,
    model,
    ops,
    random_models,
    run_as_lowered,
    weight,
    with_outputs,
)
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from support import examples

from benchmarks.cases import light_model
from bisect_trt.onnxlib.ends import narrow_ends
from bisect_trt.onnxlib.lower import low_tensor, lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.roundings import emulate, lower_roundtrip, widen_tensor
from bisect_trt.onnxlib.save import refer_to

STAY: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    # 4097 columns, halved: as fp16 numbers they would be 4096, then 2048.
    "arithmetic on shapes": (
        "(float[1, n] x) => (float[1, m] y)",
        (
            "shape = Shape(x) columns = Gather(shape, one) f = Cast <to = 1> (columns) halved = Mul(f, half) up = Ceil(halved) "
            "i = Cast <to = 7> (up) y = Slice(x, zero, i, one)"
        ),
        {"zero": np.array([0]), "one": np.array([1]), "half": 0.5},
        (1, 4097),
    ),
    # A scale of 1.0001 makes 10001 columns of 10000; fp16 has 1 in its place.
    "scales of a Resize": (
        "(float[1, 10000] x) => (float[1, m] y)",
        'y = Resize <mode = "nearest"> (x, , scales)',
        {"scales": [1, 1.0001]},
        (1, 10000),
    ),
    # 4097 is no fp16 number.
    "places by a Range": (
        "(float[4200] x) => (float[n] y)",
        "start = Gather(x, zero) steps = Range(start, limit, delta) places = Cast <to = 7> (steps) y = Gather(x, places)",
        {"zero": np.array(0), "limit": 4100.0, "delta": 1.0},
        (4200,),
    ),
    # NonMaxSuppression takes float32 alone.
    "what a schema does not allow": (
        "(float[3] x) => (int64[n, 3] chosen)",
        (
            "none = ReduceSum <keepdims = 0> (x) boxes = Add(corners, none) scores = Add(likely, none) "
            "chosen = NonMaxSuppression(boxes, scores, most)"
        ),
        {
            "most": np.array([5]),
            "likely": [[[1.0, 1.0]]],
            "corners": [[[0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 6.0, 6.0]]],
        },
        (3,),
    ),
}


@both
@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize("what", STAY)
def test_it_stays_exact(lower: Lowering, what: str, mark: bool) -> None:
    """Looking at what is inside changes nothing."""
    ends, body, weights, shape = STAY[what]
    source = text_model(ends, body, weights)
    fed = {"x": (np.arange(np.prod(shape), dtype=np.float32) % 7).reshape(shape)}
    got = ort_run(checked(lower, with_outputs(source, computed(source)) if mark else source), fed)
    for name, value in ort_run(source, fed).items():
        np.testing.assert_array_equal(got[name], value)


@both
def test_indices_that_are_floats_stay_exact(lower: Lowering) -> None:
    """2049 is no fp16 number, nor is 2051."""
    weights = {"depth": 2051.0, "values": [0.0, 1.0]}
    source = text_model(
        "(float[1] x) => (float[1, n] y)", "hot = OneHot(x, depth, values) y = Neg(hot)", weights
    )
    got = ort_run(checked(lower, source), {"x": np.array([2049], np.float32)})["y"]
    assert (got.shape, np.flatnonzero(got).tolist()) == ((1, 2051), [2049])


@both
def test_a_mask_made_from_a_shape_is_data(lower: Lowering) -> None:
    """(1 - mask) * -1e9, filled by a ConstantOfShape: 0 times -Inf is NaN in fp16."""
    body = (
        "shape = Shape(x) mask = ConstantOfShape <value = float[1] {1}> (shape) inverse = Sub(one, mask) "
        "penalty = Mul(inverse, low) y = Add(x, penalty)"
    )
    source = text_model("(float[2, 3] x) => (float[2, 3] y)", body, {"one": 1.0, "low": -1e9})
    lowered = checked(lower, source)
    x = {"x": np.ones((2, 3), np.float32)}
    assert np.isnan(run_as_lowered(lower, lowered, x)["y"]).all()


@both
@pytest.mark.parametrize("flag", [True, False])
def test_bodies_of_control_flow_capture_outer_tensors(lower: Lowering, flag: bool) -> None:
    branches = ", ".join(
        f"{name}_branch = {name} () => (float[2, 3] {name}_out) {{ {name}_out = {op}(outer, w) }}"
        for name, op in (("then", "Add"), ("else", "Sub"))
    )
    body = f"outer = Exp(x) z = If (flag) <{branches}> y = Mul(z, w)"
    source = text_model("(float[2, 3] x, bool flag) => (float[2, 3] y)", body, {"w": 0.3})
    feeds = {"x": np.full((2, 3), 0.3, np.float32), "flag": np.array(flag)}
    lowered = checked(lower, source)
    for level in LEVELS:
        got = ort_run(lowered, feeds, level)["y"]
        full = ort_run(source, feeds, level)["y"]
        np.testing.assert_allclose(got, full, rtol=8 * HALF_EPSILON)


@both
def test_functions_of_the_model_and_sequences_are_taken_as_a_whole(lower: Lowering) -> None:
    sequence = "parts = SplitToSequence<axis = 0>(t) whole = ConcatFromSequence<axis = 0>(parts)"
    twice = '<domain: "own", opset_import: ["" : 13]> Twice (a) => (b) { b = Add(a, a) }'
    body = f"e = Exp(x) t = own.Twice(e) {sequence} y = Sqrt(whole)"
    source = text_model("(float[2, 3] x) => (float[2, 3] y)", body, functions=twice)
    got = ort_run(checked(lower, source), {"x": np.ones((2, 3), np.float32)})["y"]
    np.testing.assert_allclose(got, np.sqrt(2 * np.e), rtol=3 * HALF_EPSILON)


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
            assert np.array_equal(
                value.astype(np.float16).astype(np.float32), value, equal_nan=True
            ), output


@both
def test_a_kept_node_sees_and_writes_full_precision(lower: Lowering) -> None:
    """900 squared, times 1e-3 and a weight of 1 + 2**-20, all kept; only the last node is lowered."""
    body = (
        "squared = Pow(x, two) scaled = Mul(squared, w) small = Mul(scaled, tiny) y = Mul(small, w)"
    )
    ends = "(float[2, 3] x) => (float[2, 3] small, float[2, 3] y)"
    source = text_model(ends, body, {"two": 2.0, "w": 1 + 2**-20, "tiny": 1e-3})
    kept = ["squared", "scaled", "small"]
    lowered = checked(lower, source, keep=kept)
    got = run_as_lowered(lower, lowered, X900)
    full = run_as_lowered(lower, source, X900)
    assert np.array_equal(got["small"], full["small"])
    assert np.array_equal(got["y"], full["y"].astype(np.float16).astype(np.float32))
    assert np.isinf(run_as_lowered(lower, checked(lower, source), X900)["y"]).all(), (
        "without keep it has to overflow"
    )
    if lower is lower_fp16:
        types = Network(lowered).element_types
        inner = [node for node in lowered.graph.node if node.op_type in ("Pow", "Mul")][:3]
        assert {types[name] for node in inner for name in (*node.input, *node.output)} == {FLOAT}


def test_casts_are_shared_and_only_where_needed() -> None:
    """Three readers of one input, one Cast."""
    body = "a = Relu(x) b = Relu(x) c = Relu(x) y = Sum(a, b, c) s = Shape(x) t = Size(x) u = Shape(a) v = Size(a)"
    ends = "(float[2, 3] x) => (float[2, 3] y, int64[2] s, int64 t, int64[2] u, int64 v)"  # these read any type
    lowered = checked(lower_fp16, text_model(ends, body))
    assert ops(lowered)["Cast"] == 2  # x going in, y coming out


@both
def test_weights_and_constants_are_rounded_in_place(lower: Lowering) -> None:
    body = f"""c = Constant<value = float[2, 1] {{100000.0, {1 / 3}}}>() s = Constant<value_float = 1e-9>()
        fill = ConstantOfShape<value = float[1] {{0.1}}>(shape) zeros = ConstantOfShape(shape)
        y = Sum(x, w, c, fill, zeros, s)"""
    weights = {"w": np.full((2, 3), 1 / 7), "shape": np.array([2, 3])}
    source = text_model("(float[2, 3] x) => (float[2, 3] y)", body, weights)
    lowered = checked(lower, source)
    assert lower is lower_roundtrip or ops(lowered)["Cast"] == 2
    assert (ops(lowered)["Constant"], ops(lowered)["ConstantOfShape"]) == (2, 2)
    assert len(lowered.graph.initializer) == 2
    x = np.zeros((2, 3), np.float32)
    third, seventh, tenth = (np.float32(np.float16(1 / n)) for n in (3, 7, 10))
    expected = np.array([[np.inf] * 3, [np.float32(np.float16(third + seventh + tenth))] * 3])
    for level in LEVELS:
        np.testing.assert_allclose(
            ort_run(lowered, {"x": x}, level)["y"], expected, rtol=2 * HALF_EPSILON
        )


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_round_trips_of_an_fp16_file_keep_its_types_and_round_each_node(
    level: str, declared: bool
) -> None:
    """Its inputs, outputs, weights and inner values are fp16."""
    halves = {name: np.float16(value) for name, value in {"w": 300, "c": 3}.items()}
    body = "h = Mul(x, w) big = Mul(h, c) wide = Cast<to = 1>(h) back = Div(big, w) y = Identity(back) z = Sqrt(wide)"
    source = text_model("(float16[2] x) => (float16[2] y, float[2] z, float16[2] h)", body, halves)
    if declared:
        source = onnx.shape_inference.infer_shapes(source)
    emulated = checked(lower_roundtrip, source)
    onnx.checker.check_model(emulated, full_check=True)
    x = np.array([1, 100], np.float16)
    values = ort_run(emulated, {"x": x}, level)
    np.testing.assert_array_equal(values["y"], np.array([3, np.inf], np.float16))
    np.testing.assert_array_equal(values["h"], x * halves["w"])
    np.testing.assert_array_equal(values["z"], np.sqrt(x * halves["w"]).astype(np.float32))


@settings(deadline=None, max_examples=examples(60))
@given(source=random_models(), seed=st.integers(0, 99), level=st.sampled_from(LEVELS))
def test_round_trips_are_what_real_fp16_nodes_compute(
    source: ModelProto, seed: int, level: str
) -> None:
    """Node by node: each, as a real fp16 node, makes of the values before it what the round trips have after it."""
    feeds = feeds_for(seed)
    emulated = checked(lower_roundtrip, with_outputs(source, computed(source)))
    onnx.checker.check_model(emulated, full_check=True)
    types = Network(emulated).element_types
    inner = [node for node in emulated.graph.node if node.op_type != "Cast"]
    assert all(types[name] == FLOAT for node in inner for name in (*node.input, *node.output))
    values = ort_run(emulated, feeds, level)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    halves = {
        name: value.astype(np.float16) for name, value in {**values, **feeds, **weights}.items()
    }
    for name, value in values.items():
        assert np.array_equal(halves[name].astype(np.float32), value), (
            f"{name} holds values that fp16 has not"
        )
    for node in source.graph.node:
        alone = model(
            [node],
            node.output,
            inputs=[(name, FLOAT16, halves[name].shape) for name in dict.fromkeys(node.input)],
        )
        expected = evaluate(alone, {name: halves[name] for name in node.input})
        for name in node.output:
            # The evaluator also rounds within a node (sums, exponentials); that error grows with
            # what is summed.
            scale = max(float(np.abs(halves[read].astype(np.float32)).max()) for read in node.input)
            scale = max(scale, scale**2 if node.op_type in ("MatMul", "Mul", "Pow") else 0, 1)
            np.testing.assert_allclose(
                values[name], expected[name], rtol=4 * HALF_EPSILON, atol=4 * HALF_EPSILON * scale
            )


@settings(deadline=None, max_examples=examples(40))
@given(source=random_models(), seed=st.integers(0, 99), data=st.data())
def test_narrow_ends_change_no_value_but_by_their_own_rounding(
    source: ModelProto, seed: int, data: st.DataObject
) -> None:
    names = computed(source)
    kept = data.draw(st.sets(st.sampled_from(names), max_size=len(names)))
    lowered = lower_fp16(source, kept)
    narrowed = narrow_ends(lowered)
    onnx.checker.check_model(narrowed, full_check=True)
    ends = [*narrowed.graph.input, *narrowed.graph.output]
    assert {value.type.tensor_type.elem_type for value in ends} == {FLOAT16}
    halves = {name: value.astype(np.float16) for name, value in feeds_for(seed).items()}
    expected = ort_run(
        lowered, {name: value.astype(np.float32) for name, value in halves.items()}, LEVELS[0]
    )
    seen = ort_run(narrowed, halves, LEVELS[0])
    for name, value in expected.items():
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(seen[name], value.astype(np.float16))
    assert ops(narrowed)["Cast"] <= ops(lowered)["Cast"] + len(ends)


@settings(deadline=None, max_examples=examples(40))
@given(source=random_models())
def test_marking_tensors_changes_no_value(source: ModelProto) -> None:
    """The same nodes as without, and Casts of what is marked besides."""
    marked = with_outputs(source, computed(source))
    before, after = (
        [n for n in lower_fp16(m).graph.node if n.op_type != "Cast"] for m in (source, marked)
    )
    assert after == before


BFLOAT16 = TensorProto.BFLOAT16
LOW = (FLOAT16, BFLOAT16)


@st.composite
def mixed(draw: st.DrawFn) -> tuple[ModelProto, list[str]]:
    """A model, and the nodes of it to keep, by their first outputs."""
    source = draw(random_models())
    names = [first_output(node) for node in source.graph.node]
    return source, sorted(draw(st.sets(st.sampled_from(names))))


def casts(source: ModelProto) -> list[NodeProto]:
    return [node for node in source.graph.node if node.op_type == "Cast"]


def target(cast: NodeProto) -> int:
    return int(cast.attribute[0].i)


def no_cast_is_needless(lowered: ModelProto) -> None:
    """None undoes another, none is there twice, and each is read."""
    types = Network(lowered).element_types
    made = {cast.output[0]: cast for cast in casts(lowered)}
    for cast in made.values():
        assert types[cast.input[0]] != target(cast)
        before = made.get(cast.input[0])
        assert before is None or types[before.input[0]] != target(cast)
    assert len({(cast.input[0], target(cast)) for cast in made.values()}) == len(made)
    read = {name for node in lowered.graph.node for name in node.input} | {
        value.name for value in lowered.graph.output
    }
    assert set(made) <= read


def by_hand(source: ModelProto, keep: Collection[str], feeds: dict[str, Array]) -> dict[str, Array]:
    """Every tensor of a mixed model, each node evaluated alone by NumPy in the type that it should have."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    values: dict[str, Array] = {**feeds, **weights}
    for node in source.graph.node:
        kind, dtype = (FLOAT, np.float32) if first_output(node) in keep else (FLOAT16, np.float16)
        with np.errstate(over="ignore"):
            given_values = {name: values[name].astype(dtype) for name in node.input}
        inputs = [(name, kind, value.shape) for name, value in given_values.items()]
        outputs = [helper.make_tensor_value_info(name, kind, None) for name in node.output]
        alone = model([node], [], inputs=inputs)
        alone.graph.output.extend(outputs)
        values |= evaluate(alone, given_values)
    return values


@settings(max_examples=examples(80))
@given(case=mixed(), seed=st.integers(0, 99))
def test_a_mixed_model_is_typed_throughout_and_computes_what_its_nodes_do(
    case: tuple[ModelProto, list[str]], seed: int
) -> None:
    source, keep = case
    lowered = checked(lower_fp16, source, keep=keep)
    onnx.checker.check_model(lowered, full_check=True)
    types = Network(lowered).element_types
    inner = [node for node in lowered.graph.node if node.op_type != "Cast"]
    for node, was in zip(inner, source.graph.node, strict=True):
        assert node.op_type == was.op_type
        wanted = FLOAT if first_output(was) in keep else FLOAT16
        assert {types[name] for name in (*node.input, *node.output)} == {wanted}
    no_cast_is_needless(lowered)
    expected = by_hand(source, keep, feeds_for(seed))
    for name, value in evaluate(lowered, feeds_for(seed)).items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, expected[name].astype(np.float32))


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_is_rounded_as_onnx_runtime_rounds_it(values: list[float]) -> None:
    x = np.array(values, np.float32)
    there_and_back = [
        helper.make_node("Cast", ["x"], ["low"], to=BFLOAT16),
        helper.make_node("Cast", ["low"], ["y"], to=FLOAT),
    ]
    expected = ort_run(model(there_and_back, ["y"], inputs=[("x", FLOAT, x.shape)]), {"x": x})["y"]
    low = low_tensor(x, "x", BFLOAT16)
    assert (low.data_type, list(low.dims), len(low.raw_data)) == (
        BFLOAT16,
        list(x.shape),
        2 * x.size,
    )
    np.testing.assert_array_equal(numpy_helper.to_array(widen_tensor(low, "x")), expected)


@pytest.mark.parametrize("low", LOW)
def test_external_weights_are_stored_in_the_low_precision_or_cast(tmp_path: Path, low: int) -> None:
    source = model(
        [helper.make_node("Sum", ["x", "w"], ["y"])], ["y"], [weight("w", np.full((2, 3), 1 / 7))]
    )
    x = {"x": np.zeros((2, 3), np.float32)}
    expected = ort_run(emulate(lower_fp16(source, low=low), low), x)["y"]
    (tmp_path / "w.bin").write_bytes(source.graph.initializer[0].raw_data)
    refer_to(source.graph.initializer[0], "w.bin", 0, 24)
    assert ops(lower_fp16(source, low=low))["Cast"] == 3
    stored = lower_fp16(source, low=low, weights=tmp_path)
    onnx.checker.check_model(stored, full_check=True)
    assert [tensor.data_type for tensor in stored.graph.initializer] == [low]
    np.testing.assert_array_equal(ort_run(emulate(stored, low), x)["y"], expected)
