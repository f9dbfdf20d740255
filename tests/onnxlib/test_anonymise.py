"""What leaves in a bug report: the same model without its prose; with other names and weights, one of the same kind."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bisect_trt.onnxlib.cleanup import anonymise, strip


def model_with(weight: TensorProto, op: str = "Add") -> onnx.ModelProto:
    """``op`` of an input and a weight, inside a function and inside a branch too."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    ends = [helper.make_tensor_value_info(name, weight.data_type, list(weight.dims)) for name in ("first", "last")]
    body = [helper.make_node(op, ["a", "b"], ["mid"], name="inside"), helper.make_node("Identity", ["mid"], ["c"])]
    function = helper.make_function("own", "Twice", ["a", "b"], ["c"], body, opsets[:1])
    unused = helper.make_function("own", "Secret", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], opsets[:1])
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["half"], [f"{kind}_out"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_out", weight.data_type, list(weight.dims))],
        )
        for kind in ("Neg", "Identity")
    ]
    nodes = [
        helper.make_node("Twice", ["first", weight.name], ["half"], domain="own", name="outside"),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["last"], then_branch=branch[0], else_branch=branch[1]),
    ]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function, unused])
    onnx.checker.check_model(model)
    return model


@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=2, max_size=20))
def test_weights_are_replaced_in_their_own_range(values: list[float]) -> None:
    old = np.array(values, np.float32)
    anonymous = anonymise(model_with(numpy_helper.from_array(old, "weight")))
    onnx.checker.check_model(anonymous.proto)
    (weight,) = anonymous.proto.graph.initializer
    new = numpy_helper.to_array(weight)
    assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert new.min() == pytest.approx(old.min(), rel=1e-6)
    assert new.max() == pytest.approx(old.max(), rel=1e-6)
    assert anonymous.kept == ()


def test_it_computes_the_same_with_the_same_weights() -> None:
    old = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
    model = model_with(numpy_helper.from_array(old, "weight"))
    anonymous = anonymise(strip(model))
    names = anonymous.names
    anonymous.proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(old, names["weight"]))
    fed = np.ones((2, 3), np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"first": fed})
    (got,) = ReferenceEvaluator(anonymous.proto).run([names["last"]], anonymous.rename({"first": fed}))
    np.testing.assert_array_equal(got, wanted)


def test_no_name_is_left() -> None:
    model = strip(model_with(numpy_helper.from_array(np.ones(3, np.float32), "weight")))
    assert [function.name for function in model.functions] == ["Twice"]
    content = anonymise(model).proto.SerializeToString()
    for name in ("first", "last", "half", "weight", "inside", "outside", "mid"):
        assert name.encode() not in content


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT8])
def test_other_types_of_weights(dtype: int) -> None:
    weight = helper.make_tensor("weight", dtype, [64], [n % 7 - 3 for n in range(64)])
    anonymous = anonymise(model_with(weight))
    (new,) = anonymous.proto.graph.initializer
    assert (new.data_type, list(new.dims)) == (dtype, [64])
    values = numpy_helper.to_array(new).astype(np.float64)
    assert (values.min(), values.max()) == (-3, 3)
    assert not np.array_equal(values, numpy_helper.to_array(weight).astype(np.float64))


def test_what_may_be_an_index_and_what_is_not_finite_stays() -> None:
    indices = np.array([0, 1, 2], np.int64)
    anonymous = anonymise(model_with(numpy_helper.from_array(indices, "weight")))
    np.testing.assert_array_equal(numpy_helper.to_array(anonymous.proto.graph.initializer[0]), indices)
    mask = np.array([0, -np.inf, 1, np.nan], np.float32)
    anonymous = anonymise(model_with(numpy_helper.from_array(mask, "weight")))
    new = numpy_helper.to_array(anonymous.proto.graph.initializer[0])
    np.testing.assert_array_equal(np.isfinite(new), np.isfinite(mask))
    assert new[1] == -np.inf


def test_weights_that_cannot_be_replaced_are_named() -> None:
    weight = helper.make_tensor("weight", TensorProto.FLOAT8E4M3FN, [4], [1.0, 2.0, 3.0, 4.0])
    model = helper.make_model(
        helper.make_graph([helper.make_node("Cast", ["weight"], ["y"], to=1)], "g", [], [], [weight])
    )
    anonymous = anonymise(model)
    assert anonymous.kept == (anonymous.names["weight"],)
