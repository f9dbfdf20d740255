"""Models with a state, generated in three sizes, as exporters lay them out: every node has a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
INT = TensorProto.INT64
Dims = Sequence[int | str]
VOCABULARY = 97
POSITIONS = 256


@dataclass
class Graph:
    """A graph that grows node by node."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    scope: str = ""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def fed(self, name: str, dims: Dims, kind: int = FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def returned(self, name: str, value: str, dims: Dims, kind: int = FLOAT) -> None:
        """Return a value under a name."""
        scope = self.scope
        self.scope = ""
        self.op("Identity", value, name=f"return/{name}", made=name)
        self.scope = scope
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))

    def const(self, value: Any, kind: Any = np.float32) -> str:
        name = f"weight{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.array(value, kind), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        size = scale or 1 / np.sqrt(shape[0])
        return self.const(self._random.normal(0, size, shape))

    def op(self, kind: str, *reads: str, name: str = "", made: str = "", **attributes: Any) -> str:
        full = f"{self.scope}{name or f'{kind.lower()}{len(self.nodes)}'}"
        made = made or f"{full}:0"
        self.nodes.append(helper.make_node(kind, [*reads], [made], full, **attributes))
        return made

    def linear(self, value: str, rows: int, columns: int, name: str) -> str:
        return self.op("MatMul", value, self.weight(rows, columns), name=name)

    def norm(self, value: str, size: int, name: str) -> str:
        square = self.op("Mul", value, value)
        mean = self.op("ReduceMean", square, axes=[-1])
        root = self.op("Sqrt", self.op("Add", mean, self.const(1e-5)))
        scaled = self.op("Div", value, root)
        return self.op("Mul", scaled, self.const(np.ones(size)), name=name)

    def heads(self, value: str, heads: int, size: int) -> str:
        split = self.op("Reshape", value, self.ints(1, -1, heads, size))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def project(self, value: str, heads: int, size: int) -> list[str]:
        """Query, key and value of each head."""
        width = heads * size
        return [self.heads(self.linear(value, width, width, name), heads, size) for name in "qkv"]

    def keep(self, layer: int, cache: Sequence[str], dims: Dims) -> None:
        """Return the key and the value of a layer for the next step."""
        for kind, each in zip(("key", "value"), cache, strict=True):
            self.returned(f"present.{layer}.{kind}", each, dims)

    def with_logits(self, hidden: str, width: int) -> onnx.ModelProto:
        """The model, with an output of one token's logits."""
        logits = self.linear(self.norm(hidden, width, "norm"), width, VOCABULARY, "head")
        self.returned("logits", logits, [1, 1, VOCABULARY])
        return self.model()

    def attend(self, q: str, k: str, v: str, size: int, bias: str | None) -> str:
        keys = self.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.op("MatMul", q, keys, name="scores")
        scores = self.op("Mul", scores, self.const(1 / np.sqrt(size)), name="scale")
        if bias is not None:
            scores = self.op("Add", scores, bias, name="mask")
        shares = self.op("Softmax", scores, name="softmax", axis=-1)
        mixed = self.op("MatMul", shares, v, name="mix")
        joined = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.op("Reshape", joined, self.ints(1, -1, 0))

    def flat(self, value: str, width: int) -> str:
        return self.op("Reshape", value, self.ints(1, -1, width))

    def model(self, opset: int = 17) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.weights)
        imports = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9 if opset < 23 else 10)


def _rotated(graph: Graph, value: str, cos: str, sin: str, size: int) -> str:
    half = size // 2
    low = graph.op("Slice", value, graph.ints(0), graph.ints(half), graph.ints(3))
    high = graph.op("Slice", value, graph.ints(half), graph.ints(size), graph.ints(3))
    turned = graph.op("Concat", graph.op("Neg", high), low, axis=3)
    return graph.op("Add", graph.op("Mul", value, cos), graph.op("Mul", turned, sin))


def _alive(graph: Graph, count: str) -> str:
    """Return 1 for every number of a step; a target that resets its state has 0 at some."""
    number = graph.op("Cast", count, name="count", to=FLOAT)
    return graph.op("Sign", graph.op("Add", number, graph.const(1.0)), name="alive")


def llama(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A decoder with grouped queries, rotary positions and a cache that grows, as Optimum exports it."""
    graph = Graph(seed)
    width = heads * size
    shared = heads // 2
    ids = graph.fed("input_ids", [1, "sequence_length"], INT)
    mask = graph.fed("attention_mask", [1, "past_sequence_length + sequence_length"], INT)
    positions = graph.fed("position_ids", [1, "sequence_length"], INT)
    angles = np.arange(POSITIONS)[:, None] * (1 / 100 ** (np.arange(size) % (size // 2) / size))
    hidden = graph.op("Gather", graph.weight(VOCABULARY, width, scale=1.0), ids, name="embed")
    tables = [graph.const(np.cos(angles)), graph.const(np.sin(angles))]
    cos, sin = (
        graph.op("Unsqueeze", graph.op("Gather", table, positions, name=name), graph.ints(1))
        for table, name in zip(tables, ("cos", "sin"), strict=True)
    )
    kept = graph.op("Cast", mask, to=FLOAT)
    bias = graph.op("Mul", graph.op("Sub", kept, graph.const(1.0)), graph.const(1e4))
    bias = graph.op("Unsqueeze", bias, graph.ints(1))
    length = graph.op("Gather", graph.op("Shape", mask), graph.const(1, np.int64))
    row = graph.op("Range", graph.const(0, np.int64), length, graph.const(1, np.int64))
    later = graph.op("Greater", row, graph.op("Unsqueeze", positions, graph.ints(2)), name="later")
    later = graph.op("Mul", graph.op("Cast", later, to=FLOAT), graph.const(-1e4))
    bias = graph.op("Unsqueeze", graph.op("Add", bias, later), graph.ints(1), name="bias")
    repeat = graph.const(np.repeat(np.arange(shared), 2), np.int64)
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        past = [
            graph.fed(f"past_key_values.{layer}.{kind}", [1, shared, "past_sequence_length", size])
            for kind in ("key", "value")
        ]
        normed = graph.norm(hidden, width, "norm")
        q = graph.heads(graph.linear(normed, width, width, "q"), heads, size)
        k = graph.heads(graph.linear(normed, width, shared * size, "k"), shared, size)
        v = graph.heads(graph.linear(normed, width, shared * size, "v"), shared, size)
        q = _rotated(graph, q, cos, sin, size)
        k = _rotated(graph, k, cos, sin, size)
        cache = [
            graph.op("Concat", before, new, name=f"cache_{kind}", axis=2)
            for kind, before, new in zip(("key", "value"), past, (k, v), strict=True)
        ]
        full = [graph.op("Gather", each, repeat, axis=1) for each in cache]
        mixed = graph.flat(graph.attend(q, full[0], full[1], size, bias), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        normed = graph.norm(hidden, width, "norm2")
        gate = graph.linear(normed, width, 2 * width, "gate")
        gate = graph.op("Mul", gate, graph.op("Sigmoid", gate), name="silu")
        up = graph.op("Mul", gate, graph.linear(normed, width, 2 * width, "up"), name="gated")
        hidden = graph.op(
            "Add", hidden, graph.linear(up, 2 * width, width, "down"), name="residual2"
        )
        graph.scope = ""
        for kind, each in zip(("key", "value"), cache, strict=True):
            total = "past_sequence_length + sequence_length"
            graph.returned(f"present.{layer}.{kind}", each, [1, shared, total, size])
    logits = graph.linear(graph.norm(hidden, width, "norm"), width, VOCABULARY, "head")
    graph.returned("logits", logits, [1, "sequence_length", VOCABULARY])
    return graph.model()


def whisper(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A decoder beside an encoder, with learned positions and a cache of a fixed length that is written in place."""
    graph = Graph(seed)
    width = heads * size
    length = POSITIONS
    ids = graph.fed("input_ids", [1, 1], INT)
    position = graph.fed("cache_position", [1], INT)
    encoded = graph.fed("encoder_hidden_states", [1, 12, width])
    hidden = graph.op("Gather", graph.weight(VOCABULARY, width, scale=1.0), ids, name="embed")
    places = graph.op("Gather", graph.weight(length, width, scale=0.3), position, name="positions")
    hidden = graph.op("Add", hidden, places)
    row = graph.const(np.arange(length), np.int64)
    here = graph.op("Equal", row, position, name="here")
    here = graph.op("Reshape", here, graph.ints(1, 1, length, 1))
    later = graph.op("Greater", row, position, name="later")
    bias = graph.op("Mul", graph.op("Cast", later, to=FLOAT), graph.const(-1e4), name="bias")
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        dims = [1, heads, length, size]
        past = [graph.fed(f"past_{kind}_self_{layer}", dims) for kind in ("key", "value")]
        normed = graph.norm(hidden, width, "norm")
        q, k, v = graph.project(normed, heads, size)
        cache = [
            graph.op("Where", here, new, before, name=f"cache_{kind}")
            for kind, before, new in zip(("key", "value"), past, (k, v), strict=True)
        ]
        mixed = graph.flat(graph.attend(q, cache[0], cache[1], size, bias), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        normed = graph.norm(hidden, width, "norm2")
        graph.scope = f"layers.{layer}/cross/"
        q = graph.heads(graph.linear(normed, width, width, "q"), heads, size)
        k, v = (
            graph.heads(graph.linear(encoded, width, width, name), heads, size) for name in "kv"
        )
        mixed = graph.flat(graph.attend(q, k, v, size, None), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        graph.scope = ""
        for kind, each in zip(("key", "value"), cache, strict=True):
            graph.returned(f"present_{kind}_self_{layer}", each, dims)
    return graph.with_logits(hidden, width)


def mamba(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A selective state space model, with the last inputs of a convolution and a recurrent state."""
    graph = Graph(seed)
    width = heads * size
    states = 4
    kernel = 4
    ids = graph.fed("input_ids", [1, 1], INT)
    count = graph.fed("cache_position", [1], INT)
    alive = _alive(graph, count)
    table = graph.weight(VOCABULARY, width, scale=1.0)
    hidden = graph.op("Reshape", graph.op("Gather", table, ids, name="embed"), graph.ints(1, width))
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        window = graph.fed(f"past_conv.{layer}", [1, width, kernel])
        state = graph.fed(f"past_ssm.{layer}", [1, width, states])
        normed = graph.norm(hidden, width, "norm")
        x = graph.op("Unsqueeze", graph.linear(normed, width, width, "in"), graph.ints(2))
        rest = graph.op("Slice", window, graph.ints(1), graph.ints(kernel), graph.ints(2))
        window = graph.op("Concat", rest, x, name="window", axis=2)
        taps = graph.op("Mul", window, graph.weight(width, kernel, scale=0.5), name="taps")
        x = graph.op("ReduceSum", taps, graph.ints(2), name="conv", keepdims=0)
        x = graph.op("Mul", x, graph.op("Sigmoid", x), name="silu")
        delta = graph.op("Softplus", graph.linear(x, width, width, "dt"), name="delta")
        delta = graph.op("Unsqueeze", delta, graph.ints(2))
        rates = graph.const(-np.broadcast_to(np.arange(1, states + 1) / 8, (width, states)))
        decay = graph.op("Exp", graph.op("Mul", delta, rates), name="decay")
        drive = graph.op("Mul", graph.op("Unsqueeze", x, graph.ints(2)), delta)
        into, out = (
            graph.op("Unsqueeze", graph.linear(x, width, states, name), graph.ints(1))
            for name in ("b", "c")
        )
        state = graph.op("Mul", state, alive, name="carried")
        state = graph.op("Mul", decay, state, name="decayed")
        state = graph.op("Add", state, graph.op("Mul", drive, into), name="state")
        read = graph.op(
            "ReduceSum", graph.op("Mul", state, out), graph.ints(2), keepdims=0, name="read"
        )
        gate = graph.op("Sigmoid", graph.linear(normed, width, width, "gate"))
        gated = graph.op("Mul", read, gate, name="gated")
        hidden = graph.op("Add", hidden, graph.linear(gated, width, width, "o"), name="residual")
        graph.scope = ""
        graph.returned(f"present_conv.{layer}", window, [1, width, kernel])
        graph.returned(f"present_ssm.{layer}", state, [1, width, states])
    logits = graph.linear(graph.norm(hidden, width, "norm"), width, VOCABULARY, "head")
    graph.returned("logits", logits, [1, VOCABULARY])
    return graph.model()


def transducer(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """The prediction and the joint network of a transducer, LSTMs with NeMo's names beside a frame of an encoder."""
    graph = Graph(seed)
    width = heads * size
    ids = graph.fed("targets", [1, 1], INT)
    count = graph.fed("cache_position", [1], INT)
    alive = _alive(graph, count)
    frame = graph.fed("frame", [1, width])
    table = graph.weight(VOCABULARY, width, scale=1.0)
    hidden = graph.op("Transpose", graph.op("Gather", table, ids, name="embed"), perm=[1, 0, 2])
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        number = 2 * layer + 1
        before = [graph.fed(f"input_states_{number + at}", [1, 1, width]) for at in range(2)]
        before = [
            graph.op("Mul", each, alive, name=f"carried{at}") for at, each in enumerate(before)
        ]
        made = [f"layers.{layer}/{name}:0" for name in ("y", "h", "c")]
        reads = [hidden, graph.const(graph._random.normal(0, 0.3, (1, 4 * width, width)))]
        reads += [graph.const(graph._random.normal(0, 0.3, (1, 4 * width, width))), "", "", *before]
        graph.nodes.append(
            helper.make_node("LSTM", reads, made, f"layers.{layer}/lstm", hidden_size=width)
        )
        hidden = graph.op("Squeeze", made[0], graph.ints(1), name="squeeze")
        graph.scope = ""
        for at, each in enumerate(made[1:]):
            graph.returned(f"output_states_{number + at}", each, [1, 1, width])
    predicted = graph.op("Reshape", hidden, graph.ints(1, width))
    joined = graph.op("Add", predicted, graph.linear(frame, width, width, "encoder"), name="join")
    joined = graph.op("Tanh", joined, name="tanh")
    graph.returned("logits", graph.linear(joined, width, VOCABULARY, "head"), [1, VOCABULARY])
    return graph.model()


def convolutions(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A streaming filter of convolutions, each with the end of the chunk before, and a recurrent unit, as icefall names them."""
    graph = Graph(seed)
    width = heads * size
    hidden = graph.fed("chunk", [1, width, 16])
    offset = graph.fed("offset", [1], INT)
    alive = _alive(graph, offset)
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        cache = graph.fed(f"cached_conv_{layer}", [1, width, 4])
        padded = graph.op("Concat", cache, hidden, name="padded", axis=2)
        weight = graph.const(graph._random.normal(0, 1 / np.sqrt(5 * width), (width, width, 5)))
        made = graph.op("Conv", padded, weight, name="conv")
        hidden = graph.op("Add", hidden, graph.op("Tanh", made, name="tanh"), name="residual")
        hidden = graph.op("Mul", hidden, graph.const(0.7), name="scale")
        after = graph.op(
            "Slice", padded, graph.ints(16), graph.ints(20), graph.ints(2), name="after"
        )
        graph.scope = ""
        graph.returned(f"new_cached_conv_{layer}", after, [1, width, 4])
    state = graph.op("Mul", graph.fed("h0", [1, width]), alive, name="carried")
    mean = graph.op("ReduceMean", hidden, axes=[2], keepdims=0, name="mean")
    mixed = graph.op("Add", graph.op("Mul", state, graph.const(0.9), name="keep"), mean, name="sum")
    graph.returned("hn", mixed, [1, width])
    graph.returned("speech", graph.linear(mixed, width, 3, "head"), [1, 3])
    return graph.model()


def reservoir(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A recurrent network with feedback that magnifies any difference: each step is right, and no two runs stay together."""
    graph = Graph(seed)
    width = heads * size
    x = graph.fed("x", [1, width])
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        state = graph.fed(f"state_{layer}", [1, width])
        mixed = graph.op("MatMul", state, graph.weight(width, width, scale=2.0 / np.sqrt(width)))
        x = graph.op(
            "Tanh", graph.op("Add", mixed, graph.op("Mul", x, graph.const(0.1))), name="tanh"
        )
        graph.scope = ""
        graph.returned(f"new_state_{layer}", x, [1, width])
    return graph.model()


def window(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A decoder with a window that slides: the oldest of 12 places falls out, and positions are a ring of 16."""
    graph = Graph(seed)
    width = heads * size
    places = 12
    ids = graph.fed("input_ids", [1, 1], INT)
    position = graph.fed("cache_position", [1], INT)
    hidden = graph.op("Gather", graph.weight(VOCABULARY, width, scale=1.0), ids, name="embed")
    ring = graph.op("Mod", position, graph.ints(16), name="ring")
    row = graph.op("Gather", graph.weight(16, width, scale=0.5), ring, name="positions")
    hidden = graph.op("Add", hidden, row, name="placed")
    ages = graph.const(np.arange(places)[::-1].copy(), np.int64)
    empty = graph.op("Greater", ages, position, name="empty")
    bias = graph.op("Mul", graph.op("Cast", empty, to=FLOAT), graph.const(-1e4), name="bias")
    dims = [1, heads, places, size]
    for layer in range(layers):
        past = [graph.fed(f"past_key_values.{layer}.{kind}", dims) for kind in ("key", "value")]
        graph.scope = f"layers.{layer}/"
        normed = graph.norm(hidden, width, "norm")
        q, k, v = graph.project(normed, heads, size)
        cache = []
        for kind, before, new in zip(("key", "value"), past, (k, v), strict=True):
            joined = graph.op("Concat", before, new, name=f"joined_{kind}", axis=2)
            ends = [graph.ints(each) for each in (1, places + 1, 2)]
            cache.append(graph.op("Slice", joined, *ends, name=f"cache_{kind}"))
        mixed = graph.flat(graph.attend(q, cache[0], cache[1], size, bias), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        graph.scope = ""
        graph.keep(layer, cache, dims)
    return graph.with_logits(hidden, width)


def crossed(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A decoder with a cache of what the encoder made, which it passes on, and a bias by the bucket of a distance."""
    graph = Graph(seed)
    width = heads * size
    ids = graph.fed("decoder_input_ids", [1, 1], INT)
    position = graph.fed("cache_position", [1], INT)
    hidden = graph.op("Gather", graph.weight(VOCABULARY, width, scale=1.0), ids, name="embed")
    lengths: dict[str, int | str] = {"decoder": "past_sequence_length", "encoder": 10}
    past = {
        (layer, side, kind): graph.fed(
            f"past_key_values.{layer}.{side}.{kind}", [1, heads, places, size]
        )
        for layer in range(layers)
        for side, places in lengths.items()
        for kind in ("key", "value")
    }
    shape = graph.op("Shape", past[0, "decoder", "key"])
    length = graph.op("Gather", shape, graph.const(2, np.int64))
    total = graph.op("Add", length, graph.const(1, np.int64), name="total")
    row = graph.op("Range", graph.const(0, np.int64), total, graph.const(1, np.int64))
    distance = graph.op("Sub", position, row, name="distance")
    bucket = graph.op("Min", distance, graph.const(15, np.int64), name="bucket")
    bias = graph.op("Gather", graph.weight(16, heads, scale=1.0), bucket, name="relative")
    bias = graph.op("Transpose", bias, perm=[1, 0])
    bias = graph.op("Unsqueeze", bias, graph.ints(0, 2), name="bias")
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        normed = graph.norm(hidden, width, "norm")
        q, k, v = graph.project(normed, heads, size)
        own = [
            graph.op("Concat", past[layer, "decoder", kind], new, name=f"cache_{kind}", axis=2)
            for kind, new in (("key", k), ("value", v))
        ]
        mixed = graph.flat(graph.attend(q, own[0], own[1], size, bias), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        normed = graph.norm(hidden, width, "norm2")
        graph.scope = f"layers.{layer}/cross/"
        q = graph.heads(graph.linear(normed, width, width, "q"), heads, size)
        passed = [
            graph.op("Identity", past[layer, "encoder", kind], name=f"kept_{kind}")
            for kind in ("key", "value")
        ]
        mixed = graph.flat(graph.attend(q, passed[0], passed[1], size, None), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        graph.scope = ""
        lengths["decoder"] = "past_sequence_length + 1"
        for (side, places), cache in zip(lengths.items(), (own, passed), strict=True):
            for kind, each in zip(("key", "value"), cache, strict=True):
                graph.returned(f"present.{layer}.{side}.{kind}", each, [1, heads, places, size])
    return graph.with_logits(hidden, width)


def scattered(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A decoder that scatters into a cache of a fixed length, with a mask of that length."""
    graph = Graph(seed)
    width = heads * size
    length = 64
    ids = graph.fed("input_ids", [1, 1], INT)
    positions = graph.fed("position_ids", [1, 1], INT)
    mask = graph.fed("attention_mask", [1, length], INT)
    angles = np.arange(length)[:, None] * (1 / 50 ** (np.arange(size) % (size // 2) / size))
    hidden = graph.op("Gather", graph.weight(VOCABULARY, width, scale=1.0), ids, name="embed")
    tables = [graph.const(np.cos(angles)), graph.const(np.sin(angles))]
    cos, sin = (
        graph.op("Unsqueeze", graph.op("Gather", table, positions, name=name), graph.ints(1))
        for table, name in zip(tables, ("cos", "sin"), strict=True)
    )
    kept = graph.op("Cast", mask, name="visible", to=FLOAT)
    bias = graph.op("Mul", graph.op("Sub", kept, graph.const(1.0)), graph.const(1e4), name="bias")
    place = graph.op("Reshape", positions, graph.ints(1, 1, 1, 1), name="place")
    place = graph.op("Expand", place, graph.ints(1, heads, 1, size), name="places")
    dims = [1, heads, length, size]
    for layer in range(layers):
        past = [graph.fed(f"past_key_values.{layer}.{kind}", dims) for kind in ("key", "value")]
        graph.scope = f"layers.{layer}/"
        normed = graph.norm(hidden, width, "norm")
        q, k, v = graph.project(normed, heads, size)
        q = _rotated(graph, q, cos, sin, size)
        k = _rotated(graph, k, cos, sin, size)
        cache = [
            graph.op("ScatterElements", before, place, new, name=f"cache_{kind}", axis=2)
            for kind, before, new in zip(("key", "value"), past, (k, v), strict=True)
        ]
        mixed = graph.flat(graph.attend(q, cache[0], cache[1], size, bias), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        graph.scope = ""
        graph.keep(layer, cache, dims)
    return graph.with_logits(hidden, width)


def eight_bits(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A decoder whose cache grows in int8."""
    graph = Graph(seed)
    width = heads * size
    ids = graph.fed("input_ids", [1, 1], INT)
    hidden = graph.op("Gather", graph.weight(VOCABULARY, width, scale=1.0), ids, name="embed")
    zero = graph.const(0, np.int8)
    for layer in range(layers):
        names = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        past = [graph.fed(name, [1, heads, "past", size], TensorProto.INT8) for name in names]
        graph.scope = f"layers.{layer}/"
        normed = graph.norm(hidden, width, "norm")
        q, k, v = graph.project(normed, heads, size)
        cache = []
        for kind, before, new in zip(("key", "value"), past, (k, v), strict=True):
            scale = graph.const(0.03)
            low = graph.op("QuantizeLinear", new, scale, zero, name=f"quantize_{kind}")
            joined = graph.op("Concat", before, low, name=f"cache_{kind}", axis=2)
            name = f"dequantize_{kind}"
            cache.append(graph.op("DequantizeLinear", joined, scale, zero, name=name))
            dims: Dims = [1, heads, "past + 1", size]
            graph.returned(f"present.{layer}.{kind}", joined, dims, TensorProto.INT8)
        mixed = graph.flat(graph.attend(q, cache[0], cache[1], size, None), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        graph.scope = ""
    return graph.with_logits(hidden, width)


def linear_attention(
    layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0
) -> onnx.ModelProto:
    """Attention as a matrix that decays, with the sum that normalises it and the token before: three states a layer."""
    graph = Graph(seed)
    width = heads * size
    ids = graph.fed("input_ids", [1, 1], INT)
    table = graph.weight(VOCABULARY, width, scale=1.0)
    hidden = graph.op("Reshape", graph.op("Gather", table, ids, name="embed"), graph.ints(1, width))
    for layer in range(layers):
        last = graph.fed(f"past_shift.{layer}", [1, width])
        memory = graph.fed(f"past_kv.{layer}", [1, heads, size, size])
        total = graph.fed(f"past_norm.{layer}", [1, heads, size])
        graph.scope = f"layers.{layer}/"
        normed = graph.norm(hidden, width, "norm")
        share = graph._random.uniform(0, 1, width)
        shifted = graph.op(
            "Add",
            graph.op("Mul", normed, graph.const(share)),
            graph.op("Mul", last, graph.const(1 - share)),
            name="shifted",
        )
        r, k, v = (
            graph.op(
                "Reshape", graph.linear(shifted, width, width, name), graph.ints(1, heads, size)
            )
            for name in "rkv"
        )
        k = graph.op("Exp", graph.op("Mul", k, graph.const(0.3)), name="exp")
        r = graph.op("Unsqueeze", graph.op("Sigmoid", r, name="gate"), graph.ints(3))
        rates = graph._random.uniform(0.8, 0.99, (1, heads, size))
        outer = graph.op(
            "Mul",
            graph.op("Unsqueeze", k, graph.ints(3)),
            graph.op("Unsqueeze", v, graph.ints(2)),
            name="outer",
        )
        memory = graph.op("Mul", memory, graph.const(rates[..., None]), name="decayed")
        memory = graph.op("Add", memory, outer, name="memory")
        total = graph.op("Mul", total, graph.const(rates), name="faded")
        total = graph.op("Add", total, k, name="total")
        read, weight = (
            graph.op("ReduceSum", graph.op("Mul", r, each), graph.ints(2), keepdims=0, name=name)
            for each, name in (
                (memory, "read"),
                (graph.op("Unsqueeze", total, graph.ints(3)), "weight"),
            )
        )
        mixed = graph.op("Reshape", graph.op("Div", read, weight), graph.ints(1, width))
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        graph.scope = ""
        graph.returned(f"present_shift.{layer}", normed, [1, width])
        graph.returned(f"present_kv.{layer}", memory, [1, heads, size, size])
        graph.returned(f"present_norm.{layer}", total, [1, heads, size])
    logits = graph.linear(graph.norm(hidden, width, "norm"), width, VOCABULARY, "head")
    graph.returned("logits", logits, [1, VOCABULARY])
    return graph.model()


def recurrent_filter(
    layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0
) -> onnx.ModelProto:
    """A filter of speech: convolutions with the end of the frame before, each with a GRU, and a buffer of input."""
    graph = Graph(seed)
    width = heads * size
    frame = graph.fed("frame", [1, width])
    hidden = graph.op("Concat", graph.fed("buffer", [1, width]), frame, name="overlap", axis=1)
    hidden = graph.op("Tanh", graph.linear(hidden, 2 * width, width, "analysis"), name="tanh")
    hidden = graph.op("Unsqueeze", hidden, graph.ints(2))
    for layer in range(layers):
        cache = graph.fed(f"conv_cache_{layer}", [1, width, 2])
        before = graph.fed(f"gru_h_{layer}", [1, 1, width])
        graph.scope = f"layers.{layer}/"
        padded = graph.op("Concat", cache, hidden, name="padded", axis=2)
        weight = graph.const(graph._random.normal(0, 1 / np.sqrt(3 * width), (width, width, 3)))
        filtered = graph.op("Conv", padded, weight, name="conv")
        kept = graph.op("Slice", padded, graph.ints(1), graph.ints(3), graph.ints(2), name="kept")
        weights = [graph._random.normal(0, 0.3, (1, 3 * width, width)) for _ in range(2)]
        reads = [graph.op("Transpose", filtered, perm=[2, 0, 1]), *map(graph.const, weights)]
        made = [f"layers.{layer}/{name}:0" for name in ("y", "h")]
        options: dict[str, Any] = {"hidden_size": width, "linear_before_reset": 1}
        name = f"layers.{layer}/gru"
        graph.nodes.append(helper.make_node("GRU", [*reads, "", "", before], made, name, **options))
        added = graph.op("Transpose", graph.op("Squeeze", made[0], graph.ints(1)), perm=[1, 2, 0])
        hidden = graph.op("Add", hidden, added, name="residual")
        graph.scope = ""
        graph.returned(f"conv_cache_{layer}_out", kept, [1, width, 2])
        graph.returned(f"gru_h_{layer}_out", made[1], [1, 1, width])
    mask = graph.linear(graph.op("Squeeze", hidden, graph.ints(2)), width, width, "mask")
    enhanced = graph.op("Mul", frame, graph.op("Sigmoid", mask, name="sigmoid"), name="masked")
    graph.returned("enhanced", enhanced, [1, width])
    graph.returned("buffer_out", frame, [1, width])
    return graph.model()


def conformer(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A streaming encoder with NeMo's caches: of attention, of convolutions, and the number of places that are filled."""
    graph = Graph(seed)
    width = heads * size
    chunk = 8
    length = 24
    signal = graph.fed("audio_signal", [1, width, chunk])
    channels = graph.fed("cache_last_channel", [layers, 1, length, width])
    times = graph.fed("cache_last_time", [layers, 1, width, 4])
    filled = graph.fed("cache_last_channel_len", [1], INT)
    hidden = graph.op("Transpose", signal, perm=[0, 2, 1])
    ages = graph.const(np.arange(length + chunk)[::-1].copy(), np.int64)
    after = graph.op("Add", filled, graph.ints(chunk), name="after")
    empty = graph.op("GreaterOrEqual", ages, after, name="empty")
    bias = graph.op("Mul", graph.op("Cast", empty, to=FLOAT), graph.const(-1e4), name="bias")
    returned: list[list[str]] = [[], []]
    for layer in range(layers):
        graph.scope = f"layers.{layer}/"
        number = graph.const(layer, np.int64)
        normed = graph.norm(hidden, width, "norm")
        before = graph.op("Gather", channels, number, axis=0)
        full = graph.op("Concat", before, normed, name="full", axis=1)
        ends = [graph.ints(each) for each in (chunk, length + chunk, 1)]
        kept = graph.op("Slice", full, *ends, name="kept_channel")
        returned[0].append(graph.op("Unsqueeze", kept, graph.ints(0)))
        q, k, v = (
            graph.heads(graph.linear(each, width, width, name), heads, size)
            for each, name in ((normed, "q"), (full, "k"), (full, "v"))
        )
        mixed = graph.flat(graph.attend(q, k, v, size, bias), width)
        hidden = graph.op("Add", hidden, graph.linear(mixed, width, width, "o"), name="residual")
        frames = graph.op("Transpose", graph.norm(hidden, width, "norm2"), perm=[0, 2, 1])
        before = graph.op("Gather", times, number, axis=0)
        padded = graph.op("Concat", before, frames, name="padded", axis=2)
        ends = [graph.ints(each) for each in (chunk, chunk + 4, 2)]
        kept = graph.op("Slice", padded, *ends, name="kept_time")
        returned[1].append(graph.op("Unsqueeze", kept, graph.ints(0)))
        weight = graph.const(graph._random.normal(0, 0.5, (width, 1, 5)))
        filtered = graph.op("Tanh", graph.op("Conv", padded, weight, name="conv", group=width))
        added = graph.op("Transpose", filtered, perm=[0, 2, 1])
        hidden = graph.op("Add", hidden, added, name="residual2")
        graph.scope = ""
    graph.returned("outputs", graph.op("Transpose", hidden, perm=[0, 2, 1]), [1, width, chunk])
    sizes = {"channel": [layers, 1, length, width], "time": [layers, 1, width, 4]}
    for (kind, dims), parts in zip(sizes.items(), returned, strict=True):
        graph.returned(f"cache_last_{kind}_next", graph.op("Concat", *parts, axis=0), dims)
    count = graph.op("Min", after, graph.ints(length), name="count")
    graph.returned("cache_last_channel_next_len", count, [1], INT)
    return graph.model()


def tracker(layers: int = 2, heads: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A Kalman filter: the mean and the covariance of some variables, of which one is measured."""
    graph = Graph(seed)
    count = layers + heads + size
    measured = graph.fed("measurement", [1, 1])
    mean = graph.fed("mean", [count, 1])
    covariance = graph.fed("covariance", [count, count])
    motion = np.eye(count) * 0.95 + np.diag(np.full(count - 1, 0.1), 1)
    seen = np.eye(1, count) + 0.3 * np.eye(1, count, 1)
    mean = graph.op("MatMul", graph.const(motion), mean, name="predict")
    spread = graph.op("MatMul", graph.const(motion), covariance, name="spread")
    spread = graph.op("MatMul", spread, graph.const(motion.T))
    spread = graph.op("Add", spread, graph.const(np.eye(count) * 0.05), name="noise")
    innovation = graph.op("Sub", measured, graph.op("MatMul", graph.const(seen), mean))
    shared = graph.op("MatMul", spread, graph.const(seen.T), name="shared")
    scale = graph.op("Add", graph.op("MatMul", graph.const(seen), shared), graph.const([[0.1]]))
    gain = graph.op("Div", shared, scale, name="gain")
    mean = graph.op("Add", mean, graph.op("Mul", gain, innovation), name="update")
    known = graph.op("MatMul", graph.op("MatMul", gain, graph.const(seen)), spread, name="known")
    graph.returned("mean_out", mean, [count, 1])
    graph.returned("covariance_out", graph.op("Sub", spread, known, name="shrink"), [count, count])
    graph.returned("position", graph.op("MatMul", graph.const(seen), mean), [1, 1])
    return graph.model()


FAMILIES: dict[str, Callable[..., onnx.ModelProto]] = {
    "llama": llama,
    "whisper": whisper,
    "mamba": mamba,
    "transducer": transducer,
    "convolutions": convolutions,
    "reservoir": reservoir,
    "window": window,
    "crossed": crossed,
    "scattered": scattered,
    "eight_bits": eight_bits,
    "linear_attention": linear_attention,
    "recurrent_filter": recurrent_filter,
    "conformer": conformer,
    "tracker": tracker,
}
SIZES = {"small": (1, 4, 8), "middle": (3, 4, 16), "large": (6, 8, 32)}
"""Layers, heads and the size of a head."""
