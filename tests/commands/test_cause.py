"""The pass that does it: named exactly among dozens, each answer run as it is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support import overflowing, rest_slow
from truth.busy import busy
from truth.patterns import PLANTED, Pattern, Sketch

import bisect_trt
from bisect_trt import UsageError
from bisect_trt.targets.base import Target
from bisect_trt.targets.onnxrt import OnnxRuntimeTarget

_BY_NAME = {pattern.name: pattern for pattern in PLANTED}
BOTH = {"Identity, Div, Mul": "EliminateIdentity", "Dropout, Div, Mul": "EliminateDropout"}
"""Patterns that every release of ONNX Runtime here is wrong about, with the one of two passes that is theirs alone."""


def planted(pattern: Pattern, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(busy(pattern).model, str(path))
    return path


@pytest.mark.parametrize("name", rest_slow(BOTH))
def test_either_of_two_passes_is_named_among_dozens_in_twelve_probes(name: str, tmp_path: Path) -> None:
    model = planted(_BY_NAME[name], tmp_path)
    result = bisect_trt.cause(model, run=tmp_path / "run", workers=1)
    assert sorted(result.cause) == sorted([[f"optimizer:{BOTH[name]}"], ["optimizer:DivMulFusion"]])
    assert (result.status, result.minimality) == ("found", "1-minimal")
    assert result.probes["run"] <= 12
    detail = result.extra["cause_detail"]
    assert detail["complete"]
    for entry in detail["alternatives"]:
        opened: dict[str, Any] = {"onnxruntime": onnxruntime, "m": str(model)}
        exec("\n".join(entry["code"]), opened)
        assert opened["session"].get_inputs()
    words = [sys.executable, "-m", "bisect_trt", "run", str(model), *detail["alternatives"][0]["options"]]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_a_diagnosis_names_it_in_its_report_and_in_the_bug_report(tmp_path: Path) -> None:
    model = planted(_BY_NAME["Dropout, Div, Mul"], tmp_path)
    result = bisect_trt.diagnose(model, output=tmp_path / "out", run=tmp_path / "run", shrink=False)
    assert sorted(result.cause) == [["optimizer:DivMulFusion"], ["optimizer:EliminateDropout"]]
    assert all(entry["whole"] for entry in result.extra["cause_detail"]["alternatives"])
    issue = (tmp_path / "out" / "ISSUE.md").read_text(encoding="utf-8")
    assert "Cause in ONNX Runtime" in issue
    assert 'disabled_optimizers=["DivMulFusion"]' in issue
    assert "DivMulFusion" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def two_bugs(path: Path) -> Path:
    """A pattern behind another one; a pass that each has alone, and one that they share, make what is wrong."""
    sketch, tensor, shape = Sketch(""), "x", (2, 8)
    for name in ("Identity, Div, Mul", "Dropout, Div, Mul"):
        tensor, _ = _BY_NAME[name].plant(sketch, sketch.add("Tanh", tensor), shape)
    tensor = sketch.add("Tanh", tensor)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", tensor)]
    graph = helper.make_graph(sketch.nodes, "two", ends[:1], ends[1:], sketch.weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_what_one_failure_needs_and_the_whole_model_needs_more_of_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minimal case is one of two failures, so that the pass that mends it leaves the other one."""
    switches = OnnxRuntimeTarget.switches

    def without_the_shared_one(*args: Any) -> Any:
        return [each for each in switches(*args) if each.name != "optimizer:DivMulFusion" and each.kind == "optimizer"]

    monkeypatch.setattr(OnnxRuntimeTarget, "switches", without_the_shared_one)
    model = two_bugs(tmp_path / "model.onnx")
    alone = bisect_trt.cause(model, run=tmp_path / "cause").cause
    assert [set(each) for each in alone] == [{"optimizer:EliminateDropout", "optimizer:EliminateIdentity"}]
    result = bisect_trt.diagnose(model, output=tmp_path / "out", run=tmp_path / "run")
    assert len(result.culprits) < len(onnx.load(model).graph.node)
    assert result.cause == alone
    assert [entry["whole"] for entry in result.extra["cause_detail"]["alternatives"]] == [True]


def test_a_target_without_switches_is_said_to_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxRuntimeTarget, "switches", Target.switches)  # as of a target that says nothing of its own
    model = planted(_BY_NAME["Identity, Div, Mul"], tmp_path)
    with pytest.raises(UsageError, match="ONNX Runtime has no switches with these settings"):
        bisect_trt.cause(model, run=tmp_path / "run")


def test_a_check_that_is_not_told_of_switches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot use changed switches of ONNX Runtime"):
        bisect_trt.cause(overflowing(tmp_path / "m.onnx"), check="true", run=tmp_path / "run")
