"""The way around each planted bug, run by ``make truth``: the patched model passes in the release that has the bug."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import proto_of
from onnx import TensorProto, helper

from bisect_trt.worker.environments import Environment
from truth.answers import bisect_trt
from truth.networks import generated
from truth.patterns import PLANTED, Pattern
from truth.releases import interpreter, onnxruntime

pytestmark = pytest.mark.timeout(1800)
CASES = [
    (pattern, release, seed) for seed, pattern in enumerate(PLANTED) for release in pattern.failing
]


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
            switches = re.findall(r"optimizer:(\w+)", way["what"])
            flags = [word for name in switches for word in ("--disable-optimizer", name)]
            file = way["file"] or "model.onnx"
            status, _ = bisect_trt(python, tmp_path, "run", file, *flags, *words, "--seed", "3")
            assert status == 0, way
    assert result["artifacts"]["patched"] is not None


def asymmetric_pool() -> onnx.ModelProto:
    """AveragePool-19 with pads at one end alone, which ONNX Runtime 1.21.1 to 1.24.4 counts wrongly (issue 26708)."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node(
            "AveragePool", ["c"], ["p"], name="pool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1],
            count_include_pad=1,
        ),
        helper.make_node("Tanh", ["p"], ["y"], name="tanh"),
    ]  # fmt: skip
    x = ("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = ("y", TensorProto.FLOAT, [1, 4, 4, 4])
    return proto_of(nodes, [x], [y], {"w": weight}, opset=19)


def test_a_reference_that_is_wrong_is_told_from_the_target(tmp_path: Path) -> None:
    """The reference is a release of ONNX Runtime with a wrong kernel, and the target another runtime that is right."""
    onnx.save(asymmetric_pool(), str(tmp_path / "model.onnx"))
    python = interpreter(Environment.parse("onnxruntime==1.24.4 openvino"), tool=True)
    status, result = bisect_trt(
        python,
        tmp_path,
        "diagnose",
        "model.onnx",
        "--openvino",
        "-o",
        "out",
        "--json",
        "result.json",
    )
    assert status == 0, result["why"]
    assert [node["name"] for node in result["culprits"]] == ["pool"]
    assert result["fault"]["whose"] == "reference"
    assert (
        (tmp_path / "out" / "NOTES.md")
        .read_text()
        .startswith("> **Not a bug report.** The reference is off")
    )
    assert result["workarounds"] == []
