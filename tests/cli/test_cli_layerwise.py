"""``layerwise`` and the second step of ``diagnose``: own errors, and marks that hide what they should show."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers.models import cancelling
from conftest import CommandLine
from support import overflowing, read_json

NORM = {"h", "m", "d", "p", "v", "ve", "s", "n", "ng", "y"}


@pytest.fixture
def norm(here: Path) -> Path:
    return cancelling(here / "norm.onnx")


def test_marks_that_hide_the_failure_say_nothing_of_it(cli: CommandLine, norm: Path) -> None:
    assert cli("layerwise", norm, "--onnxrt", "--json", "r.json").status == 3
    result = read_json(Path("r.json"))
    assert result["status"] == "inconclusive"
    assert "hides the failure" in result["why"]
    assert result["first_mismatch"] is None
    ran = cli("diagnose", norm, "--onnxrt", "--json", "r.json", "-o", "out")
    assert ran.status == 0
    assert "marking hides it" in ran.out
    made = {name for culprit in read_json(Path("r.json"))["culprits"] for name in culprit["outputs"]}
    assert 1 < len(made) <= len(NORM)
    assert made <= NORM | {"z"}


def test_own_errors_stand_beside_the_accumulated_ones(cli: CommandLine, here: Path) -> None:
    ran = cli("layerwise", overflowing(here / "model.onnx"), "--onnxrt", "--fp16", "--isolate", "--json", "r.json")
    assert ran.status == 0
    curve = {point["name"]: point for point in read_json(Path("r.json"))["report"]["curve"]["points"]}
    assert (curve["big_out"]["own"], curve["b0_out"]["ratio"]) == ("inf", "inf")
    assert curve["b0_out"]["own"] < 1
    tensors = {entry["name"]: entry for entry in read_json(Path("r.json"))["tensors"]}
    assert not tensors["b0_out"]["passed"]
    assert tensors["b0_out"]["own"]["passed"]
    assert not tensors["big_out"]["own"]["passed"]
    assert "alone, fed the reference's values: 'big_out'" in ran.out
    assert "2 of 8 tensors mismatch by themselves" in ran.out
