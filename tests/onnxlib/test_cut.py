"""Any set of units of any model is a model that reproduces the original's activations; hard cases by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from building import ort_run, proto_of, tensor_info, text_model
from cutting import Cutter, activations, assert_same, cutter, feeds, models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from support import examples

from bisect_trt.onnxlib.cut import Cut, Isolated, cut, is_frozen, isolate, nothing_stored
from bisect_trt.onnxlib.network import Network
from bisect_trt.tensors.info import TensorInfo

FLOAT = TensorProto.FLOAT
OWN = '<domain: "own", opset_import: ["" : 17, "own" : 1]>'
"""What a function begins with in ONNX's text."""
X = tensor_info("x", FLOAT, [2, 3])
x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
node = helper.make_node


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=models(), data=st.data())
def test_any_set_of_units_reproduces_its_activations(
    model: ModelProto, data: st.DataObject
) -> None:
    whole = cutter(model, feeds())
    units = range(len(model.graph.node))
    for bare in (True, False):
        chosen = data.draw(st.sets(st.sampled_from(units), min_size=1))
        piece = whole.check(chosen, bare=bare)
    whole.check(units)
    # Nodes stand as in the file wherever that is valid.
    nodes = sorted(whole.cut(chosen, bare=False)[1])
    made = {name for index in nodes for name in whole.network.made(index)}
    for index in nodes:
        if made.intersection(whole.network.reads[index]):
            return
        made.difference_update(whole.network.made(index))
    assert [each.name for each in piece.proto.graph.node] == [
        model.graph.node[index].name for index in nodes
    ]


def test_quantized_weights_keep_their_integers() -> None:
    """Fed as fp32 values they run in another kernel, which need not have the failure; other weights are stored."""
    body = """scaled = DequantizeLinear(integers, scale, zero) turned = Transpose(scaled) h = Relu(x) y = MatMul(h, turned)
        sum = Add(one, one) z = Mul(y, sum)"""
    weights = {
        "integers": np.arange(6, dtype=np.int8).reshape(2, 3),
        "scale": np.float32(0.5),
        "zero": np.int8(1),
        "one": np.float32(1),
    }
    whole = cutter(text_model("(float[2, 3] x) => (float[2, 2] z)", body, weights), {"x": x})
    piece = whole.check([whole.unit("y"), whole.unit("z")])
    assert op_types(piece) == ["DequantizeLinear", "Transpose", "MatMul", "Mul"]
    stored = {weight.name: weight.data_type for weight in piece.proto.graph.initializer}
    assert stored["integers"] == TensorProto.INT8
    assert set(stored) == {"integers", "scale", "zero", "sum"}


def names(piece: Cut) -> tuple[set[str], set[str]]:
    return set(piece.inputs), set(piece.outputs)


def op_types(piece: Cut) -> list[str]:
    return [each.op_type for each in piece.proto.graph.node]


def every_unit_and_all(whole: Cutter) -> None:
    """Each unit alone, all from each on, all up to each."""
    count = len(whole.network.order)
    for unit in range(count):
        for units in ([unit], range(unit, count), range(unit + 1)):
            whole.check(units)
            whole.check(units, bare=False)


def with_bodies() -> ModelProto:
    """A Loop and a Scan; their bodies capture a tensor, a weight, and a constant that a node makes, one of them twice deep."""
    branches = """then_branch = deep () => (float[2, 3] deep) { deep = Mul(a, made) },
        else_branch = shallow () => (float[2, 3] shallow) { shallow = Add(state, w) }"""
    loop = f"""loop (int64 i, bool go_on, float[2, 3] state) => (bool go_on_out, float[2, 3] state_out) {{
        go_on_out = Identity(go_on) branch = If(go_on) <{branches}> state_out = Add(branch, state) }}"""
    scan = """scan (float[3] total, float[3] row) => (float[3] total_out, float[3] each) {
        sum = ReduceSum<keepdims = 0>(b) scaled = Mul(row, sum) total_out = Add(total, scaled) each = Identity(total_out) }"""
    nodes = f"""a = Relu(x) b = Neg(x) made = Constant<value = float {{2.0}}>() looped = Loop<body = {loop}>(three, true, b)
        last, all = Scan<body = {scan}, num_scan_inputs = 1>(zeros, looped) y = Sub(all, last)"""
    weights = {"w": 3.0, "three": np.array(3), "true": np.array(True), "zeros": np.zeros(3)}
    return text_model("(float[2, 3] x) => (float[2, 3] y)", nodes, weights, opset=17)


def test_bodies_that_capture_outer_tensors() -> None:
    whole = cutter(with_bodies(), {"x": x})
    every_unit_and_all(whole)
    loop = whole.check([whole.unit("looped")])
    assert names(loop) == ({"a", "b"}, {"looped"})
    # The weight and the constant that only the body reads come along as initializers.
    assert {tensor.name for tensor in loop.proto.graph.initializer} == {
        "w",
        "made",
        "three",
        "true",
    }
    scan = whole.check([whole.unit("last")])
    assert names(scan) == ({"b", "looped"}, {"last", "all"})
    with_maker = whole.check([whole.unit("looped")], bare=False)
    assert sorted(op_types(with_maker)) == ["Constant", "Loop"]


def local_function() -> ModelProto:
    functions = f"""{OWN} Twice (a) => (b) {{ b = Add(a, a) }}
        {OWN} TwiceAndSplit (a) => (b, c) {{ d = own.Twice(a) b, c = Split<axis = 1>(d) }}"""
    body = "a = Relu(x) b, c = own.TwiceAndSplit(a) y = Neg(c)"
    return text_model("(float[2, 4] x) => (float[2, 2] y)", body, opset=17, functions=functions)


def test_model_local_functions() -> None:
    whole = cutter(local_function(), {"x": np.arange(8, dtype=np.float32).reshape(2, 4)})
    every_unit_and_all(whole)
    assert names(whole.check([whole.unit("b")])) == ({"a"}, {"c"})


def test_large_weights_keep_the_node_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "big = ConstantOfShape(shape) small = ReduceSum <keepdims = 0> (big) a = Add(x, big) y = Add(a, small)"
    shapes = "<float[600, 2, 1] big, float small>"
    model = text_model(
        f"(float[2, 3] x) => (float[600, 2, 3] y) {shapes}",
        body,
        {"shape": np.array([600, 2, 1])},
        opset=17,
    )
    monkeypatch.setattr("bisect_trt.onnxlib.units.STORED_LIMIT_BYTES", 1000)
    whole = cutter(model, {"x": x})
    assert op_types(whole.check([whole.unit("a")])) == ["ConstantOfShape", "Add"]
    assert op_types(whole.check([whole.unit("y")])) == ["Add"]
    assert whole.unit("big") in whole.units.bare([whole.unit("a")])


def test_vectors_of_a_few_integers_are_stored() -> None:
    kinds = {
        "int64 3": True,
        "int32": True,
        "int64 65": False,
        "int64 1 3": False,
        "bool 3": False,
        "float32 3": False,
    }
    for kind, stored in kinds.items():
        dtype, *shape = kind.split()
        assert is_frozen(TensorInfo("t", np.dtype(dtype), tuple(map(int, shape)))) is stored


def test_new_names_are_nobodys() -> None:
    body = "a = Neg(x) a_reference = Neg(a) y = Neg(a_reference)"
    model = text_model(
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] a_reference)", body, opset=17
    )
    piece = check_alone(Cutter(model, activations(model, {"x": x})), ["a", "a_reference", "y"])
    assert "a_reference" not in piece.fed


def test_what_is_drawn_is_no_constant() -> None:
    branches = [
        f"{way}_branch = g () => (float[2, 3] r) {{ r = RandomNormal<shape = [2, 3]>() }}"
        for way in ("then", "else")
    ]
    body = f"""r1 = RandomNormal<shape = [2, 3]>() true = Constant<value = bool {{1}}>() r2 = If(true) <{", ".join(branches)}>
        r3 = own.RandomDraws() r4 = RandomNormalLike(w) a = Add(x, r1) b = Add(r2, r3) c = Add(a, b) y = Add(c, r4)"""
    draws = f"{OWN} RandomDraws () => (r) {{ r = RandomUniform<shape = [2, 3]>() }}"
    model = text_model(
        "(float[2, 3] x) => (float[2, 3] y)", body, {"w": x}, opset=17, functions=draws
    )
    whole = cutter(model, {"x": x})
    constant = [
        model.graph.node[i].op_type
        for i, is_constant in enumerate(whole.network.constant)
        if is_constant
    ]
    assert constant == ["Constant"]
    piece = whole.check([whole.unit(name) for name in ("a", "b", "c", "y")])
    assert set(piece.inputs) == {"x", "r1", "r2", "r3", "r4"}


def test_what_a_model_declares_is_kept() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Exp", ["b"], ["y"])]
    model = proto_of(
        nodes, [X], [tensor_info("y", FLOAT, [2, 3])], ir_version=7, opset=11, doc_string="not this"
    )
    model.graph.value_info.append(tensor_info("a", FLOAT, [2, 3]))
    model.graph.node[1].doc_string = "a note"
    piece = cutter(model, {"x": x}).check([0, 1])
    assert (piece.proto.ir_version, piece.proto.opset_import[0].version) == (7, 11)
    assert [value.name for value in piece.proto.graph.value_info] == ["a"]
    assert [value.name for value in piece.proto.graph.output] == ["b"]
    assert piece.proto.graph.node[1].doc_string == "a note"


AWKWARD = {
    "empty list": helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS),
    "not text": helper.make_attribute("state", b"\x00\xff\xfe"),
}


@pytest.mark.parametrize("what", AWKWARD)
def test_nodes_are_kept_to_the_byte(what: str) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Plugin", ["a"], ["b"], domain="my.plugins", doc_string="a note"),
        node("Relu", ["b"], ["y"]),
    ]
    nodes[1].attribute.append(AWKWARD[what])
    ends = [tensor_info(name, FLOAT, [2]) for name in "xy"]
    model = proto_of(nodes, ends[:1], ends[1:], domains=["my.plugins"])
    piece = cut(Network(model), [1, 2], {}, nothing_stored)
    assert piece.proto.graph.node[0].SerializeToString() == model.graph.node[1].SerializeToString()
    assert (piece.inputs, piece.outputs) == (("a",), ("y",))


# Every node by itself in one model: fed the reference's values it gives the reference's values.


def frozen(cut: Cutter) -> dict[str, Any]:
    names = (*cut.network.inputs, *cut.network.computed)
    return {
        name: cut.values[name] for name in names if name in cut.infos and is_frozen(cut.infos[name])
    }


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
        assert all(alone.constant[parent] for parent in alone.parents(index)), (
            "it reads what another makes"
        )
    assert not set(piece.fed) & set(cut.network.producer)
    fed = {name: cut.values[piece.fed.get(name, name)] for name in alone.inputs}
    assert_same(ort_run(piece.proto, fed), {name: cut.values[name] for name in piece.outputs})
    return piece


@given(models(), st.data())
def test_each_node_gives_its_own_values_of_values_that_are_fed(
    model: ModelProto, data: st.DataObject
) -> None:
    cut = cutter(model, feeds())
    known = [name for name in cut.network.computed if name in cut.infos]
    if known:
        check_alone(cut, known)
        check_alone(cut, data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True)))


def test_wrong_values_that_are_fed_do_not_reach_the_next_node() -> None:
    model = text_model(
        "(float[2, 3] x) => (float[2, 3] c)", "a = Neg(x) b = Neg(a) c = Neg(b)", opset=17
    )
    cut = cutter(model, {"x": feeds()["x"]})
    piece = isolated(cut, ["a", "b", "c"])
    fed = {name: cut.values[tensor] for name, tensor in piece.fed.items()}
    wrong = {name: value + (piece.fed[name] == "a") for name, value in fed.items()}
    given_back = ort_run(piece.proto, {"x": cut.values["x"], **wrong})
    assert [name for name in "abc" if not np.array_equal(given_back[name], cut.values[name])] == [
        "b"
    ]


def test_shapes_are_stored_and_what_is_made_of_nothing_else_is_left_out() -> None:
    body = "shape = Shape(x) width = Gather(shape, one) flat = Reshape(x, width)"
    model = text_model("(float[1, 6] x) => (float[n] flat)", body, {"one": np.array([1])}, opset=17)
    piece = check_alone(
        cutter(model, {"x": np.ones((1, 6), np.float32)}), ["shape", "width", "flat"]
    )
    assert piece.outputs == ("shape", "flat")
    assert "width" in piece.left_out
    assert [value.name for value in piece.proto.graph.input] == ["x"]
    assert piece.fed == {}
