"""The ViT example in fp16 as a whole on a GPU, with no layer in fp32: its squares are scaled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from support import read_json

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.rewrites import NetworkView, matches, splice_in

EXAMPLE = Path(__file__).parents[2] / "examples" / "vit_overflow" / "make_model.py"
Record = Callable[[str, object], None]


@pytest.fixture
def vit(here: Path) -> Path:
    subprocess.run([sys.executable, str(EXAMPLE), "-o", str(here)], check=True, capture_output=True)
    return here / "model.onnx"


@pytest.mark.timeout(1800)
def test_scaled_squares_pass_in_fp16(cli: CommandLine, vit: Path) -> None:
    """The shortest way to it: two builds."""
    assert cli("run", vit, "--trt", "--fp16").status == 1
    view = NetworkView(Network(onnx.load(str(vit))))
    onnx.save(splice_in(view, matches(view, "scaled-square")), "patched.onnx")
    cli("run", "patched.onnx", "--trt", "--fp16", "--json", "r.json").ended(0)


@pytest.mark.timeout(3600)
def test_the_command_finds_it(cli: CommandLine, vit: Path, record_property: Record) -> None:
    words = ("--trt", "--fp16", "--json", "r.json")
    ran = cli("workaround", vit, *words)
    result = read_json(Path("r.json"))
    for name in ("workarounds", "fault", "probes", "wall_s"):
        record_property(name, result[name])
    assert ran.status == 0, ran.out
    rewrite = next(way for way in result["workarounds"] if way["kind"] == "rewrite")
    assert rewrite["passes"], rewrite
    assert rewrite["worst_error"] <= 1
    assert cli("run", rewrite["file"], "--trt", "--fp16", "--seed", "4").status == 0
