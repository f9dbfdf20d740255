"""Finds slow regions that are planted in networks of 200 to 600 nodes, and compares equal models on a loaded machine.

    python -m benchmarks.latency [--cases N] [--equal N] [--releases] [--only NAME]

Each region is a pattern that one side runs fast and the other does not: a fusion or constant
folding that is disabled, a layout or prepacking that is not used, Q/DQ that is not fused, a Loop in
another runtime. ``reduce --slower-than 1.3`` is to find nodes of the region only. Equal models are
compared at ratio 1.3 while a process runs on every core: each "slower" is a false alarm.

``--releases``: regions that are slower since a release; ``releases`` is to find the release, and
``reduce`` the nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.figures import Figure

REGION = "slow"
"""Begins the names of the planted nodes."""
_ROWS = 32
_WIDTH = 64
_TILE = 16


class Builder:
    """Adds nodes to a graph; each method returns the name of the tensor it makes."""

    def __init__(self, seed: int) -> None:
        """``seed`` decides the weights."""
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)
        self.prefix = "net"

    def weight(self, value: object) -> str:
        """Add an initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def floats(self, *shape: int) -> str:
        """Add an initializer of random floats."""
        return self.weight(
            (self.random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        )

    def scalar(self, value: float) -> str:
        """Add a scalar."""
        return self.weight(np.float32(value))

    def ints(self, *values: int) -> str:
        """Add a list of integers."""
        return self.weight(np.array(values, np.int64))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401 - of many types
        """Add a node."""
        name = f"{self.prefix}_{len(self.nodes)}_{op}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [f"{name}_out"], name=name, **attributes)
        )
        return f"{name}_out"

    def block(self, x: str) -> str:
        """Five cheap nodes."""
        h = self.add(
            "Relu",
            self.add(
                "Add", self.add("MatMul", x, self.floats(_WIDTH, _WIDTH)), self.floats(_WIDTH)
            ),
        )
        return self.add("Add", x, self.add("Mul", h, self.scalar(0.1)))

    def wide(self, x: str, pattern: Callable[[str], str]) -> str:
        """A pattern on a tensor of 512 by 1024."""
        big = pattern(self.add("Tile", x, self.ints(_TILE, _TILE)))
        return self.add("Slice", big, self.ints(0, 0), self.ints(_ROWS, _WIDTH), self.ints(0, 1))


def rms_norm(make: Builder, x: str) -> str:
    """Normalization by the root of the mean square, in single nodes."""

    def pattern(wide: str) -> str:
        mean = make.add("ReduceMean", make.add("Pow", wide, make.scalar(2)), axes=[-1])
        norm = make.add("Div", wide, make.add("Sqrt", make.add("Add", mean, make.scalar(1e-5))))
        return make.add("Mul", norm, make.floats(_WIDTH * _TILE))

    return make.wide(x, lambda wide: pattern(pattern(wide)))


def gelu(make: Builder, x: str) -> str:
    """Gelu in single nodes."""

    def pattern(wide: str) -> str:
        erf = make.add("Erf", make.add("Div", wide, make.scalar(1.4142135)))
        return make.add(
            "Mul", make.add("Mul", wide, make.add("Add", erf, make.scalar(1))), make.scalar(0.5)
        )

    return make.wide(x, lambda wide: pattern(pattern(wide)))


def transposes(make: Builder, x: str) -> str:
    """Transposes that cancel out around cheap nodes."""

    def pattern(wide: str) -> str:
        for _ in range(4):
            turned = make.add("Relu", make.add("Transpose", wide, perm=[1, 0]))
            wide = make.add("Transpose", turned, perm=[1, 0])
        return wide

    return make.wide(x, pattern)


def weight_norm(make: Builder, x: str) -> str:
    """A MatMul by weights that are normalized in the graph."""
    weights = make.floats(_WIDTH * _TILE, _WIDTH * _TILE)
    norm = make.add("Sqrt", make.add("ReduceSum", make.add("Mul", weights, weights), keepdims=1))
    tall = make.add("Tile", x, make.ints(1, _TILE))
    made = make.add("MatMul", tall, make.add("Div", weights, norm))
    return make.add("Slice", made, make.ints(0), make.ints(_WIDTH), make.ints(1))


def convolution(make: Builder, x: str) -> str:
    """Convolutions of single channels, which are fast in the blocked layout."""
    image = make.add(
        "Reshape", make.add("Tile", x, make.ints(_TILE, _TILE)), make.ints(1, 32, 128, 128)
    )
    for _ in range(3):
        image = make.add(
            "Relu", make.add("Conv", image, make.floats(32, 1, 5, 5), pads=[2] * 4, group=32)
        )
    flat = make.add("Reshape", image, make.ints(_ROWS * _TILE, _WIDTH * _TILE))
    return make.add("Slice", flat, make.ints(0, 0), make.ints(_ROWS, _WIDTH), make.ints(0, 1))


def packed(make: Builder, x: str) -> str:
    """A MatMul of few rows, for which packing the weights costs more than the product."""
    tall = make.add(
        "Slice", make.add("Tile", x, make.ints(1, _TILE)), make.ints(0), make.ints(4), make.ints(0)
    )
    made = make.add("MatMul", tall, make.floats(_WIDTH * _TILE, 4096))
    part = make.add("Slice", made, make.ints(0, 0), make.ints(4, _WIDTH), make.ints(0, 1))
    return make.add("Tile", part, make.ints(_ROWS // 4, 1))


def loop(make: Builder, x: str) -> str:
    """A Loop of many cheap steps."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Tanh", ["state"], ["next"]),
        ],
        "body",
        [
            info("step", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("state", TensorProto.FLOAT, None),
        ],
        [info("on", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, None)],
    )
    count = make.weight(np.int64(400))
    go = make.weight(np.bool_(True))
    return make.add("Loop", count, go, x, body=body)


def lrn(make: Builder, x: str) -> str:
    """A local response normalization."""

    def pattern(wide: str) -> str:
        image = make.add("Reshape", wide, make.ints(1, 64, 64, 128))
        return make.add("Reshape", make.add("LRN", image, size=5), make.ints(512, 1024))

    return make.wide(x, pattern)


def unsigned(make: Builder, x: str) -> str:
    """A product of unsigned 8-bit integers."""

    def pattern(wide: str) -> str:
        small = make.add(
            "Clip", make.add("Mul", wide, make.scalar(10)), make.scalar(0), make.scalar(255)
        )
        weights = make.weight(make.random.integers(0, 255, (1024, 1024)).astype(np.uint8))
        made = make.add("MatMulInteger", make.add("Cast", small, to=TensorProto.UINT8), weights)
        return make.add("Mul", make.add("Cast", made, to=TensorProto.FLOAT), make.scalar(1e-5))

    return make.wide(x, pattern)


def arg_max(make: Builder, x: str) -> str:
    """The index of the largest value of each row."""

    def pattern(wide: str) -> str:
        index = make.add("Cast", make.add("ArgMax", wide, axis=1), to=TensorProto.FLOAT)
        return make.add("Add", wide, make.add("Mul", index, make.scalar(1e-3)))

    return make.wide(x, pattern)


def unit_rows(make: Builder, x: str) -> str:
    """Rows of length 1."""
    return make.wide(x, lambda wide: make.add("LpNormalization", wide))


@dataclass(frozen=True)
class Plant:
    """A region, and the two sides.

    Attributes:
        build: Adds the region.
        options: The slow side.
        baseline: The fast side.
    """

    build: Callable[[Builder, str], str]
    options: tuple[str, ...]
    baseline: str


def _without(*optimizers: str) -> tuple[str, ...]:
    return ("--onnxrt", *(word for name in optimizers for word in ("--disable-optimizer", name)))


PLANTS = {
    "rms_norm": Plant(rms_norm, _without("SimplifiedLayerNormFusion"), "onnxrt"),
    "gelu": Plant(gelu, _without("GeluFusion", "GeluFusionL2"), "onnxrt"),
    "transposes": Plant(
        transposes,
        _without("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider"),
        "onnxrt",
    ),
    "weight_norm": Plant(weight_norm, _without("ConstantFolding"), "onnxrt"),
    "convolution": Plant(convolution, _without("NchwcTransformer"), "onnxrt"),
    "packed": Plant(
        packed, ("--onnxrt", "--session-option", "session.disable_prepacking:1"), "onnxrt"
    ),
    "loop": Plant(loop, ("--openvino",), "onnxrt"),
}


@dataclass(frozen=True)
class Regression:
    """A region that is slower since a release.

    Attributes:
        build: Adds the region.
        package: The package.
        before: The last fast release.
        since: The first slow one.
        thread: What is public about it.
    """

    build: Callable[[Builder, str], str]
    package: str
    before: str
    since: str
    thread: str


_ORT = "https://github.com/microsoft/onnxruntime/"
_OPENVINO = "https://github.com/openvinotoolkit/openvino/"
REGRESSIONS = {
    "lrn": Regression(lrn, "onnxruntime", "1.20.1", "1.21.0", _ORT + "issues/26293"),
    "unsigned": Regression(unsigned, "onnxruntime", "1.24.4", "1.25.0", _ORT + "pull/27671"),
    "arg_max": Regression(arg_max, "openvino", "2025.3.0", "2025.4.0", _OPENVINO + "pull/32217"),
    "unit_rows": Regression(
        unit_rows, "openvino", "2026.1.0", "2026.2.0", _OPENVINO + "pull/35093"
    ),
}
_OLDEST = {"onnxruntime": ("--onnxrt", "1.18"), "openvino": ("--openvino", "2024.2")}


def make_model(path: Path, plant: Plant | Regression | None, seed: int) -> None:
    """Write a network of 200 to 600 nodes with a region at a random place."""
    chance = random.Random(seed)
    make = Builder(seed)
    current = "x"
    blocks = chance.randint(40, 110)
    place = chance.randint(5, blocks - 5)
    for number in range(blocks):
        current = make.block(current)
        if number == place and plant is not None:
            make.prefix = REGION
            current = plant.build(make, current)
            make.prefix = "net"
    make.nodes.append(helper.make_node("Identity", [current], ["y"], name="last"))
    first, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [_ROWS, _WIDTH])
        for name in ("x", "y")
    )
    graph = helper.make_graph(make.nodes, "net", [first], [last], make.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))


def call(folder: Path, *words: str) -> dict[str, object]:
    """Run bisect-trt; returns its result."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bisect_trt", *words, "--json", str(answer), "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not answer.exists():
        raise RuntimeError(done.stderr[-500:])
    found: dict[str, object] = json.loads(answer.read_text())
    return found


@dataclass(frozen=True)
class Found:
    """The answer of one search.

    Attributes:
        name: The region.
        inside: Whether it names nodes, and all of them are of the region.
        nodes: The number of nodes of the model.
        named: The nodes that it names.
        probes: The number of probes.
        seconds: Its time.
        why: What it says, if it names none.
    """

    name: str
    inside: bool
    nodes: int
    named: tuple[str, ...]
    probes: int
    seconds: float
    why: str = ""


def search(name: str, seed: int) -> Found:
    """Plant a region, and search it."""
    plant = PLANTS[name]
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        make_model(folder / "model.onnx", plant, seed)
        nodes = len(onnx.load(str(folder / "model.onnx")).graph.node)
        words = ["model.onnx", *plant.options, "--slower-than", "1.3", "--baseline", plant.baseline]
        began = time.monotonic()
        found: dict[str, object] = call(folder, "reduce", *words, "-o", "small.onnx")
        seconds = time.monotonic() - began
        culprits = found["culprits"]
        assert isinstance(culprits, list)
        named = tuple(str(each["name"]) for each in culprits)
        inside = bool(named) and all(each.startswith(REGION) for each in named)
        probes = found["probes"]
        assert isinstance(probes, dict)
        return Found(
            name, inside, nodes, named, int(probes["run"]), seconds, str(found["why"] or "")
        )


@dataclass(frozen=True)
class Dated:
    """The answers for one regression.

    Attributes:
        name: The region.
        exact: Whether the release is the one known, and each node named is of the region.
        since: The release that ``releases`` names.
        named: The nodes that ``reduce`` names.
        probes: The probes of both.
        seconds: The time of each.
    """

    name: str
    exact: bool
    since: str | None
    named: tuple[str, ...]
    probes: tuple[int, int]
    seconds: tuple[float, float]


def date(name: str, seed: int = 5) -> Dated:
    """Ask since which release a network is slower, and which nodes are."""
    case = REGRESSIONS[name]
    flag, oldest = _OLDEST[case.package]
    words = [
        "model.onnx",
        flag,
        "--slower-than",
        "1.3",
        "--baseline",
        f"{case.package}=={case.before}",
    ]
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        make_model(folder / "model.onnx", case, seed)
        began = time.monotonic()
        history: dict[str, Any] = call(folder, "releases", *words, "--from", oldest)
        between = time.monotonic()
        place = f"env={case.package}=={case.since}"
        small: dict[str, Any] = call(folder, "reduce", *words, "--on", place, "-o", "small.onnx")
        seconds = between - began, time.monotonic() - between
    named = tuple(str(each["name"]) for each in small["culprits"])
    inside = bool(named) and all(each.startswith(REGION) for each in named)
    since = history.get("first_failing")
    probes = history["probes"]["run"], small["probes"]["run"]
    return Dated(name, inside and since == case.since, since, named, probes, seconds)


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep every core busy."""
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()


def _spin() -> None:
    matrix = np.ones((200, 200))
    while True:
        matrix = np.tanh(matrix @ matrix)


def equal(runs: int) -> tuple[int, int]:
    """Compare equal models under load; returns how many times they are called slower, and how many times it is not known."""
    slower = unknown = 0
    with tempfile.TemporaryDirectory() as at, load():
        folder = Path(at)
        for seed in range(runs):
            make_model(folder / "model.onnx", None, seed)
            found = call(
                folder,
                "run",
                "model.onnx",
                "--onnxrt",
                "--slower-than",
                "1.3",
                "--baseline",
                "onnxrt",
            )
            slower += found["status"] == "not_reproduced"
            unknown += found["status"] == "inconclusive"
    return slower, unknown


def searched(cases: int, only: str | None = None) -> Iterator[Found]:
    """Search regions in turn."""
    names = [name for name in PLANTS if name != "loop" or importlib.util.find_spec("openvino")]
    for seed in range(cases):
        yield search(only or names[seed % len(names)], seed)


def figures() -> Iterable[Figure]:
    """Slow regions named by ``reduce --slower-than 1.3``, and false alarms of equal models under load."""
    found = list(searched(20))
    missed = "; ".join(
        f"{each.name}: {', '.join(each.named) or each.why}" for each in found if not each.inside
    )
    yield Figure(
        "planted regions named, of 20",
        sum(each.inside for each in found),
        18,
        least=True,
        note=missed,
    )
    yield Figure("longest search, s", max(each.seconds for each in found))
    yield Figure("probes, mean", sum(each.probes for each in found) / len(found))
    began = time.monotonic()
    slower, unknown = equal(40)
    yield Figure(
        "false alarms of 40 equal models under load", slower, 0, note=f"{unknown} undecided"
    )
    yield Figure("one comparison under load, s", (time.monotonic() - began) / 40)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--equal", type=int, default=40)
    parser.add_argument("--only", choices=[*PLANTS, *REGRESSIONS])
    parser.add_argument(
        "--releases", action="store_true", help="regressions between releases instead"
    )
    options = parser.parse_args()
    if options.releases or options.only in REGRESSIONS:
        for name in [options.only] if options.only in REGRESSIONS else REGRESSIONS:
            print(date(name), flush=True)
        return
    for each in searched(options.cases, options.only):
        print(each, flush=True)
    if options.equal:
        print(
            "slower, undecided of", options.equal, "equal models under load:", equal(options.equal)
        )


if __name__ == "__main__":
    main()
