"""Writes model.onnx: a style-transfer network whose InstanceNorm variance overflows in fp16 (see README.md).

The shape of Johnson et al.'s fast style transfer (convolve, halve, residual blocks, double,
convolve), narrow so that it runs in a moment. InstanceNorm is spelled out, the variance as a sum
over the image divided by its pixel count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from _builder import GraphBuilder, parse_arguments

SIZE = 256
"""Height and width of the image in pixels: 65536 of them, more than fp16's largest number,
65504."""
WIDE = 16
NARROW = 8
"""Channels at half and at full size."""
RESIDUAL_BLOCKS = 2


def preprocess(g: GraphBuilder) -> str:
    """Image in [0, 1] to zero mean and unit variance, with ImageNet's statistics."""
    mean = g.weight("mean", np.reshape([0.485, 0.456, 0.406], (1, 3, 1, 1)))
    std = g.weight("std", np.reshape([0.229, 0.224, 0.225], (1, 3, 1, 1)))
    return g.op("Div", g.op("Sub", "image", mean), std)


def conv(
    g: GraphBuilder, x: str, scope: str, channels: tuple[int, int], kernel: int, stride: int = 1
) -> str:
    """Reflection padding and a convolution from channels[0] to channels[1], He-initialised."""
    module = scope.strip("/").replace("/", ".")
    border = kernel // 2
    pads = g.weight(f"{module}.pads", [0, 0, border, border, 0, 0, border, border], np.int64)
    padded = g.op("Pad", x, pads, scope=scope, mode="reflect")
    std = (2 / (channels[0] * kernel**2)) ** 0.5
    weight = g.normal(f"{module}.weight", (channels[1], channels[0], kernel, kernel), std=std)
    bias = g.normal(f"{module}.bias", (channels[1],), std=0.02)
    return g.op("Conv", padded, weight, bias, scope=scope, strides=[stride, stride])


def instance_norm(g: GraphBuilder, x: str, scope: str, channels: int, size: int) -> str:
    """Normalises each channel over its own size x size pixels.

    The ReduceSum is where fp16 breaks.
    """
    module = scope.strip("/").replace("/", ".")
    mean = g.op("ReduceMean", x, scope=scope, axes=[2, 3])
    centred = g.op("Sub", x, mean, scope=scope)
    square = g.op("Mul", centred, centred, scope=scope)
    total = g.op("ReduceSum", square, g.weight(f"{module}.axes", [2, 3], np.int64), scope=scope)
    variance = g.op("Div", total, g.weight(f"{module}.pixels", size**2), scope=scope)
    deviation = g.op(
        "Sqrt", g.op("Add", variance, g.weight(f"{module}.eps", 1e-5), scope=scope), scope=scope
    )
    normed = g.op("Div", centred, deviation, scope=scope)
    scale = g.normal(f"{module}.weight", (1, channels, 1, 1), std=0.02, mean=1.0)
    scaled = g.op("Mul", normed, scale, scope=scope)
    return g.op(
        "Add", scaled, g.normal(f"{module}.bias", (1, channels, 1, 1), std=0.02), scope=scope
    )


def residual(g: GraphBuilder, x: str, scope: str) -> str:
    """Two normalised convolutions at half size, added to their input."""
    y = instance_norm(
        g, conv(g, x, f"{scope}/conv1", (WIDE, WIDE), 3), f"{scope}/in1", WIDE, SIZE // 2
    )
    y = g.op("Relu", y, scope=scope)
    y = instance_norm(
        g, conv(g, y, f"{scope}/conv2", (WIDE, WIDE), 3), f"{scope}/in2", WIDE, SIZE // 2
    )
    return g.op("Add", x, y, scope=scope)


def build(seed: int) -> onnx.ModelProto:
    """The whole model: image [1, 3, 256, 256] with values in [0, 1] to styled, of the same shape."""
    g = GraphBuilder(seed)
    x = conv(g, preprocess(g), "/conv1", (3, NARROW), 9)
    x = g.op("Relu", instance_norm(g, x, "/in1", NARROW, SIZE))
    x = conv(g, x, "/conv2", (NARROW, WIDE), 3, stride=2)
    x = g.op("Relu", instance_norm(g, x, "/in2", WIDE, SIZE // 2))
    for index in range(RESIDUAL_BLOCKS):
        x = residual(g, x, f"/res{index + 1}")
    x = g.op("Resize", x, "", g.weight("double", [1, 1, 2, 2]), scope="/up", mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    x = conv(g, x, "/conv3", (WIDE, NARROW), 3)
    x = g.op("Relu", instance_norm(g, x, "/in3", NARROW, SIZE))
    conv(g, x, "/conv4", (NARROW, 3), 9)
    inputs = {"image": (int(TensorProto.FLOAT), (1, 3, SIZE, SIZE))}
    return g.model("instance_norm", inputs, "styled", (1, 3, SIZE, SIZE), opset=13)


def main() -> None:
    """Writes the model and says where."""
    folder, seed = parse_arguments(
        "Write model.onnx, a network whose InstanceNorm overflows in fp16.", __file__
    )
    model = build(seed)
    onnx.save(model, str(folder / "model.onnx"))
    print(f"{folder / 'model.onnx'}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
