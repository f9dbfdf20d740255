"""Writes model.onnx and inputs.npz: a causal transformer whose left-padded input gives NaN in fp16 (see README.md).

Two pre-norm blocks at opset 17. The additive mask is made as Hugging Face's
``AttentionMaskConverter`` makes it: invert the 0/1 mask, fill what is hidden with a large negative
number, add that to the attention scores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from _builder import GraphBuilder, parse_arguments

BATCH = 2
LENGTH = 16
PADDING = 5
VOCABULARY = 1000
WIDTH = 64
HEADS = 4
BLOCKS = 2
HEAD_WIDTH = WIDTH // HEADS
HIDDEN_SCORE = -1e9
"""Added to the score of a key that must not be seen. fp16 ends at -65504, so there it is -Inf."""


def additive_mask(g: GraphBuilder) -> str:
    """[BATCH, 1, LENGTH, LENGTH]: 0 where query i may look at key j, HIDDEN_SCORE where not."""
    # Scalars are initializers here, not Constant nodes: what onnxsim and tf2onnx leave.
    axes = g.weight("mask_axes", [1, 2], np.int64)
    keys = g.op("Cast", g.op("Unsqueeze", "attention_mask", axes), to=TensorProto.FLOAT)
    causal = g.weight("causal", np.tril(np.ones((1, 1, LENGTH, LENGTH))))
    visible = g.op("Mul", keys, causal)
    inverted = g.op("Sub", g.weight("one", 1.0), visible)
    hidden = g.op("Cast", inverted, to=TensorProto.BOOL)
    return g.op("Where", hidden, g.weight("hidden_score", HIDDEN_SCORE), inverted)


def norm(g: GraphBuilder, x: str, scope: str) -> str:
    """LayerNorm over the last axis, one operator since opset 17."""
    module = scope.strip("/").replace("/", ".")
    weight = g.normal(f"{module}.weight", (WIDTH,), std=0.02, mean=1.0)
    bias = g.normal(f"{module}.bias", (WIDTH,), std=0.02)
    return g.op("LayerNormalization", x, weight, bias, scope=scope, axis=-1, epsilon=1e-5)


def linear(g: GraphBuilder, x: str, scope: str, width_in: int, width_out: int) -> str:
    """Fully connected layer without a bias."""
    weight = g.normal(
        f"{scope.strip('/').replace('/', '.')}.weight", (width_in, width_out), std=width_in**-0.5
    )
    return g.op("MatMul", x, weight, scope=scope)


def attention(g: GraphBuilder, x: str, mask: str, scope: str) -> str:
    """Masked multi-head self-attention of x [BATCH, LENGTH, WIDTH]."""
    split = g.weight(f"{scope}/split", [BATCH, LENGTH, HEADS, HEAD_WIDTH], np.int64)
    join = g.weight(f"{scope}/join", [BATCH, LENGTH, WIDTH], np.int64)
    projected = [
        g.op("Reshape", linear(g, x, f"{scope}/{p}", WIDTH, WIDTH), split, scope=scope)
        for p in "qkv"
    ]
    q = g.op("Transpose", projected[0], scope=scope, perm=[0, 2, 1, 3])
    k = g.op("Transpose", projected[1], scope=scope, perm=[0, 2, 3, 1])
    v = g.op("Transpose", projected[2], scope=scope, perm=[0, 2, 1, 3])
    scale = g.weight(f"{scope}/scale", HEAD_WIDTH**0.5)
    scores = g.op("Div", g.op("MatMul", q, k, scope=scope), scale, scope=scope)
    # A row of the mask that hides every key is uniform after Softmax in fp32 and 0/0 in fp16.
    weights = g.op("Softmax", g.op("Add", scores, mask, scope=scope), scope=scope, axis=-1)
    mixed = g.op(
        "Transpose", g.op("MatMul", weights, v, scope=scope), scope=scope, perm=[0, 2, 1, 3]
    )
    return linear(g, g.op("Reshape", mixed, join, scope=scope), f"{scope}/out", WIDTH, WIDTH)


def block(g: GraphBuilder, x: str, mask: str, index: int) -> str:
    """Pre-norm transformer block."""
    scope = f"/layers.{index}"
    x = g.op(
        "Add", x, attention(g, norm(g, x, f"{scope}/norm1"), mask, f"{scope}/attn"), scope=scope
    )
    hidden = linear(g, norm(g, x, f"{scope}/norm2"), f"{scope}/mlp/fc1", WIDTH, 4 * WIDTH)
    written = linear(
        g, g.op("Relu", hidden, scope=f"{scope}/mlp"), f"{scope}/mlp/fc2", 4 * WIDTH, WIDTH
    )
    return g.op("Add", x, written, scope=scope)


def build(seed: int) -> onnx.ModelProto:
    """The whole model: input_ids and attention_mask, int64 [2, 16], to logits [2, 16, 1000]."""
    g = GraphBuilder(seed)
    embedding = g.normal("embed_tokens.weight", (VOCABULARY, WIDTH), std=1.0)
    x = g.op("Gather", embedding, "input_ids", scope="/embed_tokens")
    x = g.op("Add", x, g.normal("embed_positions.weight", (1, LENGTH, WIDTH), std=0.1))
    mask = additive_mask(g)
    for index in range(BLOCKS):
        x = block(g, x, mask, index)
    linear(g, norm(g, x, "/norm"), "/lm_head", WIDTH, VOCABULARY)
    tokens = (int(TensorProto.INT64), (BATCH, LENGTH))
    inputs = {"input_ids": tokens, "attention_mask": tokens}
    return g.model("masked_attention", inputs, "logits", (BATCH, LENGTH, VOCABULARY), opset=17)


def padded_batch(seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """input_ids and attention_mask of a full sequence and of one padded on the left.

    Under the causal mask the second's first PADDING queries see no key at all.
    """
    input_ids = np.random.default_rng(seed).integers(1, VOCABULARY, (BATCH, LENGTH))
    attention_mask = np.ones((BATCH, LENGTH), np.int64)
    input_ids[1, :PADDING] = attention_mask[1, :PADDING] = 0
    return input_ids, attention_mask


def main() -> None:
    """Writes both files and says where."""
    folder, seed = parse_arguments(
        "Write model.onnx and inputs.npz, masked attention that is NaN in fp16.", __file__
    )
    model = build(seed)
    onnx.save(model, str(folder / "model.onnx"))
    input_ids, attention_mask = padded_batch(seed)
    np.savez(folder / "inputs.npz", input_ids=input_ids, attention_mask=attention_mask)
    print(f"{folder / 'model.onnx'}: {len(model.graph.node)} nodes")
    print(f"{folder / 'inputs.npz'}: sequence 1 has {PADDING} padding tokens on the left")


if __name__ == "__main__":
    main()
