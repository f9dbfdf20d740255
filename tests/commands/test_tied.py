"""One stored weight, or one scale, that several operators share: a bad scale there is found, whoever reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bisect_trt
from bisect_trt.report.result import Result

WIDTH, WORDS, TOKENS = 16, 40, 6


def tied(*, stored: bool, twice: bool, by_channel: bool, again: bool, factor: float) -> tuple[onnx.ModelProto, ...]:
    """An embedding that is the head's weight too, its scale ``factor`` times what fits; quantized, and from before.

    Args:
        stored: Whether it is stored quantized.
        twice: Whether it is dequantized for each of the two.
        by_channel: Whether each word has a scale of its own.
        again: Whether it is quantized again where it is transposed, by the same scale, as ONNX Runtime's quantizer does.
        factor: How bad the scale is.
    """
    rng = np.random.default_rng(7)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    before: list[onnx.NodeProto] = []
    table = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    layer = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    scale = np.asarray((np.abs(table).max(axis=1) if by_channel else np.abs(table).max()) / 127, np.float32)

    def store(name: str, value: object, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(op: str, read: list[str], made: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, read, [made], name=made, **attributes))
        return made

    def both(op: str, read: list[str], plain: list[str], made: str, **attributes: Any) -> str:
        before.append(helper.make_node(op, plain, [made], name=made, **attributes))
        return add(op, read, made, **attributes)

    def pair(tensor: str, by: str, zero: str = "zero") -> str:
        return add(
            "DequantizeLinear", [add("QuantizeLinear", [tensor, by, zero], f"{tensor}_q"), by, zero], f"{tensor}_d"
        )

    store("zero", 0, np.int8)
    store("zeros", np.zeros_like(scale), np.int8)
    store("shared", scale * np.float32(factor))
    steps = np.clip(np.rint(table / (scale[:, None] if by_channel else scale)), -128, 127)
    read = []
    for place in range(2 if twice else 1):
        source = "table_q" if stored else add("QuantizeLinear", ["table", "shared", "zeros"], f"q{place}", axis=0)
        read.append(add("DequantizeLinear", [source, "shared", "zeros"], f"d{place}", axis=0))
    store("table_q", steps, np.int8) if stored else store("table", table)
    x = both("Gather", [read[0], "ids"], ["table", "ids"], "embed", axis=0)
    for number, size in enumerate((np.abs(table).max(), np.abs(table).max() * 1.3)):
        x = pair(x, store(f"s{number}", size / 127))
        x = both(
            "Mul", [x, store(f"m{number}", 1.3)], [nodes[-1].output[0].removesuffix("_d"), f"m{number}"], f"mul{number}"
        )
    x = pair(x, store("s2", np.abs(table).max() * 1.69 / 127))
    x = both(
        "MatMul", [x, pair(store("layer", layer), store("s3", np.abs(layer).max() / 127))], ["mul1", "layer"], "hidden"
    )
    x = pair(both("Tanh", [x], ["hidden"], "tanh"), store("s4", 1 / 127))
    head = both("Transpose", [read[-1]], ["table"], "head", perm=[1, 0])
    both("MatMul", [x, pair(head, "shared") if again else head], ["tanh", "head"], "logits")
    ends = (
        [helper.make_tensor_value_info("ids", TensorProto.INT64, (1, TOKENS))],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, TOKENS, WORDS))],
    )
    floats = [
        numpy_helper.from_array(table, "table"),
        *(each for each in weights if each.name in ("layer", "m0", "m1")),
    ]
    return tuple(
        helper.make_model(
            helper.make_graph(made, "g", *ends, kept), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
        )
        for made, kept in ((nodes, weights), (before, floats))
    )


def searched(folder: Path, *, reference: bool, factor: float, **how: bool) -> Result:
    quantized, before = tied(factor=factor, **how)
    onnx.save(quantized, folder / "quantized.onnx")
    onnx.save(before, folder / "float.onnx")
    rng = np.random.default_rng(1)
    given: dict[str, Any] = {"reference": folder / "float.onnx"} if reference else {}
    return bisect_trt.precision(
        folder / "quantized.onnx",
        low="int8",
        target="onnxrt",
        inputs=[{"ids": rng.integers(0, WORDS, (1, TOKENS))} for _ in range(3)],
        output=folder / "mixed.onnx",
        sensitivity=False,
        fresh_samples=0,
        **given,
    )


@pytest.mark.parametrize(
    ("stored", "twice", "by_channel", "again", "factor"),
    [
        (True, False, False, True, 0.05),
        (True, True, True, False, 20.0),
        (False, True, True, False, 20.0),
    ],
)
def test_a_bad_scale_of_a_tied_weight_is_the_answer(
    tmp_path: Path, stored: bool, twice: bool, by_channel: bool, again: bool, factor: float
) -> None:
    """One group with all its readers, and no other scale is blamed."""
    how = {"stored": stored, "twice": twice, "by_channel": by_channel, "again": again}
    result = searched(tmp_path, reference=True, factor=factor, **how)
    assert result.minimality == "1-minimal", result.why
    (kept,) = result.extra["minimal"]
    assert kept["bad_scales"] == ["shared"]
    assert {"embed", "logits"} <= set(kept["operators"])
