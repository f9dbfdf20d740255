"""What is read from a model before anything is cut, and which models are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cutting import model_of, tensor_info
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper

from bisect_trt.errors import UnavailableError
from bisect_trt.onnxlib.network import Network, depth_first_order

X = tensor_info("x", TensorProto.FLOAT, [2])
node = helper.make_node

Graph = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """The parents of each of some nodes, numbered in no order."""
    count = draw(st.integers(1, 30))
    number = draw(st.permutations(range(count)))
    parents: Graph = [[] for _ in range(count)]
    for place in range(count):
        if place:
            chosen = draw(st.lists(st.sampled_from(range(place)), max_size=3))
            parents[number[place]] = [number[other] for other in chosen]
    return parents


def ordered(parents: Graph) -> list[int]:
    return depth_first_order(len(parents), parents.__getitem__)


@settings(deadline=None)
@given(graphs())
def test_each_comes_after_its_parents(parents: Graph) -> None:
    order = ordered(parents)
    assert sorted(order) == list(range(len(parents)))
    place = {each: number for number, each in enumerate(order)}
    assert all(place[parent] < place[each] for each in order for parent in parents[each])


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6))
def test_a_branch_stays_in_one_piece(branches: int, length: int) -> None:
    # Written breadth first: node k of each branch before node k + 1 of any; the last joins them.
    parents = [[place - branches] if place >= branches else [] for place in range(branches * length)]
    parents.append(list(range(branches * (length - 1), branches * length)))
    order = ordered(parents)[:-1]
    chains = [[each % branches for each in order[start : start + length]] for start in range(0, len(order), length)]
    assert all(len(set(chain)) == 1 for chain in chains)


def test_a_long_chain_needs_no_deep_stack() -> None:
    assert ordered([[place - 1] if place else [] for place in range(20_000)]) == list(range(20_000))


def refused(nodes: Sequence[NodeProto], outputs: Sequence[str] = ("y",), weights: Sequence[str] = ()) -> str:
    model = model_of(nodes, [X], outputs, {name: np.zeros(2, np.float32) for name in weights})
    return _refused(model)


def _refused(model: ModelProto) -> str:
    with pytest.raises(UnavailableError) as error:
        Network(model)
    assert str(error.value).endswith("so the model is not valid ONNX.")
    return str(error.value)


def test_a_cycle_names_a_node_that_is_on_it() -> None:
    # "behind" comes first, depends on the cycle and is not on it.
    nodes = [
        node("Neg", ["b"], ["y"], name="behind"),
        node("Relu", ["x"], ["before"], name="before"),
        node("Add", ["before", "c"], ["b"], name="one"),
        node("Exp", ["b"], ["c"], name="two"),
    ]
    message = refused(nodes)
    assert "cycle" in message
    assert "'one'" in message or "'two'" in message
    assert "cycle through Neg 'a'" in refused([node("Neg", ["a"], ["a"]), node("Relu", ["x"], ["y"])])


def test_what_it_reads() -> None:
    nodes = [
        node("Add", ["a", "made"], ["y"]),
        node("Clip", ["x", "", "w"], ["a"], name="clip"),
        node("Constant", [], ["made"], value_float=1.0),
        node("Exp", ["made"], ["made2"]),
    ]
    model = model_of(nodes, [tensor_info("w", TensorProto.FLOAT, []), X], ["y", "made2"], {"w": np.float32(1)})
    network = Network(model)
    assert (network.inputs, network.outputs) == (["x"], ["y", "made2"])
    assert network.reads == [("a", "made"), ("x", "w"), (), ("made",)]
    assert network.constant == [False, False, True, True]
    assert network.computed == ["a", "y"]
    assert network.consumers == {"a": (0,), "made": [0, 3], "x": (1,), "w": (1,)}
    assert [network.rank[index] for index in network.order] == [0, 1, 2, 3]
    assert network.describe(1) == "Clip 'clip'"
    assert network.describe(0) == "Add 'y'"


def test_a_function_that_calls_itself_is_no_endless_question() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    again = helper.make_function("mine", "Again", [], ["r"], [node("Again", [], ["r"], domain="mine")], opsets)
    nodes = [node("Again", [], ["r"], domain="mine"), node("Add", ["x", "r"], ["y"])]
    assert Network(model_of(nodes, [X], ["y"], domains=["mine"], functions=[again])).constant == [True, False]
