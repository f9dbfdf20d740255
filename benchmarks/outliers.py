"""Models whose fp16 overflows in several blocks, by seed: outliers in activations and in weights, magnitudes 300 to 3000.

Five kinds: a ViT, a BERT-like encoder, a ResNet of bottlenecks, a decoder with RMSNorm, and a UNet
with GroupNorm. Weights are random; norms are spelled out as exporters did before the operators were
there. An outlier is planted in one of four ways, in two to four blocks each: a large entry in the
bias that a block writes to the residual stream, a row of weights that makes such a channel depend
on the input, a channel scaled up by one layer and down by the next, or rows of an embedding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from _builder import GraphBuilder

Arrays = dict[str, npt.NDArray[Any]]
Weights = npt.NDArray[np.float32]
Draw = Callable[[np.random.Generator], Arrays]
WIDTH = 96
TOKENS = 24
VOCABULARY = 1000
HEADS = 4
IMAGE = 32


@dataclass(frozen=True)
class Planted:
    """A model, and the law of its inputs.

    Attributes:
        name: Its kind and seed.
        model: The model.
        draw: Draws a sample.
    """

    name: str
    model: onnx.ModelProto
    draw: Draw


class Plant:
    """Where outliers are, and how large."""

    def __init__(self, seed: int, blocks: int) -> None:
        """``seed`` chooses among ``blocks``."""
        self.rng = np.random.default_rng([seed, 77])
        count = int(self.rng.integers(2, 5))
        self.blocks = {int(b): str(self.rng.choice(("bias", "row", "pair"))) for b in
                       self.rng.choice(blocks, size=min(count, blocks), replace=False)}  # fmt: skip

    def magnitude(self) -> float:
        """From 300 to 3000, as likely small as large, of either sign."""
        return float(
            10 ** self.rng.uniform(np.log10(300), np.log10(3000)) * self.rng.choice((-1, 1))
        )


def layer_norm(g: GraphBuilder, x: str, scope: str, width: int = WIDTH) -> str:
    """Over the last axis."""
    mean = g.op("ReduceMean", x, scope=scope, axes=[-1])
    centred = g.op("Sub", x, mean, scope=scope)
    square = g.op("Pow", centred, g.constant(2.0, scope=scope), scope=scope)
    variance = g.op("ReduceMean", square, scope=scope, axes=[-1])
    deviation = g.op(
        "Sqrt", g.op("Add", variance, g.constant(1e-5, scope=scope), scope=scope), scope=scope
    )
    name = scope.strip("/")
    scaled = g.op(
        "Mul",
        g.op("Div", centred, deviation, scope=scope),
        g.normal(f"{name}.w", (width,), 0.05, 1.0),
        scope=scope,
    )
    return g.op("Add", scaled, g.normal(f"{name}.b", (width,), 0.05), scope=scope)


def rms_norm(g: GraphBuilder, x: str, scope: str) -> str:
    """Over the last axis."""
    square = g.op("Pow", x, g.constant(2.0, scope=scope), scope=scope)
    mean = g.op("ReduceMean", square, scope=scope, axes=[-1])
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5, scope=scope), scope=scope), scope=scope)
    normed = g.op(
        "Mul", x, g.op("Div", g.constant(1.0, scope=scope), root, scope=scope), scope=scope
    )
    return g.op("Mul", normed, g.normal(f"{scope.strip('/')}.w", (WIDTH,), 0.05, 1.0), scope=scope)


def linear(
    g: GraphBuilder,
    x: str,
    scope: str,
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
) -> str:
    """A fully connected layer."""
    name = scope.strip("/")
    product = g.op("MatMul", x, g.weight(f"{name}.w", weight), scope=scope)
    return g.op("Add", product, g.weight(f"{name}.b", bias.astype(np.float16)), scope=scope)


def dense(g: GraphBuilder, x: str, scope: str, shape: tuple[int, int], gain: float = 1.0) -> str:
    """One with drawn weights."""
    return linear(g, x, scope, g.draw(shape, gain / shape[0] ** 0.5), g.draw((shape[1],), 0.05))


def attention(g: GraphBuilder, x: str, scope: str, mask: str | None, tokens: int) -> str:
    """Of several heads; ``mask`` is added to the scores."""
    each = WIDTH // HEADS
    parts = []
    for part in "qkv":
        made = dense(g, x, f"{scope}/{part}_proj", (WIDTH, WIDTH))
        made = g.op(
            "Reshape", made, g.constant([1, tokens, HEADS, each], np.int64, scope), scope=scope
        )
        parts.append(
            g.op("Transpose", made, scope=scope, perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3])
        )
    scores = g.op(
        "MatMul",
        g.op("Mul", parts[0], g.constant(each**-0.5, scope=scope), scope=scope),
        parts[1],
        scope=scope,
    )
    if mask is not None:
        scores = g.op("Add", scores, mask, scope=scope)
    mixed = g.op("MatMul", g.op("Softmax", scores, scope=scope, axis=-1), parts[2], scope=scope)
    mixed = g.op("Transpose", mixed, scope=scope, perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.constant([1, tokens, WIDTH], np.int64, scope), scope=scope)
    return dense(g, mixed, f"{scope}/out_proj", (WIDTH, WIDTH), 0.3)


def plant_outlier(
    how: str | None, channel: int, size: float, first: Weights, second: Weights, bias: Weights
) -> None:
    """Plant an outlier into the matrices and the last bias of a part of a block, in place."""
    if how == "bias":
        bias[channel] = size
    elif how == "row":
        second[:, channel] *= abs(size) / 0.3
    elif how == "pair":
        first[:, channel] *= abs(size) ** 0.5
        second[channel] *= 2.0


def mlp(g: GraphBuilder, x: str, scope: str, plant: Plant, block: int) -> str:
    """The part of a block that writes outliers."""
    hidden = 2 * WIDTH
    first = g.draw((WIDTH, hidden), WIDTH**-0.5)
    second = g.draw((hidden, WIDTH), 0.3 * hidden**-0.5)
    bias = g.draw((WIDTH,), 0.05)
    how = plant.blocks.get(block)
    channel = int(plant.rng.integers(WIDTH))
    size = plant.magnitude()
    plant_outlier(how, channel, size, first, second, bias)
    made = linear(g, x, f"{scope}/fc1", first, g.draw((hidden,), 0.05))
    return linear(g, g.op("Relu", made, scope=scope), f"{scope}/fc2", second, bias)


def vit(seed: int) -> Planted:
    """Images within [0, 1]."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    patch = 8
    tokens = (IMAGE // patch) ** 2
    kernel = g.normal("patch.w", (WIDTH, 3, patch, patch), (3 * patch * patch) ** -0.5)
    x = g.op(
        "Conv",
        "pixels",
        kernel,
        g.normal("patch.b", (WIDTH,), 0.05),
        scope="/patch",
        strides=[patch, patch],
    )
    x = g.op("Reshape", x, g.constant([1, WIDTH, tokens], np.int64, "/patch"), scope="/patch")
    x = g.op("Transpose", x, scope="/patch", perm=[0, 2, 1])
    x = g.op("Add", x, g.normal("positions", (1, tokens, WIDTH), 0.3))
    for block in range(8):
        scope = f"/blocks.{block}"
        x = g.op(
            "Add",
            x,
            attention(g, layer_norm(g, x, f"{scope}/norm1"), f"{scope}/attn", None, tokens),
            scope=scope,
        )
        x = g.op(
            "Add",
            x,
            mlp(g, layer_norm(g, x, f"{scope}/norm2"), f"{scope}/mlp", plant, block),
            scope=scope,
        )
    pooled = g.op("ReduceMean", layer_norm(g, x, "/norm"), axes=[1], keepdims=0)
    dense(g, pooled, "/head", (WIDTH, 50))
    model = g.model(
        "vit", {"pixels": (int(TensorProto.FLOAT), (1, 3, IMAGE, IMAGE))}, "logits", (1, 50), 13
    )
    return Planted(
        f"vit-{seed}", model, lambda rng: {"pixels": rng.random((1, 3, IMAGE, IMAGE), np.float32)}
    )


def bert(seed: int) -> Planted:
    """Token ids and a mask of padding; norms come after each part, and some tokens have large embeddings."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    table = g.draw((VOCABULARY, WIDTH), 1.0)
    rows = plant.rng.choice(VOCABULARY, VOCABULARY // 50, replace=False)
    table[rows, int(plant.rng.integers(WIDTH))] = plant.magnitude()
    x = g.op(
        "Gather", g.weight("words", table.astype(np.float16)), "input_ids", scope="/embeddings"
    )
    x = g.op("Add", x, g.normal("positions", (1, TOKENS, WIDTH), 0.3), scope="/embeddings")
    x = layer_norm(g, x, "/embeddings/norm")
    mask = g.op("Cast", "attention_mask", to=int(TensorProto.FLOAT))
    mask = g.op("Unsqueeze", mask, g.constant([1, 2], np.int64))
    mask = g.op("Mul", g.op("Sub", g.constant(1.0), mask), g.constant(-10000.0))
    for block in range(6):
        scope = f"/encoder/layer.{block}"
        x = g.op(
            "Add",
            x,
            attention(g, x, f"{scope}/attention", mask, TOKENS),
            scope=f"{scope}/attention",
        )
        x = layer_norm(g, x, f"{scope}/attention/norm")
        x = layer_norm(
            g,
            g.op("Add", x, mlp(g, x, f"{scope}/mlp", plant, block), scope=scope),
            f"{scope}/output/norm",
        )
    dense(g, x, "/head", (WIDTH, 20))
    kinds = {
        name: (int(TensorProto.INT64), (1, TOKENS)) for name in ("input_ids", "attention_mask")
    }
    model = g.model("bert", kinds, "logits", (1, TOKENS, 20), 13)

    def draw(rng: np.random.Generator) -> Arrays:
        length = int(rng.integers(TOKENS // 2, TOKENS + 1))
        mask = (np.arange(TOKENS) < length).astype(np.int64)[None]
        return {"input_ids": rng.integers(0, VOCABULARY, (1, TOKENS)), "attention_mask": mask}

    return Planted(f"bert-{seed}", model, draw)


def decoder(seed: int, times: int = 1) -> Planted:
    """Token ids; RMSNorm, a causal mask of -1e4, twelve layers."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 12)
    tokens = TOKENS * times
    x = g.op(
        "Gather", g.normal("words", (VOCABULARY, WIDTH), 1.0), "input_ids", scope="/model/embed"
    )
    causal = np.where(np.tri(tokens, dtype=bool), 0, -10000).astype(np.float32)[None, None]
    mask = g.weight("causal", causal)
    for block in range(12):
        scope = f"/model/layers.{block}"
        x = g.op(
            "Add",
            x,
            attention(g, rms_norm(g, x, f"{scope}/ln1"), f"{scope}/attn", mask, tokens),
            scope=scope,
        )
        x = g.op(
            "Add",
            x,
            mlp(g, rms_norm(g, x, f"{scope}/ln2"), f"{scope}/mlp", plant, block),
            scope=scope,
        )
    dense(g, rms_norm(g, x, "/model/norm"), "/lm_head", (WIDTH, 200))
    model = g.model(
        "decoder",
        {"input_ids": (int(TensorProto.INT64), (1, tokens))},
        "logits",
        (1, tokens, 200),
        13,
    )
    return Planted(
        f"decoder-{seed}",
        model,
        lambda rng: {"input_ids": rng.integers(0, VOCABULARY, (1, tokens))},
    )


def conv(g: GraphBuilder, x: str, scope: str, shape: tuple[int, int, int], scale: npt.NDArray[np.float32] | None = None,
         taken: npt.NDArray[np.float32] | None = None, stride: int = 1) -> str:  # fmt: skip
    """A convolution; ``scale`` is of its channels, ``taken`` of those that it reads."""
    made, read, size = shape
    weight = g.draw((made, read, size, size), (2 / (read * size * size)) ** 0.5)
    weight *= 1 if scale is None else scale[:, None, None, None]
    weight *= 1 if taken is None else taken[None, :, None, None]
    name = scope.strip("/")
    return g.op("Conv", x, g.weight(f"{name}.w", weight), g.normal(f"{name}.b", (made,), 0.05), scope=scope,
                pads=[size // 2] * 4, strides=[stride, stride])  # fmt: skip


def resnet(seed: int) -> Planted:
    """Bottlenecks without norms (folded), images N(0, 1); channels that are scaled up by one convolution and down by the next."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    wide = 64
    narrow = 16
    x = g.op("Relu", conv(g, "image", "/stem", (wide, 3, 3), stride=2), scope="/stem")
    for block in range(8):
        scope = f"/layer{1 + block // 4}/layer{1 + block // 4}.{block % 4}"
        up = np.ones(narrow, np.float32)
        if block in plant.blocks:
            up[int(plant.rng.integers(narrow))] = abs(plant.magnitude()) * 30
        y = g.op("Relu", conv(g, x, f"{scope}/conv1", (narrow, wide, 1)), scope=f"{scope}/act1")
        y = g.op(
            "Relu", conv(g, y, f"{scope}/conv2", (narrow, narrow, 3), up), scope=f"{scope}/act2"
        )
        y = conv(
            g,
            y,
            f"{scope}/conv3",
            (wide, narrow, 1),
            np.full(wide, 0.3, np.float32),
            np.float32(1) / up,
        )
        x = g.op("Relu", g.op("Add", x, y, scope=scope), scope=f"{scope}/act3")
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x, scope="/pool"), scope="/pool")
    dense(g, pooled, "/fc", (wide, 50))
    model = g.model(
        "resnet", {"image": (int(TensorProto.FLOAT), (1, 3, IMAGE, IMAGE))}, "logits", (1, 50), 13
    )
    return Planted(
        f"resnet-{seed}",
        model,
        lambda rng: {"image": rng.standard_normal((1, 3, IMAGE, IMAGE)).astype(np.float32)},
    )


def group_norm(g: GraphBuilder, x: str, scope: str, channels: int, size: int) -> str:
    """Four groups, spelled out."""
    groups = g.op("Reshape", x, g.constant([1, 4, -1], np.int64, scope), scope=scope)
    centred = g.op("Sub", groups, g.op("ReduceMean", groups, scope=scope, axes=[2]), scope=scope)
    variance = g.op("ReduceMean", g.op("Mul", centred, centred, scope=scope), scope=scope, axes=[2])
    deviation = g.op(
        "Sqrt", g.op("Add", variance, g.constant(1e-5, scope=scope), scope=scope), scope=scope
    )
    normed = g.op("Div", centred, deviation, scope=scope)
    normed = g.op(
        "Reshape", normed, g.constant([1, channels, size, size], np.int64, scope), scope=scope
    )
    name = scope.strip("/")
    scaled = g.op("Mul", normed, g.normal(f"{name}.w", (channels, 1, 1), 0.05, 1.0), scope=scope)
    return g.op("Add", scaled, g.normal(f"{name}.b", (channels, 1, 1), 0.05), scope=scope)


def unet(seed: int) -> Planted:
    """Down, middle and up, latents N(0, 1); channels of the residual stream are large."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    wide = 32

    def residual(x: str, scope: str, block: int, size: int) -> str:
        y = g.op("Relu", group_norm(g, x, f"{scope}/norm1", wide, size), scope=scope)
        y = conv(g, y, f"{scope}/conv1", (wide, wide, 3))
        y = g.op("Relu", group_norm(g, y, f"{scope}/norm2", wide, size), scope=scope)
        scale = np.full(wide, 0.3, np.float32)
        if block in plant.blocks:
            scale[int(plant.rng.integers(wide))] = abs(plant.magnitude())
        return g.op("Add", x, conv(g, y, f"{scope}/conv2", (wide, wide, 3), scale), scope=scope)

    size = 16
    skips = []
    x = conv(g, "latent", "/conv_in", (wide, 4, 3))
    for block in range(2):
        x = residual(x, f"/down_blocks.{block}/resnets.0", block, size)
        skips.append(x)
        x = conv(g, x, f"/down_blocks.{block}/down", (wide, wide, 3), stride=2)
        size = size // 2
    for block in range(2):
        x = residual(x, f"/mid_block/resnets.{block}", 2 + block, size)
    for block in range(2):
        size *= 2
        scales = g.constant([1, 1, 2, 2], np.float32, f"/up_blocks.{block}")
        x = g.op("Resize", x, "", scales, scope=f"/up_blocks.{block}", mode="nearest")
        x = g.op("Add", x, skips.pop(), scope=f"/up_blocks.{block}")
        x = residual(x, f"/up_blocks.{block}/resnets.0", 4 + block, size)
    x = g.op("Relu", group_norm(g, x, "/norm_out", wide, size), scope="/norm_out")
    conv(g, x, "/conv_out", (4, wide, 3))
    model = g.model(
        "unet", {"latent": (int(TensorProto.FLOAT), (1, 4, 16, 16))}, "noise", (1, 4, 16, 16), 13
    )
    return Planted(
        f"unet-{seed}",
        model,
        lambda rng: {"latent": rng.standard_normal((1, 4, 16, 16)).astype(np.float32)},
    )


KINDS: dict[str, Callable[[int], Planted]] = {
    "vit": vit, "bert": bert, "resnet": resnet, "decoder": decoder, "unet": unet,
}  # fmt: skip
