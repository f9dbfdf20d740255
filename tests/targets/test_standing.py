"""ONNX's evaluator against NumPy in float64: where it computes other values it has no vote in arbitration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import text_model

from bisect_trt.onnxlib.roundings import widened
from bisect_trt.steps.standing import objection
from bisect_trt.targets.evaluator import EvaluatorSession

RNG = np.random.default_rng(0)
X = RNG.normal(0, 2, (2, 3, 4))
IMAGE = RNG.normal(0, 1, (1, 4, 6, 6))
ROWS = RNG.normal(0, 1, (5, 2, 3))
W = {
    name: RNG.normal(0, 1, shape)
    for name, shape in (("w", (1, 6, 3)), ("r", (1, 6, 2)), ("b", (1, 12)))
}
GRU = {"w": W["w"], "r": W["r"], "b": W["b"]}
CHANNELS = {name: np.abs(RNG.normal(1, 0.3, 4)) for name in "sbmv"}
PADS = "pads = [1, 1, 1, 1], ceil_mode = 1"
EVERY = (9, 11, 13, 17, 20)


def flat(compute: Callable[[Any], Any], x: Any, axis: int) -> Any:
    """Before opset 13 a softmax counts all dimensions from its axis on as one."""
    return compute(x.reshape(*x.shape[:axis], -1)).reshape(x.shape)


def softmax(x: Any, axis: int = -1) -> Any:
    return np.exp(x - x.max(axis, keepdims=True)) / np.exp(x - x.max(axis, keepdims=True)).sum(
        axis, keepdims=True
    )


def log_softmax(x: Any, axis: int = -1) -> Any:
    less = x - x.max(axis, keepdims=True)
    return less - np.log(np.exp(less).sum(axis, keepdims=True))


def hardmax(x: Any, axis: int = -1) -> Any:
    last = np.moveaxis(x, axis, -1)
    return np.moveaxis(np.eye(last.shape[-1])[last.argmax(-1)], -1, axis)


def lrn(x: Any, size: int) -> Any:
    low = (size - 1) // 2
    high = -(-(size - 1) // 2)
    sums = [np.square(x[:, max(0, c - low) : c + high + 1]).sum(1) for c in range(x.shape[1])]
    return x / (1.5 + 0.5 / size * np.stack(sums, 1)) ** 0.6


def windows(x: Any, pads: tuple[int, int], value: float) -> Any:
    """Windows of 3 by 3, two apart, of a padded image."""
    padded = np.pad(x, ((0, 0), (0, 0), pads, pads), constant_values=value)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]


def averages(x: Any, *, counts_padding: bool) -> Any:
    """Windows that begin in the image or its padding; ceil_mode lets the last reach past the padding, which never counts."""
    sums = windows(x, (1, 2), 0.0).sum((4, 5))
    inside = np.pad(np.ones((6, 6)), 1, constant_values=float(counts_padding))
    counts = windows(np.pad(inside, ((0, 1), (0, 1)))[None, None], (0, 0), 0.0).sum((4, 5))
    return (sums / counts)[:, :, :4, :4]


def gru(x: Any, lengths: Any = (5, 5), limit: float = np.inf) -> Any:
    w, r, (wb, rb) = GRU["w"][0], GRU["r"][0], GRU["b"][0].reshape(2, 6)
    hidden = np.zeros((2, 2))
    made = []
    for step in range(5):
        gates = [
            np.clip(x[step] @ w[i : i + 2].T + wb[i : i + 2], -np.inf, np.inf) for i in (0, 2, 4)
        ]
        z, reset = (
            1
            / (
                1
                + np.exp(
                    -np.clip(
                        gates[i] + hidden @ r[2 * i : 2 * i + 2].T + rb[2 * i : 2 * i + 2],
                        -limit,
                        limit,
                    )
                )
            )
            for i in (0, 1)
        )
        new = np.tanh(np.clip(gates[2] + (reset * hidden) @ r[4:6].T + rb[4:6], -limit, limit))
        running = (np.array(lengths) > step)[:, None]
        now = (1 - z) * new + z * hidden
        hidden = np.where(running, now, hidden)
        made.append(np.where(running, now, 0))
    return np.stack(made)[:, None]


def normalized(x: Any) -> Any:
    s, b, m, v = (CHANNELS[name][:, None, None] for name in "sbmv")
    return s * (x - m) / np.sqrt(v + 1e-5) + b


def aligned(x: Any) -> Any:
    """Five elements resized to floor(5 * 1.5) along the last axis, ends on ends."""
    places = np.arange(7) * 4 / 6
    return np.stack([np.interp(places, np.arange(5), row) for row in x.reshape(-1, 5)]).reshape(
        *x.shape[:-1], 7
    )


Row = tuple[str, Any, dict[str, Any], Callable[[Any], Any], tuple[int, ...]]
OLD = (9, 11)
NEW = (13, 17, 20)
TABLE: list[Row] = [
    *(
        (f"y = {op}<axis = {axis}>(x)", X, {}, (lambda x, f=f, a=axis: flat(f, x, a)), OLD)
        for op, f in (("Softmax", softmax), ("LogSoftmax", log_softmax), ("Hardmax", hardmax))
        for axis in (0, 1, 2)
    ),
    *(
        (f"y = {op}<axis = {axis}>(x)", X, {}, (lambda x, f=f, a=axis: f(x, a)), NEW)
        for op, f in (("Softmax", softmax), ("LogSoftmax", log_softmax), ("Hardmax", hardmax))
        for axis in (0, 1, -1)
    ),
    ("y = Softmax(x)", X, {}, lambda x: flat(softmax, x, 1), OLD),
    ("y = Softmax(x)", X, {}, softmax, NEW),
    ("y = LogSoftmax(x)", 1e4 * X, {}, log_softmax, NEW),
    *((f"y = LRN<size = {n}, alpha = 0.5, beta = 0.6, bias = 1.5>(x)", IMAGE, {}, (lambda x, n=n: lrn(x, n)), EVERY)
      for n in (1, 3, 4, 5)),
    *((f"y = LpNormalization<axis = {a}, p = {p}>(x)", X, {},
       (lambda x, a=a, p=p: x / np.linalg.norm(x, p, a, keepdims=True)), EVERY) for a in (0, 1, -1) for p in (1, 2)),
    ("y = BatchNormalization(x, s, b, m, v)", IMAGE, CHANNELS, normalized, EVERY),
    ("y = InstanceNormalization(x, s, b)", IMAGE, CHANNELS, lambda x: CHANNELS["s"][:, None, None] * (
        x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
        + CHANNELS["b"][:, None, None], EVERY),
    ("y = LayerNormalization<axis = 1>(x, k)", X, {"k": np.ones((3, 4))}, lambda x: (x - x.mean((1, 2), keepdims=True))
        / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5), (17, 20)),
    ("y = GRU<hidden_size = 2>(x, w, r, b)", ROWS, GRU, gru, EVERY),
    ("y = GRU<hidden_size = 2>(x, w, r, b, n)", ROWS, {**GRU, "n": np.array([2, 5], np.int32)},
        lambda x: gru(x, (2, 5)), EVERY),
    ("y = GRU<hidden_size = 2, clip = 0.2>(x, w, r, b)", ROWS, GRU, lambda x: gru(x, limit=0.2), EVERY),
    ("y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = \"SAME_LOWER\">(x)", IMAGE, {},
        lambda x: windows(x, (1, 0), -np.inf).max((4, 5)), EVERY),
    ("y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = \"SAME_UPPER\">(x)", IMAGE, {},
        lambda x: windows(x, (0, 1), -np.inf).max((4, 5)), EVERY),
    *((f"y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], {PADS}, count_include_pad = {c}>(x)", IMAGE, {},
        (lambda x, c=c: averages(x, counts_padding=bool(c))), (11, 19, 22))
      for c in (0, 1)),
    ("y = AveragePool<kernel_shape = [3, 3], strides = [3, 3], pads = [1, 0, 0, 0], ceil_mode = 1>(x)", IMAGE, {},
        lambda x: np.stack([x[:, :, rows].reshape(1, 4, -1, 2, 3).mean((2, 4))
                            for rows in (slice(0, 2), slice(2, 5), slice(5, 6))], 2), (11, 19, 22)),
    ("y = ReduceL2<keepdims = 0>(x)", X, {}, lambda x: np.sqrt(np.square(x).sum()), EVERY),
    ("y = ReduceLogSumExp<keepdims = 0>(x)", X, {}, lambda x: np.log(np.exp(x).sum()), EVERY),
    ("y = CumSum<exclusive = 1, reverse = 1>(x, a)", X, {"a": np.array(1)},
        lambda x: np.flip(np.cumsum(np.flip(x, 1), 1), 1) - x, (11, 14)),
    ("y = Resize<mode = \"linear\", coordinate_transformation_mode = \"align_corners\">(x, none, k)",
        RNG.normal(0, 1, (1, 2, 5)), {"none": np.zeros(0), "k": np.array([1, 1, 1.5])}, aligned, (11, 13, 18)),
    ("y = Resize<mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\">(x, none, k)",
        RNG.normal(0, 1, (1, 2, 5)), {"none": np.zeros(0), "k": np.array([1, 1, 2.0])}, lambda x: np.repeat(x, 2, 2),
        (11, 13, 18)),
    ("y = Gelu(x)", X, {}, lambda x: x / 2 * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2))), (20,)),
    ("y = HardSwish(x)", X, {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), (14, 20)),
    ("y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(x, k, c)", X[0], {"k": X[1], "c": X[0, :, 0]},
        lambda x: 0.5 * x @ X[1].T + 2 * X[0, :, 0], EVERY),
    ("y = Attention<is_causal = 1>(x, k, v)", X[None], {"k": 2 * X[None], "v": X[None] + 1},
        lambda x: softmax(x @ np.swapaxes(2 * x, -1, -2) / 2 + np.where(np.tri(3) > 0, 0, -np.inf)) @ (x + 1), (23,)),
]  # fmt: skip
CASES = [
    (body, x, weights, exact, opset)
    for body, x, weights, exact, opsets in TABLE
    for opset in opsets
]


def of_each(cases: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test on rows of the table, each in one opset."""
    names = [f"{case[4]}-{case[0][4:40]}" for case in cases]
    return pytest.mark.parametrize(("body", "x", "weights", "exact", "opset"), cases, ids=names)


@of_each(CASES)
def test_the_evaluator_is_right_or_has_no_vote(
    body: str, x: Any, weights: dict[str, Any], exact: Callable[[Any], Any], opset: int
) -> None:
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("onnx does not have this opset")
    x = x.astype(np.float32)
    model = text_model(f"(float{list(x.shape)} x) => (float y)", body, weights, opset=opset)
    model.graph.output[0].ClearField("type")
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    if objection(model):
        return
    wide = EvaluatorSession(widened(model, Path())).run({"x": x.astype(np.float64)})["y"]
    np.testing.assert_allclose(wide, exact(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


@of_each([case for case in CASES if "Norm" in case[0] or "ReduceL" in case[0]])
def test_inner_values_past_the_range_of_fp16_cost_nothing(
    body: str, x: Any, weights: dict[str, Any], exact: Callable[[Any], Any], opset: int
) -> None:
    x = (60 * x).astype(np.float16)
    halves = {
        name: value.astype(np.float16) if value.dtype.kind == "f" else value
        for name, value in weights.items()
    }
    model = text_model(f"(float16{list(x.shape)} x) => (float16 y)", body, halves, opset=opset)
    if objection(model):
        return
    computed = EvaluatorSession(model).run({"x": x})["y"]
    with np.errstate(over="ignore"):
        expected = exact(x.astype(np.float64))
    np.testing.assert_allclose(computed, expected, rtol=1e-2, atol=1e-2)


VOTES = [
    ("y = GRU<hidden_size = 2>(x, w, r, b)", 13, True),
    ("y = GRU<hidden_size = 2>(x, w, r, b, n)", 13, False),
    ("y = GRU<hidden_size = 2, clip = 0.2>(x, w, r, b)", 13, False),
    ("y = LSTM<hidden_size = 2, input_forget = 1>(x, w, r, b)", 13, False),
    ("y = LRN<size = 3>(x)", 13, False),
    ("y = Softmax(x)", 11, True),
    ("y = RoiAlign(x, w, r)", 11, False),
    ("y = RoiAlign(x, w, r)", 16, True),
    ("y = AveragePool<kernel_shape = [3], count_include_pad = 1>(x)", 19, True),
    ("y = AveragePool<kernel_shape = [3], strides = [3], ceil_mode = 1>(x)", 19, False),
    (f"y = Cast<to = {onnx.TensorProto.INT4}>(x)", 21, False),
    (f"y = Cast<to = {onnx.TensorProto.INT8}>(x)", 21, True),
]


@pytest.mark.parametrize(("body", "opset", "votes"), VOTES)
def test_a_vote_is_taken_away_where_it_has_to_be(body: str, opset: int, votes: bool) -> None:
    assert bool(objection(text_model("(float[1] x) => (float[1] y)", body, opset=opset))) != votes
