"""The safe set on a real GPU: it holds on samples that the search has not seen, and its latency is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandLine
from support import overflowing_products, read_json

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = ("--trt", "--fp16", "--json", "r.json", "-o", "mixed.onnx")


def test_it_holds_and_its_latency_is_told(cli: CommandLine, here: Path) -> None:
    overflowing_products(here / "model.onnx")
    ran = cli("precision", "model.onnx", *LINE, "--hold-precision").ended(0)
    result = ran.result
    held = result["validation"]
    assert (held["samples"], held["severe"]) == (200, 0), ran.out
    assert held["passed"] == 200
    assert result["latency_ms"]["mixed"] > 0
    assert result["latency_ms"]["minimal"] > 0
    assert {node["name"] for node in result["minimal"]} <= {
        node["name"] for node in result["keep_fp32"]
    }


@pytest.mark.timeout(900)
def test_the_safe_set_of_a_vit_holds(cli: CommandLine, here: Path) -> None:
    """Its residual stream overflows from block 6 on; images of the search are within [0, 1], fresh ones also N(0, 1)."""
    command = [sys.executable, str(EXAMPLES / "vit_overflow" / "make_model.py"), "-o", str(here)]
    subprocess.run(command, check=True, capture_output=True)
    ran = cli("precision", "model.onnx", *LINE, "--max-time", "800")
    print(ran.out)  # the figures of docs/benchmarks.md
    assert ran.status in (0, 3), ran.out + ran.err
    result = read_json(Path("r.json"))
    held = result["validation"]
    latency = result["latency_ms"]
    print({"wall_s": result["wall_s"], "validation": held, "latency_ms": latency})
    assert (held["passed"], held["severe"]) == (held["samples"], 0)
    assert latency["mixed"] > 0
    assert latency["fp32"] > 0
    kept = {node["name"] for node in result["keep_fp32"]}
    assert {"/blocks.6/norm1/Pow", "/blocks.11/norm2/Pow", "/norm/Pow"} <= kept
    for seed in range(3):  # as a user would use it
        x = np.random.default_rng(seed).standard_normal((1, 3, 224, 224)).astype(np.float32)
        np.savez("normal.npz", pixel_values=x)
        loaded = "--trt --load-engine mixed.engine --load-inputs normal.npz --atol 1e-2 --rtol 1e-2"
        assert cli("run", "model.onnx", *loaded.split()).status == 0
