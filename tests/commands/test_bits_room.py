"""What a scale needs room for: what the readers of a tensor see of it, and not a mask; and where no scale has room for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from support import rest_slow

import bisect_trt

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
    assert [group["suspected"] for group in found.extra["groups"]] == [False, True]
    assert "the model before quantization (--reference)" in str(found.why)
