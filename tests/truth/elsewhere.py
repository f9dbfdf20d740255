"""The corpus of truth from here: the newest release is the reference, and another one, in a place, is wrong. By ``make truth``.

One command names exactly the pattern, and in which release the bug appeared and went.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from truth.answers import Record, bisect_trt, judge, script_status
from truth.cases import Case, cases_elsewhere
from truth.releases import interpreter, onnxruntime

NEWEST = "1.31.1"

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("case", [*cases_elsewhere()], ids=str)
def test_a_bug_of_another_release_is_named_and_dated(case: Case, tmp_path: Path, record_property: Record) -> None:
    network, pattern = case.make(), case.pattern
    onnx.save(network.model, str(tmp_path / "model.onnx"))
    here = interpreter(onnxruntime(NEWEST), tool=True)
    words = ("diagnose", "model.onnx", "--onnxrt", "--on", f"env={onnxruntime(case.release)}", "--all", "--releases")
    status, result = bisect_trt(here, tmp_path, *words, "-o", "reproducer", "--json", "result.json")
    judge(case, status, result, network.guilty, record_property)
    boundaries = (result["first_failing"], result["first_passing"])
    record_property("boundaries", f"{boundaries[0]} to {boundaries[1]}")
    assert boundaries == (pattern.appeared, pattern.went)
    script = tmp_path / "reproducer" / "reproduce.py"
    assert script_status(script, interpreter(onnxruntime(case.release))) == 1
    if pattern.mended is not None:
        assert script_status(script, interpreter(onnxruntime(pattern.mended))) == 0
    again, found = bisect_trt(
        here, tmp_path, "releases", "reproducer", "--onnxrt", "--from", "1.16", "--to", "1.31", "--json", "result.json"
    )
    assert (again, found["first_failing"], found["first_passing"]) == (0, *boundaries)
