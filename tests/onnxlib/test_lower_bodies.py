"""Bodies of If, Loop and Scan, and functions, in low precision: values, names, types, and what stays in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from building import evaluate, ort_run, text_model
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import FLOAT, LEVELS, Array, feeds_for, model, random_models
from onnx import GraphProto, ModelProto, helper
from packaging.version import Version
from support import examples

from bisect_trt.onnxlib.low_census import count_lowered
from bisect_trt.onnxlib.low_plan import Stays
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import addressed, bodies, first_output
from bisect_trt.onnxlib.roundings import emulate, lower_roundtrip

KINDS = ("If", "Loop", "Scan", "If in Loop", "function")
EVALUATES_SCANS = Version(onnx.__version__) >= Version("1.22")
"""Whether ONNX's evaluator gives the body of a Scan the tensors that it captures."""


def around(kind: str, plain: ModelProto) -> ModelProto:
    """The model with all nodes in a body, which captures its weights; each output has the model's name and ``_out``."""
    graph, results = plain.graph, [value.name for value in plain.graph.output]
    outs = [f"{name}_out" for name in results]
    weights = list(graph.initializer)
    inputs: list[tuple[str, int, tuple[int, ...]]] = [
        (f"outer_{name}", FLOAT, (4, 4)) for name in "xz"
    ]
    if kind == "function":
        named = ["x", "z", *(tensor.name for tensor in weights)]
        opsets = [helper.make_opsetid("", 13)]
        function = helper.make_function("own", "Whole", named, results, graph.node, opsets)
        call = helper.make_node("Whole", ["outer_x", "outer_z", *named[2:]], outs, domain="own")
        return model([call], outs, weights, inputs=inputs, domains=["own"], functions=[function])
    typed = {name: helper.make_tensor_value_info(name, FLOAT, (4, 4)) for name in "xz"}
    # The body's inputs in a Loop declare no shape, and in a Scan no type: ONNX infers them.
    turn = helper.make_tensor_value_info("turn", onnx.TensorProto.INT64, [])
    more = helper.make_tensor_value_info("more", onnx.TensorProto.BOOL, [])
    same = helper.make_node("Identity", ["more"], ["again"])
    again = helper.make_tensor_value_info("again", onnx.TensorProto.BOOL, [])
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    one = onnx.numpy_helper.from_array(np.array(1), "one")
    carried = [helper.make_node("Identity", [name], [f"{name}_next"]) for name in "xz"]
    nexts = [helper.make_tensor_value_info(f"{name}_next", FLOAT, None) for name in "xz"]
    nodes = list(graph.node)
    stores = [helper.make_tensor_value_info(name, FLOAT, None) for name in results]
    if kind in ("If", "If in Loop"):
        taken = helper.make_graph(nodes, "taken", [], stores)
        skipped = [helper.make_node("Identity", ["x"], [f"{name}_else"]) for name in results]
        ends = [helper.make_tensor_value_info(f"{name}_else", FLOAT, None) for name in results]
        other = helper.make_graph(skipped, "other", [], ends)
        inner = [f"{name}_if" for name in results] if kind == "If in Loop" else outs
        nodes = [helper.make_node("If", ["yes"], inner, then_branch=taken, else_branch=other)]
        stores = [helper.make_tensor_value_info(name, FLOAT, None) for name in inner]
    if kind == "If":
        inputs = [(name, FLOAT, (4, 4)) for name in "xz"]
    elif kind == "Scan":
        bare = [onnx.ValueInfoProto(name=name) for name in "zx"]
        body = helper.make_graph([*nodes, carried[1]], "body", bare, [nexts[1], *stores])
        nodes = [
            helper.make_node(
                "Scan", ["outer_z", "outer_x"], ["z_last", *outs], body=body, num_scan_inputs=1
            )
        ]
        inputs = [("outer_z", FLOAT, (4, 4)), ("outer_x", FLOAT, (1, 4, 4))]
    else:
        body = helper.make_graph(
            [*nodes, *carried, same],
            "body",
            [turn, more, *typed.values()],
            [again, *nexts, *stores],
        )
        nodes = [
            helper.make_node(
                "Loop", ["one", "yes", "outer_x", "outer_z"], ["x_last", "z_last", *outs], body=body
            )
        ]
    return model(nodes, outs, [*weights, yes, one], inputs=inputs)


def feeds_around(kind: str, feeds: dict[str, Array]) -> dict[str, Array]:
    if kind == "If":
        return feeds
    return {"outer_x": feeds["x"][None] if kind == "Scan" else feeds["x"], "outer_z": feeds["z"]}


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def path_to(kind: str, plain: ModelProto) -> str:
    first = plain.graph.output[0].name
    return {
        "If": f"{first}_out/",
        "Scan": "z_last/",
        "Loop": "x_last/",
        "If in Loop": f"x_last/{first}_if/",
    }[kind]


def checked(lowered: ModelProto) -> None:
    """Valid, with names that are unique in the whole model, and taken by ONNX Runtime at each level."""
    onnx.checker.check_model(lowered, full_check=True)
    made = [
        name
        for graph in graphs(lowered.graph)
        for node in graph.node
        for name in node.output
        if name
    ]
    made += [
        value.name
        for graph in graphs(lowered.graph)
        for value in (*graph.input, *graph.initializer)
    ]
    assert len(made) == len(set(made))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=examples(8))
@given(data=st.data(), plain=random_models(), seed=st.integers(0, 99))
def test_a_body_computes_what_its_nodes_do_in_the_main_graph(
    kind: str, data: st.DataObject, plain: ModelProto, seed: int
) -> None:
    """The main graph's lowering is held against NumPy, node by node, in ``test_lower.py``."""
    source = around(kind, plain)
    feeds = feeds_for(seed)
    names = [first_output(node) for node in plain.graph.node]
    keep = [] if kind == "function" else sorted(data.draw(st.sets(st.sampled_from(names))))
    kept_inside = [path_to(kind, plain) + name for name in keep] if keep else []
    before = source.SerializeToString(deterministic=True)
    lowered = lower_fp16(source, kept_inside)
    assert source.SerializeToString(deterministic=True) == before
    checked(lowered)
    assert [value.type for value in lowered.graph.output] == [
        value.type for value in source.graph.output
    ]
    fed = feeds_around(kind, feeds)
    expected = evaluate(lower_fp16(plain, keep), feeds)
    if kind != "Scan" or EVALUATES_SCANS:
        got = evaluate(lowered, fed)
        for name, value in expected.items():
            np.testing.assert_array_equal(np.reshape(got[f"{name}_out"], value.shape), value)
    emulated = emulate(lowered)
    checked(emulated)
    level = LEVELS[seed % len(LEVELS)]
    ort_run(lowered, fed, level)
    expected = ort_run(lower_roundtrip(plain, keep), feeds)
    got = ort_run(emulated, fed)
    for name, value in expected.items():
        np.testing.assert_array_equal(np.reshape(got[f"{name}_out"], value.shape), value)
    optimized = ort_run(emulated, fed, level)
    for name, value in got.items():
        np.testing.assert_allclose(
            optimized[name], value, rtol=1e-2, atol=1e-2 * max(1, np.abs(value).max())
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_inside_is_counted(kind: str) -> None:
    plain = text_model(
        "(float[4, 4] x, float[4, 4] z) => (float[4, 4] y)",
        "a = Mul(x, w) b = Exp(a) y = Add(b, z)",
        {"w": 3.0},
    )
    census = count_lowered(Network(around(kind, plain)))
    carried = {"Loop": 2, "If in Loop": 2, "Scan": 1}.get(kind, 0)  # Identity of each carried value
    branch = 1 if kind.startswith("If") else 0
    assert len(census.lowered) == 3 + carried + branch
    assert not census.left


def test_weights_of_the_main_graph_that_a_body_reads_are_stored_in_the_low_precision() -> None:
    body = "b = body (int64 i, bool c, float[2, 3] v) => (bool more, float[2, 3] n) { more = Identity(c) n = Mul(v, w) }"
    source = text_model(
        "(float[2, 3] x) => (float[2, 3] y)",
        f"y = Loop<body = {body[4:]}>(count, , x)",
        {"count": np.array(2), "w": 0.1},
    )
    lowered = lower_fp16(source)
    assert {tensor.name for tensor in lowered.graph.initializer} == {"count", "w_fp16"}


def test_what_is_computed_from_shapes_around_a_body_stays_exact_in_it() -> None:
    """4097 halved and rounded up is 2049, which fp16 has not."""
    branch = "{name}_branch = {name} () => (float[1, {name}_n] {name}_y) {{ {nodes} {name}_y = Slice(x, zero, {name}_i, one) }}"
    nodes = "{name}_h = Mul(f, half) {name}_u = Ceil({name}_h) {name}_i = Cast<to = 7>({name}_u)"
    branches = ", ".join(
        branch.format(name=name, nodes=nodes.format(name=name)) for name in ("then", "else")
    )
    body = f"shape = Shape(x) n = Gather(shape, one) f = Cast<to = 1>(n) y = If(flag)<{branches}>"
    weights = {"zero": np.array([0]), "one": np.array([1]), "half": 0.5, "flag": np.array(True)}
    source = text_model("(float[1, n] x) => (float[1, m] y)", body, weights)
    fed = {"x": np.zeros((1, 4097), np.float32)}
    assert ort_run(lower_roundtrip(source), fed)["y"].shape == (1, 2049)


def test_functions_of_another_opset_and_kept_calls_stay_whole() -> None:
    functions = (
        '<domain: "own", opset_import: ["" : 12]> Old (a) => (b) { c = Exp(a) b = Sqrt(c) } '
        '<domain: "own", opset_import: ["" : 13, "own" : 1]> New (a) => (b) { c = Exp(a) b = own.Old(c) }'
    )
    source = text_model(
        "(float[2, 3] x) => (float[2, 3] y)",
        "p = own.Old(x) q = own.New(p) y = own.New(q)",
        functions=functions,
    )
    census = count_lowered(Network(source), ["y"])
    assert (len(census.lowered), dict(census.left)) == (1, {(Stays.FUNCTION, "own.Old"): 2})
    x = np.full((2, 3), -1, np.float32)
    for lower in (lower_fp16, lower_roundtrip):
        lowered = lower(source, ["y"])  # ONNX's checker refuses functions of another opset
        got = ort_run(lowered, {"x": x})["y"]
        full = ort_run(source, {"x": x})["y"]
        np.testing.assert_allclose(got, full, rtol=5e-2)
        assert [node.op_type for node in lowered.graph.node if node.domain == "own"] == [
            "Old",
            "Old",
            "New_fp32",
        ]


@pytest.mark.parametrize(("opset", "inlined"), [(13, True), (14, True), (17, True), (12, False)])
def test_functions_are_inlined_whose_operators_did_not_change(opset: int, *, inlined: bool) -> None:
    """Exp is of opset 13, as in later operator sets."""
    function = f'<domain: "own", opset_import: ["" : {opset}]> F (a) => (b) {{ b = Exp(a) }}'
    source = text_model("(float[2] x) => (float[2] y)", "y = own.F(x)", functions=function)
    lowered = lower_fp16(source)
    assert all(node.domain == "own" for node in lowered.graph.node) is not inlined
    fed = {"x": np.ones(2, np.float32)}
    np.testing.assert_allclose(ort_run(lowered, fed)["y"], ort_run(source, fed)["y"], rtol=1e-3)


def test_addresses_name_each_node_of_nested_bodies() -> None:
    plain = text_model(
        "(float[4, 4] x, float[4, 4] z) => (float[4, 4] y)", "a = Exp(x) y = Add(a, z)"
    )
    source = around("If in Loop", plain)
    names = {address for address, _ in addressed(source.graph)}
    assert {
        "x_last",
        "x_last/y_if",
        "x_last/y_if/a",
        "x_last/y_if/y",
        "x_last/y_if/y_else",
        "x_last/again",
    } <= names
    kept = lower_fp16(source, ["x_last"])
    assert [node.op_type for graph in graphs(kept.graph) for node in graph.node].count("Cast") == 0


def test_a_version_past_32_bits_lowers_nothing() -> None:
    source = text_model("(float[4] x) => (float[4] y)", "y = Exp(x)")
    source.opset_import[0].version = 2**40
    census = count_lowered(Network(source))
    assert not census.lowered
    assert [stays for stays, _ in census.left] == [Stays.OPERATOR]
