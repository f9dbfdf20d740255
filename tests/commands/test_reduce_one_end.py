"""``reduce`` with one end of the graph held: what is left has nothing that the other end does not need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from support import node_names

import bisect_trt

node = helper.make_node
Ends = tuple[list[str], list[str], list[str]]


def save(path: Path, nodes: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str]) -> Path:
    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in inputs]
    returned = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "test", fed, returned)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def reducable(path: Path) -> Path:
    """The model of this name in Polygraphy's tests: two inputs, joined, then two outputs."""
    nodes = [
        node("Identity", ["X0"], ["identity_out_0"], name="1"),
        node("Identity", ["Y0"], ["identity_out_2"], name="3"),
        node("Add", ["identity_out_0", "identity_out_2"], ["add_out_4"], name="5"),
        node("Identity", ["add_out_4"], ["identity_out_6"], name="7"),
        node("Identity", ["add_out_4"], ["identity_out_8"], name="9"),
    ]
    return save(path, nodes, ["X0", "Y0"], ["identity_out_6", "identity_out_8"])


def branches(path: Path) -> Path:
    """Three branches from one input; the first two are joined, the third has an output of its own."""
    nodes = [
        node("Relu", ["x"], ["stem"], name="stem"),
        *(node("Neg", ["stem"], [f"a{i}"], name=f"a{i}") for i in range(3)),
        *(node("Abs", [f"a{i}"], [f"b{i}"], name=f"b{i}") for i in range(3)),
        node("Add", ["b0", "b1"], ["joined"], name="joined"),
        node("Split", ["joined"], ["left", "right"], name="split", axis=1),
        node("Neg", ["left"], ["y"], name="y"),
        node("Neg", ["right"], ["z"], name="z"),
    ]
    return save(path, nodes, ["x"], ["y", "z", "b2"])


def has_nodes(*names: str) -> Callable[[Path], bool]:
    return lambda path: set(names) <= set(node_names(path))


def has_output(name: str) -> Callable[[Path], bool]:
    """Fails while a tensor is an output, or is read on."""
    return lambda path: name in ends_of(path)[2] or any(name in each.input for each in onnx.load(str(path)).graph.node)


def ends_of(path: Path) -> Ends:
    """Inputs, nodes and outputs."""
    graph = onnx.load(str(path)).graph
    return [value.name for value in graph.input], node_names(path), [value.name for value in graph.output]


def reduced(model: Path, check: Callable[[Path], bool], **options: Any) -> Ends:
    result = bisect_trt.reduce(model, check, output="out.onnx", overwrite=True, **options)
    assert (result.status, result.proven) == ("found", True)
    onnx.checker.check_model("out.onnx", full_check=True)
    inputs, nodes, outputs = ends_of(Path("out.onnx"))
    assert sorted(culprit["name"] for culprit in result.culprits) == sorted(nodes)
    return sorted(inputs), sorted(nodes), sorted(outputs)


STEM = ["a0", "a1", "b0", "b1", "joined", "stem"]


@pytest.mark.parametrize("mode", ["auto", "linear"])
@pytest.mark.parametrize(
    ("make", "check", "left"),
    [
        (reducable, has_nodes("7"), (["X0", "Y0"], ["1", "3", "5", "7"], ["identity_out_6"])),
        (
            reducable,
            has_nodes("7", "9"),
            (["X0", "Y0"], ["1", "3", "5", "7", "9"], ["identity_out_6", "identity_out_8"]),
        ),
        (branches, has_nodes("b1", "a2"), (["x"], ["a1", "a2", "b1", "stem"], ["a2", "b1"])),
        (branches, has_output("left"), (["x"], sorted([*STEM, "split"]), ["left", "right"])),
    ],
)
def test_with_the_start_held_only_what_leads_to_the_end_stays(
    make: Callable[[Path], Path], check: Callable[[Path], bool], left: Ends, mode: str, here: Path
) -> None:
    assert reduced(make(here / "model.onnx"), check, reduce_inputs=False, mode=mode) == left


@pytest.mark.parametrize("mode", ["auto", "linear"])
@pytest.mark.parametrize(
    ("make", "check", "left"),
    [
        (
            reducable,
            has_nodes("1"),
            (["X0", "identity_out_2"], ["1", "5", "7", "9"], ["identity_out_6", "identity_out_8"]),
        ),
        (reducable, has_nodes("7", "9"), (["add_out_4"], ["7", "9"], ["identity_out_6", "identity_out_8"])),
        (branches, has_nodes("b0"), (["a0", "b1"], ["b0", "joined", "split", "y", "z"], ["y", "z"])),
        (branches, has_nodes("b2", "y"), (["a2", "left"], ["b2", "y"], ["b2", "y"])),
    ],
)
def test_with_the_end_held_only_what_the_start_leads_to_stays(
    make: Callable[[Path], Path], check: Callable[[Path], bool], left: Ends, mode: str, here: Path
) -> None:
    assert reduced(make(here / "model.onnx"), check, reduce_outputs=False, mode=mode) == left
