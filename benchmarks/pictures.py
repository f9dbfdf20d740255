"""Models of images with planted outliers, as ``benchmarks.sequences`` has them of sequences.

A ConvNeXt, a generator with instance norms, a super-resolution network, an MBConv with squeeze and
excitation, and a UNet with attention.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.outliers import Plant, Planted, group_norm, layer_norm
from benchmarks.sequences import (
    FLOAT,
    W,
    attention,
    convolve,
    drawn,
    ffn,
    gelu,
    kernel,
    made,
    planted,
    pointwise,
    swish,
)

from _builder import GraphBuilder  # isort: skip - an import before makes it known


def convnext(seed: int) -> Planted:
    """Depthwise convolutions, a norm over channels, and a wide part, scaled before it is added."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    x = convolve(g, "image", "/stem", kernel(g, W, 3, 3, 3), strides=[2, 2])
    for block in range(8):
        s = f"/stages.{block // 4}/blocks.{block % 4}"
        y = convolve(g, x, f"{s}/dw", kernel(g, W, 1, 7, 7), group=W)
        y = layer_norm(g, g.op("Transpose", y, scope=s, perm=[0, 2, 3, 1]), f"{s}/norm", W)
        y = ffn(g, y, f"{s}/mlp", plant, block, gelu)
        y = g.op(
            "Transpose",
            g.op("Mul", y, g.normal(f"{s[1:]}.gamma", (W,), 0.05, 1.0), scope=s),
            scope=s,
            perm=[0, 3, 1, 2],
        )
        x = g.op("Add", x, y, scope=s)
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x))
    drawn(g, layer_norm(g, pooled, "/norm", W), "/head", W, 20)
    return made("convnext", seed, g, {"image": (FLOAT, (1, 3, 16, 16))}, (1, 20))


def generator(seed: int) -> Planted:
    """Instance norms, written out, and convolutions between them, which a style scales; an image at the end."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    size = 8
    x = g.op("Reshape", drawn(g, "latent", "/fc", 32, W * 64), g.constant([1, W, 8, 8], np.int64))
    for block in range(6):
        s = f"/synthesis.{block}"
        if block in (2, 4):
            x = g.op(
                "Resize", x, "", g.constant([1, 1, 2, 2], np.float32, s), scope=s, mode="nearest"
            )
            size = size * 2
        first, second, bias = planted(g, plant, block, (W, W, W))
        y = g.op("Relu", convolve(g, x, f"{s}/conv1", kernel(g, W, W, 3, 3)), scope=s)
        y = g.op("Relu", convolve(g, y, f"{s}/conv2", pointwise(first, 2)), scope=s)
        x = g.op("Add", x, convolve(g, y, f"{s}/conv3", pointwise(second, 2), bias), scope=s)
        centred = g.op("Sub", x, g.op("ReduceMean", x, scope=s, axes=[2, 3]), scope=s)
        variance = g.op("ReduceMean", g.op("Mul", centred, centred, scope=s), scope=s, axes=[2, 3])
        root = g.op("Sqrt", g.op("Add", variance, g.constant(1e-5, scope=s), scope=s), scope=s)
        style = g.op(
            "Reshape",
            drawn(g, "latent", f"{s}/style", 32, W),
            g.constant([1, W, 1, 1], np.int64),
            scope=s,
        )
        x = g.op("Mul", g.op("Div", centred, root, scope=s), style, scope=s)
    g.op("Tanh", convolve(g, x, "/rgb", kernel(g, 3, W, 1, 1)))
    return made("generator", seed, g, {"latent": (FLOAT, (1, 32))}, (1, 3, size, size))


def upscaler(seed: int) -> Planted:
    """Residual blocks without norms, and one long residual, before pixels are shuffled."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    start = x = convolve(g, "image", "/head", kernel(g, W, 3, 3, 3))
    for block in range(8):
        s = f"/body/body.{block}"
        first, second, bias = planted(g, plant, block, (W, W, W))
        y = g.op("Relu", convolve(g, x, f"{s}/conv1", kernel(g, W, W, 3, 3)), scope=s)
        y = g.op("Relu", convolve(g, y, f"{s}/conv2", pointwise(first, 2)), scope=s)
        x = g.op("Add", x, convolve(g, y, f"{s}/conv3", pointwise(second, 2), bias), scope=s)
    x = g.op("Add", convolve(g, x, "/tail1", kernel(g, W, W, 3, 3)), start)
    g.op("DepthToSpace", convolve(g, x, "/tail2", kernel(g, 12, W, 3, 3)), blocksize=2)
    return made("upscaler", seed, g, {"image": (FLOAT, (1, 3, 16, 16))}, (1, 3, 32, 32))


def mbconv(seed: int) -> Planted:
    """A narrow stream, wide depthwise convolutions, and gates that look at the whole image."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    x = convolve(g, "image", "/stem", kernel(g, W, 3, 3, 3), strides=[2, 2])
    for block in range(8):
        s = f"/blocks.{block}"
        first, second, bias = planted(g, plant, block, (W, 2 * W, W))
        y = swish(g, convolve(g, x, f"{s}/expand", pointwise(first, 2)), s)
        y = swish(g, convolve(g, y, f"{s}/dw", kernel(g, 2 * W, 1, 3, 3), group=2 * W), s)
        gate = g.op("GlobalAveragePool", y, scope=f"{s}/se")
        gate = swish(g, convolve(g, gate, f"{s}/se/fc1", kernel(g, 12, 2 * W, 1, 1)), f"{s}/se")
        gate = g.op(
            "Sigmoid", convolve(g, gate, f"{s}/se/fc2", kernel(g, 2 * W, 12, 1, 1)), scope=f"{s}/se"
        )
        y = g.op("Mul", y, gate, scope=s)
        x = g.op("Add", x, convolve(g, y, f"{s}/project", pointwise(second, 2), bias), scope=s)
    drawn(g, g.op("Flatten", g.op("GlobalAveragePool", x)), "/fc", W, 20)
    return made("mbconv", seed, g, {"image": (FLOAT, (1, 3, 16, 16))}, (1, 20))


def diffusion(seed: int) -> Planted:
    """A UNet that is told the time, with attention in its middle and skips that are concatenated."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    size = 16
    time = swish(g, drawn(g, "time", "/time", 16, W), "/time")
    x = convolve(g, "latent", "/conv_in", kernel(g, W, 4, 3, 3))
    skips = []

    def residual(x: str, scope: str, block: int, size: int) -> str:
        first, second, bias = planted(g, plant, block, (W, W, W))
        y = convolve(
            g,
            swish(g, group_norm(g, x, f"{scope}/norm1", W, size), scope),
            f"{scope}/conv1",
            kernel(g, W, W, 3, 3),
        )
        told = g.op(
            "Reshape",
            drawn(g, time, f"{scope}/time", W, W),
            g.constant([1, W, 1, 1], np.int64, scope),
            scope=scope,
        )
        y = swish(
            g, group_norm(g, g.op("Add", y, told, scope=scope), f"{scope}/norm2", W, size), scope
        )
        y = convolve(g, y, f"{scope}/conv2", pointwise(first, 2))
        return g.op(
            "Add", x, convolve(g, y, f"{scope}/conv3", pointwise(second, 2), bias), scope=scope
        )

    for block in range(2):
        x = residual(x, f"/down_blocks.{block}/resnets.0", block, size)
        skips.append(x)
        x = convolve(g, x, f"/down_blocks.{block}/down", kernel(g, W, W, 3, 3), strides=[2, 2])
        size = size // 2
    x = residual(x, "/mid_block/resnets.0", 2, size)
    y = g.op(
        "Reshape",
        group_norm(g, x, "/mid_block/norm", W, size),
        g.constant([1, W, size**2], np.int64),
    )
    y = g.op(
        "Transpose",
        attention(g, g.op("Transpose", y, perm=[0, 2, 1]), "/mid_block/attn", size**2),
        perm=[0, 2, 1],
    )
    x = g.op("Add", x, g.op("Reshape", y, g.constant([1, W, size, size], np.int64)))
    x = residual(x, "/mid_block/resnets.1", 3, size)
    for block in range(2):
        s = f"/up_blocks.{block}"
        size = size * 2
        x = g.op("Resize", x, "", g.constant([1, 1, 2, 2], np.float32, s), scope=s, mode="nearest")
        x = g.op("Concat", x, skips.pop(), scope=s, axis=1)
        x = residual(
            convolve(g, x, f"{s}/merge", kernel(g, W, 2 * W, 1, 1)),
            f"{s}/resnets.0",
            4 + block,
            size,
        )
    convolve(
        g,
        swish(g, group_norm(g, x, "/norm_out", W, size), "/norm_out"),
        "/conv_out",
        kernel(g, 4, W, 3, 3),
    )
    return made(
        "diffusion",
        seed,
        g,
        {"latent": (FLOAT, (1, 4, 16, 16)), "time": (FLOAT, (1, 16))},
        (1, 4, 16, 16),
    )


PICTURES: dict[str, Callable[[int], Planted]] = {
    "convnext": convnext,
    "generator": generator,
    "upscaler": upscaler,
    "mbconv": mbconv,
    "diffusion": diffusion,
}
