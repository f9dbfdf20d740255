"""TensorRT in a place gives what it gives here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.gpu


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Overflows in fp16 between two MatMuls."""
    weight = numpy_helper.from_array(np.full((64, 64), 0.5, np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "first"),
        helper.make_node("Mul", ["m", "m"], ["s"], "square"),
        helper.make_node("Mul", ["s", "s"], ["q"], "again"),
        helper.make_node("Sqrt", ["q"], ["r"], "root"),
        helper.make_node("MatMul", ["r", "w"], ["y"], "last"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("command", ["run", "reduce", "precision"])
def test_a_place_is_no_other_target(model: Path, command: str) -> None:
    results = []
    for number, words in enumerate(([], ["--on", f"python={sys.executable}"])):
        out = [] if command == "run" else ["-o", f"{number}.onnx"]
        argv = [command, "m.onnx", "--trt", "--fp16", "--json", f"{number}.json", *out, *words]
        done = subprocess.run(
            [sys.executable, "-m", "bisect_trt", *argv], cwd=model.parent, capture_output=True, text=True, check=False
        )
        results.append((done.returncode, json.loads((model.parent / f"{number}.json").read_text())))
        assert "Traceback" not in done.stderr
    (here, ours), (there, theirs) = results
    assert there == here, theirs["why"]
    assert theirs["culprits"] == ours["culprits"]
    assert theirs.get("keep_fp32") == ours.get("keep_fp32")
    assert theirs["places"][0]["target"]["version"]


def test_a_build_in_a_place_is_held_to_what_failed_there(model: Path) -> None:
    argv = ["reduce", "m.onnx", "--trt", "--fp16", "--hold-precision", "--pin", "-o", "r.onnx", "--json", "r.json"]
    argv += ["--on", f"python={sys.executable}"]
    done = subprocess.run(
        [sys.executable, "-m", "bisect_trt", *argv], cwd=model.parent, capture_output=True, text=True, check=False
    )
    result = json.loads((model.parent / "r.json").read_text())
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert result["pinned"]["choices"]
