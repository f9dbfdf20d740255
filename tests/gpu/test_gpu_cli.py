"""The commands on a real GPU, from the command line to the reproducer."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper
from support import chain, node_names, overflowing_products, read_json, reproduced

TRT = ["--trt", "--fp16", "--hold-precision"]  # left to itself TensorRT runs small models in fp32


@pytest.fixture
def model(here: Path) -> Path:
    """Its output is right in fp32, and Inf in fp16."""
    return overflowing_products(here / "model.onnx")


def test_run(cli: CommandLine, model: Path) -> None:
    assert cli("run", model, "--trt").status == 0
    assert cli("run", model, *TRT, "--json", "r.json").ended(1).result["comparisons"][0][
        "kind"
    ] in ("inf", "mismatch")


def test_diagnose_and_its_reproducer(cli: CommandLine, model: Path) -> None:
    cli("diagnose", model, *TRT, "-o", "out", "--json", "r.json").ended(0)
    assert node_names(Path("out/model.onnx")) == ["big"]
    assert read_json(Path("r.json"))["first_mismatch"]["node"]["name"] == "big"
    assert "MISMATCH big_out" in reproduced("out").out


def test_a_model_that_does_not_parse_is_reduced_to_what_does_not(
    cli: CommandLine, here: Path
) -> None:
    names = ["x", "a", "b", "c", "y"]
    ops = ["Relu", "Neg", "DFT", "Abs"]
    nodes = [
        helper.make_node(
            op, [names[i]], [names[i + 1]], name=f"{op} {i}", domain="" if op != "DFT" else "odd"
        )
        for i, op in enumerate(ops)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "test", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("odd", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "odd.onnx")
    cli("diagnose", here / "odd.onnx", "--trt", "-o", "out").ended(0)
    assert node_names(Path("out/model.onnx")) == ["DFT 2"]


def test_precision_keeps_what_overflows(cli: CommandLine, model: Path) -> None:
    ran = cli("precision", model, *TRT, "-o", "mixed.onnx", "--json", "r.json").ended(0)
    result = ran.result
    assert {node["name"] for node in result["keep_fp32"]} <= {"big", "small"}
    assert result["latency_ms"]["mixed"] > 0
    proven = [path.read_bytes() for path in Path().glob(".bisect-trt/*/candidates/*/model.engine")]
    assert proven == [Path("mixed.engine").read_bytes()]
    assert "mixed.engine, read back" in ran.out
    assert (
        cli(
            "run",
            model,
            "--trt",
            "--load-engine",
            "mixed.engine",
            "--atol",
            "1e-2",
            "--rtol",
            "1e-2",
        ).status
        == 0
    )


def test_precision_with_a_command_is_given_engines(cli: CommandLine, model: Path) -> None:
    check = Path("check.py")
    check.write_text(
        "import subprocess, sys\n"
        "words = ['run', sys.argv[1], '--trt', '--load-engine', sys.argv[2], '--atol', '1e-2', '--rtol', '1e-2']\n"
        "sys.exit(subprocess.run([sys.executable, '-m', 'bisect_trt', *words]).returncode)\n"
    )
    command = ["--check", sys.executable, str(check), str(model), "{engine}"]
    ran = cli("precision", model, *TRT, "-o", "mixed.engine", *command).ended(0)
    assert Path("mixed.engine").is_file()
    assert "mixed.engine, read back" in ran.out


def test_thirty_probes_of_one_model(cli: CommandLine, model: Path) -> None:
    cli("reduce", model, *TRT, "-o", "r.onnx", "--repeat", "30", "--json", "r.json").ended(0)
    assert node_names(Path("r.onnx")) == ["big"]
    assert read_json(Path("r.json"))["flaky"]["failures"] == 30


def test_convert_to_an_engine_and_inspect_it(cli: CommandLine, model: Path) -> None:
    ran = cli("convert", model, "-o", "m.engine", "--fp16").ended(0)
    ran = cli("inspect", "engine", "m.engine", "--json", "r.json").ended(0)
    plain = ran.result["engine"]
    assert [(each["name"], each["shape"]) for each in plain["inputs"]] == [("x", [16, 64])]
    assert plain["layers"]
    assert "x: float32 [16, 64]" in ran.out
    run = cli("run", model, "--trt", "--load-engine", "m.engine", "--atol", "inf")
    assert run.status in (0, 1), run.err  # it loads and runs; fp16 may overflow


def test_convert_in_int8_with_ranges_that_are_kept(cli: CommandLine, here: Path) -> None:
    model = chain(here / "model.onnx")
    ran = cli(
        "convert",
        model,
        "-o",
        "m.engine",
        "--int8",
        "--calibration-cache",
        "ranges",
        "--iterations",
        "3",
    )
    if ran.status == 2 and "--int8 is no option" in ran.err:
        pytest.skip("this TensorRT has no calibration")
    assert ran.status == 0, ran.err
    written = Path("ranges").read_bytes()
    assert written
    assert (
        cli(
            "convert", model, "-o", "again.engine", "--int8", "--calibration-cache", "ranges"
        ).status
        == 0
    )
    assert Path("ranges").read_bytes() == written


def test_what_is_no_engine(cli: CommandLine, here: Path) -> None:
    (here / "m.engine").write_bytes(b"no engine")
    cli("inspect", "engine", "m.engine").refused("BT2002", "build it again")
