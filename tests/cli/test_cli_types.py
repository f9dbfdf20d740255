"""Models of the types that real files have: the comparison agrees with a plain session, and no command is in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import evaluate, save_text, text_model
from conftest import CommandLine
from onnx import TensorProto, helper

from bisect_trt.onnxlib.roundings import computed_wide

DRAW = np.random.default_rng(0)
HALF = DRAW.standard_normal((4, 4)).astype(np.float16)
TYPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "float16": ("(float16[2, 4] x) => (float16[2, 4] y)", "h = MatMul(x, half) y = Tanh(h)", {"x": HALF[:2]}),
    "uint8": ("(uint8[n, 4] x) => (uint8[n, 4] y)", "f = Cast<to = 1>(x) y = Cast<to = 2>(f)", {"x": np.eye(4, dtype=np.uint8)}),
    "int8": ("(int8[4] x) => (float[4] y)", "y = DequantizeLinear(x, scale, zero)", {"x": np.array([-128, -1, 3, 127], np.int8)}),
    "int32": ("(int32[3] x) => (float16[3, 4] y)", "y = Gather(half, x)", {"x": np.array([0, 3, 2], np.int32)}),
    "bool": ("(bool[4] x) => (bool[4] y)", "y = Not(x)", {"x": np.array([True, False, True, True])}),
    "double": ("(double[4] x) => (double[4] y)", "e = Exp(x) y = Sqrt(e)", {"x": np.arange(4.0)}),
    "inner sequence": (
        "(float[4, 3] x) => (float[4, 3] y)",
        "relu = Relu(x) parts = SplitToSequence<axis = 0>(relu) y = ConcatFromSequence<axis = 0>(parts)",
        {"x": np.ones((4, 3), np.float32)},
    ),
    "ConvInteger": (
        "(float[1, 3, 6, 6] x) => (float[1, 4, 4, 4] y)",
        "q, s, z = DynamicQuantizeLinear(x) c = ConvInteger(q, kernel, z, zero) f = Cast<to = 1>(c) y = Mul(f, s)",
        {"x": DRAW.standard_normal((1, 3, 6, 6)).astype(np.float32)},
    ),
    "DynamicQuantizeLSTM": (
        "(float[n, 1, 6] x) => (float[n, 1, 1, 8] y)",
        "y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 8>(x, w, r, , , , , , one, none, one, none)",
        {"x": DRAW.standard_normal((5, 1, 6)).astype(np.float32)},
    ),
    "MatMulNBits": (
        "(float[n, 64] x) => (float[n, 16] y)",
        "y = com.microsoft.MatMulNBits<K = 64, N = 16, bits = 4, block_size = 32>(x, packed, scales)",
        {"x": DRAW.standard_normal((3, 64)).astype(np.float32)},
    ),
}  # fmt: skip
WHOLLY_FP32 = ("int8", "DynamicQuantizeLSTM", "MatMulNBits")
"""Models with nodes that compute in fp32, none of which ONNX has in fp16."""
WEIGHTS = {
    "half": HALF,
    "scale": np.float32(0.1),
    "zero": np.int8(3),
    "kernel": DRAW.integers(-3, 3, (4, 3, 3, 3)).astype(np.int8),
    "w": DRAW.integers(-127, 127, (1, 6, 32)).astype(np.int8),
    "r": DRAW.integers(-127, 127, (1, 8, 32)).astype(np.int8),
    "one": np.full(1, 0.01, np.float32),
    "none": np.zeros(1, np.int8),
    "packed": DRAW.integers(0, 255, (16, 2, 16)).astype(np.uint8),
    "scales": DRAW.random(32).astype(np.float32),
}


@pytest.mark.parametrize("precision", [(), ("--fp16",)], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", TYPES)
def test_types_of_inputs_and_outputs(
    cli: CommandLine, here: Path, name: str, precision: tuple[str, ...]
) -> None:
    ends, body, inputs = TYPES[name]
    model = save_text(here / "m.onnx", ends, body, WEIGHTS, domains=("com.microsoft",))
    np.savez("inputs.npz", **inputs)
    words = (model, "--onnxrt", *precision, "--load-inputs", "inputs.npz")
    if precision and name in WHOLLY_FP32:
        cli("run", *words).refused("BT1009", "1 node cannot be lowered to fp16")
        return
    assert "1 of 1 output" in cli("run", *words).ended(0).out
    assert "Every tensor matches" in cli("layerwise", *words).ended(1).out
    cli("diagnose", *words).ended(1)


BF16 = "(bfloat16[2, 4] x, bool c) => (bfloat16[2, 4] y)"
BRANCHES = """a = Mul(x, x)
    y = If(c) <then_branch = t () => (bfloat16[2, 4] p) { p = Add(a, x) },
        else_branch = e () => (bfloat16[2, 4] q) { q = Sub(a, x) }>"""
WIDE = "the reference computes in fp32, from the same weights and inputs"


@pytest.mark.parametrize(("command", "status"), [("run", 0), ("layerwise", 1), ("diagnose", 1)])
def test_the_reference_of_a_bf16_model_computes_in_fp32(
    cli: CommandLine, here: Path, command: str, status: int
) -> None:
    """ONNX Runtime has no kernels for bf16 on the CPU, and OpenVINO has."""
    pytest.importorskip("openvino")
    body = BRANCHES if command == "run" else "a = Mul(x, x) y = Add(a, x)"
    ran = cli(command, save_text(here / "m.onnx", BF16, body), "--openvino").ended(status)
    assert ran.err.count(WIDE) == 1


QUANTIZED = """b = Cast<to = 16>(x) s = Mul(b, b) f = Cast<to = 1>(s)
    q = QuantizeLinear(f, scale, zero) d = DequantizeLinear(q, scale, zero) p = MatMul(d, square) y = Exp(p)"""


@pytest.mark.parametrize(
    ("words", "status", "answer"),
    [
        (("sanitize", "-o", "out.onnx"), 0, "the same results as the original"),
        (("precision", "--openvino", "--int8", "--fresh-samples", "3", "-o", "out.onnx"), 0, "3 of 3 fresh samples"),
        (("diagnose", "--openvino", "--iterations", "17", "--atol", "1e-12", "--rtol", "1e-12"), 0, "of 17 samples fail"),
    ],
)  # fmt: skip
def test_every_question_to_the_reference_of_a_bf16_model_is_answered_in_fp32(
    cli: CommandLine, here: Path, words: tuple[str, ...], status: int, answer: str
) -> None:
    """Folded models, fresh samples, samples to choose from: what the reference is asked beside its first run."""
    pytest.importorskip("openvino")
    ends = "(float[2, 4] x) => (float[2, 4] y)"
    weights = {"scale": np.float32(0.1), "zero": np.int8(0), "square": np.eye(4, dtype=np.float32)}
    model = save_text(here / "m.onnx", ends, QUANTIZED, weights)
    ran = cli(words[0], model, *words[1:]).ended(status)
    assert ran.err.count(WIDE) == 1
    assert answer in " ".join((ran.out + ran.err).split())


def test_a_node_without_a_bf16_kernel_is_named(cli: CommandLine, here: Path) -> None:
    body = "b = Cast<to = 16>(x) s = Mul(b, b) f = Cast<to = 1>(s) y = Tanh(f)"
    model = save_text(here / "m.onnx", "(float[2, 4] x) => (float[2, 4] y)", body)
    ran = cli("diagnose", model, "--onnxrt", "-o", "out", "--json", "r.json").ended(0)
    assert [node["op"] for node in ran.result["culprits"]] == ["Mul"]
    assert WIDE in ran.err
    assert ran.result["fault"]["whose"] == "precision"
    # The reference is the same runtime, which lacks the kernel too: there is nothing to file.
    assert not (here / "out/ISSUE.md").exists()
    notes = (here / "out/NOTES.md").read_text()
    assert "has no bf16 kernel" in notes
    assert "and ONNX Runtime runs it" not in notes


def test_a_wide_model_rounds_where_the_model_casts() -> None:
    """Casts to bf16 are the model's own rounding; what nodes compute is not rounded."""
    body = "b = Cast<to = 16>(x) s = Mul(b, b) f = Cast<to = 1>(s) y = Identity(f)"
    model = text_model("(float[2, 4] x) => (float[2, 4] y, bfloat16[2, 4] b)", body)
    x = np.random.default_rng(0).normal(0, 3, (2, 4)).astype(np.float32)
    made = evaluate(computed_wide(model), {"x": x})
    low = x.astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    np.testing.assert_array_equal(made["b"], low)
    np.testing.assert_array_equal(made["y"], low.astype(np.float32) ** 2)
