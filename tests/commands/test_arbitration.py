"""Whose fault a failure is: the target's, the reference's, the precision's, or nobody's."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import evaluate, save_text, text_model
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from onnx import TensorProto, helper, numpy_helper
from support import model_of, onnx_tool, overflowing, read_json, save

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import drawing_nodes
from bisect_trt.onnxlib.roundings import widened
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.faults import Fault
from bisect_trt.report.parts import Amplified
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.arbitration import Opinions
from bisect_trt.steps.rounding import is_continuous, perturb, rounding_alone, roundings
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.pool import WorkerPool

TIED = 1e-4
UNJUDGED: dict[str, Any] = {"right": "no such operator", "wide": False}


def fault_of(cli: CommandLine, command: str, model: Path, *options: str) -> dict[str, Any]:
    out = "out.onnx" if command == "reduce" else "out"
    ran = cli(
        command, model, "--onnxrt", *options, "-o", out, "--overwrite", "--json", "r.json"
    ).ended(0)
    fault: dict[str, Any] = read_json(Path("r.json"))["fault"]
    assert fault["sentence"] in " ".join(ran.out.split())
    return fault


@pytest.mark.parametrize("command", ["diagnose", "reduce"])
def test_what_fp16_cannot_hold_is_no_bug(cli: CommandLine, command: str) -> None:
    fault = fault_of(cli, command, overflowing(Path("model.onnx")), "--fp16")
    assert (fault["whose"], fault["precision"]) == ("precision", "fp16")
    if command == "diagnose":
        assert (
            Path("out/NOTES.md")
            .read_text()
            .startswith("> **Not a bug report.** fp16 cannot represent this value")
        )


def test_what_overflows_is_named_before_what_loses_digits(cli: CommandLine) -> None:
    """The model, which `cause` judges as it is, has more tensors than are rounded one by one; none of its outputs is Inf."""
    body = [f"h{place + 1} = Mul(h{place}, near)" for place in range(70)]
    body += ["wide = Mul(h70, far)", "over = Mul(wide, wide)", "y = Div(far, over)"]
    weights = {"near": 1.0011, "far": 300.0}
    ends = "(float[8] h0) => (float[8] y)"
    save_text(Path("model.onnx"), ends, " ".join(body), weights)
    np.savez("x.npz", h0=np.linspace(1, 2, 8, dtype=np.float32))
    data = ("--load-inputs", "x.npz", "--no-other-release")
    cli("cause", "model.onnx", "--onnxrt", "--fp16", *data, "--json", "r.json").ended(0)
    fault = read_json(Path("r.json"))["fault"]
    assert (fault["loss"], fault["tensor"]) == ("overflow", "over")


def fused_past_the_largest(path: Path) -> Path:
    """A Conv that cancels, so that rounding alone is seen, and a Mul by as much as its weights are large.

    ONNX Runtime folds the factor into the weights (ConvMulFusion, in all its releases), which then
    are Inf.
    """
    weights = {"far": 1e4, "little": 1e-6, "much": [[[[1e20]]]], "w": [[[[1e20]], [[-1e20]]]]}
    ends = "(float[1, 2, 8, 8] x) => (float[1, 1, 8, 8] y)"
    body = "c = Conv(s, w) m = Mul(c, much) y = Relu(m)"
    return save_text(path, ends, f"h = Add(x, far) s = Mul(h, little) {body}", weights)


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
    body = "r = Relu(x) logits = MatMul(r, w) choice = ArgMax<axis = -1>(logits)"
    return save_text(path, "(float[16, 64] x) => (int64[16, 1] choice)", body, {"w": columns})


def test_a_choice_that_fp16_turns_is_the_fault_of_fp16(cli: CommandLine) -> None:
    fault = fault_of(cli, "diagnose", tied(Path("model.onnx")), "--fp16")
    assert (fault["whose"], fault["op"], fault["node"]) == ("precision", "ArgMax", "choice")
    assert 0 < fault["decisions"] <= 16
    assert (
        Path("out/NOTES.md")
        .read_text()
        .startswith("> **Not a bug report.** Rounding to fp16 turns")
    )
    assert read_json(Path("r.json"))["keep_fp32"]


TOOL = """
graph, nodes = model.graph, []
rounded = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
for node in graph.node:
    if node.op_type == "ArgMax":
        node.attribute.add(name="select_last_index", type="INT", i=1)
    nodes.append(node)
    if node.op_type == "MatMul" and node.output[0] in rounded:
        made = node.output[0]
        node.output[0] = made + "_sum"
        graph.initializer.add(name=made + "_limit", data_type=1, float_data=[LIMIT])
        limited = [node.output[0], made + "_limit"]
        nodes.append(type(node)(op_type="Min", input=limited, output=[made]))
del graph.node[:]
graph.node.extend(nodes)
"""
"""Chooses the last of equal values, and saturates sums that are quantized next."""


def fault_of_tool(cli: CommandLine, model: Path, limit: float, *options: str) -> dict[str, Any]:
    through = onnx_tool(TOOL.replace("LIMIT", str(limit)))
    cli("diagnose", model, "--through", through, *options, "-o", "out", "--json", "r.json").ended(0)
    fault: dict[str, Any] = read_json(Path("r.json"))["fault"]
    return fault


def test_a_case_stays_as_severe_as_it_was_found(cli: CommandLine) -> None:
    """Sums of 64 products saturate by tens of steps, those of a few by one or two, as a tie is."""
    rng = np.random.default_rng(0)
    body = """q = QuantizeLinear(x, xs, zero) d = DequantizeLinear(q, xs, zero) sum = MatMul(d, w)
        out = QuantizeLinear(sum, ys, zero) y = DequantizeLinear(out, ys, zero)"""
    weights = {
        "xs": 0.02,
        "ys": 0.3,
        "zero": np.zeros((), np.uint8),
        "w": rng.uniform(0.5, 1, (64, 32)),
    }
    model = save_text(Path("model.onnx"), "(float[16, 64] x) => (float[16, 32] y)", body, weights)
    fault = fault_of_tool(cli, model, 11.4)
    assert fault["whose"] == "target"
    assert fault["target_error"] >= 5  # in quantization steps
    left = onnx.load("out/model.onnx")
    assert len(left.graph.node) == 2
    assert left.graph.initializer[0].dims[0] < 64  # smaller all the same


@pytest.mark.parametrize("before", ["Identity", pytest.param("Relu", marks=pytest.mark.slow)])
def test_the_standard_decides_among_equal_values(cli: CommandLine, before: str) -> None:
    body = f"r = {before}(x) i = ArgMax<axis = 1, keepdims = 0>(r) y = Cast<to = 1>(i)"
    rows = np.array([[1, 3, 3, 0, 3], [2, 2, 1, 2, 2], [5, 4, 5, 5, 1]], np.float32)
    model = save_text(Path("model.onnx"), "(float[3, 5] x) => (float[3] y)", body)
    np.savez("rows.npz", x=rows)
    assert fault_of_tool(cli, model, 0, "--load-inputs", "rows.npz")["whose"] == "target"


RIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def opinions(**seen: Any) -> Opinions:
    """Opinions on an elementwise node of which ``RIGHT`` is right, unless another value is given."""
    model = text_model("(float[3, 4] x) => (float[3, 4] y)", "y = Mul(x, k)", {"k": 1.0})
    known = {"reference": RIGHT, "target": RIGHT, "right": RIGHT.astype(np.float64), **seen}
    rows: dict[str, Any] = {
        name: {"y": value} if isinstance(value, np.ndarray) else value
        for name, value in known.items()
    }
    return Opinions(model, ("y",), {"x": RIGHT}, **rows, **SIDES)


SIDES: dict[str, Any] = {
    "tolerance": ToleranceOptions(nonfinite_equal=True),
    "target_name": "T",
    "reference_name": "the reference (R)",
    "run": evaluate,
}


def judged(case: Opinions, precision: Precision = Precision.FP32) -> Fault:
    return structs.replace(case, tolerance=replace(case.tolerance, precision=precision)).judge()


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
    alone = RIGHT + np.float32(size)
    worse = RIGHT + np.float32(size * times)
    case = opinions(target=worse, rounded=alone, low="fp16")
    assert verdict(case, Precision.FP16) == (
        "precision" if times < 3.9 else "target" if times > 4.1 else verdict(case, Precision.FP16)
    )
    assert verdict(opinions(target=alone, rounded=RIGHT, low="fp16"), Precision.FP16) == "target"
    assert (
        verdict(opinions(target=alone, rounded=alone, low="fp16", **UNJUDGED), Precision.FP16)
        == "precision"
    )
    assert (
        verdict(opinions(target=alone, rounded=RIGHT, low="fp16", **UNJUDGED), Precision.FP16)
        == "unknown"
    )
    assert (
        verdict(opinions(target=alone, rounded="an opset of long ago", low="fp16"), Precision.FP16)
        == "unknown"
    )
    assert verdict(opinions(target=alone, rounded="int8"), Precision.FP16) == "unknown"


@given(st.floats(0.5, 3), st.integers(0, 99))
def test_an_approximation_that_the_network_amplifies_is_no_bug(ulps: float, seed: int) -> None:
    """Sigmoid next to 0.5: the difference loses all digits but a few, and rounding alone may be lucky."""
    ends = "(float[3, 4] x) => (float[3, 4] y)"
    model = text_model(ends, "s = Sigmoid(x) y = Sub(s, half)", {"half": 0.5})
    x = np.random.default_rng(seed).uniform(-0.01, 0.01, (3, 4)).astype(np.float16)
    feed: dict[str, Any] = {"x": x.astype(np.float32)}
    right = evaluate(model, feed)["y"]

    def whose(units: float) -> str:
        sides = {"target": right + np.float32(units * 2**-11), "reference": right, "right": right}
        case = opinions(**sides, rounded=right, low="fp16")
        return verdict(structs.replace(case, model=model, inputs=feed), Precision.FP16)

    assert whose(ulps) == "precision"
    assert whose(100 * ulps) == "target"


def test_a_refusal_is_a_bug_where_all_others_run_the_model() -> None:
    assert verdict(opinions(target="no such layer")) == "target"
    assert verdict(opinions(target="no such layer", **UNJUDGED)) == "unknown"
    assert verdict(opinions(target="no such layer", reference=RIGHT + 1)) == "unknown"
    assert (
        verdict(structs.replace(opinions(target="no such opset"), outputs=(), reference={}))
        == "unknown"
    )
    assert "crashes" in judged(opinions(target="SIGSEGV", crashed=True)).sentence


def deciding(op: str, reads: np.ndarray, decided: np.ndarray, other: np.ndarray) -> Opinions:
    """A node that decides, of which the target read ``reads`` rounded to fp16."""
    values = ["v"] if op == "TopK" else []
    inputs = {"x": reads} | ({"k": np.array([1])} if values else {})
    made = {"y": (decided, other)} | ({"v": (reads[decided], reads[other])} if values else {})
    more: dict[str, Any] = {"to": TensorProto.INT64} if op == "Cast" else {}
    node = helper.make_node(op, list(inputs), [*values, "y"], name="n", **more)
    right, wrong = ({name: each[side] for name, each in made.items()} for side in (0, 1))
    types = {
        name: helper.np_dtype_to_tensor_dtype(each.dtype) for name, each in (inputs | right).items()
    }
    fed, returned = ({name: each.shape for name, each in some.items()} for some in (inputs, right))
    model = model_of([node], inputs=fed, outputs=returned, types=types)
    return Opinions(model, ("y",), inputs, right, wrong, right, rounded=wrong, low="fp16", **SIDES)


@pytest.mark.parametrize(
    ("op", "reads", "decided", "other", "whose"),
    [
        ("ArgMax", [1.0, 1.0002, -3], [1], [0], "precision"),
        ("ArgMax", [1.0, 1.7, -3], [1], [0], "target"),
        ("ArgMax", [1.0, 1.0, -3], [0], [1], "target"),
        ("TopK", [1.0, 1.0002, -3], [1], [0], "precision"),
        ("TopK", [1.0, 1.0, -3], [0], [1], "target"),
        ("Cast", [2049.0, 3000.0], [2049, 3000], [2048, 3000], "precision"),
        ("Floor", [0.9999, 0.5, 3.0001], [0, 0, 3], [1, 0, 2], "precision"),
        ("Floor", [0.9999, 0.5, 3.3], [0, 0, 3], [1, 0, 2], "target"),
        ("Sign", [1e-4, -2], [1, -1], [-1, -1], "target"),  # fp16 has 1e-4
        ("Sign", [1e-9, -2], [1, -1], [0, -1], "precision"),
    ],
)
def test_a_decision_is_the_precisions_fault_as_far_as_rounding_turns_it(
    op: str, reads: list[float], decided: list[int], other: list[int], whose: str
) -> None:
    values = np.array(reads, np.float32)
    integers = op in ("ArgMax", "TopK", "Cast")
    one, two = (np.array(each, np.int64 if integers else np.float32) for each in (decided, other))
    case = deciding(op, values, one, two)
    assert verdict(structs.replace(case, rounded={"y": one}), Precision.FP16) == whose
    assert (
        verdict(structs.replace(case, low=None, rounded=""), Precision.FP32) != "tie"
    )  # fp32 reads the very same


def computed_decision(gap: float, target: list[int], off: float = 0.0) -> Opinions:
    """An ArgMax of computed values that are so far apart, and a Mul behind it; the target's last value is off."""
    body = "a = Add(x, one) i = ArgMax<axis = 0>(a) f = Cast<to = 1>(i) y = Mul(f, f)"
    ends = "(float[3] x) => (float[1] y, float[3] a, int64[1] i, float[1] f)"
    model = text_model(ends, body, {"one": 1.0})
    x = np.array([1, 1 + gap, 0], np.float32)
    reference = evaluate(model, {"x": x})
    chosen = np.array(target)
    made: dict[str, Any] = {
        "a": reference["a"] + np.array([1e-6, 0, 0], np.float32),
        "i": chosen,
        "f": chosen.astype(np.float32),
    }
    made["y"] = made["f"] ** 2 + np.float32(off)
    return Opinions(model, ("y",), {"x": x}, reference, made, reference, **SIDES)


@pytest.mark.parametrize(
    ("gap", "off", "whose"), [(1e-6, 0, "tie"), (0.1, 0, "target"), (1e-6, 3, "target")]
)
def test_a_tie_has_to_explain_all_of_the_difference(gap: float, off: float, whose: str) -> None:
    assert verdict(computed_decision(gap, [0], off)) == whose


def test_wrong_values_do_not_explain_the_decision_on_them() -> None:
    """The target's rounding is right for what it read, and that is far off."""
    model = text_model("(float[2] x) => (uint8[2] y, float[2] s)", "s = Tanh(x) y = QuantizeLinear(s, step, zero)",
                       {"step": 0.01, "zero": np.zeros((), np.uint8)})  # fmt: skip
    x = np.array([0.3, 0.9], np.float32)
    right = evaluate(model, {"x": x})
    wrong: dict[str, Any] = {"s": right["s"] - np.float32(0.06), "y": right["y"] - np.uint8(6)}
    assert verdict(Opinions(model, ("y",), {"x": x}, right, wrong, right, **SIDES)) == "target"


def test_a_tie_where_marks_hide_the_failure_does_not_explain_it() -> None:
    model = text_model("(float[2] x) => (uint8[2] y, float[2] s)", "s = Mul(x, x) y = QuantizeLinear(s, step, zero)",
                       {"step": 0.5, "zero": np.zeros((), np.uint8)})  # fmt: skip
    x = np.array([0.5, 9], np.float32)
    right = evaluate(model, {"x": x})
    tie: dict[str, Any] = {
        "s": np.nextafter(right["s"], np.float32(99)),
        "y": right["y"] + np.array([1, 0], np.uint8),
    }
    case = Opinions(model, ("y",), {"x": x}, right, tie, right, **SIDES)
    assert verdict(case) == "tie"
    wrong = {**right, "y": np.zeros_like(right["y"])}
    assert verdict(structs.replace(case, target=wrong, marked_target=tie)) == "target"


def test_a_widened_model_computes_in_float64() -> None:
    body = "c = Constant<value_float = 0.1>() s = Add(x, w) m = Mul(s, c) i = Cast<to = 6>(m) f = Cast<to = 1>(i) y = Add(f, m)"
    model = text_model("(float[2] x) => (float[2] y)", body, {"w": [1.0, 2.0]})
    wide = widened(model, Path())
    onnx.checker.check_model(wide, full_check=True)
    x = np.array([1e-9, 1e9])
    y = evaluate(wide, {"x": x})["y"]
    product = (x + np.array([1, 2])) * np.float64(np.float32(0.1))
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, np.trunc(product) + product)


# Rounding that is measured: of a minimal case in float64, and of a whole model; and numbers that
# are drawn.


ULP = 2.0**-23
WIDTH = 16


def rows(body: str, **weights: Any) -> onnx.ModelProto:
    return text_model(f"(float[4, {WIDTH}] x) => (float[4, {WIDTH}] y)", body, weights, opset=17)


def movement(model: onnx.ModelProto, x: np.ndarray) -> float:
    """How far rounding is foreseen to move the output."""
    golden = evaluate(model, {"x": x})
    infos = Network(model).infos
    moved = perturb(
        model, roundings(model, infos, ULP), golden, lambda each: evaluate(each, {"x": x}), 6
    )
    assert not isinstance(moved, str)
    return float(np.abs(moved["y"] - golden["y"]).max())


def off(model: onnx.ModelProto, x: np.ndarray) -> float:
    """How far float32 is off float64."""
    wide = evaluate(widened(model, Path()), {"x": x.astype(np.float64)})
    return float(np.abs(evaluate(model, {"x": x})["y"] - wide["y"]).max())


@given(st.floats(2**-10, 2**20, width=32), st.integers(0, 99))
def test_what_cancels_is_foreseen(shift: float, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((4, WIDTH)).astype(np.float32)
    model = rows("a = Add(x, k) y = Sub(a, k)", k=shift)
    assert off(model, x) <= 4 * movement(model, x) + 1e-6
    assert movement(model, x) <= 4 * ULP * (shift + 10)  # and no more than that is forgiven


def test_a_step_is_not_forgiven() -> None:
    assert not is_continuous(rows("y = Floor(x)"))


@given(st.floats(0.01, 1e3), st.floats(0, 3))
def test_what_rounding_is_expected_to_make_is_no_bug(size: float, part: float) -> None:
    alone = RIGHT + np.float32(size)
    case = opinions(target=RIGHT + np.float32(part * size), rounded=alone, **UNJUDGED)
    assert verdict(case) in (
        "rounding",
        "unknown",
    )  # where the two are off alike, it is seen no more
    assert verdict(structs.replace(case, target={"y": RIGHT + np.float32(5 * size)})) == "unknown"
    assert verdict(opinions(target=alone, rounded=RIGHT)) == "target"
    assert (
        verdict(opinions(target=alone, rounded=alone)) == "target"
    )  # the reference does not lose these digits
    assert (
        verdict(structs.replace(opinions(target=alone, rounded=alone), plain={"y": alone}))
        == "rounding"
    )


@pytest.mark.parametrize(("times", "whose"), [(1, "rounding"), (1000, "target")])
def test_the_order_of_a_sum_is_no_bug(times: int, whose: str) -> None:
    """A variance as a difference of two means: a sum one by one loses more digits than one in pairs."""
    body = "s = ReduceSum<keepdims = 0>(q, last) v = Mul(s, part) d = Sub(v, m) r = Sqrt(d) y = Reciprocal(r)"
    weights = {"last": np.array([1]), "part": 2.0**-9}
    model = text_model("(float[64, 512] q, float[64] m) => (float[64] y)", body, weights, opset=17)
    x = np.random.default_rng(1).normal(0.6, 0.01, (64, 512)).astype(np.float32)
    feed: dict[str, Any] = {"q": x * x, "m": np.mean(x, 1, dtype=np.float32) ** 2}
    right = evaluate(
        widened(model, Path()), {name: each.astype(float) for name, each in feed.items()}
    )
    reference = {"y": right["y"].astype(np.float32)}  # no runtime is closer
    one_by_one = np.cumsum(feed["q"], 1, dtype=np.float32)[:, -1] / np.float32(512)
    target = 1 / np.sqrt(one_by_one - feed["m"])
    off: dict[str, Any] = {"y": reference["y"] + np.float32(times) * (target - reference["y"])}

    def run(each: onnx.ModelProto) -> Any:
        return evaluate(each, feed)

    moved = perturb(model, roundings(model, Network(model).infos, ULP), reference, run, 6)
    plain: dict[str, Any] = {"y": target}
    case = Opinions(model, ("y",), feed, reference, off, right, rounded=moved, plain=plain, **SIDES)
    assert not case.seen.passed
    assert verdict(case) == whose


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("trains", [True, False])
def test_a_dropout_draws_if_it_trains(stored: bool, trains: bool) -> None:
    dropout = "y = Dropout(x, , t)"
    flag = np.array(trains)
    constant = f"t = Constant<value = bool {{{int(trains)}}}>() {dropout}"
    model = rows(dropout, t=flag) if stored else rows(constant)
    assert bool(drawing_nodes(model)) == trains
    assert drawing_nodes(rows(dropout, t=1.0))  # of no type that it may have, so it is not known
    assert not drawing_nodes(rows("y = Dropout(x)"))


def test_a_node_that_draws_is_no_bug(cli: CommandLine) -> None:
    onnx.save(
        rows("r = Relu(x) drop = Dropout(r, , train) y = Tanh(drop)", train=True), "model.onnx"
    )
    fault = fault_of(cli, "diagnose", Path("model.onnx"))
    result = read_json(Path("r.json"))
    assert (
        result["minimality"] == "1-minimal"
    )  # of few numbers it may draw the same, so it is not shrunk
    assert "amplified" not in result  # its runs differ without any rounding
    assert (fault["whose"], fault["op"], fault["node"]) == ("random", "Dropout", "drop")
    assert "eval mode" in fault["sentence"]
    assert [node["name"] for node in result["culprits"]] == ["drop"]


def test_a_refused_node_that_draws_is_still_a_bug() -> None:
    noise = rows("y = RandomNormalLike(x)")
    case = structs.replace(opinions(target=RIGHT + 1), model=noise)
    assert judged(case).whose == "random"
    assert (
        judged(structs.replace(case, target="no such operator", reference={"y": RIGHT + 1})).whose
        == "target"
    )


def amplifying(path: Path, gain: float, kind: int = TensorProto.FLOAT, length: int = 12) -> Path:
    """MatMul and Sin by turns, in a type; each layer amplifies what it reads by about the ``gain``."""
    rng = np.random.default_rng(0)
    half = kind == TensorProto.FLOAT16
    nodes = [helper.make_node("Cast", ["x"], ["t0"], to=kind)]
    weights = []
    for place in range(length):
        weight = rng.standard_normal((16, 16)) * gain / 4
        weights.append(
            numpy_helper.from_array(weight.astype(np.float16 if half else np.float32), f"w{place}")
        )
        nodes.append(
            helper.make_node("MatMul", [f"t{place}", f"w{place}"], [f"m{place}"], f"product{place}")
        )
        nodes.append(helper.make_node("Sin", [f"m{place}"], [f"t{place + 1}"], f"wave{place}"))
    nodes.append(helper.make_node("Cast", [f"t{length}"], ["y"], to=TensorProto.FLOAT))
    return save(path, nodes, weights, inputs={"x": [4, 16]}, outputs={"y": [4, 16]}, opset=17)


def said(model: Path, off: float, target: TargetSettings | None = None) -> Amplified | None:
    """Of a target that is off by so much everywhere."""
    with Subject(
        ModelSettings(model), Workspace(model.parent / f"run{off}"), Console(-1)
    ) as subject:
        golden = dict(subject.values(subject.original, ["y"]))
        seen = compare_all(golden, {"y": golden["y"] + np.float32(off)}, ToleranceOptions())
        return rounding_alone(subject, CheckSettings(target=target or TargetSettings()), seen)


def test_run_says_that_rounding_explains_a_difference(cli: CommandLine, here: Path) -> None:
    """Two kernels of MatMul add up in another order; twelve layers multiply what that makes by 16 each."""
    pytest.importorskip("openvino")
    model = amplifying(here / "model.onnx", 16.0)
    ran = cli("run", model, "--openvino", "--iterations", "6", "--json", "r.json").ended(1)
    assert ran.result["amplified"]["output"] == "y"
    assert "Rounding explains the difference" in ran.out


def test_what_rounding_does_is_foreseen(tmp_path: Path) -> None:
    model = amplifying(tmp_path / "model.onnx", 16.0)
    found = said(model, 0.5)
    assert found is not None
    assert found.output == "y"
    assert found.off == pytest.approx(0.5)
    assert found.moved > 0.125
    assert "--atol" not in found.sentence  # it would be as large as what is compared
    assert said(model, 0.5, TargetSettings(fp16=True)) is None


@pytest.mark.parametrize("times", [1.0, 3.5])
def test_the_tolerance_that_is_named_passes(tmp_path: Path, times: float) -> None:
    """Also where the target is off by more than twice what rounding makes."""
    model = amplifying(tmp_path / "model.onnx", 12.0, length=4)
    first = said(model, 1e-3)
    assert first is not None
    found = said(model, times * first.moved)
    assert found is not None
    named = re.search(r"--atol (\S+)\)", found.sentence)
    assert named, found.sentence
    assert float(named[1]) >= max(found.off, found.moved)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_steady_model_excuses_no_target(tmp_path: Path, kind: int) -> None:
    assert said(amplifying(tmp_path / "model.onnx", 0.5, kind), 0.5) is None


def test_where_rounding_explains_it_nothing_is_searched(cli: CommandLine) -> None:
    """No piece is named, no pass, no fix; but the operator that amplifies."""
    pytest.importorskip("openvino")
    model = amplifying(Path("model.onnx"), 16.0, length=20)
    ran = cli("diagnose", model, "--openvino", "--json", "r.json")
    result = read_json(Path("r.json"))
    assert (ran.status, result["minimality"], result["culprits"]) == (3, "unproven", [])
    assert (result["fault"]["whose"], result["fault"]["op"]) == ("rounding", "Sin")
    assert result["fault"]["sentence"] in " ".join(ran.out.split())
    assert (result["cause"], result["workarounds"]) == ([], [])
    assert result["probes"]["run"] <= 20


def test_the_reference_runs_here_whatever_the_places(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place may have the runtime that is wrong, or none of the reference's."""
    pytest.importorskip("openvino")
    asked: list[tuple[str, bool]] = []
    ask = WorkerPool.ask

    def seen(self: WorkerPool, request: Any, *args: Any, here: bool = False, **how: Any) -> Any:
        asked.append((request.target.runtime, here))
        return ask(self, request, *args, here=here, **how)

    monkeypatch.setattr(WorkerPool, "ask", seen)
    model = amplifying(Path("model.onnx"), 16.0)
    cli("diagnose", model, "--openvino", "--on", f"python={sys.executable}", "--json", "r.json")
    assert ("onnxrt", True) in asked
    assert ("openvino", False) in asked
    assert ("onnxrt", False) not in asked
