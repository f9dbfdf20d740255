"""Rounding that a model amplifies past the tolerance is said to, and its search ends; a wrong target is none of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import read_json

from bisect_trt.commands import diagnose
from bisect_trt.commands.rounding_error import Amplified, rounding_alone
from bisect_trt.commands.settings import ModelSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.tolerance import ToleranceOptions


def chain(path: Path, gain: float, kind: int = TensorProto.FLOAT, length: int = 12) -> Path:
    """MatMul and Sin by turns, in a type; each layer amplifies what it reads by about the ``gain``."""
    rng, half = np.random.default_rng(0), kind == TensorProto.FLOAT16
    nodes, weights = [helper.make_node("Cast", ["x"], ["t0"], to=kind)], []
    for place in range(length):
        weight = rng.standard_normal((16, 16)) * gain / 4
        weights.append(numpy_helper.from_array(weight.astype(np.float16 if half else np.float32), f"w{place}"))
        nodes.append(helper.make_node("MatMul", [f"t{place}", f"w{place}"], [f"m{place}"], f"product{place}"))
        nodes.append(helper.make_node("Sin", [f"m{place}"], [f"t{place + 1}"], f"wave{place}"))
    nodes.append(helper.make_node("Cast", [f"t{length}"], ["y"], to=TensorProto.FLOAT))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def said(model: Path, off: float, target: TargetSettings | None = None) -> Amplified | None:
    """Of a target that is off by so much everywhere."""
    with Subject(ModelSettings(model), Workspace(model.parent / f"run{off}"), Console(-1)) as subject:
        golden = dict(subject.values(subject.original, ["y"]))
        seen = compare_all(golden, {"y": golden["y"] + np.float32(off)}, ToleranceOptions())
        return rounding_alone(subject, target or TargetSettings(), ToleranceOptions(), seen)


def test_what_rounding_does_is_foreseen(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", 16.0)
    found = said(model, 0.5)
    assert found is not None
    assert found.name == "y"
    assert found.off == pytest.approx(0.5)
    assert found.moved > 0.125
    assert found.sentence.startswith("Perhaps nobody is wrong")
    assert "--atol" not in found.sentence  # it would be as large as what is compared
    assert said(model, 0.5, TargetSettings(fp16=True)) is None


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_steady_model_excuses_no_target(tmp_path: Path, kind: int) -> None:
    assert said(chain(tmp_path / "model.onnx", 0.5, kind), 0.5) is None


def test_an_amplifier_of_little_excuses_only_little(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", 5.0, length=6)
    found = said(model, 1e-3)
    assert found is None or found.off <= 4 * found.moved
    assert said(model, 1.0) is None


@pytest.mark.slow
def test_the_search_of_such_a_model_ends(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(diagnose, "MOST_QUESTIONS", 3)
    model = chain(Path("model.onnx"), 16.0, length=20)
    ran = cli("diagnose", model, "--openvino", "--json", "r.json")
    result = read_json(Path("r.json"))
    assert (ran.status, result["minimality"]) == (3, "unproven")
    assert result["why"] == "the search was ended after 3 questions, for rounding alone fails the model too"
    assert result["amplified"]["sentence"] in ran.out.replace("\n", " ")
