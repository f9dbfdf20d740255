"""8 bits on a real GPU: the group with the bad scale is found, its rung on a ladder, the layers that calibration makes wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import save

LAYERS = 6
WIDTH = 64
BAD = "s3"


def quantized(path: Path, *, tail: bool = False) -> None:
    """Layers with Q/DQ as TensorRT wants them: symmetric int8, a scale for each channel of a weight; one scale is bad.

    A ``tail`` is two convolutions in floats, between which values are past fp16.
    """
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def store(name: str, value: object, dtype: type) -> None:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))

    def pair(tensor: str, scale: str, zero: str, **axis: int) -> str:
        for op, read, made in (
            ("Quantize", tensor, f"{tensor}_q"),
            ("Dequantize", f"{tensor}_q", f"{tensor}_d"),
        ):
            nodes.append(
                helper.make_node(
                    f"{op}Linear",
                    [read, scale, zero],
                    [made],
                    name=made,
                    **axis,  # type: ignore[arg-type]  # attributes
                )
            )
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
        # TensorRT 8.6 does not infer the kernel's shape from weights that come out of
        # DequantizeLinear.
        conv = helper.make_node(
            "Conv", read, [f"c{layer}"], f"conv{layer}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )
        nodes.append(conv)
        x = "y" if layer == LAYERS - 1 and not tail else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [x], name=f"relu{layer}"))
    for name, factor in (("up", 1e6), ("y", 1e-6)) if tail else ():
        store(f"{name}_w", np.eye(WIDTH)[:, :, None, None] * factor, np.float32)
        nodes.append(helper.make_node("Conv", [x, f"{name}_w"], [name], name=f"conv_{name}"))
        x = name
    shape = (1, WIDTH, 16, 16)
    save(path, nodes, weights, inputs={"x": shape}, outputs={"y": shape})


@pytest.mark.timeout(900)
def test_the_bad_scale_is_found_on_tensorrt(cli: CommandLine, here: Path) -> None:
    quantized(here / "model.onnx")
    np.savez(
        "x.npz", x=np.random.default_rng(1).standard_normal((1, WIDTH, 16, 16)).astype(np.float32)
    )
    line = "--trt --int8 -o mixed.onnx --json r.json --load-inputs x.npz --fresh-samples 20"
    ran = cli("precision", "model.onnx", *line.split()).ended(0)
    print(ran.out)
    result = ran.result
    assert [entry["name"] for entry in result["keep_fp32"]] == ["conv3"]
    assert result["keep_fp32"][0]["bad_scales"] == [BAD]
    assert result["minimality"] == "1-minimal"
    assert cli(
        "run", "mixed.onnx", "--trt", "--int8", "--load-inputs", "x.npz", "--validate"
    ).status in (0, 1)


@pytest.mark.timeout(1200)
def test_the_ladder_on_tensorrt(cli: CommandLine, here: Path) -> None:
    """What leaves 8 bits goes to fp16, what is past fp16 stays in fp32; each engine is timed, and the cheapest is the answer."""
    quantized(here / "model.onnx", tail=True)
    np.savez(
        "x.npz", x=np.random.default_rng(1).standard_normal((1, WIDTH, 16, 16)).astype(np.float32)
    )
    words = [
        "--trt",
        "--ladder",
        "int8,fp16,fp32",
        "-o",
        "mixed.onnx",
        "--json",
        "r.json",
        "--load-inputs",
        "x.npz",
    ]
    ran = cli("precision", "model.onnx", *words, "--fresh-samples", "20", "--no-sensitivity").ended(
        0
    )
    print(ran.out)
    result = ran.result
    assert result["minimality"] == "1-minimal", result["why"]
    rungs = {group["name"]: group["rung"] for group in result["groups"]}
    assert [name for name, rung in rungs.items() if rung != "int8"] == ["conv3"]
    assert result["validation"]["severe"] == 0
    assert any(use["passed"] for use in result["uses"])


def floats(path: Path) -> None:
    """Convolutions in floats: one channel of the fourth is a thousand times the others, and is taken back by the fifth."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    x = "x"
    for layer in range(LAYERS):
        weight = rng.standard_normal((WIDTH, WIDTH, 3, 3)) * (2 / (9 * WIDTH)) ** 0.5
        weight[0] *= 1000 if layer == 3 else 1
        weight[:, 0] *= 1e-3 if layer == 4 else 1
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{layer}"))
        nodes.append(
            helper.make_node(
                "Conv", [x, f"w{layer}"], [f"c{layer}"], name=f"conv{layer}", pads=[1, 1, 1, 1]
            )
        )
        x = "y" if layer == LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [x], name=f"relu{layer}"))
    save(path, nodes, weights, inputs={"x": (1, WIDTH, 16, 16)}, outputs={"y": (1, WIDTH, 16, 16)})


@pytest.mark.timeout(1200)
def test_calibration_is_searched_layer_by_layer(cli: CommandLine, here: Path) -> None:
    """TensorRT 8.6 to 10 choose INT8 themselves, by ranges that are found once; what stays in fp32 is a set of layers."""
    floats(here / "model.onnx")
    rng = np.random.default_rng(1)
    for number in range(4):
        np.savez(f"x{number}.npz", x=rng.standard_normal((1, WIDTH, 16, 16)).astype(np.float32))
    inputs = [f"x{number}.npz" for number in range(4)]
    words = ["--trt", "--int8", "--load-inputs", *inputs, "--metric", "cosine", "--min", "0.99"]
    ran = cli(
        "precision",
        "model.onnx",
        *words,
        "-o",
        "mixed.engine",
        "--json",
        "r.json",
        "--fresh-samples",
        "20",
    )
    print(ran.out)
    if ran.status == 2 and "has no QuantizeLinear" in ran.err:
        pytest.skip("this TensorRT does not calibrate: quantization is in the graph")
    result = ran.ended(0).result
    kept = {node["name"] for node in result["minimal"]}
    assert result["precision"] == "int8"
    assert result["minimality"] == "1-minimal", result["why"]
    assert kept
    assert kept <= {"conv3", "relu3", "conv4", "relu4"}
    assert Path("mixed.engine").is_file()
    assert any(use["passed"] for use in result["uses"])
    again = cli("precision", "model.onnx", *words, "-o", "mixed.onnx")
    assert (again.status, "name it mixed.engine" in again.err) == (2, True)
