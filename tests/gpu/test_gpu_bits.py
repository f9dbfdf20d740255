"""Quantized models on a real GPU: the group with the bad scale is found, by the engines that TensorRT builds of Q/DQ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import read_json

LAYERS, WIDTH = 6, 64
BAD = "s3"


def quantized(path: Path) -> None:
    """Layers with Q/DQ as TensorRT wants them: symmetric int8, a scale for each channel of a weight; one scale is bad."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def store(name: str, value: object, dtype: type) -> None:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))

    def pair(tensor: str, scale: str, zero: str, **axis: int) -> str:
        for op, read, made in (("Quantize", tensor, f"{tensor}_q"), ("Dequantize", f"{tensor}_q", f"{tensor}_d")):
            nodes.append(helper.make_node(f"{op}Linear", [read, scale, zero], [made], name=made, **axis))  # type: ignore[arg-type]  # attributes
        return f"{tensor}_d"

    store("z", 0, np.int8)
    store("zc", np.zeros(WIDTH), np.int8)
    x = "x"
    for layer in range(LAYERS):
        weight = rng.standard_normal((WIDTH, WIDTH, 3, 3)) * (2 / (9 * WIDTH)) ** 0.5
        store(f"w{layer}", weight, np.float32)
        store(f"ws{layer}", np.abs(weight).max((1, 2, 3)) / 127, np.float32)
        scale = (4.0 if layer == 0 else 6.0) / 127
        store(f"s{layer}", scale / 25 if f"s{layer}" == BAD else scale, np.float32)
        read = [pair(x, f"s{layer}", "z"), pair(f"w{layer}", f"ws{layer}", "zc", axis=0)]
        nodes.append(helper.make_node("Conv", read, [f"c{layer}"], name=f"conv{layer}", pads=[1, 1, 1, 1]))
        x = "y" if layer == LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [x], name=f"relu{layer}"))
    shape = (1, WIDTH, 16, 16)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.mark.timeout(900)
def test_the_bad_scale_is_found_on_tensorrt(cli: CommandLine, here: Path) -> None:
    quantized(here / "model.onnx")
    np.savez("x.npz", x=np.random.default_rng(1).standard_normal((1, WIDTH, 16, 16)).astype(np.float32))
    line = (
        "--trt",
        "--int8",
        "-o",
        "mixed.onnx",
        "--json",
        "r.json",
        "--load-inputs",
        "x.npz",
        "--fresh-samples",
        "20",
    )
    ran = cli("precision", "model.onnx", *line)
    assert ran.status == 0, ran.out + ran.err
    result = read_json(Path("r.json"))
    assert [entry["name"] for entry in result["keep_fp32"]] == ["conv3"]
    assert result["keep_fp32"][0]["bad_scales"] == [BAD]
    assert result["minimality"] == "1-minimal"
    assert cli("run", "mixed.onnx", "--trt", "--int8", "--load-inputs", "x.npz", "--validate").status in (0, 1)
