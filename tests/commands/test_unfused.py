"""``run --onnx-outputs mark unfused``: what the engine has without being asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from layered import Ask, Shown, looking, outputs_of, showing
from support import overflowing

import bisect_trt
from bisect_trt.commands.compare import MARK_UNFUSED, CompareSettings, compare
from bisect_trt.commands.session import Session
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.worker.protocol import Compare


def test_what_is_left_unfused_is_compared_and_nothing_is_marked(tmp_path: Path) -> None:
    requests: list[set[str]] = []

    def target(request: Compare, ask: Ask) -> Shown:
        requests.append(outputs_of(request))
        return showing("a2_out", "big_out")(request, ask)

    with looking(overflowing(tmp_path / "model.onnx"), target, fp16=True) as look:
        examination = Session(look.subject, Console(-1), Result("run"), None)
        result = compare(examination, CompareSettings(look.target, look.tolerance, onnx_outputs=MARK_UNFUSED))
    assert {each["name"]: each["passed"] for each in result.comparisons} == {
        "a2_out": True,
        "big_out": False,
        "b2_out": False,
    }
    assert requests == [{"b2_out"}]


def test_a_target_that_cannot_show_it_says_so(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    ran = cli("run", "model.onnx", "--onnxrt", "--trt-outputs", "mark", "unfused")
    assert ran.status == 4
    assert "cannot show what it leaves unfused (TensorRT can, from 10.12 on" in ran.error
    with pytest.raises(bisect_trt.UnavailableError, match="--onnx-outputs mark all"):
        bisect_trt.compare("model.onnx", onnx_outputs="mark unfused")
