"""Networks of 200 nodes and more with a failure that a pass of TensorRT-RTX's compiler makes: pass, fusion and nodes are named.

The failure is planted: a limit on the size of the engine that one fusion breaks, a fusion that a check
finds in the engine, or an option without which nothing is built. No GPU is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.trt.passes import PUBLIC

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.slow
HALF = TensorProto.FLOAT16
WIDTH = 64
LENGTH = 16
RTX = ("--trt-rtx", "--build-only", "--json", "r.json")
TABLE = ("--compiler-switch", "*=*")
FUEL = ("--compiler-switch", "kgen:fusion_fuel=0..400")
CHECK = """
import pathlib, re, sys
layers = re.findall(rb"(?:\\[ONNX Layer: [^\\]]*\\]\\x1f?)+", pathlib.Path(sys.argv[1]).read_bytes())
groups = [group.split("+") for group in sys.argv[2:]]
sys.exit(any(all(b": " + name.encode() in layer for name in group) for group in groups for layer in layers))
"""
"""Fails where all nodes of a group, NAME+NAME, run in one layer of the engine."""


@dataclass
class Net:
    """A network, one node after another.

    Attributes:
        nodes: Its nodes.
        weights: Its weights.
        random: Their values.
    """

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def add(self, name: str, op: str, *reads: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, [*reads], [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def weight(self, name: str, *shape: int) -> str:
        values = (self.random.standard_normal(shape) / 8).astype(np.float16)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def ints(self, name: str, *values: int) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values), name))
        return name

    def product(self, name: str, read: str, to: int = WIDTH) -> str:
        return self.add(name, "MatMul", read, self.weight(f"{name}/w", WIDTH, to))


def projections(net: Net, read: str, prefix: str = "attn/") -> str:
    q, k, v = (net.product(f"{prefix}{each}", read) for each in "qkv")
    gates = net.add(f"{prefix}tanh", "Tanh", q), net.add(f"{prefix}sigmoid", "Sigmoid", k)
    return net.add(f"{prefix}add", "Add", net.add(f"{prefix}mul", "Mul", *gates), v)


def gated(net: Net, read: str) -> str:
    gate, up = (net.product(f"mlp/{each}", read) for each in ("gate", "up"))
    return net.add("mlp/mul", "Mul", net.add("mlp/act", "Sigmoid", gate), up)


def branched(net: Net, read: str) -> str:
    inner = Net(net.seed)
    made = projections(inner, read, "then/")
    net.weights += inner.weights
    other = helper.make_node("Neg", [read], ["else:0"], name="else")
    bodies = [
        helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(end, HALF, [LENGTH, WIDTH])]
        )
        for nodes, name, end in ((inner.nodes, "then", made), ([other], "other", "else:0"))
    ]
    total = net.add("total", "ReduceSum", read, keepdims=0)
    condition = net.add("greater", "Greater", total, net.weight("least"))
    return net.add("branch", "If", condition, then_branch=bodies[0], else_branch=bodies[1])


def attention(net: Net, read: str) -> str:
    heads = net.ints("heads", 1, LENGTH, 4, WIDTH // 4)
    parts = [
        net.add(
            f"attn/{each}/heads",
            "Transpose",
            net.add(f"attn/{each}/split", "Reshape", net.product(f"attn/{each}", read), heads),
            perm=[0, 2, 3, 1] if each == "k" else [0, 2, 1, 3],
        )
        for each in "qkv"
    ]
    scores = net.add("attn/softmax", "Softmax", net.add("attn/qk", "MatMul", *parts[:2]))
    mixed = net.add("attn/pv", "MatMul", scores, parts[2])
    joined = net.add("attn/join", "Transpose", mixed, perm=[0, 2, 1, 3])
    flat = net.add("attn/flat", "Reshape", joined, net.ints("flat", LENGTH, WIDTH))
    return net.add("attn/residual", "Add", read, net.product("attn/out", flat))


def swapped(net: Net, read: str) -> str:
    net.nodes.append(helper.make_node("Split", [read], ["left", "right"], axis=1, name="split"))
    return net.add("swap", "Concat", "right", "left", axis=1)


def plain(net: Net, read: str) -> str:
    return net.add("plain", "Relu", read)


def write(
    path: Path, plant: Callable[[Net, str], str], place: int, seed: int, size: int = 205
) -> None:
    """Write a network with a plant behind so many nodes."""
    net = Net(seed)
    last = "x"
    for number in range(size):
        if number == place:
            last = plant(net, last)
        op = ("Relu", "Tanh", "Neg", "Abs", "Sigmoid")[(number + seed) % 5]
        name = f"n{number}"
        last = net.product(name, last) if number % 10 == 7 else net.add(name, op, last)
    shape = [LENGTH, WIDTH]
    ends = [helper.make_tensor_value_info(name, HALF, shape) for name in ("x", last)]
    graph = helper.make_graph(net.nodes, "g", ends[:1], ends[1:], net.weights)
    assert len(graph.node) >= 200
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def built(path: Path, *options: str) -> Any:
    """Return the size and the layers of an engine, without bisect-trt's search."""
    settings = TargetSettings("trt-rtx").with_own(build_only=True, compiler_options=options)
    feed = {"x": np.zeros((LENGTH, WIDTH), np.float16)}
    made = Runtime(settings).trace(path, feed, "fusions")
    return made["size"], [
        (layer["kind"], layer["tactic"], layer["nodes"]) for layer in made["layers"]
    ]


def size(path: Path, *options: str) -> float:
    """Return the megabytes of an engine."""
    return float(built(path, *options)[0]) / 1e6


def acting(path: Path, *more: str) -> int:
    """Return how many of the known options, and more, change the engine."""
    plain = built(path)
    return sum(built(path, option) != plain for option in (*PUBLIC, *more))


def checked(here: Path, *groups: str) -> tuple[str, ...]:
    """Return the words of a check for fusions."""
    (here / "check.py").write_text(CHECK)
    return ("--check", sys.executable, str(here / "check.py"), "{engine}", *groups)


def named(result: Any) -> list[list[str]]:
    return [sorted(name.removeprefix("pass:") for name in found) for found in result["cause"]]


def fused(result: Any, place: int = 0) -> list[set[str]]:
    """Return the nodes of each layer that only the failing engine has."""
    layers = result["cause_detail"]["alternatives"][place]["layers"]
    return [{*layer["nodes"]} for layer in layers["failing"]]


Record = Callable[[str, object], None]


def within(result: Any, record: Record, acting: int, fusions: int = 1) -> None:
    """Asserts that the questions are as few as promised."""
    record("questions", result["probes"]["run"])
    record("acting", acting)
    assert result["probes"]["run"] <= 2 * log2(acting) + log2(fusions) + 6, result["probes"]


@pytest.mark.parametrize(
    ("plant", "nodes", "place", "seed"),
    [
        (projections, {"attn/q", "attn/k", "attn/v"}, 20, 0),
        (projections, {"attn/q", "attn/k", "attn/v"}, 150, 1),
        (gated, {"mlp/gate", "mlp/up"}, 60, 2),
        (gated, {"mlp/gate", "mlp/up"}, 190, 3),
        (projections, {"attn/q", "attn/k", "attn/v"}, 90, 4),
        (branched, {"then/q", "then/k", "then/v"}, 30, 5),
        (branched, {"then/q", "then/k", "then/v"}, 170, 6),
    ],
)
def test_a_fusion_past_a_limit_on_the_size(
    plant: Callable[[Net, str], str],
    nodes: set[str],
    place: int,
    seed: int,
    cli: CommandLine,
    here: Path,
    record_property: Record,
) -> None:
    path = here / "m.onnx"
    write(path, plant, place, seed)
    limit = (size(path) + size(path, "peep:fc_h_fusion=off")) / 2
    words = ("--engine-size-limit", f"{limit:.4f}", *TABLE)
    result = cli("cause", path, *RTX, *words).ended(0).result
    assert ["peep:fc_h_fusion=off"] in named(result)
    at = named(result).index(["peep:fc_h_fusion=off"])
    assert nodes in fused(result, at)
    within(result, record_property, acting(path))


def test_the_fusion_in_each_release(cli: CommandLine, here: Path) -> None:
    path = here / "m.onnx"
    write(path, projections, 20, 0)
    words = (
        "--engine-size-limit",
        f"{size(path) - 0.1:.4f}",
        "--all",
        "--fusion",
        "attn/q",
        "attn/v",
    )
    result = cli("releases", path, *RTX, *words).ended(0).result
    assert len(result["reasons"]) >= 4
    for reason in result["reasons"].values():
        assert reason.endswith("fused: attn/k + attn/q + attn/v")


@pytest.mark.parametrize("seed", range(7))
def test_the_fusion_by_a_counter(
    seed: int, cli: CommandLine, here: Path, record_property: Record
) -> None:
    """Two neighbours of a chain of 205 nodes must not run in one kernel."""
    path = here / "m.onnx"
    write(path, plain, 100, seed)
    number = 11 + 28 * seed + (11 + 28 * seed) % 10 // 6 * 5
    pair = [f"n{number}", f"n{number + 1}"]
    result = cli("cause", path, *RTX, *FUEL, *checked(here, "+".join(pair))).ended(0).result
    [found] = result["cause_detail"]["alternatives"]
    assert "3 of 3 builds pass" in found["seen"]
    assert sum({*pair} <= layer for layer in fused(result)) == 1
    assert all(not {*pair} <= {*other["nodes"]} for other in found["layers"]["passing"])
    before = int(found["switches"][0].rpartition("=")[2])
    assert found["layers"]["fusion"] == before + 1
    within(result, record_property, 1, 400)


@pytest.mark.parametrize(("place", "seed"), [(10, 0), (100, 1), (180, 2)])
def test_two_passes_together(
    place: int, seed: int, cli: CommandLine, here: Path, record_property: Record
) -> None:
    path = here / "m.onnx"
    write(path, attention, place, seed)
    groups = checked(here, "attn/q+attn/k+attn/v", "attn/qk+attn/softmax+attn/pv")
    result = cli("cause", path, *RTX, *TABLE, *groups).ended(0).result
    assert ["copy_ppg=off", "peep:fc_h_fusion=off"] in named(result)
    at = named(result).index(["copy_ppg=off", "peep:fc_h_fusion=off"])
    assert any({"attn/q", "attn/k", "attn/v"} <= layer for layer in fused(result, at))
    assert any({"attn/qk", "attn/softmax", "attn/pv"} <= layer for layer in fused(result, at))
    within(result, record_property, acting(path))


@pytest.mark.parametrize(("place", "seed"), [(40, 0), (120, 1)])
def test_the_fused_attention(
    place: int, seed: int, cli: CommandLine, here: Path, record_property: Record
) -> None:
    path = here / "m.onnx"
    write(path, attention, place, seed)
    words = (*TABLE, "--compiler-switch", "mha_fusion=off")
    check = checked(here, "attn/qk+attn/softmax+attn/pv")
    result = cli("cause", path, *RTX, *words, *check).ended(0).result
    assert sorted(named(result)) == [["copy_ppg=off"], ["mha_fusion=off"]]
    assert any({"attn/qk", "attn/softmax", "attn/pv"} <= layer for layer in fused(result))
    within(result, record_property, acting(path, "mha_fusion=off"))


@pytest.mark.parametrize(("place", "seed"), [(70, 0), (140, 1)])
def test_a_pass_without_which_the_network_is_built(
    place: int,
    seed: int,
    cli: CommandLine,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
) -> None:
    """The environment enables another generator of kernels, which ends with a failed check."""
    path = here / "m.onnx"
    write(path, attention, place, seed)
    monkeypatch.setenv("__LUNOWUD", "-kgen:codegen:cuda_tile=3")
    result = cli("cause", path, *RTX, *TABLE).ended(0).result
    assert named(result) == [["kgen:codegen:cuda_tile=0"]]
    within(result, record_property, len(PUBLIC))


@pytest.mark.parametrize(("place", "seed"), [(50, 0), (160, 1)])
def test_an_option_without_which_nothing_is_built(
    place: int,
    seed: int,
    cli: CommandLine,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
) -> None:
    """The environment disables the generator of kernels, without which there is none for Split."""
    path = here / "m.onnx"
    write(path, swapped, place, seed)
    monkeypatch.setenv("__LUNOWUD", "-kgen=off")
    result = cli("cause", path, *RTX, *TABLE, "--compiler-switch", "kgen=on").ended(0).result
    assert named(result) == [["kgen=on"]]
    record_property("questions", result["probes"]["run"])
    assert re.search("Myelin|slice|split", str(result), re.IGNORECASE)
