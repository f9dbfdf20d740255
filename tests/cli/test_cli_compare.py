"""``run`` and ``extract`` from the outside: which tensors are compared, the model that runs, weights elsewhere, pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import SHAPE, arrays, chain, command_lines, node_names, overflowing, read_json, save

from bisect_trt.onnxlib.load import external_files

FP16 = ["--onnxrt", "--fp16"]


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


def compared(cli: CommandLine, *words: str | Path, status: int = 0) -> dict[str, bool]:
    """Whether each output that ``run`` compares matches."""
    cli("run", *words, "--json", "r.json").ended(status)
    return {entry["name"]: entry["passed"] for entry in read_json(Path("r.json"))["comparisons"]}


def test_run_says_what_matches(cli: CommandLine, fan: Path) -> None:
    assert compared(cli, fan, *FP16, status=1) == {"fine": True, "bad": False, "worse": False}
    assert compared(cli, fan, "--onnxrt") == {"fine": True, "bad": True, "worse": True}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("a1_out a0_out", "a1_out a0_out"),
        ("a[01]_out b0_out", "a0_out a1_out b0_out"),
        ("*_out --onnx-exclude-outputs *0_out", "a1_out big_out small_out"),
        ("mark all --onnx-exclude-outputs op:Add", "big_out small_out"),
        ("op:M* a0_out", "big_out small_out a0_out"),
    ],
)
def test_outputs_by_name_pattern_and_operator(cli: CommandLine, here: Path, words: str, names: str) -> None:
    model = overflowing(here / "model.onnx", before=2, after=1)
    assert [*compared(cli, model, "--onnxrt", "--onnx-outputs", *words.split())] == names.split()


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
    assert not compared(cli, fan, *FP16, "--atol", "bad:inf", "worse:1", status=1)["worse"]
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


def test_the_model_that_runs(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    compared(cli, model, "--onnxrt", "--onnx-outputs", "big_out", "--save-onnx", "plain.onnx")
    assert [value.name for value in onnx.load("plain.onnx").graph.output] == ["big_out"]
    compared(cli, model, *FP16, "--save-onnx", "half.onnx", status=1)
    casts = [node for node in onnx.load("half.onnx").graph.node if node.op_type == "Cast"]
    assert any(node.attribute[0].i == onnx.TensorProto.FLOAT16 for node in casts)
    compared(cli, "half.onnx", "--onnxrt", "--validate", status=1)  # it overflows on its own


def test_weights_in_another_folder(cli: CommandLine, here: Path) -> None:
    values = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    nodes = [helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])]
    model = onnx.load(str(save(here / "m.onnx", nodes, [numpy_helper.from_array(values, "w")])))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    (here / "weights").mkdir()
    Path("m.data").rename("weights/m.data")
    elsewhere = ["--external-data-dir", "weights"]
    compared(cli, "m.onnx", "--onnxrt", *elsewhere, "--save-outputs", "y.npz")
    assert arrays("y.npz")["y"].min() >= values.sum()
    commands: dict[str, list[str | Path]] = {
        **command_lines("m.onnx"),
        "sanitize": ["sanitize", "m.onnx", "-o", "out.onnx"],
        "convert": ["convert", "m.onnx", "-o", "out.onnx", "--bf16"],
    }
    for name, words in commands.items():
        ran = cli(*words)
        assert (ran.status, "m.data" in ran.error) == (4, True), name
        assert cli(*words, "--external-data-dir", "none").status != 0, name
    for name in ("extract", "sanitize", "convert", "reduce"):
        Path("out.onnx").unlink(missing_ok=True)
        assert cli(*commands[name], *elsewhere).status == 0, name
        assert not external_files(onnx.load("out.onnx", load_external_data=False)), name
    # What is written has its weights, or they lie beside it; the run is bound to them.
    Path("out.onnx").unlink()
    assert cli(*commands["precision"], *elsewhere).status == 0
    Path("weights/m.data").write_bytes(b"other" * 3000)
    assert "the content of weights/m.data" in cli("resume").error
    compared(cli, "out.onnx", "--onnxrt")


# extract


@pytest.mark.parametrize(
    ("inputs", "outputs", "nodes"),
    [
        ([], ["t1"], ["<0>", "<1>"]),
        (["t5"], [], ["<6>", "<7>"]),
        (["t1"], ["t2", "t4"], ["<2>", "<3>", "<4>"]),
    ],
)
def test_extract(cli: CommandLine, inputs: list[str], outputs: list[str], nodes: list[str]) -> None:
    model = chain(Path("model.onnx"), 8)
    value = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.savez("x.npz", x=value)
    options = [*(["--inputs", *inputs] if inputs else []), *(["--outputs", *outputs] if outputs else [])]
    cli("extract", model, *options, "-o", "sub.onnx", "--load-inputs", "x.npz", "--json", "r.json").ended(0)
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
