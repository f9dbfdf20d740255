"""Models made ready for TensorRT's parser, and its layers traced back to their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import End, proto_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from support import overflowing
from trt_standin import OLD, WEAK, StandIn, World, plain, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.trt import free_dimensions, name_nodes
from bisect_trt.targets.trt.network import ParsedNetwork, constrain, with_values

word = st.sampled_from(["", "a", "b", "a_1", "b_1", "out", "x"])


@given(st.lists(st.tuples(word, word.filter(bool)), min_size=1, max_size=8))
def test_every_node_gets_a_name_of_its_own_and_keeps_one_that_it_has_alone(
    nodes: list[tuple[str, str]],
) -> None:
    made = [helper.make_node("Identity", ["x"], [output], name=name) for name, output in nodes]
    model = proto_of(made, [], [])
    name_nodes(model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)
    before = [name for name, _ in nodes]
    for name, after in zip(before, names, strict=True):
        if name and before.count(name) == 1:
            assert after == name


def reshaping() -> ModelProto:
    """``Reshape(x, size)`` with an input ``size``."""
    node = helper.make_node("Reshape", ["x", "size"], ["y"], name="r")
    inputs: list[End] = [("x", TensorProto.FLOAT, ["n", 6]), ("size", TensorProto.INT64, [2])]
    return proto_of([node], inputs, [("y", TensorProto.FLOAT, ["a", "b"])])


values = st.tuples(
    st.sampled_from(["int64", "int32", "float32", "bool"]),
    st.lists(st.integers(0, 300), max_size=3),
)


@given(st.dictionaries(st.text(min_size=1, max_size=200), values, max_size=3))
def test_values_that_are_appended_are_initializers(given: dict[str, tuple[str, list[int]]]) -> None:
    arrays = {
        name: np.ones(shape, kind) for name, (kind, shape) in given.items() if np.prod(shape) < 1000
    }
    model = onnx.load_from_string(with_values(reshaping().SerializeToString(), arrays))
    assert [each.name for each in model.graph.node] == ["r"]
    found = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_shape_input_becomes_a_constant_and_shape_outputs_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reshaping()
    model.graph.output.add().CopyFrom(model.graph.input[1])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, tmp_path / "m.onnx")
    world = World(OLD)
    world.shapes = {"size"}
    world.feed = {"x": np.zeros((2, 6), np.float32)}
    world.start(monkeypatch)
    feed = {**world.feed, "size": np.array([3, 4])}
    session = Runtime(trt_target()).load(tmp_path / "m.onnx", feed)
    assert [[each.name for each in parsed.graph.initializer] for parsed in world.parsed] == [
        [],
        ["size"],
    ]
    assert session.skipped == {"size": "a shape tensor, which TensorRT computes on the host"}
    assert [call[1].name for call in world.network.calls] == ["size"]


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_free_dimensions_are_those_of_the_profile_or_of_what_is_fed(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = overflowing(tmp_path / "m.onnx", 1, 1)
    ranged: dict[str, Any] = {"min_shapes": (("x", (1, 3)),), "max_shapes": (("x", (8, 3)),)}
    world = World(version)
    world.start(monkeypatch)
    runtime = Runtime(trt_target("fp16", **ranged))
    ran = runtime.lowered(path)
    assert ran is not None
    assert [dim.HasField("dim_param") for dim in ran.graph.input[0].type.tensor_type.shape.dim] == [
        True,
        False,
    ]
    assert Runtime(trt_target("fp16")).lowered(path) is None
    world.feed = {"x": np.zeros((2, 3), np.float32)}
    for settings, feed, wanted in (
        (trt_target(**ranged), {}, [(1, 3), (8, 3), (8, 3)]),
        (trt_target(), world.feed, [(2, 3)] * 3),
    ):
        model = onnx.load(path)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        onnx.save(model, tmp_path / "free.onnx")
        Runtime(settings).load(tmp_path / "free.onnx", feed)
        ((_, profile),) = [
            call for call in world.config.calls if call[0] == "add_optimization_profile"
        ]
        assert profile.calls == [("set_shape", "x", *wanted)]
    with pytest.raises(
        UsageError,
        match="the input 'x' has free dimensions; give their range with --trt-min-shapes",
    ):
        Runtime(trt_target()).load(tmp_path / "free.onnx")


def test_a_shape_of_another_rank_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"'x' has 2 dimensions, but \[1\] has 1; give one number for each"
    ):
        free_dimensions(
            reshaping(), trt_target(min_shapes=(("x", (1,)),), max_shapes=(("x", (2,)),))
        )


def network(version: str, nodes: list[list[Any]], layers: list[StandIn]) -> ParsedNetwork:
    made = StandIn(
        version, "INetworkDefinition", {"num_layers": len(layers), "get_layer": layers.__getitem__}
    )
    return ParsedNetwork(made, nodes)


def norm(version: str) -> tuple[World, ParsedNetwork, list[StandIn]]:
    """Nodes ``Pow`` (a constant, a shuffle, the operation itself), ``Shape`` and ``Div`` (known by its output)."""
    world = World(version)
    world.shapes = {"s", "sf"}
    layers = [
        world.layer("two", ["(Unnamed 0)"], [], "CONSTANT"),
        world.layer("(Unnamed Layer* 1) [Shuffle]", ["(Unnamed 1)"], [], "SHUFFLE"),
        world.layer("/n/Pow", ["p"], []),
        world.layer("/n/Shape", ["s"], [], "SHAPE"),
        world.layer("/n/Shape_3 [Cast]", ["sf"], [], "IDENTITY"),
        world.layer("(Unnamed Layer* 5) [ElementWise]", ["y"], []),
        world.layer("(Unnamed Layer* 6) [Identity]", ["out"], [], "IDENTITY"),
    ]
    return (
        world,
        network(version, [["/n/Pow", ["p"]], ["/n/Shape", ["s"]], ["/n/Div", ["y"]]], layers),
        layers,
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=10))
def test_any_number_of_unnamed_layers_leads_up_to_a_node(made: list[tuple[int, bool]]) -> None:
    """Each node: so many unnamed layers first, then one known by its name or else by its output."""
    world = World(OLD)
    layers: list[StandIn] = []
    expected: list[int] = []
    for place, (before, named) in enumerate(made):
        layers += [
            world.layer("(Unnamed Layer* 1) [Shuffle]", [f"u{place}"], []) for _ in range(before)
        ]
        layers.append(
            world.layer(
                f"/op.{place}/Neg" if named else "(Unnamed Layer* 2) [Unary]", [f"t{place}"], []
            )
        )
        expected += [place] * (before + 1)
    nodes = [[f"/op.{place}/Neg", [f"t{place}"]] for place in range(len(made))]
    assert network(OLD, nodes, layers).places() == expected


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_kept_nodes_run_in_fp32_all_but_what_is_no_float_of_their_own(version: str) -> None:
    world, parsed, layers = norm(version)
    constrain(world.trt, parsed, plain(trt_target("fp16", keep=("p", "s"))))
    for each in layers:
        held = each.values["name"] in ("(Unnamed Layer* 1) [Shuffle]", "/n/Pow")
        assert (each.values.get("precision") == world.trt.DataType.FLOAT) is held
        assert (("set_output_type", 0, world.trt.DataType.FLOAT) in each.calls) is held
