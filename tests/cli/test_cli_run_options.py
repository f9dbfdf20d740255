"""``run``: which tensors, the model that runs, weights elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import chain, command_lines, overflowing, read_json, save

from bisect_trt.onnxlib.load import external_files


def run(cli: CommandLine, *words: str | Path, status: int = 0) -> dict[str, Any]:
    ran = cli("run", *words, "--json", "r.json")
    assert ran.status == status, ran.out + ran.err
    return read_json(Path("r.json"))


def compared(result: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in result["comparisons"]]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--onnx-outputs", "t1"], ["t1"]),
        (["--onnx-outputs", "t[12]", "t0"], ["t1", "t2", "t0"]),
        (["--onnx-outputs", "t*", "--onnx-exclude-outputs", "*0", "t3"], ["t1", "t2"]),
        (["--onnx-outputs", "mark", "all", "--onnx-exclude-outputs", "t1"], ["t0", "t2", "t3"]),
    ],
)
def test_outputs_by_name_and_glob(cli: CommandLine, here: Path, words: list[str], names: list[str]) -> None:
    assert compared(run(cli, chain(here / "model.onnx"), "--onnxrt", *words)) == names


def test_the_model_that_runs(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    run(cli, model, "--onnxrt", "--onnx-outputs", "big_out", "--save-onnx", "plain.onnx")
    assert [value.name for value in onnx.load("plain.onnx").graph.output] == ["big_out"]
    run(cli, model, "--onnxrt", "--fp16", "--save-onnx", "half.onnx", status=1)
    casts = [node for node in onnx.load("half.onnx").graph.node if node.op_type == "Cast"]
    assert any(node.attribute[0].i == TensorProto.FLOAT16 for node in casts)
    run(cli, "half.onnx", "--onnxrt", "--validate", status=1)  # it overflows on its own


def test_weights_in_another_folder(cli: CommandLine, here: Path) -> None:
    values = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    nodes = [helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])]
    model = onnx.load(str(save(here / "m.onnx", nodes, [numpy_helper.from_array(values, "w")])))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    (here / "weights").mkdir()
    Path("m.data").rename("weights/m.data")
    elsewhere = ["--external-data-dir", "weights"]
    run(cli, "m.onnx", "--onnxrt", *elsewhere, "--save-outputs", "y.npz")
    with np.load("y.npz") as saved:
        assert saved["y"].min() >= values.sum()
    commands: dict[str, list[str | Path]] = {
        **command_lines("m.onnx"),
        "sanitize": ["sanitize", "m.onnx", "-o", "out.onnx"],
        "convert": ["convert", "m.onnx", "-o", "out.onnx", "--bf16"],
    }
    for name, words in commands.items():
        ran = cli(*words)
        assert (ran.status, "m.data, which does not exist; copy it there, or name" in ran.error) == (4, True), name
        assert "there is no folder none" in cli(*words, "--external-data-dir", "none").error, name
    for name in ("extract", "sanitize", "convert", "reduce"):
        Path("out.onnx").unlink(missing_ok=True)
        assert cli(*commands[name], *elsewhere).status == 0, name
        assert not external_files(onnx.load("out.onnx", load_external_data=False)), name
    # What is written has its weights, or they lie beside it; the run is bound to them.
    Path("out.onnx").unlink()
    assert cli(*commands["precision"], *elsewhere).status == 0
    Path("weights/m.data").write_bytes(b"other" * 3000)
    assert "the content of weights/m.data" in cli("resume").error
    assert cli("run", "out.onnx", "--onnxrt").status == 0
