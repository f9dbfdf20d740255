"""The way around each planted bug, run by ``make truth``: the patched model passes in the release that has the bug."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from truth.answers import bisect_trt
from truth.networks import generated
from truth.patterns import PLANTED, Pattern
from truth.releases import interpreter, onnxruntime

pytestmark = pytest.mark.timeout(1800)
CASES = [(pattern, release, seed) for seed, pattern in enumerate(PLANTED) for release in pattern.failing]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("pattern", "release", "seed"), CASES)
def test_a_patched_model_passes_where_the_original_fails(
    pattern: Pattern, release: str, seed: int, times: int, tmp_path: Path
) -> None:
    onnx.save(generated(pattern, 100, times, seed).model, str(tmp_path / "model.onnx"))
    python = interpreter(onnxruntime(release), tool=True)
    words = ("--onnxrt", "--json", "result.json")
    status, result = bisect_trt(python, tmp_path, "workaround", "model.onnx", *words)
    assert status == 0, result["why"]
    assert result["fault"]["whose"] == "target"
    for way in result["workarounds"]:
        if way["passes"]:
            status, _ = bisect_trt(python, tmp_path, "run", way["file"], *words, "--seed", "3")
            assert status == 0, way
    assert result["artifacts"]["patched"] is not None
