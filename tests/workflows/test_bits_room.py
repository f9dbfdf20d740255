"""What a scale needs room for: what the readers of a tensor see of it, and not a mask; and where no scale has room for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from support import rest_slow

import bisect_trt
from bisect_trt.workflows.bits.yardstick import largest_error

pytestmark = pytest.mark.usefixtures("here")
ROWS, WIDTH, LARGEST = 6, 16, 300.0


def pair(tensor: str) -> str:
    """A tensor quantized and dequantized, by a scale of its own."""
    return f"{tensor}q = QuantizeLinear({tensor}, {tensor}s, z) {tensor}d = DequantizeLinear({tensor}q, {tensor}s, z)"


def searched(
    path: Path, body: str, scales: dict[str, float], last: float = 1.0, **weights: np.ndarray
) -> bisect_trt.Result:
    """What is found in a model of x; scales are how far values of 127 steps reach, and the last sample ``last`` times as far."""
    outputs = f"float[{ROWS}, {WIDTH}] y"
    head = '<ir_version: 8, opset_import: ["" : 13]>'
    model = parser.parse_model(f"{head} g (float[{ROWS}, {WIDTH}] x) => ({outputs}) {{ {body} }}")
    given = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    given |= {f"{name}s": np.asarray(room / 127, np.float32) for name, room in scales.items()}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in given.items())
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.int8), "z"))
    onnx.save(model, path)
    rng = np.random.default_rng(1)
    samples = [{"x": (size * rng.standard_normal((ROWS, WIDTH))).astype(np.float32)} for size in (1.0, 1.0, last)]
    output = path.with_name("mixed.onnx")
    return bisect_trt.precision(
        path, low="int8", target="onnxrt", inputs=samples, output=output, fresh_samples=20, sensitivity=False
    )


RNG = np.random.default_rng(0)
FIRST, SECOND = (RNG.standard_normal((WIDTH, WIDTH)) / 4 for _ in range(2))
OUTLIER = np.where(np.arange(WIDTH) == 3, LARGEST, 1.0)


@pytest.mark.parametrize("mask", rest_slow([-1e4, -1e9]))
def test_a_mask_leaves_no_step_for_the_scores(tmp_path: Path, mask: float) -> None:
    """What a quantizer calibrates to the range of all is too coarse, although all fits; a scale without the mask will do."""
    body = f"{pair('x')} s = MatMul(xd, w) m = Add(s, mask) {pair('m')} p = Softmax<axis = -1>(md) {pair('p')} y = MatMul(pd, v)"
    hidden = np.triu(np.full((ROWS, ROWS), mask), 1)
    found = searched(
        tmp_path / "model.onnx", body, {"x": 4, "m": -mask, "p": 1}, w=FIRST[:, :ROWS] * 2, mask=hidden, v=SECOND[:ROWS]
    )
    (kept,) = found.extra["keep_fp32"]
    assert (kept["op"], kept["rule"], kept["bad_scales"]) == ("Softmax", "scale too large", ["ms"])
    assert found.extra["refit"]["passed"]


def test_no_scale_has_room_for_an_outlier_channel(tmp_path: Path) -> None:
    """So that such a model is as wrong with scales that fit says nothing for it, and no other scale is proposed."""
    body = f"{pair('x')} t = MatMul(xd, w) {pair('t')} y = MatMul(td, v)"
    found = searched(
        tmp_path / "model.onnx", body, {"x": 4, "t": 4 * LARGEST}, w=FIRST * OUTLIER, v=SECOND / OUTLIER[:, None]
    )
    (kept,) = found.extra["keep_fp32"]
    assert (kept["outputs"], kept["rule"]) == (["y"], "outlier channels")
    assert found.extra["refit"] is None


@pytest.mark.parametrize("reader", rest_slow(["Clip(td, low, high)", "Relu(td)"]))
def test_what_a_reader_cuts_off_needs_no_room(tmp_path: Path, reader: str) -> None:
    """ONNX Runtime's quantizer calibrates what is before a Relu to the range of what is behind it."""
    body = f"{pair('x')} t = MatMul(xd, w) {pair('t')} c = {reader} {pair('c')} y = MatMul(cd, v)"
    top = 6.0 if "Clip" in reader else 24.0
    found = searched(
        tmp_path / "model.onnx", body, {"x": 160, "t": top, "c": top},
        w=np.where(np.arange(WIDTH) < WIDTH // 2, 6, -6) * np.abs(FIRST), v=SECOND, low=np.zeros(()), high=np.full((), 6.0),
    )  # fmt: skip
    assert [entry["bad_scales"] for entry in found.extra["keep_fp32"]] == [["xs"]]
    assert not [
        each for group in found.extra["groups"] for each in group["tensors"] if each["bad"] and each["scale"] != "xs"
    ]


def test_a_scale_that_does_no_harm_is_named_all_the_same(tmp_path: Path) -> None:
    """Nothing has to go back to floats; whoever looks for a bad scale wants to know of it."""
    body = f"{pair('x')} t = MatMul(xd, w) {pair('t')} u = Mul(td, tiny) y = Add(xd, u)"
    found = searched(tmp_path / "model.onnx", body, {"x": 4, "t": 160}, w=FIRST, tiny=np.full((), 1e-4))
    assert found.status == "not_reproduced"
    assert "Scales that do not fit, but cost less than is allowed, are named above." in str(found.why)
    assert [entry["bad_scales"] for entry in found.extra["suspects_lowered"]] == [["ts"]]
    assert [group["suspected"] for group in found.extra["groups"]] == [False, True]
    advice = "; try other samples of the deployment's inputs, the model from before quantization (--reference), or a"
    assert advice in str(found.why)


def test_what_one_sample_alone_needs_room_for_is_no_measure(tmp_path: Path) -> None:
    """A scale that has that room is right, so what the model would be off by without it is not what is allowed."""
    body = f"{pair('x')} t = MatMul(xd, w) {pair('t')} y = MatMul(td, v)"
    found = searched(tmp_path / "model.onnx", body, {"x": 80, "t": 1600}, w=FIRST, v=SECOND, last=20.0)
    assert [entry["bad_scales"] for entry in found.extra["keep_fp32"]] == [["ts"]]
    assert found.extra["refit"]["passed"]


def test_one_of_other_samples_is_no_measure() -> None:
    """What is fitted to few values clips it grossly; of a sample that was fitted to, all counts."""
    usual, gross = [{"y": 1.0}] * 3, {"y": 50.0}
    assert largest_error("y", usual, [*usual, gross]) == 2
    assert largest_error("y", [*usual, gross], usual) == 50


@pytest.mark.parametrize("times", rest_slow([1.7, 1 / 1.7]))
def test_a_stored_weight_that_is_another_one(tmp_path: Path, times: float) -> None:
    """A scale that would do well enough is wrong all the same where the integers were made by another one."""
    body, size = "t = MatMul(x, w0) r = Tanh(t) y = MatMul(r, w1)", np.abs(SECOND).max() / 127
    text = f'<ir_version: 8, opset_import: ["" : 13]> g (float[{ROWS}, {WIDTH}] x) => (float[{ROWS}, {WIDTH}] y) {{ {body} }}'
    original = parser.parse_model(text)
    for name, value in (("w0", FIRST), ("w1", SECOND)):
        original.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    model = parser.parse_model(text.replace("y = ", "w1 = DequantizeLinear(q, s, z) y = "))
    stored: dict[str, np.ndarray] = {
        "w0": FIRST.astype(np.float32),
        "s": np.asarray(size * times, np.float32),
        "z": np.zeros((), np.int8),
    }
    stored["q"] = np.rint(SECOND / size).astype(np.int8)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    for name, each in (("float", original), ("model", model)):
        onnx.save(each, tmp_path / f"{name}.onnx")
    result = bisect_trt.precision(
        tmp_path / "model.onnx",
        low="int8",
        target="onnxrt",
        inputs=[{"x": np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)}],
        reference=tmp_path / "float.onnx",
        output=tmp_path / "mixed.onnx",
        sensitivity=False,
        fresh_samples=0,
    )
    (kept,) = result.extra["keep_fp32"]
    assert (kept["rule"], kept["bad_scales"]) == ("weight scale", ["s"])
    assert f"the weight is {times:.2f}"[:-1] in kept["reason"]
