"""Models of which some nodes stay in fp32: types, Casts and values, for random models and random nodes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import FLOAT, FLOAT16, Array, checked, evaluate, model, ops, ort_run, weight
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from random_lowering import feeds_for, random_models
from support import examples

from bisect_trt.onnxlib.emulation import emulate, widen_tensor
from bisect_trt.onnxlib.lower import low_tensor, lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.save import refer_to

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
    read = {name for node in lowered.graph.node for name in node.input} | {value.name for value in lowered.graph.output}
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
    assert (low.data_type, list(low.dims), len(low.raw_data)) == (BFLOAT16, list(x.shape), 2 * x.size)
    np.testing.assert_array_equal(numpy_helper.to_array(widen_tensor(low, "x")), expected)


@pytest.mark.parametrize("low", LOW)
def test_external_weights_are_stored_in_the_low_precision_or_cast(tmp_path: Path, low: int) -> None:
    source = model([helper.make_node("Sum", ["x", "w"], ["y"])], ["y"], [weight("w", np.full((2, 3), 1 / 7))])
    x = {"x": np.zeros((2, 3), np.float32)}
    expected = ort_run(emulate(lower_fp16(source, low=low), low), x)["y"]
    (tmp_path / "w.bin").write_bytes(source.graph.initializer[0].raw_data)
    refer_to(source.graph.initializer[0], "w.bin", 0, 24)
    assert ops(lower_fp16(source, low=low))["Cast"] == 3
    stored = lower_fp16(source, low=low, weights=tmp_path)
    onnx.checker.check_model(stored, full_check=True)
    assert [tensor.data_type for tensor in stored.graph.initializer] == [low]
    np.testing.assert_array_equal(ort_run(emulate(stored, low), x)["y"], expected)
