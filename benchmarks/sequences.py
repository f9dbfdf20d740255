"""Models of other architectures, with outliers planted as in ``benchmarks.outliers``: those of sequences, and what they share.

A Conformer, a decoder with a cache, two towers, an unrolled GRU with attention, a Conv-TasNet, a
graph network and an MLP-Mixer; ``benchmarks.pictures`` has those of images. Weights are random,
norms and activations spelled out, and an outlier of 300 to 3000 stands in two to four blocks: in a
bias, in a row of weights, or in a channel that one layer scales up and the next down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.outliers import Arrays, Plant, Planted, Weights, layer_norm, plant_outlier

from _builder import GraphBuilder  # isort: skip - the import before makes it known

FLOAT = int(TensorProto.FLOAT)
INT64 = int(TensorProto.INT64)
W = 48
"""The width of the residual stream."""


def planted(
    g: GraphBuilder, plant: Plant, block: int, shapes: tuple[int, int, int]
) -> tuple[Weights, Weights, Weights]:
    """Two matrices and the last bias of a part of a block, from ``shapes``: in, hidden and out."""
    read, hidden, made = shapes
    first = g.draw((read, hidden), read**-0.5)
    second = g.draw((hidden, made), 0.3 * hidden**-0.5)
    bias = g.draw((made,), 0.05)
    how = plant.blocks.get(block)
    size = plant.magnitude()
    channel = int(plant.rng.integers(min(hidden, made)))
    plant_outlier(how, channel, size, first, second, bias)
    return first, second, bias


def dense(g: GraphBuilder, x: str, scope: str, weight: Weights, bias: Weights | None = None) -> str:
    """A fully connected layer."""
    made = g.op("MatMul", x, g.weight(f"{scope.strip('/')}.w", weight), scope=scope)
    return (
        made
        if bias is None
        else g.op("Add", made, g.weight(f"{scope.strip('/')}.b", bias), scope=scope)
    )


def drawn(g: GraphBuilder, x: str, scope: str, read: int, made: int) -> str:
    """One with drawn weights."""
    return dense(g, x, scope, g.draw((read, made), read**-0.5), g.draw((made,), 0.05))


def swish(g: GraphBuilder, x: str, scope: str) -> str:
    """As PyTorch exports it."""
    return g.op("Mul", x, g.op("Sigmoid", x, scope=scope), scope=scope)


def gelu(g: GraphBuilder, x: str, scope: str) -> str:
    """As PyTorch exports it."""
    erf = g.op("Erf", g.op("Div", x, g.constant(2**0.5, scope=scope), scope=scope), scope=scope)
    made = g.op("Mul", x, g.op("Add", erf, g.constant(1.0, scope=scope), scope=scope), scope=scope)
    return g.op("Mul", made, g.constant(0.5, scope=scope), scope=scope)


Act = Callable[[GraphBuilder, str, str], str]


def ffn(
    g: GraphBuilder, x: str, scope: str, plant: Plant, block: int, act: Act, width: int = W
) -> str:
    """The part of a block that writes outliers."""
    first, second, bias = planted(g, plant, block, (width, 2 * width, width))
    return dense(g, act(g, dense(g, x, f"{scope}/fc1", first), scope), f"{scope}/fc2", second, bias)


def heads(g: GraphBuilder, x: str, scope: str, tokens: int, perm: list[int], count: int = 4) -> str:
    """Divide channels among heads."""
    made = g.op(
        "Reshape", x, g.constant([1, tokens, count, W // count], np.int64, scope), scope=scope
    )
    return g.op("Transpose", made, scope=scope, perm=perm)


def attention(
    g: GraphBuilder, x: str, scope: str, tokens: int, past: tuple[str, str, int] | None = None
) -> str:
    """Of four heads; ``past`` are keys, values, and how many there are."""
    q, k, v = (
        heads(g, drawn(g, x, f"{scope}/{part}", W, W), f"{scope}/{part}", tokens, [0, 2, 1, 3])
        for part in "qkv"
    )
    if past is not None:
        k, v = (
            g.op("Concat", old, new, scope=scope, axis=2)
            for old, new in zip(past[:2], (k, v), strict=True)
        )
    keys = g.op("Transpose", k, scope=scope, perm=[0, 1, 3, 2])
    scores = g.op(
        "Div",
        g.op("MatMul", q, keys, scope=scope),
        g.constant((W / 4) ** 0.5, scope=scope),
        scope=scope,
    )
    mixed = g.op("MatMul", g.op("Softmax", scores, scope=scope, axis=-1), v, scope=scope)
    mixed = g.op("Transpose", mixed, scope=scope, perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.constant([1, tokens, W], np.int64, scope), scope=scope)
    return drawn(g, mixed, f"{scope}/out", W, W)


def convolve(
    g: GraphBuilder,
    x: str,
    scope: str,
    weight: Weights,
    bias: Weights | None = None,
    **attributes: Any,  # noqa: ANN401 - as make_node
) -> str:
    """A convolution with an output as large as its input, unless ``attributes`` change that."""
    name = scope.strip("/")
    size = weight.shape[2:]
    rate = attributes.get("dilations", [1, 1])
    pads = [side // 2 * rate[place] for place, side in enumerate(size)] * 2
    more = [] if bias is None else [g.weight(f"{name}.b", bias)]
    return g.op(
        "Conv", x, g.weight(f"{name}.w", weight), *more, scope=scope, pads=pads, **attributes
    )


def kernel(g: GraphBuilder, made: int, read: int, *size: int) -> Weights:
    """Drawn."""
    return g.draw((made, read, *size), float(2 / (read * np.prod(size))) ** 0.5)


def pointwise(matrix: Weights, axes: int) -> Weights:
    """A matrix as the kernel of a convolution."""
    return np.ascontiguousarray(matrix.T.reshape(*matrix.T.shape, *[1] * axes))


def relu(g: GraphBuilder, x: str, scope: str) -> str:
    """The operator."""
    return g.op("Relu", x, scope=scope)


def rms(g: GraphBuilder, x: str, scope: str) -> str:
    """RMSNorm, as exported."""
    mean = g.op(
        "ReduceMean",
        g.op("Pow", x, g.constant(2.0, scope=scope), scope=scope),
        scope=scope,
        axes=[-1],
    )
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-6, scope=scope), scope=scope), scope=scope)
    return g.op(
        "Mul",
        g.op("Div", x, root, scope=scope),
        g.normal(f"{scope.strip('/')}.w", (W,), 0.05, 1.0),
        scope=scope,
    )


def made(
    name: str, seed: int, g: GraphBuilder, inputs: Mapping[str, tuple[int, tuple[int, ...]]], shape: tuple[int, ...],
    draw: Callable[[np.random.Generator], Arrays] | None = None,
) -> Planted:  # fmt: skip
    """The model; unless ``draw`` says otherwise inputs are N(0, 1)."""

    def normal(rng: np.random.Generator) -> Arrays:
        return {
            key: rng.standard_normal(dims).astype(np.float32) for key, (_, dims) in inputs.items()
        }

    return Planted(f"{name}-{seed}", g.model(name, inputs, "answer", shape, 13), draw or normal)


def conformer(seed: int, times: int = 1) -> Planted:
    """Half a feed-forward part, attention, a convolution with a gate, half a feed-forward part, a norm; five times."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 5)
    tokens = 24 * times
    x = drawn(g, "features", "/encoder/embed", 40, W)
    for block in range(5):
        s = f"/encoder/layers.{block}"
        half = g.op(
            "Mul",
            ffn(g, layer_norm(g, x, f"{s}/norm1", W), f"{s}/ff1", plant, block, swish),
            g.constant(0.5),
        )
        x = g.op("Add", x, half, scope=s)
        x = g.op(
            "Add", x, attention(g, layer_norm(g, x, f"{s}/norm2", W), f"{s}/attn", tokens), scope=s
        )
        y = g.op("Transpose", layer_norm(g, x, f"{s}/norm3", W), scope=f"{s}/conv", perm=[0, 2, 1])
        y = convolve(g, y, f"{s}/conv/up", kernel(g, 2 * W, W, 1))
        y, gate = (
            g.op(
                "Slice",
                y,
                *(g.constant([at], np.int64) for at in (start, start + W, 1)),
                scope=f"{s}/conv",
            )
            for start in (0, W)
        )
        y = g.op("Mul", y, g.op("Sigmoid", gate, scope=f"{s}/conv"), scope=f"{s}/conv")
        y = swish(g, convolve(g, y, f"{s}/conv/deep", kernel(g, W, 1, 7), group=W), f"{s}/conv")
        y = g.op(
            "Transpose",
            convolve(g, y, f"{s}/conv/down", kernel(g, W, W, 1)),
            scope=f"{s}/conv",
            perm=[0, 2, 1],
        )
        x = g.op("Add", x, y, scope=s)
        x = g.op(
            "Add",
            x,
            ffn(g, layer_norm(g, x, f"{s}/norm4", W), f"{s}/ff2", plant, -1, swish),
            scope=s,
        )
        x = layer_norm(g, x, f"{s}/norm5", W)
    drawn(g, x, "/head", W, 30)
    return made("conformer", seed, g, {"features": (FLOAT, (1, tokens, 40))}, (1, tokens, 30))


def cached(seed: int, times: int = 1) -> Planted:
    """A decoder that takes one token at a time: RMSNorm, a gated feed-forward part, keys and values of the past as inputs."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    past = 16 * times
    inputs: dict[str, tuple[int, tuple[int, ...]]] = {"token": (INT64, (1, 1))}
    x = g.op("Gather", g.normal("words", (500, W), 1.0), "token", scope="/model/embed")
    for block in range(8):
        s = f"/model/layers.{block}"
        names = (f"past.{block}.key", f"past.{block}.value")
        inputs |= dict.fromkeys(names, (FLOAT, (1, 4, past, W // 4)))
        x = g.op(
            "Add", x, attention(g, rms(g, x, f"{s}/ln1"), f"{s}/attn", 1, (*names, past)), scope=s
        )
        y, (first, second, bias) = rms(g, x, f"{s}/ln2"), planted(g, plant, block, (W, 2 * W, W))
        gate = swish(g, drawn(g, y, f"{s}/mlp/gate", W, 2 * W), f"{s}/mlp")
        y = g.op("Mul", gate, dense(g, y, f"{s}/mlp/up", first), scope=f"{s}/mlp")
        x = g.op("Add", x, dense(g, y, f"{s}/mlp/down", second, bias), scope=s)
    drawn(g, rms(g, x, "/model/norm"), "/lm_head", W, 100)

    def draw(rng: np.random.Generator) -> Arrays:
        kinds: Arrays = {
            k: rng.standard_normal(dims).astype(np.float32) for k, (_, dims) in inputs.items()
        }
        return kinds | {"token": rng.integers(0, 500, (1, 1))}

    return made("cached", seed, g, inputs, (1, 1, 100), draw)


def towers(seed: int) -> Planted:
    """An image and a text, each embedded; what comes out is how alike they are to each of some prompts."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    tokens = 16
    x = convolve(g, "image", "/visual/stem", kernel(g, W, 3, 3, 3), strides=[4, 4])
    x = g.op("Transpose", g.op("Reshape", x, g.constant([1, W, 16], np.int64)), perm=[0, 2, 1])
    y = g.op("Gather", g.normal("words", (500, W), 1.0), "ids", scope="/text/embed")
    ends = []
    for tower, start, first in (("visual", x, 0), ("text", y, 3)):
        stream = start
        for block in range(3):
            s = f"/{tower}/blocks.{block}"
            y = attention(g, layer_norm(g, stream, f"{s}/ln1", W), f"{s}/attn", tokens)
            stream = g.op("Add", stream, y, scope=s)
            part = ffn(
                g, layer_norm(g, stream, f"{s}/ln2", W), f"{s}/mlp", plant, first + block, gelu
            )
            stream = g.op("Add", stream, part, scope=s)
        pooled = layer_norm(
            g,
            g.op("ReduceMean", stream, scope=f"/{tower}", axes=[1], keepdims=0),
            f"/{tower}/ln",
            W,
        )
        pooled = drawn(g, pooled, f"/{tower}/proj", W, 32)
        length = g.op("ReduceL2", pooled, scope=f"/{tower}", axes=[-1])
        ends.append(g.op("Div", pooled, length, scope=f"/{tower}"))
    joint = g.op("Mul", g.op("Concat", *ends, axis=0), g.constant(20.0))
    g.op("MatMul", joint, g.normal("prompts", (32, 10), 32**-0.5))

    def draw(rng: np.random.Generator) -> Arrays:
        image = rng.standard_normal((1, 3, 16, 16)).astype(np.float32)
        return {"image": image, "ids": rng.integers(0, 500, (1, tokens))}

    return made(
        "towers",
        seed,
        g,
        {"image": (FLOAT, (1, 3, 16, 16)), "ids": (INT64, (1, tokens))},
        (2, 10),
        draw,
    )


def gru(seed: int) -> Planted:
    """Twelve steps of a GRU, written out, and attention over its states; what it reads is made by two planted layers."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 3)
    steps = 12
    x = drawn(g, "series", "/embed", 16, W)
    for block in range(3):
        x = g.op(
            "Add",
            x,
            ffn(g, layer_norm(g, x, f"/pre.{block}/norm", W), f"/pre.{block}", plant, block, relu),
        )
    weights = {
        part: g.normal(f"gru.{part}", (W, W), W**-0.5)
        for part in ("xr", "xz", "xn", "hr", "hz", "hn")
    }
    x = layer_norm(g, x, "/norm", W)
    h = g.weight("h0", np.zeros((1, W)))
    states = []
    for step in range(steps):
        s = f"/gru/step.{step}"
        now = g.op("Gather", x, g.constant(step, np.int64, s), scope=s, axis=1)
        r, z = (
            g.op("Sigmoid", g.op("Add", g.op("MatMul", now, weights["x" + part], scope=s),
                                 g.op("MatMul", h, weights["h" + part], scope=s), scope=s), scope=s)
            for part in "rz"
        )  # fmt: skip
        memory = g.op("Mul", r, g.op("MatMul", h, weights["hn"], scope=s), scope=s)
        n = g.op(
            "Tanh",
            g.op("Add", g.op("MatMul", now, weights["xn"], scope=s), memory, scope=s),
            scope=s,
        )
        kept = g.op("Mul", z, g.op("Sub", h, n, scope=s), scope=s)
        h = g.op("Add", n, kept, scope=s)
        states.append(g.op("Unsqueeze", h, g.constant([1], np.int64, s), scope=s))
    x = g.op("Concat", *states, axis=1)
    x = g.op("ReduceMean", g.op("Add", x, attention(g, x, "/attn", steps)), axes=[1], keepdims=0)
    drawn(g, x, "/head", W, 10)
    return made("gru", seed, g, {"series": (FLOAT, (1, steps, 16))}, (1, 10))


def tasnet(seed: int, times: int = 1) -> Planted:
    """Dilated convolutions between norms over a whole series, with a residual stream and a sum of what each block gives."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    length = 128 * times
    x = convolve(g, "wave", "/start", kernel(g, W, 1, 3))
    given = ""

    def norm(x: str, scope: str) -> str:
        centred = g.op("Sub", x, g.op("ReduceMean", x, scope=scope, axes=[1, 2]), scope=scope)
        variance = g.op(
            "ReduceMean", g.op("Mul", centred, centred, scope=scope), scope=scope, axes=[1, 2]
        )
        root = g.op(
            "Sqrt", g.op("Add", variance, g.constant(1e-5, scope=scope), scope=scope), scope=scope
        )
        return g.op("Div", centred, root, scope=scope)

    for block in range(8):
        s = f"/layers.{block}"
        first, second, bias = planted(g, plant, block, (W, 2 * W, W))
        y = g.op(
            "Relu", convolve(g, norm(x, f"{s}/norm1"), f"{s}/wide", pointwise(first, 1)), scope=s
        )
        deep = kernel(g, 2 * W, 1, 3)
        y = convolve(g, y, f"{s}/deep", deep, dilations=[2 ** (block % 4)], group=2 * W)
        y = norm(g.op("Relu", y, scope=s), f"{s}/norm2")
        skip = convolve(g, y, f"{s}/skip", kernel(g, W, 2 * W, 1))
        given = g.op("Add", given, skip, scope=s) if given else skip
        x = g.op("Add", x, convolve(g, y, f"{s}/res", pointwise(second, 1), bias), scope=s)
    convolve(g, g.op("Relu", given), "/end", kernel(g, 16, W, 1))
    return made("tasnet", seed, g, {"wave": (FLOAT, (1, 1, length))}, (1, 16, length))


def graph(seed: int) -> Planted:
    """Sums over neighbours, and what a node makes of them; the graph is an input."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    nodes = 40
    x = drawn(g, "nodes", "/embed", 12, W)
    for block in range(6):
        s = f"/convs.{block}"
        sums = g.op("MatMul", "edges", x, scope=s)
        y = g.op("Add", drawn(g, x, f"{s}/own", W, W), drawn(g, sums, f"{s}/near", W, W), scope=s)
        x = g.op(
            "Add",
            x,
            ffn(g, layer_norm(g, y, f"{s}/norm", W), f"{s}/mlp", plant, block, relu),
            scope=s,
        )
    drawn(g, g.op("ReduceMax", x, axes=[0], keepdims=1), "/head", W, 8)

    def draw(rng: np.random.Generator) -> Arrays:
        edges = (rng.random((nodes, nodes)) < 0.1).astype(np.float32)
        return {"nodes": rng.standard_normal((nodes, 12)).astype(np.float32), "edges": edges}

    return made(
        "graph",
        seed,
        g,
        {"nodes": (FLOAT, (nodes, 12)), "edges": (FLOAT, (nodes, nodes))},
        (1, 8),
        draw,
    )


def mixer(seed: int) -> Planted:
    """Patches mixed among each other and channels among each other, in turns."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 8)
    tokens = 32
    x = drawn(g, "patches", "/stem", 24, W)
    for block in range(8):
        s = f"/layers.{block}"
        y = g.op("Transpose", layer_norm(g, x, f"{s}/norm1", W), scope=s, perm=[0, 2, 1])
        y = gelu(g, drawn(g, y, f"{s}/tokens/fc1", tokens, tokens), f"{s}/tokens")
        y = g.op(
            "Transpose", drawn(g, y, f"{s}/tokens/fc2", tokens, tokens), scope=s, perm=[0, 2, 1]
        )
        x = g.op("Add", x, y, scope=s)
        x = g.op(
            "Add",
            x,
            ffn(g, layer_norm(g, x, f"{s}/norm2", W), f"{s}/channels", plant, block, gelu),
            scope=s,
        )
    drawn(g, g.op("ReduceMean", layer_norm(g, x, "/norm", W), axes=[1], keepdims=0), "/head", W, 20)
    return made("mixer", seed, g, {"patches": (FLOAT, (1, tokens, 24))}, (1, 20))


SEQUENCES: dict[str, Callable[[int], Planted]] = {
    "conformer": conformer,
    "cached": cached,
    "towers": towers,
    "gru": gru,
    "tasnet": tasnet,
    "graph": graph,
    "mixer": mixer,
}
