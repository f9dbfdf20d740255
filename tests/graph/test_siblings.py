"""Siblings: the same place in every block, by names or by structure, and nothing in what has no blocks."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.siblings import Siblings

BLOCK = ("Relu", "Neg", "Exp", "Tanh", "Abs")


def network(names: list[tuple[str, str]]) -> Network:
    """A chain of operators, of these names."""
    nodes = [
        helper.make_node(op, [f"t{place}"], [f"t{place + 1}"], name=name) for place, (name, op) in enumerate(names)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t0", f"t{len(names)}")]
    return Network(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])))


def blocks(count: int, name: Callable[[int, str], str]) -> Network:
    return network([(name(block, op), op) for block in range(count) for op in BLOCK])


@given(
    st.integers(2, 6),
    st.sampled_from(["/blocks.{}/norm1/{}", "model.layers.{}.mlp.{}", "/enc/layer_{}/out/{}", "enc/{}/a/{}"]),
)
def test_by_names(count: int, pattern: str) -> None:
    graph = blocks(count, pattern.format)
    siblings = Siblings(graph, range(count * len(BLOCK)))
    for unit in range(count * len(BLOCK)):
        assert siblings.of([unit]) == frozenset(range(unit % len(BLOCK), count * len(BLOCK), len(BLOCK)))


def test_a_number_that_belongs_to_a_name_tells_apart() -> None:
    graph = blocks(4, lambda block, op: f"/blocks.{block // 2}/norm{block % 2}/{op}")
    assert Siblings(graph, range(20)).of([0]) == {0, 10}


@given(st.integers(5, 8))
def test_by_structure_where_names_say_nothing(count: int) -> None:
    """Near the ends the surroundings are others."""
    graph = blocks(count, lambda block, op: f"{op}_{7 * block}")
    siblings = Siblings(graph, range(count * len(BLOCK)))
    middle = 2 * len(BLOCK)
    found = siblings.of([middle])
    assert {middle, middle + len(BLOCK)} <= found
    assert all(unit % len(BLOCK) == 0 for unit in found)


def test_a_chain_of_the_same_node_has_no_blocks() -> None:
    for name in ("<{}>", "/blocks.{}/Relu", ""):
        graph = network([(name.format(place), "Relu") for place in range(12)])
        assert Siblings(graph, range(12)).of([5]) == {5}


def test_another_operator_is_another_place() -> None:
    graph = network([("/b.0/x/act", "Relu"), ("/b.0/y", "Neg"), ("/b.1/x/act", "Tanh"), ("/b.1/y", "Neg")])
    siblings = Siblings(graph, range(4))
    assert siblings.of([0]) == {0}
    assert siblings.of([0, 1]) == {0, 1, 3}


def test_only_units_that_are_searched_count() -> None:
    graph = blocks(3, lambda block, op: f"/b.{block}/{op}")
    assert Siblings(graph, [0, 5]).of([0]) == {0, 5}


def test_weights_and_inputs_are_told_apart() -> None:
    """The same operators read a weight here and the input there."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Add", ["x", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    assert Siblings(Network(onnx.helper.make_model(graph)), range(4)).of([0]) == {0}
