"""Every node by itself in one model: fed the reference's values it gives the reference's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from cutting import Cutter, activations, assert_same, cutter, model_of, run, tensor_info
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from random_models import SHAPE, feeds, models

from bisect_trt.onnxlib.cut import Isolated, is_frozen, isolate
from bisect_trt.onnxlib.network import Network
from bisect_trt.tensors.info import TensorInfo


def frozen(cut: Cutter) -> dict[str, Any]:
    names = (*cut.network.inputs, *cut.network.computed)
    return {name: cut.values[name] for name in names if name in cut.infos and is_frozen(cut.infos[name])}


def isolated(cut: Cutter, names: list[str]) -> Isolated:
    return isolate(cut.network, names, cut.infos, frozen(cut))


def check_alone(cut: Cutter, names: list[str]) -> Isolated:
    """Hold a model against what it should be."""
    piece = isolated(cut, names)
    if not piece.outputs:
        return piece
    onnx.checker.check_model(piece.proto)
    assert set(names) <= set(piece.outputs) | piece.left_out.keys()
    alone = Network(piece.proto)
    for index in range(len(alone.nodes)):
        assert all(alone.constant[parent] for parent in alone.parents(index)), "it reads what another makes"
    assert not set(piece.fed) & set(cut.network.producer)
    fed = {name: cut.values[piece.fed.get(name, name)] for name in alone.inputs}
    assert_same(run(piece.proto, fed), {name: cut.values[name] for name in piece.outputs})
    return piece


@given(models(), st.data())
def test_each_node_gives_its_own_values_of_values_that_are_fed(model: ModelProto, data: st.DataObject) -> None:
    cut = cutter(model, feeds())
    known = [name for name in cut.network.computed if name in cut.infos]
    if known:
        check_alone(cut, known)
        check_alone(cut, data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True)))


def test_wrong_values_that_are_fed_do_not_reach_the_next_node() -> None:
    names = ["x", "a", "b", "c"]
    nodes = [helper.make_node("Neg", [names[i]], [names[i + 1]]) for i in range(3)]
    cut = cutter(model_of(nodes, [tensor_info("x", TensorProto.FLOAT, SHAPE)], ["c"]), {"x": feeds()["x"]})
    piece = isolated(cut, ["a", "b", "c"])
    fed = {name: cut.values[tensor] for name, tensor in piece.fed.items()}
    wrong = {name: value + (piece.fed[name] == "a") for name, value in fed.items()}
    given_back = run(piece.proto, {"x": cut.values["x"], **wrong})
    assert [name for name in "abc" if not np.array_equal(given_back[name], cut.values[name])] == ["b"]


def test_shapes_are_stored_and_what_is_made_of_nothing_else_is_left_out() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["width"]),
        helper.make_node("Reshape", ["x", "width"], ["flat"]),
    ]
    x = np.ones((1, 6), np.float32)
    model = model_of(nodes, [tensor_info("x", TensorProto.FLOAT, [1, 6])], ["flat"], {"one": np.array([1])})
    piece = check_alone(cutter(model, {"x": x}), ["shape", "width", "flat"])
    assert piece.outputs == ("shape", "flat")
    assert "width" in piece.left_out
    assert [value.name for value in piece.proto.graph.input] == ["x"]
    assert piece.fed == {}


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (np.int64, (3,), True),
        (np.int32, (), True),
        (np.int64, (65,), False),
        (np.int64, (1, 3), False),
        (np.bool_, (3,), False),
        (np.float32, (3,), False),
        (np.int64, (None,), False),
        (np.int64, None, False),
    ],
)
def test_what_is_stored(dtype: type, shape: tuple[int | None, ...] | None, expected: bool) -> None:
    assert is_frozen(TensorInfo("t", np.dtype(dtype), shape)) == expected


def test_new_names_are_nobodys() -> None:
    """Not of a tensor, nor of anything in a body."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["a_reference_2"])], "b", [], [onnx.ValueInfoProto(name="a_reference_2")]
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["a_reference"]),
        helper.make_node("If", ["yes"], ["out"], then_branch=body, else_branch=body),
    ]
    model = model_of(
        nodes, [tensor_info("x", TensorProto.FLOAT, SHAPE)], ["out", "a_reference"], {"yes": np.array(True)}
    )
    given_values = {"x": feeds()["x"]}
    cut = Cutter(model, activations(model, given_values))
    piece = check_alone(cut, ["a", "a_reference", "out"])
    assert list(piece.fed) == ["a_reference_3"]
