"""``layerwise`` and the second step of ``diagnose``: own errors, and marks that hide what they should show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from support import Ran, overflowing, read_json, unstable_norm

NORM = {"h", "m", "d", "p", "v", "ve", "s", "n", "ng", "y"}


@pytest.fixture
def norm(here: Path) -> Path:
    return unstable_norm(here / "norm.onnx")


def largest_error(model: onnx.ModelProto) -> float:
    """How far ONNX Runtime is off with its optimisations, by itself."""
    inputs = {"x": np.random.default_rng(0).random((4, 64), dtype=np.float32)}
    levels = onnxruntime.GraphOptimizationLevel
    made = []
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made.append(session.run(["z"], inputs)[0])
    return float(np.nan_to_num(np.abs(made[0] - made[1]), nan=np.inf).max())


def check_workaround(model: Path, ran: Ran, result: dict[str, object]) -> None:
    """The marks that are told do mend the model, without this project."""
    hiding = result["hiding"]
    assert isinstance(hiding, dict)
    assert hiding["minimality"] == "1-minimal"
    (mark,) = hiding["marks"]
    assert mark in NORM
    assert f"with '{mark}' as an output of the model too, the failure is gone" in ran.out
    original = onnx.load(str(model))
    assert largest_error(original) > 1e-4
    original.graph.output.append(onnx.ValueInfoProto(name=mark))
    assert largest_error(original) < 1e-5


def test_marks_that_hide_the_failure_are_told_as_a_workaround(cli: CommandLine, norm: Path) -> None:
    ran = cli("layerwise", norm, "--onnxrt", "--json", "r.json")
    assert ran.status == 3
    result = read_json(Path("r.json"))
    assert result["status"] == "inconclusive"
    assert "hides the failure" in result["why"]
    assert result["first_mismatch"] is None
    check_workaround(norm, ran, result)
    # What was probed is in the run's journal, so a run that goes on asks nothing again.
    again = cli("resume", next(Path(".bisect-trt").iterdir()))
    assert again.status == 3
    assert "the failure is gone" in again.out


def test_diagnose_tells_the_workaround_and_goes_on_to_reduce(cli: CommandLine, norm: Path) -> None:
    ran = cli("diagnose", norm, "--onnxrt", "--json", "r.json", "-o", "out")
    assert ran.status == 0
    assert "marking hides it" in ran.out
    result = read_json(Path("r.json"))
    check_workaround(norm, ran, result)
    made = {name for culprit in result["culprits"] for name in culprit["outputs"]}
    assert 1 < len(made) <= len(NORM)
    assert made <= NORM | {"z"}


def test_a_small_budget_is_not_spent_on_marks(cli: CommandLine, norm: Path) -> None:
    ran = cli("diagnose", norm, "--onnxrt", "--max-probes", "8", "--json", "r.json", "-o", "out")
    assert ran.status == 3
    hiding = read_json(Path("r.json"))["hiding"]
    assert hiding["minimality"] == "unproven"
    assert hiding["why"] == "the search was ended after 2 questions"
    assert 0 < len(hiding["marks"]) < len(NORM)
    assert "Reduce the whole model" in ran.out


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


def test_a_budget_that_ends_meanwhile_leaves_the_best_so_far(cli: CommandLine, norm: Path) -> None:
    """Without further questions all marks are the best, and too many for a workaround."""
    model = onnx.load(str(norm))
    end = model.graph.output[0].name
    for place in range(20):
        model.graph.node.add(op_type="Relu", input=[end], output=[f"r{place}"], name=f"r{place}")
        end = f"r{place}"
    model.graph.output[0].name = end
    onnx.save(model, str(norm))
    ran = cli("diagnose", norm, "--onnxrt", "--max-probes", "2", "--json", "r.json", "-o", "out")
    assert ran.status == 3
    assert "the budget is spent" in ran.error
    hiding = read_json(Path("r.json"))["hiding"]
    assert (len(hiding["marks"]) > 20, hiding["workaround"]) == (True, False)
    assert "No workaround" in ran.out
