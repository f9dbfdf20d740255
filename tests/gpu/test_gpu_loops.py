"""A model with a state, step after step, on a real GPU: one engine runs all steps, and the step and the node are exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from support import read_json
from truth.decoders import FAMILIES, SIZES
from truth.loops import PLANTED, TOOL, Planted, limit_of

STEPS = ["--steps", "40", "--no-other-release", "--json", "r.json"]
ON_TENSORRT = [
    planted
    for planted in PLANTED
    if planted.family in {"llama", "mamba", "scattered", "tracker", "convolutions", "crossed"}
    and planted.size != "large"
    # TensorRT 8.6.0 computes the attention of this one wrongly from step 2 on, without any fault.
    and (planted.family, planted.size) != ("crossed", "middle")
]
GROWING = """<ir_version: 8, opset_import: ["": 17]>
step (int64[1] ids, float[1, 64] h0) => (float[1, 64] y, float[1, 64] hn) {
    e = Gather(table, ids)
    hn = Add(h0, e)
    big = Mul(hn, hn)
    y = Sqrt(big)
}"""


def growing(path: Path, step: int) -> None:
    """Write a model with a sum of which the square is past the range of fp16 from a step on."""
    model = onnx.parser.parse_model(GROWING)
    for node in model.graph.node:
        node.name = node.output[0]
    table = np.full((4, 64), 256 / (step - 0.5), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    onnx.save(model, path)


@pytest.mark.parametrize("planted", ON_TENSORRT, ids=str)
def test_two_exports_part_in_that_step(cli: CommandLine, here: Path, planted: Planted) -> None:
    model = FAMILIES[planted.family](*SIZES[planted.size])
    onnx.save(model, "right.onnx")
    number = limit_of(model, planted) if planted.number is None else planted.number
    files = ("right.onnx", "model.onnx")
    words = [sys.executable, str(TOOL), planted.fault, planted.node, str(number), *files]
    subprocess.run(words, check=True)
    cli("diagnose", "model.onnx", "--trt", "--reference", "right.onnx", *STEPS)
    result = read_json(here / "r.json")
    assert result["steps"]["step"] == planted.step
    assert result["fault"]["whose"] == "export"
    (culprit,) = result["culprits"]
    assert culprit["name"] == planted.node or culprit["name"].startswith("spoilt")


@pytest.mark.parametrize("step", [2, 22, 37])
def test_a_state_that_grows_past_fp16(cli: CommandLine, here: Path, step: int) -> None:
    growing(here / "model.onnx", step)
    cli("diagnose", "model.onnx", "--trt", "--fp16", "--hold-precision", *STEPS).ended(0)
    result = read_json(here / "r.json")
    assert result["steps"]["step"] == step
    assert result["steps"]["failing"] == [[step, 40]]
    assert [node["name"] for node in result["culprits"]] == ["big"]


@pytest.mark.parametrize("family", ["reservoir", "tracker"])
def test_drift_is_said_to_be_drift(cli: CommandLine, here: Path, family: str) -> None:
    onnx.save(FAMILIES[family](*SIZES["small"]), "model.onnx")
    words = ("--trt", "--fp16", "--hold-precision")
    cli("diagnose", "model.onnx", *words, "--steps", "100", "--json", "r.json").ended(1)
    steps = read_json(here / "r.json")["steps"]
    assert (steps["kind"], steps["step"]) == ("drift", None)
