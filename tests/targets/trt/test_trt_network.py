"""Models made ready for TensorRT's parser, and its layers traced back to their nodes.

The models are real; networks are stand-ins with the names that the API lists have, since a real one needs a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from light import tag_light
from onnx import ModelProto, TensorProto, helper
from support import overflowing
from trt_api import OLD, STRONG, WEAK
from trt_standin import StandIn, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.targets.base import Minimal
from bisect_trt.targets.messages import BuildError, names_of
from bisect_trt.targets.runtime import load_proto
from bisect_trt.targets.trt.build import TensorRtRuntime
from bisect_trt.targets.trt.config import check_settings, make_config
from bisect_trt.targets.trt.layers import constrain, layer_nodes, named_layers
from bisect_trt.targets.trt.options import layer_type
from bisect_trt.targets.trt.parse import (
    free_dimensions,
    freeze,
    name_nodes,
    output_types,
    parse,
)

word = st.sampled_from(["", "a", "b", "a_1", "b_1", "out", "x"])


@given(st.lists(st.tuples(word, word.filter(bool)), min_size=1, max_size=8))
def test_every_node_gets_a_name_of_its_own_and_keeps_one_that_it_has_alone(nodes: list[tuple[str, str]]) -> None:
    made = [helper.make_node("Identity", ["x"], [output], name=name) for name, output in nodes]
    model = helper.make_model(helper.make_graph(made, "g", [], []))
    name_nodes(model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)
    given = [name for name, _ in nodes]
    for (before, _), after in zip(nodes, names, strict=True):
        if before and given.count(before) == 1:
            assert after == before
    again = ModelProto()
    again.CopyFrom(model)
    name_nodes(again)
    assert again == model


def reshaping() -> ModelProto:
    """``Reshape(x, size)`` with an input ``size``."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "size"], ["y"], name="r")],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6]),
            helper.make_tensor_value_info("size", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_an_input_that_is_a_shape_becomes_a_constant() -> None:
    model = reshaping()
    freeze(model, {"size": np.array([3, 4], np.int64)})
    assert [value.name for value in model.graph.input] == ["x"]
    assert [tensor.name for tensor in model.graph.initializer] == ["size"]
    onnx.checker.check_model(model, full_check=True)


def dims(model: ModelProto) -> list[Any]:
    return [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


def test_dimensions_with_a_range_are_free_and_others_stay() -> None:
    model = reshaping()
    freeze(model, {"size": np.array([3, 4], np.int64)})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    lows, highs = (("x", (1, 6)), ("other", (1,))), (("x", (8, 6)), ("other", (2,)))
    free_dimensions(model, trt_target(min_shapes=lows, max_shapes=highs))
    assert dims(model) == ["x_0", 6]
    onnx.checker.check_model(model, full_check=True)


def test_the_form_that_runs_has_them_free_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = overflowing(tmp_path / "m.onnx")
    monkeypatch.setattr("bisect_trt.targets.trt.build.tensorrt", lambda: make_tensorrt(WEAK))
    ranged: dict[str, Any] = {"min_shapes": (("x", (1, 3)),), "max_shapes": (("x", (8, 3)),)}
    ran = TensorRtRuntime(trt_target("fp16", **ranged)).lowered(path)
    assert ran is not None
    assert [dim.HasField("dim_param") for dim in ran.graph.input[0].type.tensor_type.shape.dim] == [True, False]
    assert len(ran.graph.node) == len(onnx.load(path).graph.node)
    assert TensorRtRuntime(trt_target("fp16")).lowered(path) is None


def test_a_shape_of_another_rank_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"'x' has 2 dimensions, but \[1\] has 1; give one number for each"):
        free_dimensions(reshaping(), trt_target(min_shapes=(("x", (1,)),), max_shapes=(("x", (2,)),)))


def test_names_and_types(tmp_path: Path) -> None:
    model = load_proto(overflowing(tmp_path / "m.onnx", 1, 1))
    assert set(names_of(model.graph)) >= {"big", "big_out", "x", "one"}
    assert output_types(model) == {"b0_out": TensorProto.FLOAT}
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(BuildError, match="cannot be read as an ONNX model"):
        load_proto(tmp_path / "broken.onnx")


def tensor(version: str, name: str, dtype: Any, *, shape: bool = False) -> StandIn:
    return StandIn(version, "ITensor", {"name": name, "dtype": dtype, "is_shape_tensor": shape})


def layer(version: str, name: str, made: Sequence[StandIn], read: Sequence[StandIn] = (), kind: Any = None) -> StandIn:
    layer_ = StandIn(version, "ILayer", {"name": name, "num_outputs": len(made), "num_inputs": len(read), "type": kind})
    layer_.values["get_output"] = lambda index: made[index]
    layer_.values["get_input"] = lambda index: read[index]
    return layer_


def network(version: str, layers: Sequence[StandIn]) -> StandIn:
    network_ = StandIn(version, "INetworkDefinition", {"num_layers": len(layers)})
    network_.values["get_layer"] = lambda index: layers[index]
    return network_


Network = tuple[ModelProto, StandIn, list[StandIn]]


def norm(version: str) -> Network:
    """Nodes ``Pow`` (a constant, a shuffle, the operation itself), ``Shape`` and ``Div`` (told by what it makes)."""
    trt = make_tensorrt(version).trt
    fp32, int32 = trt.DataType.FLOAT, trt.DataType.INT32
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["p"], name="/n/Pow"),
        helper.make_node("Shape", ["p"], ["s"], name="/n/Shape"),
        helper.make_node("Div", ["p", "s"], ["y"], name="/n/Div"),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    kinds = trt.LayerType
    layers = [
        layer(version, "two", [tensor(version, "(Unnamed 0)", fp32)], kind=kinds.CONSTANT),
        layer(version, "(Unnamed Layer* 1) [Shuffle]", [tensor(version, "(Unnamed 1)", fp32)], kind=kinds.SHUFFLE),
        layer(version, "/n/Pow", [tensor(version, "p", fp32)], kind=kinds.ELEMENTWISE),
        layer(version, "/n/Shape", [tensor(version, "s", int32, shape=True)], kind=kinds.SHAPE),
        layer(version, "/n/Shape_3 [Cast]", [tensor(version, "sf", fp32, shape=True)], kind=kinds.IDENTITY),
        layer(version, "(Unnamed Layer* 5) [ElementWise]", [tensor(version, "y", fp32)], kind=kinds.ELEMENTWISE),
        layer(version, "(Unnamed Layer* 6) [Identity]", [tensor(version, "out", fp32)], kind=kinds.IDENTITY),
    ]
    return model, network(version, layers), layers


@pytest.mark.parametrize("version", [OLD, WEAK, STRONG])
def test_layers_belong_to_the_node_that_they_are_named_after_or_lead_up_to(version: str) -> None:
    model, network_, _ = norm(version)
    assert layer_nodes(network_, model) == [0, 0, 0, 1, 1, 2, None]
    assert named_layers(network_, model)[:2] == [("two", 0), ("(Unnamed Layer* 1) [Shuffle]", 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=10))
def test_any_number_of_unnamed_layers_leads_up_to_a_node(made: list[tuple[int, bool]]) -> None:
    """Each node: so many unnamed layers first, then one told by its name or else by its output."""
    trt = make_tensorrt(OLD).trt
    nodes = [helper.make_node("Neg", ["x"], [f"t{n}"], name=f"/op.{n}/Neg") for n in range(len(made))]
    layers: list[StandIn] = []
    expected: list[int] = []
    for place, (before, named) in enumerate(made):
        for _ in range(before):
            number = len(layers)
            layers.append(
                layer(OLD, f"(Unnamed Layer* {number}) [Shuffle]", [tensor(OLD, f"u{number}", trt.DataType.FLOAT)])
            )
        name = f"/op.{place}/Neg" if named else f"(Unnamed Layer* {len(layers)}) [Unary]"
        layers.append(layer(OLD, name, [tensor(OLD, f"t{place}", trt.DataType.FLOAT)]))
        expected += [place] * (before + 1)
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    assert layer_nodes(network(OLD, layers), model) == expected


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_kept_nodes_run_in_fp32_all_but_what_is_no_float_of_their_own(version: str) -> None:
    model, network_, layers = norm(version)
    tensorrt = make_tensorrt(version)
    told = constrain(network_, model, trt_target("fp16", keep=("p", "s")), tensorrt)
    assert told == ["(Unnamed Layer* 1) [Shuffle]", "/n/Pow"]
    for each in layers:
        held = each.values["name"] in told
        assert (each.values.get("precision") == tensorrt.trt.DataType.FLOAT) is held
        assert (("set_output_type", 0, tensorrt.trt.DataType.FLOAT) in each.calls) is held


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_layers_run_in_the_types_that_are_given_by_their_names(version: str) -> None:
    tensorrt, given_types = make_tensorrt(version), (("/n/Pow", "int8"), ("two", "fp16"), ("gone", "fp32"))
    settings = trt_target("fp16", layer_precisions=given_types)
    check_settings(settings, tensorrt)
    model, network_, layers = norm(version)
    assert constrain(network_, model, settings, tensorrt) == ["two", "/n/Pow"]
    types = tensorrt.trt.DataType
    told = {each.values["name"]: each.values["precision"] for each in layers if "precision" in each.values}
    assert told == {"two": types.HALF, "/n/Pow": types.INT8}
    flags = [call[1].name for call in make_config(settings, tensorrt).calls if call[0] == "set_flag"]
    assert "OBEY_PRECISION_CONSTRAINTS" in flags
    polygraphys, trtexecs = (
        settings.target.said_to(tool, settings, Minimal("m.onnx")) for tool in ("polygraphy", "trtexec")
    )
    assert isinstance(polygraphys, list)
    assert polygraphys[-3:] == ["/n/Pow:int8", "two:float16", "gone:float32"]
    assert isinstance(trtexecs, list)
    assert trtexecs[-1] == "--layerPrecisions=/n/Pow:int8,two:fp16,gone:fp32"


def test_layers_have_no_types_of_their_own_where_the_graph_has_them() -> None:
    named = (("/n/Pow", "fp32"),)
    for version, own in ((STRONG, {}), (WEAK, {"strongly_typed": True}), (OLD, {"lowering": "cast"})):
        with pytest.raises(UsageError, match="--layer-precisions is about types that TensorRT chooses"):
            check_settings(trt_target("fp16", layer_precisions=named, **own), make_tensorrt(version))
    with pytest.raises(UsageError, match=r"--layer-precisions: this is TensorRT 8.6.0, which has no 'BF16'"):
        check_settings(trt_target("fp16", layer_precisions=(("/n/Pow", "bf16"),)), make_tensorrt(OLD))


@pytest.mark.parametrize(
    ("said", "kind"), [("float32", "fp32"), ("FLOAT", "fp32"), ("half", "fp16"), ("bfloat16", "bf16"), ("int8", "int8")]
)
def test_types_of_layers_have_polygraphys_words_too(said: str, kind: str) -> None:
    assert layer_type(said) == kind
    with pytest.raises(ValueError, match="one of fp32, fp16, bf16, int8, int32"):
        layer_type("float8")


def test_nothing_is_told_where_nothing_is_kept_or_the_graph_has_the_types() -> None:
    for version, settings in [
        (OLD, trt_target("fp16")),
        (WEAK, trt_target("fp16", lowering="cast", keep=("p",))),
        (STRONG, trt_target("fp16", keep=("p",))),
    ]:
        model, network_, layers = norm(version)
        assert constrain(network_, model, settings, make_tensorrt(version)) == []
        assert not any(each.calls for each in layers)


def test_casts_without_strong_typing_hold_what_reads_no_half() -> None:
    tensorrt = make_tensorrt(OLD)
    half, full = tensorrt.trt.DataType.HALF, tensorrt.trt.DataType.FLOAT
    layers = [
        layer(OLD, "low", [tensor(OLD, "a", half)], [tensor(OLD, "x", half)]),
        layer(OLD, "up", [tensor(OLD, "b", full)], [tensor(OLD, "a", half)]),
        layer(OLD, "high", [tensor(OLD, "c", full)], [tensor(OLD, "b", full)]),
    ]
    model = helper.make_model(helper.make_graph([], "g", [], []))
    assert constrain(network(OLD, layers), model, trt_target("fp16", lowering="cast"), tensorrt) == ["high"]


class Parsing:
    """A parser's and a builder's stand-in: networks of a model's inputs and outputs, some of them shapes."""

    def __init__(self, version: str, shapes: Sequence[str], error: StandIn | None = None) -> None:
        self.tensorrt = make_tensorrt(version)
        self.seen: list[ModelProto] = []
        self.unmarked: list[str] = []
        self._version, self._shapes, self._error = version, shapes, error
        self.tensorrt.parser = self._parser  # type: ignore[method-assign]  # a parser that finds faults
        self.tensorrt.builder.values["create_network"] = lambda _: StandIn(
            version, "INetworkDefinition", {"num_layers": 0}
        )

    def _parser(self, network: Any) -> StandIn:
        def parse(content: bytes, path: str) -> bool:
            assert path.endswith("m.onnx")
            model = ModelProto.FromString(content)
            self.seen.append(model)
            for end, values in (("input", model.graph.input), ("output", model.graph.output)):
                tensors = [
                    tensor(self._version, value.name, None, shape=value.name in self._shapes) for value in values
                ]
                network.values[f"num_{end}s"] = len(tensors)
                network.values[f"get_{end}"] = tensors.__getitem__
            network.values["unmark_output"] = lambda each: self.unmarked.append(each.name)
            return self._error is None

        errors = [] if self._error is None else [self._error]
        values = {"parse": parse, "num_errors": len(errors), "get_error": errors.__getitem__}
        return StandIn(self._version, "OnnxParser", values)


def test_a_shape_input_with_a_known_value_is_parsed_again_as_a_constant() -> None:
    feed: dict[str, np.ndarray] = {"x": np.zeros((2, 6), np.float32), "size": np.array([3, 4], np.int64)}
    parsing = Parsing(OLD, ["size"])
    parsed = parse(reshaping(), Path("m.onnx"), trt_target(), feed, parsing.tensorrt)
    assert [len(model.graph.input) for model in parsing.seen] == [2, 1]
    assert [value.name for value in parsed.model.graph.input] == ["x"]
    parsing = Parsing(OLD, ["size"])
    parse(reshaping(), Path("m.onnx"), trt_target(), None, parsing.tensorrt)
    assert len(parsing.seen) == 1


def test_shape_outputs_are_taken_back_with_a_reason() -> None:
    model = reshaping()
    model.graph.output.add().CopyFrom(model.graph.input[1])
    parsing = Parsing(OLD, ["size"])
    parsed = parse(model, Path("m.onnx"), trt_target(), None, parsing.tensorrt)
    assert parsing.unmarked == ["size"]
    assert parsed.skipped == {"size": "a shape tensor, which TensorRT computes on the host"}


@pytest.mark.parametrize(
    ("version", "place", "said"), [(OLD, 0, "Reshape node 'r': "), (STRONG, 0, "Reshape node 'r': "), (OLD, -1, "")]
)
def test_a_parsers_error_names_its_node(version: str, place: int, said: str) -> None:
    words = " In node 7: UNSUPPORTED "
    error = StandIn(version, "ParserError", {"node": lambda: place, "desc": lambda: words})
    with pytest.raises(BuildError) as failure:
        parse(reshaping(), Path("m.onnx"), trt_target(), None, Parsing(version, [], error).tensorrt)
    assert failure.value.message == f"the ONNX parser refuses {said}In node 7: UNSUPPORTED"
    assert "7" not in failure.value.signature
    assert "'r'" not in failure.value.signature


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_real_models_keep_the_names_that_layers_are_traced_by(name: str, tmp_path: Path) -> None:
    light = tag_light(name, tmp_path)
    model = load_proto(light.path)
    computing = [place for place, node in enumerate(model.graph.node) if node.name in set(light.computing)]
    for node in model.graph.node[::3]:
        node.name = ""
    for node in model.graph.node[1::3]:
        node.name = "same"
    made = [first_output(node) for node in model.graph.node]
    name_nodes(model)
    onnx.checker.check_model(model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert [first_output(node) for node in model.graph.node] == made
    # What only makes weights may be gone: they are stored lowered.
    assert {names[place] for place in computing} <= {node.name for node in lower_fp16(model).graph.node}
