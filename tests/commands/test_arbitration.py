"""Whose fault a failure is: the target's, the reference's, the precision's, or nobody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import overflowing, read_json

from bisect_trt.commands.arbitration import Fault, Opinions
from bisect_trt.onnxlib.emulation import widened
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

TIED = 1e-4
UNJUDGED: dict[str, Any] = {"right": "no such operator", "wide": False}


def fault_of(cli: CommandLine, command: str, model: Path, *options: str) -> dict[str, Any]:
    out = "out.onnx" if command == "reduce" else "out"
    ran = cli(command, model, "--onnxrt", *options, "-o", out, "--overwrite", "--json", "r.json")
    assert ran.status == 0, ran.err
    fault: dict[str, Any] = read_json(Path("r.json"))["fault"]
    assert fault["sentence"] in ran.out.replace("\n", " ")
    return fault


@pytest.mark.parametrize("command", ["diagnose", "reduce"])
def test_what_fp16_cannot_hold_is_no_bug(cli: CommandLine, command: str) -> None:
    fault = fault_of(cli, command, overflowing(Path("model.onnx")), "--fp16")
    assert (fault["whose"], fault["precision"]) == ("precision", "fp16")
    if command == "diagnose":
        assert Path("out/ISSUE.md").read_text().startswith("> **Not a bug report.** fp16 cannot represent this value")


def fused_past_the_largest(path: Path) -> Path:
    """A Conv that cancels, so that rounding alone is seen, and a Mul by as much as its weights are large.

    ONNX Runtime folds the factor into the weights (ConvMulFusion, in all its releases), which then are Inf.
    """
    nodes = [
        helper.make_node("Add", ["x", "far"], ["h"], name="far"),
        helper.make_node("Mul", ["h", "little"], ["s"], name="little"),
        helper.make_node("Conv", ["s", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "much"], ["m"], name="much"),
        helper.make_node("Relu", ["m"], ["y"], name="after"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 8, 8])
        for name, channels in (("x", 2), ("y", 1))
    ]
    weights = {"far": np.array(1e4), "little": np.array(1e-6), "much": np.full((1, 1, 1, 1), 1e20)}
    weights["w"] = np.array([1e20, -1e20]).reshape(1, 2, 1, 1)
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "fused", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def test_a_target_that_is_worse_than_rounding_has_a_bug(cli: CommandLine) -> None:
    fault = fault_of(cli, "diagnose", fused_past_the_largest(Path("model.onnx")))
    assert fault["whose"] == "target"
    assert not float(fault["target_error"]) <= float(fault["reference_error"])  # "inf"
    assert Path("out/ISSUE.md").read_text().startswith("# ")


def tied(path: Path) -> Path:
    """A choice among columns that are alike to a few digits."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, 1)).astype(np.float32)
    columns = np.repeat(rows, 32, 1) * (1 + TIED * rng.standard_normal((64, 32))).astype(np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="before"),
        helper.make_node("MatMul", ["r", "w"], ["logits"], name="logits"),
        helper.make_node("ArgMax", ["logits"], ["index"], name="choice", axis=-1),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64]),
        helper.make_tensor_value_info("index", TensorProto.INT64, [16, 1]),
    ]
    graph = helper.make_graph(nodes, "tied", ends[:1], ends[1:], [numpy_helper.from_array(columns, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def test_a_choice_among_equals_is_a_tie(cli: CommandLine) -> None:
    fault = fault_of(cli, "diagnose", tied(Path("model.onnx")), "--fp16")
    assert (fault["whose"], fault["op"], fault["node"]) == ("tie", "ArgMax", "choice")
    assert 0 < fault["decisions"] <= 16
    assert Path("out/ISSUE.md").read_text().startswith("> **Not a bug report.** A tie")


RIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def opinions(**seen: Any) -> Opinions:
    """Opinions on an elementwise node of which ``RIGHT`` is right, unless another value is given."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 4]) for name in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", ends[:1], ends[1:]))
    known = {"reference": RIGHT, "target": RIGHT, "right": RIGHT.astype(np.float64), **seen}
    rows: dict[str, Any] = {
        name: {"y": value} if isinstance(value, np.ndarray) else value for name, value in known.items()
    }
    return Opinions(model, ("y",), {"x": RIGHT}, **rows, **SIDES)


def run(model: ModelProto, fed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in model.graph.output]
    return dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(None, dict(fed))), strict=True))


SIDES: dict[str, Any] = {
    "tolerance": ToleranceOptions(nonfinite_equal=True),
    "target_name": "T",
    "reference_name": "the reference (R)",
    "run": run,
}


def judged(case: Opinions, precision: Precision = Precision.FP32) -> Fault:
    return replace(case, tolerance=replace(case.tolerance, precision=precision)).judge()


def verdict(case: Opinions, precision: Precision = Precision.FP32) -> str:
    fault = judged(case, precision)
    assert fault.sentence.endswith(".")
    return fault.whose


@given(st.one_of(st.floats(0.01, 1e6), st.sampled_from([np.inf, np.nan])))
def test_the_side_that_stands_alone_is_wrong(size: float) -> None:
    off = RIGHT + np.float32(size)
    assert verdict(opinions(target=off)) == "target"
    assert verdict(opinions(reference=off)) == "reference"
    assert verdict(opinions(reference=off, target=-off)) in ("target", "unknown")
    assert verdict(opinions(target=off, right=RIGHT, wide=False)) == "target"
    assert verdict(opinions(target=off, **UNJUDGED)) == "unknown"
    assert verdict(opinions()) == "unknown"


@given(st.floats(0.1, 1e3), st.floats(1.5, 1e3))
def test_a_target_is_measured_by_rounding(size: float, times: float) -> None:
    alone, worse = RIGHT + np.float32(size), RIGHT + np.float32(size * times)
    case = opinions(target=worse, rounded=alone, low="fp16")
    assert verdict(case, Precision.FP16) == (
        "precision" if times < 3.9 else "target" if times > 4.1 else verdict(case, Precision.FP16)
    )
    assert verdict(opinions(target=alone, rounded=RIGHT, low="fp16"), Precision.FP16) == "target"
    assert verdict(opinions(target=alone, rounded=alone, low="fp16", **UNJUDGED), Precision.FP16) == "precision"
    assert verdict(opinions(target=alone, rounded=RIGHT, low="fp16", **UNJUDGED), Precision.FP16) == "unknown"
    assert verdict(opinions(target=alone, rounded="an opset of long ago", low="fp16"), Precision.FP16) == "unknown"
    assert verdict(opinions(target=alone, rounded="rounding to int8 is not emulated here"), Precision.FP16) == "unknown"


def test_a_refusal_is_a_bug_where_all_others_run_the_model() -> None:
    assert verdict(opinions(target="no such layer")) == "target"
    assert verdict(opinions(target="no such layer", **UNJUDGED)) == "unknown"
    assert verdict(opinions(target="no such layer", reference=RIGHT + 1)) == "unknown"
    assert verdict(replace(opinions(target="no such opset"), outputs=(), reference={})) == "unknown"
    assert "crashes" in judged(opinions(target="the target crashed (SIGSEGV)")).sentence


def test_an_evaluator_that_ignores_an_attribute_has_no_opinion(cli: CommandLine) -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    weights = {"w": (1, 12, 4), "r": (1, 12, 3), "b": (1, 24)}
    node = helper.make_node("LSTM", ["x", *weights], ["y"], name="l", hidden_size=3, input_forget=1)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 2, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 1, 2, 3]),
    ]
    stored = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()
    ]
    graph = helper.make_graph([node], "coupled", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), "model.onnx")
    ran = cli("reduce", "model.onnx", "--openvino", "-o", "out.onnx", "--json", "r.json")
    fault = read_json(Path("r.json"))["fault"]  # OpenVINO ignores it too, so the two would agree
    assert (ran.status, fault["whose"]) == (0, "unknown")
    assert "ignores 'input_forget' of LSTM" in fault["sentence"]


def deciding(op: str, reads: np.ndarray, decided: np.ndarray, other: np.ndarray) -> Opinions:
    """A node that decides, of which the target read ``reads`` rounded to fp16."""
    values = ["v"] if op == "TopK" else []
    inputs = {"x": reads} | ({"k": np.array([1])} if values else {})
    infos = helper.make_tensor_value_info
    ends = [infos(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape) for name, each in inputs.items()]
    made = {"y": (decided, other)} | ({"v": (reads[decided], reads[other])} if values else {})
    outputs = [infos(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape) for name, (one, _) in made.items()]
    node = helper.make_node(op, list(inputs), [*values, "y"], name="n")
    graph = helper.make_graph([node], "g", ends, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    right, wrong = ({name: each[side] for name, each in made.items()} for side in (0, 1))
    return Opinions(model, ("y",), inputs, right, wrong, right, rounded=wrong, low="fp16", **SIDES)


def computed_index(op: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A step taken of a product, or an element picked by a coordinate, that is 0.5 or just above it."""
    info = helper.make_tensor_value_info
    if op == "GridSample":
        nodes = [helper.make_node(op, ["x", "grid"], ["y"], mode="nearest", align_corners=1)]
        ends = [info("x", TensorProto.FLOAT, [1, 1, 1, 2]), info("grid", TensorProto.FLOAT, [1, 1, 1, 2])]
        out = info("y", TensorProto.FLOAT, [1, 1, 1, 1])
        fed = {"x": np.array([3.0, 7.0]).reshape(1, 1, 1, 2), "grid": np.array([1e-7, -1.0]).reshape(1, 1, 1, 2)}
    else:
        nodes = [helper.make_node("Mul", ["x", "x"], ["m"]), helper.make_node(op, ["m"], ["y"])]
        ends, out = [info("x", TensorProto.FLOAT, [1])], info("y", TensorProto.FLOAT, [1])
        fed = {"x": np.array([0.70710683])}
    graph = helper.make_graph(nodes, "g", ends, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    return model, {name: value.astype(np.float32) for name, value in fed.items()}


@pytest.mark.parametrize("op", ["Round", "GridSample"])
def test_an_index_just_above_its_edge_is_a_tie_and_no_fault_of_the_reference(op: str) -> None:
    """The target decides as float64 does, of what rounding in fp32 moves over the edge."""
    model, fed = computed_index(op)
    names = [name for node in model.graph.node for name in node.output]
    values = {"m": np.array([0.5000001]), "y": np.array([1.0])}
    wide = {"m": np.array([0.49999999]), "y": np.array([0.0])}
    if op == "GridSample":
        values, wide = ({"y": np.array(each).reshape(1, 1, 1, 1)} for each in (7.0, 3.0))
    reference, target = (
        {name: each[name].astype(np.float32) for name in names} for each in (values, {**values, "y": wide["y"]})
    )
    case = Opinions(model, ("y",), fed, reference, target, wide, **SIDES)
    assert verdict(case) == "tie"
    far = {name: value + np.float32(0.4) for name, value in fed.items()}
    elsewhere = {name: value + np.float32(0.3) * (name == "m") for name, value in reference.items()}
    exact = {name: value.astype(np.float64) for name, value in elsewhere.items()}
    assert verdict(Opinions(model, ("y",), far, elsewhere, {**elsewhere, "y": target["y"]}, exact, **SIDES)) == "target"


@pytest.mark.parametrize(
    ("off", "words"),
    [(RIGHT[:2], "its shape"), (np.full_like(RIGHT, np.nan), "NaN or Inf"), (RIGHT + np.float32(2), "2")],
)
def test_what_a_target_is_off_by_is_said(off: np.ndarray, words: str) -> None:
    fault = judged(opinions(target=off))
    assert (fault.whose, f"it is off by {words}, and" in fault.sentence) == ("target", True), fault.sentence


@pytest.mark.parametrize(
    ("op", "reads", "decided", "other", "whose"),
    [
        ("ArgMax", [1.0, 1.0002, -3], [1], [0], "tie"),
        ("ArgMax", [1.0, 1.7, -3], [1], [0], "target"),
        ("TopK", [1.0, 1.0002, -3], [1], [0], "tie"),
        ("Floor", [0.9999, 0.5, 3.0001], [0, 0, 3], [1, 0, 2], "tie"),
        ("Floor", [0.9999, 0.5, 3.3], [0, 0, 3], [1, 0, 2], "target"),
        ("Sign", [1e-4, -2], [1, -1], [-1, -1], "tie"),
    ],
)
def test_a_decision_is_a_tie_as_far_as_rounding_turns_it(
    op: str, reads: list[float], decided: list[int], other: list[int], whose: str
) -> None:
    values = np.array(reads, np.float32)
    one, two = (np.array(each, np.int64 if op in ("ArgMax", "TopK") else np.float32) for each in (decided, other))
    case = deciding(op, values, one, two)
    assert verdict(replace(case, rounded={"y": one}), Precision.FP16) == whose
    assert verdict(replace(case, low=None, rounded=""), Precision.FP32) != "tie"  # fp32 reads the very same


def test_a_widened_model_computes_in_float64() -> None:
    weights = [numpy_helper.from_array(np.array([1, 2], np.float32), "w")]
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=0.1),
        helper.make_node("Add", ["x", "w"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["m"]),
        helper.make_node("Cast", ["m"], ["i"], to=TensorProto.INT32),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["f", "m"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], weights),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    wide = widened(model, Path())
    onnx.checker.check_model(wide, full_check=True)
    x = np.array([1e-9, 1e9])
    (y,) = ReferenceEvaluator(wide).run(None, {"x": x})
    product = (x + np.array([1, 2])) * np.float64(np.float32(0.1))
    assert np.asarray(y).dtype == np.float64
    np.testing.assert_array_equal(y, np.trunc(product) + product)
