"""Ladders of precisions: what cannot stay in 8 bits goes to fp16 where that passes, to fp32 else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import bisect_trt
from bisect_trt.errors import UsageError
from bisect_trt.report.result import Result

WIDTH = 32
BIG = 3e5
"""Past fp16's largest number."""


def layers(bad: dict[int, float], large: set[int], quantized: int = 5) -> onnx.ModelProto:
    """Five quantized layers: a bad scale where one is ``bad`` times what fits, results past fp16 in those that are ``large``."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def store(name: str, value: object, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(op: str, read: list[str], made: str, **attributes: int) -> str:
        nodes.append(helper.make_node(op, read, [made], name=made, **attributes))  # type: ignore[arg-type]  # attributes
        return made

    def pair(tensor: str, scale: str) -> str:
        step = add("QuantizeLinear", [tensor, scale, "z"], f"{scale}_q")
        return add("DequantizeLinear", [step, scale, "z"], f"{scale}_d")

    store("z", 0, np.int8)
    read = "x"
    for layer in range(quantized):
        weight = rng.standard_normal((WIDTH, WIDTH)) * 1.2 / WIDTH**0.5 * (BIG if layer in large else 1.0)
        if layer == 1:  # as some exporters keep weights
            value = numpy_helper.from_array(weight.astype(np.float32))
            nodes.append(helper.make_node("Constant", [], ["w1"], value=value))
        else:
            store(f"w{layer}", weight)
        store(f"a{layer}", (4.0 if layer == 0 else 1.0) / 127 * bad.get(layer, 1.0))
        store(f"b{layer}", np.abs(weight).max() / 127)
        read = add("MatMul", [pair(read, f"a{layer}"), pair(f"w{layer}", f"b{layer}")], f"matmul{layer}")
        if layer in large:
            read = add("Mul", [read, store(f"small{layer}", 1 / BIG)], f"down{layer}")
        read = add("Tanh", [read], f"tanh{layer}")
    add("Softmax", [read], "y", axis=-1)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, WIDTH)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def samples(count: int) -> list[dict[str, NDArray[Any]]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((4, WIDTH)).astype(np.float32)} for _ in range(count)]


def on_ladder(
    folder: Path,
    model: onnx.ModelProto,
    ladder: str = "int8,fp16,fp32",
    *,
    external: bool = False,
    **options: Any,
) -> Result:
    onnx.save(model, folder / "model.onnx", save_as_external_data=external, size_threshold=0)
    return bisect_trt.precision(
        folder / "model.onnx",
        target="onnxrt",
        ladder=ladder,
        inputs=samples(3),
        output=folder / "mixed.onnx",
        sensitivity=False,
        **{"fresh_samples": 10, **options},
    )


def test_each_group_is_on_the_cheapest_rung_that_passes(tmp_path: Path) -> None:
    """And what was written has the types that the result says, and is right."""
    spoiled = layers({1: 30.0, 3: 40.0}, {3})
    result = on_ladder(tmp_path, spoiled)
    assert result.minimality == "1-minimal", result.why
    ladder = result.extra["ladder"]
    rungs = {group["name"]: group["rung"] for group in result.extra["groups"]}
    assert rungs == {"matmul0": "int8", "matmul1": "fp16", "matmul2": "int8", "matmul3": "fp32", "matmul4": "int8"}
    assert {"matmul3", "down3"} == {node["name"] for node in result.extra["keep_fp32"]}
    on = {node["name"]: node["rung"] for node in ladder["nodes"]}
    assert ladder["counts"] == {rung: [*on.values()].count(rung) for rung in ("int8", "fp16", "fp32")}
    mixed = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "mixed.onnx"))
    types = {value.name: value.type.tensor_type.elem_type for value in (*mixed.graph.value_info, *mixed.graph.output)}
    for node in mixed.graph.node:
        if node.name in on:
            assert (types[node.output[0]] == TensorProto.FLOAT16) == (on[node.name] == "fp16"), node.name
    quantized = {node.name for node in mixed.graph.node if node.op_type == "QuantizeLinear"}
    assert quantized == {f"{kind}{layer}_q" for kind in "ab" for layer in (0, 2, 4)}
    assert result.extra["validation"]["passed"] == result.extra["validation"]["samples"] == 10
    errors = []
    for path in ("mixed.onnx", "model.onnx"):
        runs = [onnxruntime.InferenceSession(tmp_path / path).run(None, sample)[0] for sample in samples(2)]
        right = [floats(sample["x"]) for sample in samples(2)]
        errors.append(float(np.abs(np.subtract(runs, right)).mean()))
    assert errors[0] < errors[1] / 2


def floats(x: NDArray[Any]) -> NDArray[Any]:
    """What the layers compute where nothing is rounded."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = np.tanh(x @ (rng.standard_normal((WIDTH, WIDTH)) * 1.2 / WIDTH**0.5))
    large = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(large / large.sum(-1, keepdims=True))


def test_nothing_has_to_leave_8_bits(tmp_path: Path) -> None:
    """What never was quantized still goes down to fp16."""
    result = on_ladder(tmp_path, layers({}, set()), fresh_samples=0)
    ladder = result.extra["ladder"]
    assert {group["rung"] for group in result.extra["groups"]} == {"int8"}
    assert result.extra["keep_fp32"] == []
    assert ladder["counts"] == {"int8": 9, "fp16": 2, "fp32": 0}  # the last Tanh, and Softmax
    assert result.minimality == "1-minimal"


def test_nodes_alone(tmp_path: Path) -> None:
    """Without anything quantized it is the search of nodes."""
    result = on_ladder(tmp_path, floating(), "fp16,fp32", fresh_samples=0)
    on = {node["name"]: node["rung"] for node in result.extra["ladder"]["nodes"]}
    assert on == {"up": "fp32", "down": "fp32", "y": "fp16"}


def floating() -> onnx.ModelProto:
    """Two nodes past fp16, and one that is not."""
    stored = {"big": 1e5, "small": 1e-5}
    nodes = [("Mul", ["x", "big"], "up"), ("Mul", ["up", "small"], "down"), ("Tanh", ["down"], "y")]
    graph = helper.make_graph(
        [helper.make_node(op, read, [made], name=made) for op, read, made in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, WIDTH))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, WIDTH))],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ladder": "fp16,int8,fp32"}, "precisions from the cheapest to fp32, such as int8,fp16,fp32"),
        ({"ladder": "int8,fp16"}, "precisions from the cheapest to fp32, such as int8,fp16,fp32"),
        ({"ladder": "int8,fp16,fp32", "fp8": True}, "--fp8 is not among the precisions of --ladder int8,fp16,fp32"),
        ({"ladder": "fp8,fp16,fp32"}, "has nothing quantized for --fp8, but int8; give --int8."),
    ],
)
def test_ladders_that_cannot_be_climbed(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    onnx.save(layers({}, set(), 1), tmp_path / "model.onnx")
    with pytest.raises(UsageError) as raised:
        bisect_trt.precision(tmp_path / "model.onnx", target="onnxrt", output=tmp_path / "out.onnx", **options)
    assert message in str(raised.value)


@pytest.mark.parametrize("options", [{"low": "int8"}, {"low": "fp16"}])
def test_ranges_that_nobody_looks_for(tmp_path: Path, options: dict[str, Any]) -> None:
    """A calibration cache is TensorRT's, for models without Q/DQ."""
    onnx.save(layers({}, set(), 1), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="no ranges are found: TensorRT"):
        bisect_trt.precision(
            tmp_path / "model.onnx",
            target="onnxrt",
            output=tmp_path / "out.onnx",
            calibration_cache=tmp_path / "ranges",
            **options,
        )
