"""Networks of 200 nodes and more that TensorRT-RTX cannot parse or build: the planted nodes are named, exactly, without a GPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.slow
FLOAT = TensorProto.FLOAT
SHAPE = (1, 4, 8)


class Planted:
    """A network that is being made, of tensors of one shape.

    Attributes:
        nodes: Its nodes.
        weights: Its initializers.
        functions: Its functions.
        guilty: The names of the planted nodes.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.guilty: list[str] = []

    def add(
        self, op: str, *reads: str, name: str = "", guilty: bool = False, domain: str = "", **attributes: object
    ) -> str:
        """Add a node, and return what it makes."""
        place = len(self.nodes)
        name = f"{op} {place}{name}"
        self.guilty += [name] if guilty else []
        made = f"t{place}"
        self.nodes.append(helper.make_node(op, list(reads), [made], name=name, domain=domain, **attributes))  # type: ignore[arg-type]
        return made

    def weight(self, value: object, element: int | None = None) -> str:
        """Add an initializer, and return its name."""
        name = f"w{len(self.weights)}"
        array = np.asarray(value)
        tensor = numpy_helper.from_array(array, name)
        if element is not None:
            tensor = helper.make_tensor(name, element, array.shape, array.reshape(-1).tolist())
        self.weights.append(tensor)
        return name

    def scalar(self, read: str, last: str) -> str:
        """Add a tensor of any shape and type to one of the network's as a number."""
        return self.add("Add", last, self.add("ReduceSum", self.add("Cast", read, to=FLOAT), keepdims=0))


def suppression(net: Planted, last: str) -> str:
    scores, most = net.weight(np.ones((1, 1, 8), np.float32)), net.weight(np.array([2]))
    boxes = net.add("Transpose", last, perm=[0, 2, 1])
    return net.scalar(net.add("NonMaxSuppression", boxes, scores, most, guilty=True), last)


def determinant(net: Planted, last: str) -> str:
    square = net.add("MatMul", last, net.add("Transpose", last, perm=[0, 2, 1]))
    return net.scalar(net.add("Det", square, guilty=True), last)


def custom(net: Planted, last: str) -> str:
    return net.add("Swirl", last, guilty=True, domain="acme")


def grouped(net: Planted, last: str) -> str:
    query = net.add("Reshape", last, net.weight(np.array([1, 4, 2, 4])))
    key = net.add("Slice", query, *(net.weight(np.array([each])) for each in (0, 2, 1)))
    made = net.add("Attention", query, key, key, guilty=True)
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
    condition = net.add("Greater", net.add("ReduceSum", last, keepdims=0), net.weight(np.float32(0)))
    bodies = product_and_determinant(last, "yes"), [helper.make_node("Identity", [last], ["no"])]
    then, otherwise = (
        helper.make_graph(body, name, [], [info(name)]) for body, name in zip(bodies, ("yes", "no"), strict=True)
    )
    return net.add("If", condition, guilty=True, then_branch=then, else_branch=otherwise)


def looped(net: Planted, last: str) -> str:
    nodes = [helper.make_node("Identity", ["go"], ["on"]), *product_and_determinant("given", "taken")]
    ends = [info("turn", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("given")]
    body = helper.make_graph(nodes, "body", ends, [info("on", TensorProto.BOOL, ()), info("taken")])
    return net.add("Loop", net.weight(np.array(3)), net.weight(np.array(True)), last, guilty=True, body=body)


def called(net: Planted, last: str) -> str:
    nodes, opsets = product_and_determinant("given", "taken"), [helper.make_opsetid("", 23)]
    net.functions = [helper.make_function("acme", "Block", ["given"], ["taken"], nodes, opsets)]
    return net.add("Block", last, guilty=True, domain="acme")


def flattened(net: Planted, last: str) -> str:
    """Takes the batch of 1 alone."""
    fixed = net.add("Reshape", last, net.weight(np.array(SHAPE[1:])), guilty=True)
    return net.add("Reshape", fixed, net.weight(np.array([-1, *SHAPE[1:]])))


KINDS: dict[str, Callable[[Planted, str], str]] = {
    each.__name__: each for each in (*(suppression, determinant, custom, grouped, branch, looped, called),)
}


def network(path: Path, *plants: str, free: bool = False, length: int = 210) -> list[str]:
    """Write a network, and return the names of the planted nodes."""
    net, last = Planted(), "x"
    where = {length * (place + 1) // (len(plants) + 2): kind for place, kind in enumerate(plants)}
    product = net.weight((np.random.default_rng(0).normal(size=(8, 8)) / 3).astype(np.float32))
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
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=net.functions), path)
    return net.guilty


SINGLE = [(kind,) for kind in KINDS]
DOUBLE = list(itertools.pairwise([*KINDS, next(iter(KINDS))]))


@pytest.mark.parametrize("plants", [*SINGLE, *DOUBLE], ids=" and ".join)
def test_planted_nodes_are_named(plants: tuple[str, ...], cli: CommandLine, here: Path) -> None:
    guilty = network(here / "m.onnx", *plants)
    assert len(onnx.load(here / "m.onnx").graph.node) >= 200
    ran = cli(
        "reduce", "m.onnx", "-o", "r.onnx", "--trt-rtx", "--build-only", "--all", "--no-shrink", "--json", "r.json"
    )
    assert ran.status == 0, ran
    result = json.loads((here / "r.json").read_text())
    found = [[each["name"] for each in failure["culprits"]] for failure in result.get("failures") or [result]]
    assert sorted(map(tuple, found)) == sorted((name,) for name in guilty)


@pytest.mark.parametrize("kind", ["suppression", "determinant", "looped", "flattened"])
def test_with_dynamic_shapes(kind: str, cli: CommandLine, here: Path) -> None:
    guilty = network(here / "m.onnx", kind, free=True)
    shapes = ("--trt-min-shapes", "x:[1,4,8]", "--trt-max-shapes", "x:[4,4,8]")
    ran = cli("reduce", "m.onnx", "-o", "r.onnx", "--trt-rtx", "--build-only", "--json", "r.json", *shapes)
    assert ran.status == 0, ran
    assert [each["name"] for each in json.loads((here / "r.json").read_text())["culprits"]] == guilty


@pytest.mark.parametrize("free", [False, True])
def test_a_clean_network_is_no_failure(cli: CommandLine, here: Path, free: bool) -> None:
    network(here / "m.onnx", free=free)
    shapes = ("--trt-min-shapes", "x:[1,4,8]", "--trt-max-shapes", "x:[4,4,8]") if free else ()
    assert cli("reduce", "m.onnx", "-o", "r.onnx", "--trt-rtx", "--build-only", *shapes).status == 1


@pytest.mark.parametrize("operator", ["Equal", "Div", "Add", "Max", "Min"])
def test_the_release_that_builds_is_found(operator: str, cli: CommandLine, here: Path) -> None:
    """Elementwise operators of int8 do not build in 1.4, and build since 1.5: by ten lines in each release."""
    ends = [helper.make_tensor_value_info(name, TensorProto.INT8, [3, 4, 5]) for name in "xy"]
    made = helper.make_tensor_value_info("z", TensorProto.BOOL if operator == "Equal" else TensorProto.INT8, [3, 4, 5])
    graph = helper.make_graph([helper.make_node(operator, ["x", "y"], ["z"])], "g", ends, [made])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), here / "m.onnx")
    ran = cli("releases", "m.onnx", "--trt-rtx", "--build-only", "--to", "1.7.1.116", "--json", "r.json")
    assert ran.status == 0, ran
    result = json.loads((here / "r.json").read_text())
    assert result["first_passing"] == "1.5.0.114"
