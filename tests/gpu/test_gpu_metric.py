"""A metric says good or bad of TensorRT: in fp16 with layer precisions, of pieces, and with an engine that is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from support import labelled_data, overflowing, read_json

SCORED = [
    "--trt",
    "--fp16",
    "--hold-precision",
    "--data-loader-script",
    "data.py",
    "--metric",
    "top-1",
]


@pytest.fixture
def model(here: Path) -> Path:
    labelled_data(here, 200)
    return overflowing(here / "model.onnx")


def test_run_and_precision(cli: CommandLine, model: Path) -> None:
    ran = cli("run", model, *SCORED, "--max-drop", "2%", "--json", "r.json")
    print(ran.out, read_json(Path("r.json"))["metric"])
    assert ran.status in (0, 1), ran.out + ran.err
    ran = cli(
        "precision", model, *SCORED, "--max-drop", "2%", "-o", "mixed.onnx", "--json", "p.json"
    )
    print(ran.out, ran.err)
    found = read_json(Path("p.json"))
    assert found["metric"]["of"] == 200
    if (
        ran.status == 0
    ):  # TensorRT fuses such a chain of elementwise layers, and may compute it in fp32 inside
        assert found["metric"]["candidate"] >= found["metric"]["bound"]
        assert found["latency_ms"]["mixed"] > 0


def test_pieces(cli: CommandLine, model: Path) -> None:
    for name, out in (("reduce", "small.onnx"), ("diagnose", "out")):
        ran = cli(name, model, "-o", out, *SCORED, "--max-drop", "2%", "--json", f"{name}.json")
        print(ran.out, ran.err)
        assert ran.status in (0, 1, 3), ran.out + ran.err
        assert ran.result["metric"]["of"] == 200
