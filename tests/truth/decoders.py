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

    def returned(self, name: str, value: str, dims: Dims) -> None:
        """Return a value under a name."""
        self.op("Identity", value, name=f"return/{name}", made=name)
        self.outputs.append(helper.make_tensor_value_info(name, FLOAT, dims))

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
        q, k, v = (
            graph.heads(graph.linear(normed, width, width, name), heads, size) for name in "qkv"
        )
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
    logits = graph.linear(graph.norm(hidden, width, "norm"), width, VOCABULARY, "head")
    graph.returned("logits", logits, [1, 1, VOCABULARY])
    return graph.model()


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


FAMILIES: dict[str, Callable[..., onnx.ModelProto]] = {
    "llama": llama,
    "whisper": whisper,
    "mamba": mamba,
    "transducer": transducer,
    "convolutions": convolutions,
    "reservoir": reservoir,
}
SIZES = {"small": (1, 4, 8), "middle": (3, 4, 16), "large": (6, 8, 32)}
"""Layers, heads and the size of a head."""
