"""``matrix``: one table of real runs over precisions, targets, options and releases."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from conftest import CommandLine
from support import overflowing, read_json

NEEDS_OPENVINO = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)


def verdicts(path: Path) -> dict[tuple[str, ...], str]:
    return {tuple(cell["values"]): cell["verdict"] for cell in read_json(path)["cells"]}


@NEEDS_OPENVINO
def test_each_combination_is_a_run_of_its_own(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    axes = ("--over", "target=onnxrt,openvino", "--over", "precision=fp32,fp16")
    ran = cli("matrix", "model.onnx", *axes, "--json", "m.json", "--report", "m.html").ended(1)
    # Most CPUs have no fp16, so OpenVINO would compute in fp32.
    refused = "OpenVINO's CPU computes fp16 in fp32" in ran.out
    assert verdicts(here / "m.json") == {
        ("onnxrt", "fp32"): "PASS",
        ("onnxrt", "fp16"): "FAIL",
        ("openvino", "fp32"): "PASS",
        ("openvino", "fp16"): "UNRESOLVED" if refused else "FAIL",
    }
    assert re.search(r"^precision +onnxrt +openvino\nfp32 .+\nfp16 ", ran.out, re.MULTILINE)
    page = (here / "m.html").read_text()
    cells = read_json(here / "m.json")["cells"]
    for cell in cells[: 4 - refused]:
        assert read_json(Path(cell["run"]) / "result.json")["command"] == "run"
        assert f'href="{cell["run"]}/report.html"' in page
    failing = next(cell for cell in cells if cell["verdict"] == "FAIL")
    cli(*shlex.split(failing["command"])[1:]).ended(1)


def test_all_match_or_none_answers(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    levels = ("--over", "graph-optimization-level=off,all")
    cli("matrix", "model.onnx", "--onnxrt", *levels).ended(0)
    words = (
        "matrix",
        "model.onnx",
        "--onnxrt",
        "--over",
        "providers=cpu,TensorrtExecutionProvider",
    )
    ran = cli(*words, "--json", "m.json").ended(3)
    assert list(verdicts(here / "m.json").values()) == ["PASS", "UNRESOLVED"]
    assert "TensorrtExecutionProvider" in ran.out
    # A combination that is refused leaves the others their answers.
    levels = ("--over", "graph-optimization-level=off,most")
    ran = cli("matrix", "model.onnx", "--onnxrt", *levels, "--json", "m.json").ended(3)
    assert list(verdicts(here / "m.json").values()) == ["PASS", "UNRESOLVED"]
    assert "most: " in ran.out


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ((), "BT1004", "no axis"),
        (("--over", "precision=fp64"), "BT1002", "fp64"),
        (("--over", "graph-optimization-level=most"), "BT1002", "give one of off"),
        (("--over", "precision"), "BT1002", "precision"),
    ],
)
def test_a_wrong_axis_is_refused(
    cli: CommandLine, here: Path, words: tuple[str, ...], code: str, why: str
) -> None:
    overflowing(here / "model.onnx")
    cli("matrix", "model.onnx", "--onnxrt", *words).refused(code, why)


def test_releases_need_a_target_that_has_them(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    words = ("--over", "target=onnxrt", "--over", "release=1.20")
    cli("matrix", "model.onnx", *words).refused("BT1004", "no target with releases")


def test_a_cell_whose_process_is_killed_leaves_the_others(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    load = "import numpy\n\ndef load_data():\n    yield {'x': numpy.ones((2, 3), 'f4')}\n"
    (here / "loads.py").write_text(load)
    (here / "dies.py").write_text(
        f"import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n{load}"
    )
    words = ("matrix", "model.onnx", "--onnxrt", "--over", "data-loader-script=dies.py,loads.py")
    ran = cli(*words, "--json", "m.json").ended(3)
    assert list(verdicts(here / "m.json").values()) == ["UNRESOLVED", "PASS"]
    assert "SIGKILL" in ran.out
