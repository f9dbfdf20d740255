"""``run``, ``layerwise`` and ``extract`` from the outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import SHAPE, arrays, chain, node_names, overflowing, read_json, save

FP16 = ["--onnxrt", "--fp16"]


@pytest.fixture
def model(here: Path) -> Path:
    return overflowing(here / "model.onnx")


@pytest.fixture
def fan(here: Path) -> Path:
    """x -> three outputs: fine, off by much, off by much."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["fine"], name="fine"),
        helper.make_node("Mul", ["x", "big"], ["bad"], name="bad"),
        helper.make_node("Mul", ["fine", "big"], ["worse"], name="worse"),
    ]
    weights = {"one": 1.0, "big": 1e6}
    tensors = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in weights.items()]
    return save(here / "fan.onnx", nodes, tensors, outputs=["fine", "bad", "worse"])


def matches(ran_json: str = "r.json") -> dict[str, bool]:
    """What ``run`` says of each output."""
    return {entry["name"]: entry["passed"] for entry in read_json(Path(ran_json))["comparisons"]}


# run


def test_run_says_what_matches(cli: CommandLine, fan: Path) -> None:
    ran = cli("run", fan, *FP16, "--json", "r.json")
    assert ran.status == 1
    assert matches() == {"fine": True, "bad": False, "worse": False}
    assert "2 of 3 do not match" in ran.out
    ran = cli("run", fan, "--onnxrt", "--json", "r.json")
    assert ran.status == 0
    assert matches() == {"fine": True, "bad": True, "worse": True}


def test_outputs_that_are_no_arrays_are_named(cli: CommandLine, fan: Path) -> None:
    proto = onnx.load(fan)
    proto.graph.node.append(helper.make_node("SequenceConstruct", ["fine", "bad"], ["several"]))
    proto.graph.output.append(helper.make_tensor_sequence_value_info("several", onnx.TensorProto.FLOAT, None))
    onnx.save(proto, fan)
    ran = cli("run", fan, "--onnxrt")
    assert (ran.status, "'several' is not compared: a seq(tensor(float))" in ran.err) == (0, True)
    ran = cli("run", fan, "--onnxrt", "--onnx-outputs", "several")
    assert (ran.status, "No output is left to compare" in ran.err) == (4, True)


def test_tolerances_by_output(cli: CommandLine, fan: Path) -> None:
    # Every element is Inf instead of 1e6, so only an infinite tolerance takes it.
    assert cli("run", fan, *FP16, "--json", "r.json", "--atol", "bad:inf", "worse:1").status == 1
    assert not matches()["worse"]
    np.savez("outputs.npz", fine=np.full(SHAPE, 3.0, np.float32))
    common = ["run", fan, "--onnxrt", "--onnx-outputs", "fine", "--load-outputs", "outputs.npz"]
    np.savez("x.npz", x=np.full(SHAPE, 1.5, np.float32))  # makes 2.5 where 3 is expected
    common += ["--load-inputs", "x.npz"]
    assert cli(*common).status == 1
    assert cli(*common, "--atol", "0.5").status == 0
    assert cli(*common, "--atol", "0.49").status == 1
    assert cli(*common, "--atol", "0.1", "--atol", "fine:0.51").status == 0
    assert cli(*common, "--rtol", "0.2").status == 0
    assert cli(*common, "--rtol", "fine:0.1", "--atol", "0").status == 1


def test_input_shapes(cli: CommandLine, fan: Path) -> None:
    proto = onnx.load(str(fan))
    for value in (proto.graph.input[0], *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, "free.onnx")
    for options, batch in (([], 1), (["--input-shapes", "x:[4,3]"], 4)):
        ran = cli("run", "free.onnx", "--onnxrt", *options, "--save-inputs", "x.npz")
        assert ran.status == 0
        assert ("'x'" in ran.err) == (not options)
        assert arrays("x.npz")["x"].shape == (batch, 3)


# layerwise


# extract


@pytest.mark.parametrize(
    ("inputs", "outputs", "nodes"),
    [
        (["t1"], ["t3"], ["<2>", "<3>"]),
        ([], ["t1"], ["<0>", "<1>"]),
        (["t5"], [], ["<6>", "<7>"]),
        ([], [], [f"<{place}>" for place in range(8)]),
        (["t1"], ["t2", "t4"], ["<2>", "<3>", "<4>"]),
    ],
)
def test_extract(cli: CommandLine, inputs: list[str], outputs: list[str], nodes: list[str]) -> None:
    model = chain(Path("model.onnx"), 8)
    value = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.savez("x.npz", x=value)
    options = [*(["--inputs", *inputs] if inputs else []), *(["--outputs", *outputs] if outputs else [])]
    ran = cli("extract", model, *options, "-o", "sub.onnx", "--load-inputs", "x.npz", "--json", "r.json")
    assert ran.status == 0
    assert node_names(Path("sub.onnx")) == nodes
    onnx.checker.check_model("sub.onnx", full_check=True)
    # The values beside it are those of a reference run, and they make the piece give what the whole gives.
    values = arrays("sub.inputs.npz")
    start = inputs or ["x"]
    assert list(values) == start
    for name in start:
        np.testing.assert_array_equal(values[name], value + (0 if name == "x" else int(name[1:]) + 1))
    session = onnxruntime.InferenceSession("sub.onnx", providers=["CPUExecutionProvider"])
    ends = outputs or ["t7"]
    assert [output.name for output in session.get_outputs()] == ends
    for name, given in zip(ends, session.run(None, values), strict=True):
        np.testing.assert_array_equal(given, value + int(name[1:]) + 1)
    assert read_json(Path("r.json"))["artifacts"]["extracted"] == "sub.onnx"


def test_a_piece_is_dynamic_where_the_original_is(cli: CommandLine, here: Path) -> None:
    proto = onnx.load(str(chain(here / "m.onnx")))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, "m.onnx")

    def ends(*words: str) -> list[list[int | str]]:
        ran = cli("extract", "m.onnx", *words, "-o", "sub.onnx", "--overwrite")
        assert (ran.status, "free dimensions" in ran.err) == (0, False)
        graph = onnx.load("sub.onnx").graph
        shapes = [value.type.tensor_type.shape.dim for value in (*graph.input, *graph.output)]
        return [[dim.dim_param or dim.dim_value for dim in shape] for shape in shapes]

    # What Polygraphy says behind a name is taken where it asks for what is done anyway.
    for start in ("t0", "t0:auto", "t0:auto:auto"):
        assert ends("--inputs", start, "--outputs", "t2:auto") == [["n", 3]] * 2
    assert ends("--inputs", "t0", "--outputs", "t2", "--input-shapes", "x:[5,3]") == [[5, 3]] * 2
    assert cli("extract", "m.onnx", "--inputs", "t0:auto:float32", "-o", "new.onnx").status == 2


def test_outputs_are_chosen_by_the_operator_that_makes_them(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx", before=2, after=1)

    def compared(*words: str) -> list[str]:
        cli("run", model, "--onnxrt", *words, "--json", "r.json")
        return [each["name"] for each in read_json(here / "r.json")["comparisons"]]

    assert compared("--onnx-outputs", "op:Mul") == ["big_out", "small_out"]
    assert compared("--onnx-outputs", "op:M*", "a0_out") == ["big_out", "small_out", "a0_out"]
    assert compared("--onnx-outputs", "mark", "all", "--onnx-exclude-outputs", "op:Add") == ["big_out", "small_out"]
    ran = cli("run", model, "--onnxrt", "--onnx-outputs", "op:Softmax")
    assert "the model makes no tensor 'op:Softmax'" in ran.error
