"""``inspect``: models and saved values, on the terminal and as JSON; engines need TensorRT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import evaluate, save_text, text_model
from conftest import CommandLine, missing_gpu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support import SHAPE, chain, examples, model_of, overflowing, save

from bisect_trt.onnxlib.cleanup import remove_unread, sort_nodes
from bisect_trt.onnxlib.network import Network


def inspected(cli: CommandLine, *words: str | Path) -> dict[str, Any]:
    result = cli("inspect", *words, "--json", "r.json").ended(0).result
    plain: dict[str, Any] = result[str(words[0])]
    return plain


def test_a_model_in_short(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx", before=1, after=1)
    plain = inspected(cli, "model", model)
    assert plain["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 3]}]
    assert plain["outputs"] == [{"name": "b0_out", "dtype": "float32", "shape": [2, 3]}]
    assert plain["operators"] == {"Add": 2, "Mul": 2}
    assert plain["opsets"] == {"ai.onnx": 13}
    assert plain["weights"] == {"count": 3, "bytes": 12}
    assert "layers" not in plain
    alone = cli("inspect", "model", model, "--json", "-")
    assert json.loads(alone.out)["model"] == plain  # all else goes to stderr
    assert "nodes: 4" in alone.err
    ran = cli("inspect", "model", model)
    assert "\x1b" not in ran.out
    assert all(
        line in ran.out
        for line in ("x: float32 [2, 3]", "weights: count 3, bytes 12", "nodes: 4", "Mul 2")
    )


def test_layers_attributes_and_weights(cli: CommandLine, here: Path) -> None:
    branches = ", ".join(
        f"{way}_branch = {way} () => (float[2, 3] inner) {{ inner = Neg(x) }}"
        for way in ("then", "else")
    )
    body = f"a = If(yes) <{branches}> turn = Transpose<perm = [1, 0]>(a) y = Transpose<perm = [1, 0]>(turn)"
    model = save_text(
        here / "m.onnx", "(float[2, 3] x) => (float[a, b] y)", body, {"yes": np.array(True)}
    )
    plain = inspected(cli, "model", model, "--show", "layers", "attrs", "weights")
    branch, turn, _ = plain["layers"]
    assert turn["attributes"] == {"perm": [1, 0]}
    assert turn["outputs"] == [{"name": "turn", "dtype": "float32", "shape": [3, 2]}]
    assert [[node["op"] for node in body] for body in branch["bodies"]] == [["Neg"]] * 2
    assert {*branch["branches"]} == {"then_branch", "else_branch"}
    (weight,) = plain["weights"]["tensors"]
    assert (weight["name"], weight["dtype"], weight["shape"]) == ("yes", "bool", [])
    ran = cli("inspect", "model", model, "--show", "layers", "attrs", "weights")
    assert all(
        line in ran.out for line in ("Transpose turn", "perm [1, 0]", "Neg", "turn: float32 [3, 2]")
    )
    assert "attributes" not in inspected(cli, "model", model, "--show", "layers")["layers"][1]


def test_every_kind_of_attribute_can_be_told(cli: CommandLine, here: Path) -> None:
    node = helper.make_node(
        "Mine", ["x"], ["y"], domain="my.own", i=1, f=0.5, s="text", ints=[1, 2], floats=[0.5]
    )
    node.attribute.append(helper.make_attribute("strings", ["a", "b"]))
    node.attribute.append(helper.make_attribute("raw", b"\xff\x00"))
    node.attribute.append(
        helper.make_attribute("t", numpy_helper.from_array(np.zeros((2, 2), np.int8)))
    )
    plain = inspected(cli, "model", save(here / "m.onnx", [node]), "--show", "attrs")
    (layer,) = plain["layers"]
    assert layer["op"] == "my.own.Mine"
    known = {
        "i": 1,
        "f": 0.5,
        "s": "text",
        "ints": [1, 2],
        "floats": [0.5],
        "strings": ["a", "b"],
        "t": "int8 [2, 2]",
    }
    assert layer["attributes"] | {"raw": ""} == {**known, "raw": ""}


def test_data(cli: CommandLine) -> None:
    values = np.array([[1, -2, np.nan], [np.inf, 0, 4]], np.float32)
    np.savez("d.npz", a=values, ids=np.arange(5), none=np.zeros((0, 3), np.float32))
    plain = inspected(cli, "data", "d.npz", "--show", "values")
    (run,) = plain["runs"]
    (sample,) = run["samples"]
    a = sample["a"]
    assert (a["dtype"], a["shape"], a["nan"], a["inf"], a["zeros"]) == ("float32", [2, 3], 1, 1, 1)
    finite = np.array([1, -2, 0, 4.0])
    assert [a[w] for w in ("min", "max", "mean", "median")] == [-2, 4, 0.75, 0.5]
    assert a["std"] == pytest.approx(finite.std())
    assert a["rms"] == pytest.approx(np.sqrt(np.mean(finite**2)))
    assert "nan" in a["values"]
    assert sample["ids"]["max"] == 4
    assert sample["none"]["min"] is None
    assert "nan 1, inf 1, zeros 1" in cli("inspect", "data", "d.npz").out
    assert (
        cli(
            "run",
            chain(Path("model.onnx")),
            "--onnxrt",
            "--iterations",
            "2",
            "--save-outputs",
            "y.json",
        ).status
        == 0
    )
    (run,) = inspected(cli, "data", "y.json")["runs"]
    assert [list(sample) for sample in run["samples"]] == [["t3"], ["t3"]]


def test_the_suffix_shows_the_kind(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx").rename("model")  # named as a kind is
    assert cli("inspect", "model", "model").status == 0
    Path("folder").mkdir()
    np.savez("folder/d.npz", a=np.zeros(1))
    for name in ("folder/d.npz", "folder"):
        assert "data" in cli("inspect", name, "--json", "r.json").ended(0).result, name


# ``convert``: a model in half precision; an engine needs TensorRT.


X = {"x": np.full(SHAPE, 0.3, np.float32)}


def test_what_stays_in_fp32(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    assert (
        cli(
            "convert", model, "-o", "half.onnx", "--fp16", "--keep-fp32", "big_out", "small_out"
        ).status
        == 0
    )
    half, full = (evaluate(path, X)["b2_out"] for path in ("half.onnx", str(model)))
    assert np.allclose(half, full, rtol=1e-2)
    cli("convert", model, "-o", "other.onnx", "--fp16", "--keep-fp32", "nope").refused(
        "BT1005", "'nope' is the first output of no node; give that tensor"
    )


def test_a_written_model_that_was_not_run_is_said_not_to_be(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx", 3)
    for words, sentence in {
        ("convert", "--fp16"): "It was not run; ",
        ("convert", "--fp16", "--io-fp16"): "It was not run; ",
        ("convert", "--bf16"): "It was not run; ",
        ("extract", "--outputs", "t0"): ", not run.",
        ("sanitize",): "the same results as the original",
    }.items():
        ran = cli(words[0], "model.onnx", "-o", "out.onnx", *words[1:], "--overwrite").ended(0)
        assert sentence in " ".join(ran.out.split()), words


@pytest.mark.skipif(missing_gpu() is None, reason="TensorRT is here")
def test_an_engine_needs_tensorrt(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx")
    (here / "there.engine").write_bytes(b"no engine")
    for line in (
        "convert model.onnx -o m.engine --fp16",
        "inspect engine there.engine",
        "inspect there.engine",
    ):
        cli(*line.split()).refused("BT2003", "TensorRT")
        assert not Path("m.engine").exists()


# ``sanitize``: what can be computed is stored, what nobody reads is gone, and the results stay the
# same.


ENDS = "(float[2, 3] x) => (float[2, 3] y)"


def write(body: str, weights: Mapping[str, Any], ends: str = ENDS) -> Path:
    path = Path("model.onnx").absolute()
    onnx.save(text_model(ends, body, weights), str(path))
    return path


def operators(path: str) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def messy() -> Path:
    """A weight made of two others by two nodes, a ``Constant``, a dead branch, a weight that nobody reads, out of order."""
    body = """y = Add(t0, three) w0 = Mul(one, two) w1 = Add(w0, two) t0 = Add(x, w1) three = Constant<value_float = 3.0>()
        dead = Relu(x) deader = Neg(dead)"""
    path = write(body, {"one": np.ones(SHAPE), "two": np.full(SHAPE, 2.0)})
    model = onnx.load(str(path))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(SHAPE, np.float32), "idle"))
    onnx.save(model, str(path))
    return path


def test_it_folds_cleans_up_and_sorts(cli: CommandLine) -> None:
    changes = (
        cli("sanitize", messy(), "-o", "out.onnx", "--json", "r.json").ended(0).result["changes"]
    )
    model = onnx.load("out.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert operators("out.onnx") == ["Add", "Add"]
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert set(stored) == {"w1", "three"}
    assert np.array_equal(stored["w1"], np.full(SHAPE, 4, np.float32))
    assert changes["nodes"] == [7, 2]
    assert (changes["folded_nodes"], changes["stored_tensors"]) == (3, 2)
    assert (changes["removed_nodes"], changes["removed_weights"], changes["sorted"]) == (2, 1, True)
    # A second time there is nothing left to do.
    assert cli("sanitize", "out.onnx", "-o", "again.onnx").status == 0
    assert onnx.load("again.onnx") == model


def reshaping(shape: str) -> Path:
    """Flattens ``x`` by arithmetic on its shape."""
    body = """s = Shape(x) n = Gather(s, zero) n1 = Unsqueeze(n, axis) to = Concat<axis = 0>(n1, rest)
        flat = Reshape(x, to) fs = Shape(flat) ff = Cast<to = 1>(fs) y = Add(flat, ff)"""
    weights = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    return write(body, weights, f"(float[{shape}] x) => (float[a, b] y)")


def test_shapes_fold_once_they_are_known(cli: CommandLine) -> None:
    model = reshaping("5, 1, 2")
    assert cli("sanitize", model, "-o", "out.onnx").status == 0
    # The first Shape is known at once; only with its fold stored does inference know that of the
    # Reshape.
    assert operators("out.onnx") == ["Reshape", "Add"]
    assert (
        cli("sanitize", model, "-o", "out.onnx", "--overwrite", "--no-shape-inference").status == 0
    )
    assert len(operators("out.onnx")) == 8


def test_override_input_shapes(cli: CommandLine) -> None:
    model = reshaping("batch, 1, 2")
    assert (
        cli("sanitize", model, "-o", "out.onnx", "--override-input-shapes", "x:[7,1,2]").status == 0
    )
    assert operators("out.onnx") == ["Reshape", "Add"]
    (fed,) = onnx.load("out.onnx").graph.input
    assert [dim.dim_value for dim in fed.type.tensor_type.shape.dim] == [7, 1, 2]


EXPANDS = "two = Add(n, n) v = Expand(one, two) sum = ReduceSum<keepdims = 0>(x) y = Add(v, sum)"


@pytest.mark.parametrize(
    ("body", "weights", "left"),
    [
        (EXPANDS, 500, "Add ReduceSum"),
        (EXPANDS, 5 << 20, "Add Expand ReduceSum"),
        ("w = DequantizeLinear(q, scale) v = Neg(w) y = Add(x, v)", 1, "Add DequantizeLinear Neg"),
    ],
    ids=["small", "40 MiB", "quantized"],
)  # fmt: skip
def test_large_and_quantized_values_stay_computed(
    cli: CommandLine, body: str, weights: int, left: str
) -> None:
    stored = {"one": 1.0, "n": np.array([weights]), "q": np.ones(SHAPE, np.uint8), "scale": 0.5}
    cli(
        "sanitize", write(body, stored, "(float[2, 3] x) => (float[a, b] y)"), "-o", "out.onnx"
    ).ended(0)
    assert sorted(operators("out.onnx")) == left.split()


def test_shapes_that_inference_finds_are_declared(cli: CommandLine) -> None:
    write("t = Transpose<perm = [1, 0]>(x) y = Relu(t)", {}, "(float[n, 3] x) => (float[a, b] y)")

    def declared(*words: str) -> tuple[list[int | str], int]:
        ran = cli(
            "sanitize", "model.onnx", "-o", "out.onnx", "--overwrite", *words, "--json", "r.json"
        ).ended(0)
        graph = onnx.load("out.onnx").graph
        (shape,) = [
            each.type.tensor_type.shape.dim for each in graph.value_info if each.name == "t"
        ] or [[]]
        return [dim.dim_param or dim.dim_value for dim in shape], ran.result["changes"][
            "declared_shapes"
        ]

    assert declared("--no-shape-inference") == ([], 0)
    assert declared()[0] == [3, "n"]
    assert declared("--override-input-shapes", "x:[5,3]") == ([3, 5], 2)


def test_what_differs_is_refused(cli: CommandLine) -> None:
    """The model declares a shape that depends on values, and declares it wrong; folded it gives another result."""
    model = text_model(
        ENDS, "places = NonZero(x) n = Size(places) nf = Cast<to = 1>(n) y = Add(x, nf)"
    )
    model.graph.value_info.append(
        helper.make_tensor_value_info("places", TensorProto.INT64, [2, 5])
    )
    onnx.save(model, "m.onnx")
    ran = cli("sanitize", "m.onnx", "-o", "out.onnx", "--json", "r.json").refused("BT3004", "'y'")
    assert (ran.result["status"], Path("out.onnx").exists()) == ("inconclusive", False)
    assert cli("sanitize", "m.onnx", "-o", "out.onnx", "--no-shape-inference").status == 0


def test_what_onnx_runtime_cannot_run_is_not_compared(cli: CommandLine) -> None:
    path = write(
        "two = Add(one, one) w = own.Mine(one) y = own.Mine(x, two, w)", {"one": np.ones(SHAPE)}
    )
    result = cli("sanitize", path, "-o", "out.onnx", "--json", "r.json").ended(3).result
    assert (operators("out.onnx"), result["minimality"]) == (["Mine", "Mine"], "unproven")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_clean_up_keeps_what_outputs_need_and_nothing_else(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    known = ["x", "a", "b"]
    nodes = []
    for number in range(count):
        reads = data.draw(st.lists(st.sampled_from(known), min_size=2, max_size=2))
        nodes.append(helper.make_node("Add", reads, [f"t{number}"]))
        known.append(f"t{number}")
    order = data.draw(st.permutations(nodes))
    output = data.draw(st.sampled_from([node.output[0] for node in nodes]))
    model = model_of(order, {"a": [1], "b": [1]}, inputs={"x": [1]}, outputs={output: [1]})
    want = {"x": np.full(1, 3, np.float32)}
    before = onnx.ModelProto()
    before.CopyFrom(model)
    sort_nodes(before)
    removed = remove_unread(model)
    sort_nodes(model)
    assert not sort_nodes(model)
    left = Network(model)
    assert all(
        left.consumers.get(name) or name == output
        for index in left.order
        for name in left.made(index)
    )
    assert all(left.consumers.get(name) for name in left.initializers)
    assert removed["nodes"] == count - len(left.nodes)
    one, two = (evaluate(each, want)[output] for each in (before, model))
    assert np.array_equal(one, two)
