"""Failures planted in networks for HTP's simulator: every answer is the exact one. Run by ``make truth``.

A network of 100 to 400 nodes: convolutions, residual sums, activations. Planted are values past
fp16's largest, operators that HTP does not take, and scales of Q/DQ pairs that saturate.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_proto
from conftest import CommandLine
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from onnxruntime import InferenceSession
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from support import node_names, read_json, reproduced

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("onnxruntime_qnn") is None,
        reason="onnxruntime-qnn is not installed",
    ),
]
HTP = ["--onnxrt", "--ep", "qnn"]
HTP += ["--provider-option", "backend_type:htp", "soc_model:57", "htp_arch:75"]
WIDTH = 8
SHAPE = (1, WIDTH, 8, 8)


class Grown:
    """A network that grows block by block.

    Attributes:
        nodes: The nodes so far.
        weights: The weights by name.
        last: The tensor that the next block reads.
    """

    def __init__(self, seed: int) -> None:
        self.luck = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, NDArray[Any]] = {}
        self.last = "x"

    def add(self, op: str, *reads: str, name: str, **fields: Any) -> str:
        """Append a node; returns its output."""
        output = f"{name}_out"
        self.nodes.append(helper.make_node(op, list(reads), [output], name=name, **fields))
        return output

    def weight(self, name: str, value: Any) -> str:
        """Store a weight; returns its name."""
        self.weights[name] = np.asarray(value)
        return name

    def block(self, number: int) -> None:
        """A convolution and an activation beside a residual connection, five nodes."""
        kernel = self.luck.standard_normal((WIDTH, WIDTH, 3, 3)) / (3 * WIDTH)
        stored = self.weight(f"kernel{number}", kernel.astype(np.float32))
        read = self.last
        out = self.add("Conv", read, stored, name=f"conv{number}", pads=[1, 1, 1, 1])
        out = self.add("Relu", out, name=f"relu{number}")
        out = self.add("Add", out, read, name=f"sum{number}")
        out = self.add(
            "Mul", out, self.weight(f"half{number}", np.float32(0.7)), name=f"mul{number}"
        )
        self.last = self.add("Sigmoid" if number % 3 == 0 else "Tanh", out, name=f"act{number}")

    def write(self, path: Path) -> Path:
        """Write the model."""
        self.add("Identity", self.last, name="end")
        return save_proto(
            path,
            self.nodes,
            [("x", TensorProto.FLOAT, SHAPE)],
            [("end_out", TensorProto.FLOAT, SHAPE)],
            self.weights,
        )


def planted(path: Path, seed: int, plant: str) -> tuple[Path, set[str]]:
    """A network with one failure; returns the nodes that an exact answer names."""
    grown = Grown(seed)
    blocks = int(grown.luck.integers(20, 60))
    # Each block damps an error, so one far from the end would not reach it.
    place = blocks - int(grown.luck.integers(2, 5))
    culprits: set[str] = set()
    for number in range(blocks):
        grown.block(number)
        if number == place:
            culprits = PLANTS[plant](grown)
    return grown.write(path), culprits


def overflow(grown: Grown) -> set[str]:
    """A square of large values, and its root scaled back."""
    big = grown.weight("big", np.float32(1e3))
    small = grown.weight("small", np.float32(1e-3))
    one = grown.weight("offset", np.float32(0.5))
    shifted = grown.add("Add", grown.last, one, name="shift")
    large = grown.add("Mul", shifted, big, name="enlarge")
    square = grown.add("Mul", large, large, name="square")
    root = grown.add("Sqrt", square, name="root")
    grown.last = grown.add("Mul", root, small, name="reduce")
    return {"square"}


def refused(grown: Grown) -> set[str]:
    """A determinant of each channel, which HTP does not take, added back."""
    determinant = grown.add("Det", grown.last, name="det")
    axes = grown.weight("axes", np.array([2, 3]))
    wide = grown.add("Unsqueeze", determinant, axes, name="widen")
    grown.last = grown.add("Add", grown.last, wide, name="join")
    return {"det"}


def slow(grown: Grown) -> set[str]:
    """A recurrence of many steps, which HTP leaves to the CPU, added back."""
    body = onnx.parser.parse_graph(
        "recurrence (int64 step, bool go, float state) => (bool goes, float next)"
        "{ goes = Identity(go) next = Tanh(state) }"
    )
    mean = grown.add("ReduceMean", grown.last, name="mean", keepdims=0)
    steps = grown.weight("steps", np.array(STEPS))
    end = grown.add("Loop", steps, "", mean, name="recurrence", body=body)
    grown.last = grown.add("Add", grown.last, end, name="join")
    return {"recurrence"}


STEPS = 1_000_000
"""They take several times as long as the simulator takes for the rest."""
PLANTS = {"overflow": overflow, "refused": refused, "slow": slow}


@pytest.mark.parametrize("seed", range(7))
def test_an_overflow_is_named_and_left_to_the_cpu(cli: CommandLine, here: Path, seed: int) -> None:
    model, culprits = planted(here / "model.onnx", seed, "overflow")
    ran = cli("diagnose", model, *HTP, "--fp16", "-o", "out", "--json", "r.json")
    assert ran.status == 0, ran.out + ran.err
    assert {*node_names(Path("out/model.onnx"))} == culprits, ran.out
    assert reproduced(Path("out"))
    fixed = read_json(Path("r.json"))["keep_fp32"]
    assert fixed, ran.out
    assert len(fixed) <= 5, ran.out
    cli("run", "out/mixed.onnx", *HTP, "--fp16", "--iterations", "4").ended(0)


@pytest.mark.parametrize("seed", range(7, 13))
def test_a_node_that_is_not_taken_is_named(cli: CommandLine, here: Path, seed: int) -> None:
    model, culprits = planted(here / "model.onnx", seed, "refused")
    ran = cli("reduce", model, *HTP, "--fp16", "--all-on-ep", "-o", "small.onnx")
    assert ran.status == 0, ran.out + ran.err
    assert {node.name for node in onnx.load("small.onnx").graph.node} == culprits, ran.out


@pytest.mark.parametrize("seed", range(50, 52))
def test_a_node_that_falls_back_and_is_slow_is_named(
    cli: CommandLine, here: Path, seed: int
) -> None:
    model, culprits = planted(here / "model.onnx", seed, "slow")
    session = InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    feed = {"x": np.zeros(SHAPE, np.float32)}
    start = time.perf_counter()
    session.run(None, feed)
    limit = 300 * (time.perf_counter() - start)
    for words in (["--all-on-ep"], ["--latency-limit", str(limit), "--measure-time", "60"]):
        ran = cli("reduce", model, *HTP, "--fp16", *words, "-o", "small.onnx", "--overwrite")
        assert ran.status == 0, ran.out + ran.err
        assert {node.name for node in onnx.load("small.onnx").graph.node} == culprits, ran.out


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_harmless_network_blames_nobody(cli: CommandLine, here: Path, seed: int) -> None:
    grown = Grown(seed)
    for number in range(20):
        grown.block(number)
    ran = cli("diagnose", grown.write(here / "model.onnx"), *HTP, "--fp16", "-o", "out")
    assert ran.status == 1, ran.out


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """Random samples to calibrate with."""

    def __init__(self, luck: np.random.Generator) -> None:
        self.samples = iter([{"x": luck.standard_normal(SHAPE, np.float32)} for _ in range(8)])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next sample."""
        return next(self.samples, None)


def kept_in_floats(cli: CommandLine, model: Path, floats: Path) -> set[str]:
    """The groups that an int8 model needs in floats: none, if it passes as it is."""
    words = ["precision", model, *HTP, "--int8", "--reference", floats, "-o", "fixed.onnx"]
    ran = cli(*words, "--overwrite", "--json", "r.json")
    assert ran.status in (0, 1), ran.out + ran.err
    return {node["name"] for node in read_json(Path("r.json"))["culprits"]}


A16W8 = {"activation_type": QuantType.QUInt16, "extra_options": {"UseQDQContribOps": True}}
"""Activations of 16 bits, which HTP computes with the precision of fp16."""


@pytest.mark.parametrize(
    ("seed", "types", "words"),
    [
        *((seed, {}, ()) for seed in range(13, 20)),
        *((seed, A16W8, ("--fp16",)) for seed in (40, 41, 42)),
    ],
)
def test_a_group_whose_scale_saturates_is_named(
    cli: CommandLine, here: Path, seed: int, types: dict[str, Any], words: tuple[str, ...]
) -> None:
    grown = Grown(seed)
    blocks = int(grown.luck.integers(8, 14))
    for number in range(blocks):
        grown.block(number)
    floats = grown.write(here / "floats.onnx")
    quantize_static(
        str(floats), "int8.onnx", Batches(grown.luck), quant_format=QuantFormat.QDQ, **types
    )
    model = onnx.load("int8.onnx")
    needed = kept_in_floats(
        cli, Path("int8.onnx"), floats
    )  # int8 may be too coarse without a fault
    block = blocks - int(grown.luck.integers(1, 3))
    scale = next(each for each in model.graph.initializer if each.name == f"sum{block}_out_scale")
    too_small = np.float32(0.05) * onnx.numpy_helper.to_array(scale)
    scale.CopyFrom(onnx.numpy_helper.from_array(np.asarray(too_small, np.float32), scale.name))
    onnx.save(model, "int8.onnx")
    named = kept_in_floats(cli, Path("int8.onnx"), floats)
    assert named == {f"mul{block}", *needed}
    cli("run", "fixed.onnx", *HTP, *words).ended(0)
