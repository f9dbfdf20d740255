"""TensorRT in a place gives what it gives here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import squares_between_convolutions

pytestmark = pytest.mark.gpu


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Squares past fp16, in a tensor between two kernels: a chain of products that is one kernel keeps them in registers."""
    return squares_between_convolutions(tmp_path / "m.onnx")


@pytest.mark.parametrize("command", ["run", "reduce", "precision"])
def test_a_place_is_no_other_target(model: Path, command: str) -> None:
    """What is in fp16 is held: of layers as small as these TensorRT takes fp32's tactics in one build and fp16's in the next."""
    results = []
    for number, words in enumerate(([], ["--on", f"python={sys.executable}"])):
        out = [] if command == "run" else ["-o", f"{number}.onnx"]
        argv = [
            command,
            "m.onnx",
            "--trt",
            "--fp16",
            "--hold-precision",
            "--json",
            f"{number}.json",
            *out,
            *words,
        ]
        done = subprocess.run(
            [sys.executable, "-m", "bisect_trt", *argv],
            cwd=model.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        results.append((done.returncode, json.loads((model.parent / f"{number}.json").read_text())))
        assert "Traceback" not in done.stderr
    (here, ours), (there, theirs) = results
    assert there == here, theirs["why"]
    assert theirs["culprits"] == ours["culprits"]
    assert theirs.get("keep_fp32") == ours.get("keep_fp32")
    assert theirs["places"][0]["target"]["version"]
