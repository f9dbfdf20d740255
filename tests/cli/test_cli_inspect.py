"""``inspect``: models and saved values, on the terminal and as JSON; engines need TensorRT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import chain, overflowing, read_json, save


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
    assert all(line in ran.out for line in ("x: float32 [2, 3]", "weights: count 3, bytes 12", "nodes: 4", "Mul 2"))


def test_layers_attributes_and_weights(cli: CommandLine, here: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["inner"], name="in the branch")],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["a"], name="if", then_branch=body, else_branch=body),
        helper.make_node("Transpose", ["a"], ["b"], name="turn", perm=[1, 0]),
        helper.make_node("Transpose", ["b"], ["y"], name="back", perm=[1, 0]),
    ]
    model = save(here / "m.onnx", nodes, [numpy_helper.from_array(np.array(True), "yes")])
    plain = inspected(cli, "model", model, "--show", "layers", "attrs", "weights")
    branch, turn, _ = plain["layers"]
    assert turn["attributes"] == {"perm": [1, 0]}
    assert turn["outputs"] == [{"name": "b", "dtype": "float32", "shape": [3, 2]}]
    assert [[node["name"] for node in body] for body in branch["bodies"]] == [["in the branch"]] * 2
    assert {*branch["branches"]} == {"then_branch", "else_branch"}
    (weight,) = plain["weights"]["tensors"]
    assert (weight["name"], weight["dtype"], weight["shape"]) == ("yes", "bool", [])
    ran = cli("inspect", "model", model, "--show", "layers", "attrs", "weights")
    assert all(line in ran.out for line in ("Transpose turn", "perm [1, 0]", "Neg in the branch", "b: float32 [3, 2]"))
    assert "attributes" not in inspected(cli, "model", model, "--show", "layers")["layers"][1]


def test_every_kind_of_attribute_can_be_told(cli: CommandLine, here: Path) -> None:
    node = helper.make_node("Mine", ["x"], ["y"], domain="my.own", i=1, f=0.5, s="text", ints=[1, 2], floats=[0.5])
    node.attribute.append(helper.make_attribute("strings", ["a", "b"]))
    node.attribute.append(helper.make_attribute("raw", b"\xff\x00"))
    node.attribute.append(helper.make_attribute("t", numpy_helper.from_array(np.zeros((2, 2), np.int8))))
    plain = inspected(cli, "model", save(here / "m.onnx", [node]), "--show", "attrs")
    (layer,) = plain["layers"]
    assert layer["op"] == "my.own.Mine"
    known = {"i": 1, "f": 0.5, "s": "text", "ints": [1, 2], "floats": [0.5], "strings": ["a", "b"], "t": "int8 [2, 2]"}
    assert layer["attributes"] | {"raw": ""} == {**known, "raw": ""}


def test_free_dimensions_and_weights_in_a_file_of_their_own(cli: CommandLine, here: Path) -> None:
    path = save(here / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [])
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.initializer.append(numpy_helper.from_array(np.arange(3000, dtype=np.float32).reshape(1000, 3), "w"))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    plain = inspected(cli, "model", "m.onnx", "--show", "weights")
    assert plain["inputs"][0]["shape"] == ["batch", 3]
    (weight,) = plain["weights"]["tensors"]
    assert (weight["shape"], weight["external"]) == ([1000, 3], True)
    Path("m.data").unlink()
    assert "[batch, 3]" in cli("inspect", "model", "m.onnx").out  # the weights are not read


def test_data(cli: CommandLine, here: Path) -> None:  # noqa: ARG001 - the working directory
    values = np.array([[1, -2, np.nan], [np.inf, 0, 4]], np.float32)
    np.savez("d.npz", a=values, ids=np.arange(5), text=np.array(["one", "two"]), none=np.zeros((0, 3), np.float32))
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
    assert sample["text"] == {"dtype": "string", "shape": [2], "values": "['one', 'two']"}
    assert sample["none"]["min"] is None
    assert "nan 1, inf 1, zeros 1" in cli("inspect", "data", "d.npz").out
    assert (
        cli("run", chain(Path("model.onnx")), "--onnxrt", "--iterations", "2", "--save-outputs", "y.json").status == 0
    )
    (run,) = inspected(cli, "data", "y.json")["runs"]
    assert [list(sample) for sample in run["samples"]] == [["t3"], ["t3"]]


def test_the_suffix_shows_the_kind(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx").rename("model")  # named as a kind is
    assert cli("inspect", "model", "model").status == 0
    Path("folder").mkdir()
    np.savez("folder/d.npz", a=np.zeros(1))
    for name in ("folder/d.npz", "folder"):
        assert cli("inspect", name, "--json", "r.json").status == 0
        assert "data" in read_json(Path("r.json")), name
