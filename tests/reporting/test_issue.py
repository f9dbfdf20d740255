"""``ISSUE.md`` for TensorRT: the commands of other tools, in those tools' own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bisect_trt.options.choices import ErrorStat
from bisect_trt.reporting.issue import Issue, issue_files
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement

WORST = WorstElement((0, 1), float("inf"), 70000.0, float("inf"))
SEEN = TensorComparison(
    "a:b", False, ComparisonKind.INF, ErrorStat.QUANTILE, 1e-3, 1e-2, worst=WORST, quantile=0.9, quantile_abs=2.0
)
TRT = TrtSettings(pool_limits=(("workspace", 1 << 30),), builder_optimization_level=3, plugins=("p.so",))
TARGET = TargetSettings("trt", fp16=True, int8=True, held=True, own=TRT)


def issue(target: TargetSettings = TARGET, model: str = "model.onnx", refusal: str | None = None) -> Issue:
    seen = [] if refusal else [SEEN]
    return Issue("It fails", target, "model.onnx", model, ["Add `a`"] * 14, seen, refusal, "Found.", {"GPU": "H100"})


def test_trtexec_is_given_the_target_and_the_raw_inputs(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    files = issue_files(issue(), tmp_path, {"x": x}, {"a:b": x})
    assert files == ["inputs.json", "golden.json", "trtexec/input_0.bin"]
    np.testing.assert_array_equal(np.fromfile(tmp_path / files[-1], np.float16), x.ravel())
    line = issue().trtexec({"x": Path(files[-1])})
    assert line[:2] == ["trtexec", "--onnx=model.onnx"]
    for word in ("--fp16", "--int8", "--noTF32", "--memPoolSize=workspace:1073741824B", "--builderOptimizationLevel=3"):
        assert word in line
    assert line[-2:] == ["--loadInputs=x:trtexec/input_0.bin", "--dumpOutput"]
    page = (tmp_path / "ISSUE.md").read_text()
    for word in (
        "| GPU | H100 |",
        "`a:b` at [0, 1]: 70000",
        "`a:b` at [0, 1]: inf",
        "and 2 more",
        "trtexec --onnx=model.onnx",
    ):
        assert word in page


def test_a_model_that_is_lowered_already_is_built_as_it_is_typed() -> None:
    line = issue(TargetSettings("trt", fp16=True), "model_fp16.onnx").trtexec({})
    assert "--stronglyTyped" in line
    assert "--fp16" not in line
    assert "--strongly-typed" in issue(TargetSettings("trt", bf16=True), "model_bf16.onnx").polygraphy()
    assert "--noTF32" not in issue(TargetSettings("trt", tf32=True)).trtexec({})


def test_a_refusal_is_shown_by_building() -> None:
    refused = issue(refusal="no kernel for Foo")
    assert "--load-outputs" not in refused.polygraphy()
    page = refused.render({})
    for word in ("is refused", "it fails to build", "no kernel for Foo"):
        assert word in page


@pytest.fixture(scope="module")
def options() -> str:
    command = [str(Path(sys.executable).with_name("polygraphy")), "run", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "target", [TARGET, TargetSettings("onnxrt", own=OnnxRuntimeSettings(("cpu",))), TargetSettings("trt", tf32=True)]
)
def test_polygraphy_has_the_options(target: TargetSettings, options: str) -> None:
    words = issue(target, "model_fp16.onnx").polygraphy()
    flags = [word for word in words if word.startswith("--")]
    assert flags
    assert [flag for flag in flags if flag not in options] == []
    assert words[words.index("--error-quantile") + 1] == "a:b:0.9"
