"""What stands in a node, in whichever form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.nodes import attribute, captured_names, held, inner_nodes, reads, rename_reads

node = helper.make_node


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("value", numpy_helper.from_array(np.array([1.5, 2], np.float64))),
        ("value_float", 0.1),
        ("value_floats", [0.1, 2]),
        ("value_int", 2**40),
        ("value_ints", [3, -(2**40)]),
    ],
)
def test_a_constant_holds_its_value_in_each_form_of_numbers(form: str, value: Any) -> None:
    tensor = held(node("Constant", [], ["c"], **{form: value}))
    assert tensor is not None
    expected = (
        numpy_helper.to_array(value) if form == "value" else np.array(value, np.float32 if "float" in form else int)
    )
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected)
    assert numpy_helper.to_array(tensor).dtype == expected.dtype


def test_an_attribute_of_another_type_or_of_the_caller_is_none() -> None:
    assert attribute(node("Softmax", ["x"], ["y"], axis=2), "axis", 1) == 2
    assert attribute(node("Softmax", ["x"], ["y"]), "axis", 1) == 1
    assert attribute(node("Softmax", ["x"], ["y"], axis="2"), "axis", 1) == 1
    told = node("Softmax", ["x"], ["y"], axis=2)
    told.attribute[0].ref_attr_name = "which"
    assert attribute(told, "axis", 1) == 1


def test_a_body_reads_what_it_does_not_make() -> None:
    """Deep inside too; renaming changes what comes from outside alone."""
    value = helper.make_tensor_value_info
    inner = helper.make_graph(
        [node("Add", ["outer", "own"], ["made"])], "inner", [], [value("made", TensorProto.FLOAT, [1])]
    )
    body = helper.make_graph(
        [node("Neg", ["x"], ["own"]), node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)],
        "body",
        [],
        [value("z", TensorProto.FLOAT, [1])],
    )
    whole = node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    assert set(reads(whole)) == {"c", "x", "outer"}
    assert captured_names(whole) == {"c", "x", "own", "outer", "made", "z"}
    assert sorted(each.op_type for each in inner_nodes([whole])) == sorted(["If", *["Neg", "If", "Add", "Add"] * 2])
    new = rename_reads(whole, {"outer": "other", "own": "taken", "x": "w"})
    assert set(reads(new)) == {"c", "w", "other"}
    assert set(reads(whole)) == {"c", "x", "outer"}
