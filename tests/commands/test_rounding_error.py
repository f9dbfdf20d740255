"""Rounding that is measured: of a minimal case in float64, and of a whole model; and numbers that are drawn."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import read_json
from test_arbitration import RIGHT, UNJUDGED, fault_of, judged, opinions, verdict

from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.minimal_case import describe_answer
from bisect_trt.commands.rounding import is_continuous, perturb, rounding_alone
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.onnxlib.emulation import widened
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import drawing_nodes
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.pool import WorkerPool

ULP = 2.0**-23
WIDTH = 16


def model_of(*nodes: onnx.NodeProto, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, WIDTH]) for name in "xy"]
    stored = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    outputs = ReferenceEvaluator(model).run(None, {"x": x})
    assert isinstance(outputs, list)
    return np.asarray(outputs[0])


def movement(model: onnx.ModelProto, x: np.ndarray) -> float:
    """How far rounding is foreseen to move the output."""
    golden, infos = {"y": run(model, x)}, Network(model).infos
    moved = perturb(model, infos, ULP, golden, lambda each: {"y": run(each, x)}, 6)
    assert not isinstance(moved, str)
    return float(np.abs(moved["y"] - golden["y"]).max())


def off(model: onnx.ModelProto, x: np.ndarray) -> float:
    """How far float32 is off float64."""
    return float(np.abs(run(model, x) - run(widened(model, Path()), x.astype(np.float64))).max())


@given(st.floats(2**-10, 2**20, width=32), st.integers(0, 99))
def test_what_cancels_is_foreseen(shift: float, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((4, WIDTH)).astype(np.float32)
    there, back = helper.make_node("Add", ["x", "k"], ["a"]), helper.make_node("Sub", ["a", "k"], ["y"])
    model = model_of(there, back, weights={"k": np.array(shift, np.float32)})
    assert off(model, x) <= 4 * movement(model, x) + 1e-6
    assert movement(model, x) <= 4 * ULP * (shift + 10)  # and no more than that is forgiven


@given(st.floats(1, 1e4), st.integers(0, 99))
def test_a_norm_far_from_zero_is_foreseen(mean: float, seed: int) -> None:
    x = (mean + np.random.default_rng(seed).standard_normal((4, WIDTH))).astype(np.float32)
    norm = helper.make_node("LayerNormalization", ["x", "g"], ["y"])
    model = model_of(norm, weights={"g": np.ones(WIDTH, np.float32)})
    assert off(model, x) <= 4 * movement(model, x) + 1e-5
    assert 4 * movement(model, x) < 160 * WIDTH * ULP * (mean + 10)


def test_what_is_well_conditioned_forgives_nothing_past_the_tolerance() -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, WIDTH), (WIDTH, WIDTH)))
    model = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), weights={"w": weight})
    assert 0 < 4 * movement(model, x) < 2e-4 * np.sqrt(np.mean((x @ weight) ** 2))


def test_a_step_is_not_forgiven() -> None:
    assert not is_continuous(model_of(helper.make_node("Floor", ["x"], ["y"])))


@given(st.floats(0.01, 1e3), st.floats(0, 3))
def test_what_rounding_is_expected_to_make_is_no_bug(size: float, part: float) -> None:
    alone = RIGHT + np.float32(size)
    case = opinions(target=RIGHT + np.float32(part * size), rounded=alone, **UNJUDGED)
    assert verdict(case) in ("rounding", "unknown")  # where the two are off alike, it is seen no more
    assert verdict(replace(case, target={"y": RIGHT + np.float32(5 * size)})) == "unknown"
    assert verdict(opinions(target=alone, rounded=RIGHT)) == "target"
    assert verdict(opinions(target=alone, rounded=alone)) == "target"  # the reference does not lose these digits


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("trains", [True, False])
def test_a_dropout_draws_if_it_trains(stored: bool, trains: bool) -> None:
    dropout = helper.make_node("Dropout", ["x", "", "t"], ["y"])
    flag = np.array(trains)
    constant = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(flag))
    model = model_of(dropout, weights={"t": flag}) if stored else model_of(constant, dropout)
    assert [bool(drawing_nodes(model, {}, unsure=unsure)) for unsure in (True, False)] == [trains, trains]
    model = model_of(dropout, weights={"t": np.array(1.0)})  # of no type that it may have, so it is not known
    assert bool(drawing_nodes(model, {"t": flag}, unsure=not trains)) == trains
    assert drawing_nodes(model, {}, unsure=True)
    assert not drawing_nodes(model_of(helper.make_node("Dropout", ["x"], ["y"])), {}, unsure=True)


def test_a_node_that_draws_is_no_bug(cli: CommandLine) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="before"),
        helper.make_node("Dropout", ["r", "", "train"], ["d"], name="drop"),
        helper.make_node("Tanh", ["d"], ["y"], name="after"),
    ]
    onnx.save(model_of(*nodes, weights={"train": np.array(True)}), "model.onnx")
    fault = fault_of(cli, "diagnose", Path("model.onnx"))
    result = read_json(Path("r.json"))
    assert result["minimality"] == "1-minimal"  # of few numbers it may draw the same, so it is not shrunk
    assert "amplified" not in result  # its runs differ without any rounding
    assert (fault["whose"], fault["op"], fault["node"]) == ("random", "Dropout", "drop")
    assert "eval mode" in fault["sentence"]
    assert [node["name"] for node in result["culprits"]] == ["drop"]


def test_a_refused_node_that_draws_is_still_a_bug() -> None:
    noise = model_of(helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise"))
    case = replace(opinions(target=RIGHT + 1), model=noise)
    assert judged(case).whose == "random"
    assert judged(replace(case, target="no such operator", reference={"y": RIGHT + 1})).whose == "target"


def test_an_answer_without_inputs_names_its_nodes(cli: CommandLine) -> None:
    nodes = [
        helper.make_node("Mul", ["w", "w"], ["z"], name="square"),
        helper.make_node("Relu", ["x"], ["y"], name="r"),
    ]
    model = model_of(*nodes, weights={"w": np.full(4, 1e5, np.float32)})
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [4]))
    onnx.save(model, "model.onnx")
    ran = cli("diagnose", "model.onnx", "--onnxrt", "--fp16", "-o", "out", "--json", "r.json")
    assert "0 nodes" not in ran.out
    assert [node["name"] for node in read_json(Path("r.json"))["culprits"]] == ["square"], ran.out + ran.err
    assert describe_answer(Network(model), []).startswith("No node is needed to fail")


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


def said(model: Path, off: float, target: TargetSettings | None = None) -> dict[str, Any] | None:
    """Of a target that is off by so much everywhere."""
    with Subject(ModelSettings(model), Workspace(model.parent / f"run{off}"), Console(-1)) as subject:
        golden = dict(subject.values(subject.original, ["y"]))
        seen = compare_all(golden, {"y": golden["y"] + np.float32(off)}, ToleranceOptions())
        return rounding_alone(subject, CheckSettings(target=target or TargetSettings()), seen)


def test_what_rounding_does_is_foreseen(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", 16.0)
    found = said(model, 0.5)
    assert found is not None
    assert (found["output"], found["off"]) == ("y", pytest.approx(0.5))
    assert found["moved"] > 0.125
    assert "--atol" not in found["sentence"]  # it would be as large as what is compared
    assert said(model, 0.5, TargetSettings(fp16=True)) is None


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_steady_model_excuses_no_target(tmp_path: Path, kind: int) -> None:
    assert said(chain(tmp_path / "model.onnx", 0.5, kind), 0.5) is None


def test_where_rounding_explains_it_nothing_is_searched(cli: CommandLine) -> None:
    """No piece is named, no pass, no fix; but the operator that amplifies."""
    pytest.importorskip("openvino")
    model = chain(Path("model.onnx"), 16.0, length=20)
    ran = cli("diagnose", model, "--openvino", "--json", "r.json")
    result = read_json(Path("r.json"))
    assert (ran.status, result["minimality"], result["culprits"]) == (3, "unproven", [])
    assert (result["fault"]["whose"], result["fault"]["op"]) == ("rounding", "Sin")
    assert result["fault"]["sentence"] in ran.out.replace("\n", " ")
    assert (result["cause"], result["workarounds"]) == ([], [])
    assert result["probes"]["run"] <= 20


def test_the_reference_runs_here_whatever_the_places(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place may have the runtime that is wrong, or none of the reference's."""
    pytest.importorskip("openvino")
    asked: list[tuple[str, bool]] = []
    ask = WorkerPool.ask

    def seen(self: WorkerPool, request: Any, *args: Any, here: bool = False, **how: Any) -> Any:
        asked.append((request.target.runtime, here))
        return ask(self, request, *args, here=here, **how)

    monkeypatch.setattr(WorkerPool, "ask", seen)
    model = chain(Path("model.onnx"), 16.0)
    cli("diagnose", model, "--openvino", "--on", f"python={sys.executable}", "--json", "r.json")
    assert ("onnxrt", True) in asked
    assert ("openvino", False) in asked
    assert ("onnxrt", False) not in asked
