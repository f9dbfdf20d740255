"""Writes model.onnx: a vision transformer whose LayerNorms overflow in fp16 from block 6 on (see README.md).

The graph is what ``torch.onnx.export`` writes of a ViT-Tiny (width 192, 12 blocks, 3 heads, patches
of 16 x 16) at opset 13, where LayerNorm and GELU are still spelled out: the same operators, in the
same order, with the same names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from _builder import Array, GraphBuilder, parse_arguments

WIDTH = 192
HEADS = 3
BLOCKS = 12
MLP_WIDTH = 768
IMAGE = 224
PATCH = 16
CLASSES = 1000
PATCHES = (IMAGE // PATCH) ** 2
TOKENS = PATCHES + 1  # and the class token
HEAD_WIDTH = WIDTH // HEADS

STD = 0.02
BIAS_STD = 0.3
BIAS_MEAN = 0.02
WRITE_STD = STD / (2 * BLOCKS) ** 0.5
"""Weights that write to the residual stream are drawn smaller, as GPT-2's are (Radford et al. 2019,
section 2.3)."""

MASSIVE_BLOCK = 5
MASSIVE = {37: 900.0, 120: -700.0}
"""Channel: value. 900 fits fp16 (largest number 65504) with ease; its square, 810000, does not."""


def norm(g: GraphBuilder, x: str, scope: str) -> str:
    """LayerNorm over the last axis, as the exporter spells it before opset 17.

    The Pow is where fp16 breaks.
    """
    module = scope.strip("/").replace("/", ".")
    mean = g.op("ReduceMean", x, scope=scope, axes=[-1])
    centred = g.op("Sub", x, mean, scope=scope)
    square = g.op("Pow", centred, g.constant(2.0, scope=scope), scope=scope)
    variance = g.op("ReduceMean", square, scope=scope, axes=[-1])
    # 1e-5, PyTorch's default. (1e-6 would be a subnormal fp16 number, off by 1.3 %.)
    deviation = g.op(
        "Sqrt", g.op("Add", variance, g.constant(1e-5, scope=scope), scope=scope), scope=scope
    )
    normed = g.op("Div", centred, deviation, scope=scope)
    scaled = g.op(
        "Mul", normed, g.normal(f"{module}.weight", (WIDTH,), std=STD, mean=1.0), scope=scope
    )
    return g.op("Add", scaled, g.normal(f"{module}.bias", (WIDTH,), std=STD), scope=scope)


def linear(
    g: GraphBuilder, x: str, scope: str, weight: Array, massive: dict[int, float] | None = None
) -> str:
    """Fully connected layer; ``massive`` overrides single entries of the bias, which is drawn otherwise."""
    module = scope.strip("/").replace("/", ".")
    product = g.op("MatMul", x, g.weight(f"{module}.weight", weight), scope=scope)
    bias = g.draw((weight.shape[1],), BIAS_STD)
    # No mean may cancel out to nearly nothing: LayerNorm's ReduceMean would then be mostly rounding
    # error.
    bias += BIAS_MEAN - bias.mean()
    for channel, value in (massive or {}).items():
        bias[channel] = value
    return g.op("Add", g.weight(f"{module}.bias", bias.astype(np.float16)), product, scope=scope)


def gelu(g: GraphBuilder, x: str, scope: str) -> str:
    """0.5 x (1 + erf(x / sqrt 2)), in the exporter's order."""
    erf = g.op("Erf", g.op("Div", x, g.constant(np.sqrt(2), scope=scope), scope=scope), scope=scope)
    product = g.op(
        "Mul", x, g.op("Add", erf, g.constant(1.0, scope=scope), scope=scope), scope=scope
    )
    return g.op("Mul", product, g.constant(0.5, scope=scope), scope=scope)


def attention(g: GraphBuilder, x: str, scope: str) -> str:
    """Multi-head self-attention of x [1, TOKENS, WIDTH]."""
    query = g.draw((WIDTH, WIDTH), STD)
    value = g.draw((WIDTH, WIDTH), STD)
    # Keys are weighted as queries are, so that scores measure likeness instead of cancelling out to
    # noise.
    qkv = linear(g, x, f"{scope}/qkv", np.hstack([query, query, value]))
    shape = g.constant([1, TOKENS, 3, HEADS, HEAD_WIDTH], np.int64, scope)
    qkv = g.op(
        "Transpose", g.op("Reshape", qkv, shape, scope=scope), scope=scope, perm=[2, 0, 3, 1, 4]
    )
    q, k, v = (
        g.op("Gather", qkv, g.constant(i, np.int64, scope), scope=scope, axis=0) for i in range(3)
    )
    q = g.op("Mul", q, g.constant(HEAD_WIDTH**-0.5, scope=scope), scope=scope)
    scores = g.op("MatMul", q, g.op("Transpose", k, scope=scope, perm=[0, 1, 3, 2]), scope=scope)
    mixed = g.op("MatMul", g.op("Softmax", scores, scope=scope, axis=-1), v, scope=scope)
    mixed = g.op("Transpose", mixed, scope=scope, perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.constant([1, TOKENS, WIDTH], np.int64, scope), scope=scope)
    return linear(g, mixed, f"{scope}/proj", g.draw((WIDTH, WIDTH), WRITE_STD))


def block(g: GraphBuilder, x: str, index: int) -> str:
    """Pre-norm transformer block.

    One block's MLP writes the massive activations, through its last bias.
    """
    scope = f"/blocks.{index}"
    x = g.op("Add", x, attention(g, norm(g, x, f"{scope}/norm1"), f"{scope}/attn"), scope=scope)
    hidden = linear(
        g, norm(g, x, f"{scope}/norm2"), f"{scope}/mlp/fc1", g.draw((WIDTH, MLP_WIDTH), STD)
    )
    massive = MASSIVE if index == MASSIVE_BLOCK else None
    hidden = gelu(g, hidden, f"{scope}/mlp/act")
    written = linear(g, hidden, f"{scope}/mlp/fc2", g.draw((MLP_WIDTH, WIDTH), WRITE_STD), massive)
    return g.op("Add", x, written, scope=scope)


def build(seed: int) -> onnx.ModelProto:
    """The whole model: pixel_values [1, 3, 224, 224] to logits [1, 1000]."""
    g = GraphBuilder(seed)
    kernel = g.normal("patch_embed.proj.weight", (WIDTH, 3, PATCH, PATCH), std=STD)
    bias = g.normal("patch_embed.proj.bias", (WIDTH,), std=STD)
    x = g.op(
        "Conv", "pixel_values", kernel, bias, scope="/patch_embed/proj", strides=[PATCH, PATCH]
    )
    x = g.op(
        "Reshape",
        x,
        g.constant([1, WIDTH, PATCHES], np.int64, "/patch_embed"),
        scope="/patch_embed",
    )
    x = g.op("Transpose", x, scope="/patch_embed", perm=[0, 2, 1])
    x = g.op("Concat", g.normal("cls_token", (1, 1, WIDTH), std=STD), x, axis=1)
    x = g.op("Add", x, g.normal("pos_embed", (1, TOKENS, WIDTH), std=STD))
    for index in range(BLOCKS):
        x = block(g, x, index)
    cls = g.op("Gather", norm(g, x, "/norm"), g.constant(0, np.int64), axis=1)
    head = g.normal("head.weight", (CLASSES, WIDTH), std=STD)
    g.op("Gemm", cls, head, g.normal("head.bias", (CLASSES,), std=STD), scope="/head", transB=1)
    inputs = {"pixel_values": (int(TensorProto.FLOAT), (1, 3, IMAGE, IMAGE))}
    return g.model("vit_overflow", inputs, "logits", (1, CLASSES), opset=13)


def main() -> None:
    """Writes the model and says where."""
    folder, seed = parse_arguments(
        "Write model.onnx, a ViT whose LayerNorms overflow in fp16.", __file__
    )
    model = build(seed)
    onnx.save(model, str(folder / "model.onnx"))
    print(f"{folder / 'model.onnx'}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
