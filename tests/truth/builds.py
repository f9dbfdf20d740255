"""Networks of 200 nodes and more that TensorRT-RTX cannot parse or build: the planted nodes are named, exactly, without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper

from truth.patterns import Sketch

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.slow
FLOAT = TensorProto.FLOAT
SHAPE = (1, 4, 8)


class Planted(Sketch):
    """A network of tensors of one shape.

    Attributes:
        functions: Its functions.
        guilty: The names of the planted nodes.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.functions: list[onnx.FunctionProto] = []
        self.guilty: list[str] = []

    def plant(self, op: str, *reads: str, domain: str = "", **attributes: Any) -> str:
        """Add a guilty node, and return what it makes."""
        made = self.add(op, *reads, **attributes)
        self.nodes[-1].domain = domain
        self.guilty += self.last()
        return made

    def scalar(self, read: str, last: str) -> str:
        """Add a tensor of any shape and type to one of the network's as a number."""
        return self.add(
            "Add", last, self.add("ReduceSum", self.add("Cast", read, to=FLOAT), keepdims=0)
        )


def suppression(net: Planted, last: str) -> str:
    scores = net.weight(np.ones((1, 1, 8)))
    most = net.weight([2], np.int64)
    boxes = net.add("Transpose", last, perm=[0, 2, 1])
    return net.scalar(net.plant("NonMaxSuppression", boxes, scores, most), last)


def determinant(net: Planted, last: str) -> str:
    square = net.add("MatMul", last, net.add("Transpose", last, perm=[0, 2, 1]))
    return net.scalar(net.plant("Det", square), last)


def custom(net: Planted, last: str) -> str:
    return net.plant("Swirl", last, domain="acme")


def grouped(net: Planted, last: str) -> str:
    query = net.add("Reshape", last, net.weight([1, 4, 2, 4], np.int64))
    key = net.add("Slice", query, *(net.weight([each], np.int64) for each in (0, 2, 1)))
    made = net.plant("Attention", query, key, key)
    return net.scalar(made, last)


def product_and_determinant(read: str, made: str) -> list[onnx.NodeProto]:
    """Nodes of a body: the determinant of a matrix, which no release supports, added to that matrix."""
    return [
        helper.make_node("Transpose", [read], ["across"], perm=[0, 2, 1]),
        helper.make_node("MatMul", [read, "across"], ["square"]),
        helper.make_node("Det", ["square"], ["size"], name="inner"),
        helper.make_node("Add", [read, "size"], [made]),
    ]


def info(name: str, element: int = FLOAT, shape: tuple[int, ...] = SHAPE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def branch(net: Planted, last: str) -> str:
    condition = net.add("Greater", net.add("ReduceSum", last, keepdims=0), net.weight(0))
    bodies = product_and_determinant(last, "yes"), [helper.make_node("Identity", [last], ["no"])]
    then, otherwise = (
        helper.make_graph(body, name, [], [info(name)])
        for body, name in zip(bodies, ("yes", "no"), strict=True)
    )
    return net.plant("If", condition, then_branch=then, else_branch=otherwise)


def looped(net: Planted, last: str) -> str:
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        *product_and_determinant("given", "taken"),
    ]
    ends = [info("turn", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("given")]
    body = helper.make_graph(nodes, "body", ends, [info("on", TensorProto.BOOL, ()), info("taken")])
    return net.plant("Loop", net.weight(3, np.int64), net.weight(True, np.bool_), last, body=body)


def called(net: Planted, last: str) -> str:
    nodes = product_and_determinant("given", "taken")
    opsets = [helper.make_opsetid("", 23)]
    net.functions = [helper.make_function("acme", "Block", ["given"], ["taken"], nodes, opsets)]
    return net.plant("Block", last, domain="acme")


def flattened(net: Planted, last: str) -> str:
    """Takes the batch of 1 alone."""
    fixed = net.plant("Reshape", last, net.weight(SHAPE[1:], np.int64))
    return net.add("Reshape", fixed, net.weight([-1, *SHAPE[1:]], np.int64))


KINDS: dict[str, Callable[[Planted, str], str]] = {
    each.__name__: each
    for each in (*(suppression, determinant, custom, grouped, branch, looped, called),)
}


def network(path: Path, *plants: str, free: bool = False, length: int = 210) -> list[str]:
    """Write a network, and return the names of the planted nodes."""
    net = Planted()
    last = "x"
    where = {length * (place + 1) // (len(plants) + 2): kind for place, kind in enumerate(plants)}
    product = net.weight(np.random.default_rng(0).normal(size=(8, 8)) / 3)
    for place in range(length):
        if place in where:
            last = (flattened if where[place] == "flattened" else KINDS[where[place]])(net, last)
        elif place % 7 == 3:
            last = net.add("MatMul", last, product)
        elif place % 7 == 6:
            last = net.add("Add", last, net.add("Sigmoid", last))
        else:
            last = net.add(("Relu", "Tanh", "Neg")[place % 3], last)
    shape: list[str | int | None] = ["batch" if free else SHAPE[0], *SHAPE[1:]]
    ends = [helper.make_tensor_value_info(name, FLOAT, shape) for name in ("x", last)]
    graph = helper.make_graph(net.nodes, "g", ends[:1], ends[1:], net.weights)
    # As exporters do; after an operator that nobody knows, shapes cannot be inferred.
    made = [node.output[0] for node in net.nodes if node.domain or node.op_type in ("If", "Loop")]
    graph.value_info.extend(helper.make_tensor_value_info(name, FLOAT, shape) for name in made)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("acme", 1)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=net.functions), path
    )
    return net.guilty


SINGLE = [(kind,) for kind in KINDS]
DOUBLE = list(itertools.pairwise([*KINDS, next(iter(KINDS))]))


@pytest.mark.parametrize("plants", [*SINGLE, *DOUBLE], ids=" and ".join)
def test_planted_nodes_are_named(plants: tuple[str, ...], cli: CommandLine, here: Path) -> None:
    guilty = network(here / "m.onnx", *plants)
    assert len(onnx.load(here / "m.onnx").graph.node) >= 200
    words = ("--trt-rtx", "--build-only", "--all", "--no-shrink", "--json", "r.json")
    result = cli("reduce", "m.onnx", "-o", "r.onnx", *words).ended(0).result
    found = [
        [each["name"] for each in failure["culprits"]]
        for failure in result.get("failures") or [result]
    ]
    assert sorted(map(tuple, found)) == sorted((name,) for name in guilty)


@pytest.mark.parametrize("kind", ["suppression", "determinant", "looped", "flattened"])
def test_with_dynamic_shapes(kind: str, cli: CommandLine, here: Path) -> None:
    guilty = network(here / "m.onnx", kind, free=True)
    shapes = ("--trt-min-shapes", "x:[1,4,8]", "--trt-max-shapes", "x:[4,4,8]")
    words = ("--trt-rtx", "--build-only", "--json", "r.json", *shapes)
    result = cli("reduce", "m.onnx", "-o", "r.onnx", *words).ended(0).result
    assert [each["name"] for each in result["culprits"]] == guilty


@pytest.mark.parametrize("free", [False, True])
def test_a_clean_network_is_no_failure(cli: CommandLine, here: Path, free: bool) -> None:
    network(here / "m.onnx", free=free)
    shapes = ("--trt-min-shapes", "x:[1,4,8]", "--trt-max-shapes", "x:[4,4,8]") if free else ()
    assert cli("reduce", "m.onnx", "-o", "r.onnx", "--trt-rtx", "--build-only", *shapes).status == 1


@pytest.mark.parametrize("operator", ["Equal", "Div", "Add", "Max", "Min"])
def test_the_release_that_builds_is_found(operator: str, cli: CommandLine, here: Path) -> None:
    """Elementwise operators of int8 do not build in 1.4, and build since 1.5: by ten lines in each release."""
    ends = [helper.make_tensor_value_info(name, TensorProto.INT8, [3, 4, 5]) for name in "xy"]
    made = helper.make_tensor_value_info(
        "z", TensorProto.BOOL if operator == "Equal" else TensorProto.INT8, [3, 4, 5]
    )
    graph = helper.make_graph([helper.make_node(operator, ["x", "y"], ["z"])], "g", ends, [made])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9),
        here / "m.onnx",
    )
    words = ("--trt-rtx", "--build-only", "--to", "1.7.1.116", "--json", "r.json")
    assert cli("releases", "m.onnx", *words).ended(0).result["first_passing"] == "1.5.0.114"
