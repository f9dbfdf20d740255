"""Models that are broken in ways that protobuf does not see: one sentence each, and whatever is read can be taken apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cutting import model_of, tensor_info
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper
from random_models import models
from support import examples

from bisect_trt.errors import BisectError, UnavailableError
from bisect_trt.onnxlib.cut import cut
from bisect_trt.onnxlib.load import check_model, load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import input_infos

X = tensor_info("x", TensorProto.FLOAT, [2, 3])
node = helper.make_node
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
ELEMENTS = [
    kind
    for name, kind in TensorProto.DataType.items()
    if name != "UNDEFINED" and not name.startswith(("FLOAT6", "STRING"))
]


def small() -> ModelProto:
    return model_of([node("Add", ["x", "w"], ["y"], name="add")], [X], ["y"], {"w": np.ones(3, np.float32)})


def function(name: str, calls: list[str]) -> FunctionProto:
    """A function that passes its input through others, one after the other; without any, through one operator."""
    nodes = [node(call, [f"t{i}"], [f"t{i + 1}"], domain="mine") for i, call in enumerate(calls)]
    nodes = nodes or [node("Relu", ["t0"], ["t1"])]
    return helper.make_function("mine", name, ["t0"], [f"t{len(nodes)}"], nodes, OPSETS)


def calling(functions: list[FunctionProto]) -> ModelProto:
    """A model of one node, which calls the last of the functions."""
    calls = [node(functions[-1].name, ["x"], ["y"], domain="mine")]
    return model_of(calls, [X], ["y"], domains=["mine"], functions=functions)


def doubling(levels: int) -> ModelProto:
    names = [f"F{level}" for level in range(levels + 1)]
    return calling([function(name, names[place - 1 : place] * 2) for place, name in enumerate(names)])


def nested(depth: int) -> ModelProto:
    names = [f"F{level}" for level in range(depth)]
    return calling([function(name, names[place - 1 : place]) for place, name in enumerate(names)])


def with_bytes(old: bytes, new: bytes) -> ModelProto:
    model = ModelProto()
    model.ParseFromString(small().SerializeToString().replace(old, new))
    return model


def changed(change: Callable[[ModelProto], object]) -> ModelProto:
    model = small()
    change(model)
    return model


DEEP = tensor_info("deep", TensorProto.FLOAT, [1] * 65)


def no_name(field: str) -> ModelProto:
    return changed(lambda model: getattr(model.graph, field)[0].ClearField("name"))


BROKEN = {
    "a node's name is no text": (with_bytes(b"\x1a\x03add", b"\x1a\x03\xffdd"), r"b'\\xffdd' is not UTF-8"),
    "an output is no text": (with_bytes(b"\x01y", b"\x01\xff"), r"b'\\xff' is not UTF-8"),
    "an operator is no text": (with_bytes(b"Add", b"\xffdd"), r"b'\\xffdd' is not UTF-8"),
    "an input without a name": (no_name("input"), "a graph input has no name"),
    "an output without a name": (no_name("output"), "a graph output has no name"),
    "a weight without a name": (no_name("initializer"), "a weight has no name"),
    "a node without an operator": (
        changed(lambda model: model.graph.node[0].ClearField("op_type")),
        "the node 'add' names no operator",
    ),
    "an attribute without a type": (
        changed(lambda model: model.graph.node[0].attribute.add(name="axis")),
        "the attribute 'axis' of the Add 'add' has no value",
    ),
    "an attribute that refers to none": (
        changed(lambda model: model.graph.node[0].attribute.add(name="axis", type="INT", ref_attr_name="a")),
        "the attribute 'axis' of the Add 'add' has no value",
    ),
    "a function twice": (calling([function("F", []), function("F", [])]), "there are two functions 'F'"),
    "a function calls itself": (calling([function("F", ["F"])]), "the function 'F' calls itself"),
    "functions that double": (doubling(30), "makes 1,073,741,824 nodes, more than the limit of 250,000"),
    "functions that double often": (doubling(400), "makes about 1e120 nodes"),
    "functions in a circle": (calling([function("F", ["G"]), function("G", ["F"])]), "the function '[FG]' calls itself"),
    "a weight without a type": (
        changed(lambda model: model.graph.initializer[0].ClearField("data_type")),
        "the weight 'w' has no element type",
    ),
    "a weight of an unknown type": (
        changed(lambda model: setattr(model.graph.initializer[0], "data_type", 2**31 - 1)),
        "the weight 'w' has the element type 2147483647, which is unknown to ONNX",
    ),
    "a weight in segments": (
        changed(lambda model: setattr(model.graph.initializer[0].segment, "begin", 1)),
        "the weight 'w' is stored in segments",
    ),
    "a weight of too many dimensions": (
        changed(lambda model: model.graph.initializer[0].dims.extend([1] * 64)),
        "the weight 'w' has 65 dimensions",
    ),
    **{
        f"too many dimensions in {field}": (
            changed(lambda model, field=field: getattr(model.graph, field).add().CopyFrom(DEEP)),  # type: ignore[misc]
            "the tensor 'deep' has 65 dimensions",
        )
        for field in ("input", "output", "value_info")
    },
    "a weight of negative size": (
        changed(lambda model: model.graph.initializer[0].dims.append(-1)),
        r"the weight 'w' has the shape \[3, -1\]",
    ),
    "a weight past memory": (
        changed(lambda model: model.graph.initializer[0].dims.append(2**60)),
        r"the weight 'w' has 12 bytes, and its shape \[3, 1152921504606846976\] needs 13835058055282163712",
    ),
    "a weight cut short": (
        changed(lambda model: setattr(model.graph.initializer[0], "raw_data", b"12345")),
        r"the weight 'w' has 5 bytes, and its shape \[3\] needs 12",
    ),
    "too few values": (
        changed(lambda model: model.graph.initializer[0].CopyFrom(TensorProto(name="w", data_type=1, dims=[2], float_data=[1]))),
        r"the weight 'w' has 1 values, and its shape \[2\] needs 2",
    ),
    "a constant cut short": (
        changed(
            lambda model: model.graph.node.add().CopyFrom(
                node("Constant", [], ["k"], value=TensorProto(name="k", data_type=1, dims=[2], raw_data=b""))
            )
        ),
        r"the weight 'k' has 0 bytes, and its shape \[2\] needs 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_sentence_says_what_is_broken(what: str, tmp_path: Path) -> None:
    model, words = BROKEN[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnavailableError, match=words) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_functions_that_end_are_read(tmp_path: Path) -> None:
    onnx.save(nested(3000), str(tmp_path / "model.onnx"))
    assert Network(load_model(tmp_path / "model.onnx")).constant == [False]


@settings(deadline=None)
@given(st.sampled_from(ELEMENTS), st.lists(st.integers(0, 3), max_size=2), st.booleans())
def test_every_type_of_weight_that_onnx_makes_is_read(element: int, shape: list[int], raw: bool) -> None:
    values = np.zeros(shape, helper.tensor_dtype_to_np_dtype(element))
    typed = helper.make_tensor("w", element, shape, values.ravel().tolist())
    model = small()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "w") if raw else typed)
    check_model(model)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A random model with a few of its bytes changed."""
    content = bytearray(draw(models()).SerializeToString())
    for _ in range(draw(st.integers(1, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(content=mutated())
def test_whatever_is_read_can_be_taken_apart(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    try:
        network = Network(load_model(path))
        input_infos(network)
    except BisectError:
        return
    infos = network.infos
    for index in network.order:
        piece = cut(network, [index], infos, lambda name: TensorProto(name=name))
        assert [each.name for each in piece.proto.graph.node] == [network.nodes[index].name]
