"""Passes of TensorRT's compiler on a real GPU: a fusion that changes fp16 results is named, and the engine without it passes.

    python -m pytest -q -s tests/gpu/test_gpu_fusions.py        # in one process, without -n; at most 400 s

Which fusion changes results, and to which side, depends on the release and on the GPU. So first each
network is built with each option, in fp16 throughout (left to itself TensorRT runs small networks in
fp32, where no fusion changes a value). Where the outputs with an option differ from those without by
more than two builds of the same kind do, the failure is planted: the golden values are those with
the option, and the tolerance lies between both distances. All figures are printed, and written to
``$OUT/fusions.txt`` where ``OUT`` is set.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.errors import BisectError
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.files import save_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Compare, Failed, Sample

ROOT = Path(__file__).parents[2]
WIDTH = 64
ROWS = 16
LEVEL = 0
"""The first tactic that runs is taken, so that two builds compute the same."""
TARGET = ("--trt", "--fp16", "--hold-precision", "--builder-optimization-level", str(LEVEL))
PASSES = (
    "mha_fusion=off",
    "peep:fc_h_fusion=off",
    "copy_ppg=off",
    "reshape_ppg=off",
    "slice_fusion=off",
    "kgen:tiling=0",
)
FUEL = "kgen:fusion_fuel"
COUNTS = (6,)
"""Fewer fusions than four end the compiler of 8.6.0."""
MOST_FUSIONS = 200
APART = 2.0
"""The least ratio of the distance between the two kinds of engines to the one between two of the same kind."""
LOOK_S = 200.0
"""Seconds in which networks are built with further options."""
ALL_S = 540.0
_PARALLEL = 12
_FINITE = 1e8
"""Golden values are below: NaN and Inf are read as more."""
CHECK = """
import pathlib, sys
import numpy as np
import tensorrt as trt
from bisect_trt.targets.trt.engine import TrtSession
from bisect_trt.targets.trt.process import Log, TensorRt, load_cuda

engine, inputs, golden, tolerance = sys.argv[1:]
cuda = load_cuda()
cuda.start()
log = Log()
logger = log.make_logger(trt)
runtime = trt.Runtime(logger)
built = runtime.deserialize_cuda_engine(pathlib.Path(engine).read_bytes())
session = TrtSession(TensorRt(trt, log, logger, None, runtime, cuda), built, {})
outputs = session.run(dict(np.load(inputs)))
wanted = np.load(golden)
plain = lambda value: np.nan_to_num(value.astype("f8"), nan=1e9, posinf=2e9, neginf=-2e9)
worst = max(float(np.abs(plain(outputs[name]) - plain(wanted[name])).max()) for name in wanted)
print("off by", worst)
sys.exit(worst > float(tolerance))
"""


class Net:
    """A network in fp32 of tensors of one shape, one node after another."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *reads: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [*reads], [f"{name}:0"], name, **attributes))
        return f"{name}:0"

    def weight(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def product(self, read: str, scale: float = 1.0) -> str:
        values = self.random.standard_normal((WIDTH, WIDTH)) * scale / math.sqrt(WIDTH)
        return self.add("MatMul", read, self.weight(values))

    def attention(self, read: str, scale: float, divisor: float = 4.0) -> str:
        heads = self.weight([1, ROWS, 4, WIDTH // 4], np.int64)
        q, k, v = (
            self.add("Transpose", self.add("Reshape", self.product(read, each), heads), perm=perm)
            for perm, each in (([0, 2, 1, 3], scale), ([0, 2, 3, 1], scale), ([0, 2, 1, 3], 1.0))
        )
        scores = self.add("Div", self.add("MatMul", q, k), self.weight(divisor))
        mixed = self.add("MatMul", self.add("Softmax", scores), v)
        joined = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.add("Reshape", joined, self.weight([1, ROWS, WIDTH], np.int64))
        return self.add("Add", read, self.product(flat))

    def sharp(self, read: str, scale: float) -> str:
        """Attention whose scores are large when they are rounded, so that the rounding moves the weights."""
        return self.attention(read, scale, 8.0)

    def past(self, read: str, scale: float) -> str:
        """Attention whose scores are past fp16 until they are divided."""
        return self.attention(read, scale, scale * scale)

    def norm(self, read: str, scale: float) -> str:
        """A norm of which the squares may be past fp16."""
        large = self.add("Mul", read, self.weight(scale))
        mean = self.add("ReduceMean", self.add("Mul", large, large), axes=[-1])
        root = self.add("Sqrt", self.add("Add", mean, self.weight(1e-5)))
        return self.add("Div", large, root)

    def centred(self, read: str, shift: float) -> str:
        """A norm of values far from zero, where fp16 has few digits."""
        moved = self.add("Add", read, self.weight(shift))
        apart = self.add("Sub", moved, self.add("ReduceMean", moved, axes=[-1]))
        spread = self.add("ReduceMean", self.add("Mul", apart, apart), axes=[-1])
        return self.add("Div", apart, self.add("Sqrt", self.add("Add", spread, self.weight(1e-3))))

    def variance(self, read: str, shift: float) -> str:
        """The mean of squares less the square of the mean, which cancel."""
        moved = self.add("Add", read, self.weight(shift))
        mean = self.add("ReduceMean", moved, axes=[-1])
        squares = self.add("ReduceMean", self.add("Mul", moved, moved), axes=[-1])
        spread = self.add("Abs", self.add("Sub", squares, self.add("Mul", mean, mean)))
        return self.add("Mul", read, self.add("Sqrt", self.add("Add", spread, self.weight(1e-2))))

    def rounded(self, read: str, shift: float) -> str:
        """What is added is subtracted again: fp16 keeps what is left of the digits, fp32 keeps all."""
        moved = self.add("Add", read, self.weight(shift))
        return self.add("Sub", self.add("Relu", moved), self.weight(shift))

    def biased(self, read: str, shift: float) -> str:
        """The same behind a product."""
        return self.rounded(self.product(read), shift)

    def gated(self, read: str, scale: float) -> str:
        gate = self.product(read, scale)
        up = self.product(read, scale)
        active = self.add("Mul", gate, self.add("Sigmoid", gate))
        return self.add("Add", read, self.product(self.add("Mul", active, up), 1 / scale**2))


Blocks = Sequence[tuple[str, float]]
CASES: dict[str, Blocks] = {
    "attention": (("attention", 1.0), ("centred", 0.0), ("attention", 2.0)),
    "sharp attention": (("sharp", 12.0), ("centred", 0.0)),
    "sharper attention": (("gated", 1.0), ("centred", 0.0), ("sharp", 30.0)),
    "scores past fp16": (("past", 250.0), ("centred", 0.0)),
    "squares past fp16": (("attention", 1.0), ("norm", 300.0), ("gated", 1.0)),
    "far from zero": (("attention", 1.0), ("centred", 300.0), ("attention", 1.0)),
    "farther": (("gated", 1.0), ("centred", 1500.0), ("attention", 4.0)),
    "variance": (("attention", 1.0), ("variance", 12.0), ("gated", 1.0)),
    "rounded": (("attention", 1.0), ("rounded", 700.0), ("gated", 1.0)),
    "rounded twice": (("rounded", 300.0), ("attention", 1.0), ("rounded", 900.0)),
    "biased": (("attention", 1.0), ("biased", 700.0), ("centred", 0.0)),
    "gated": (("gated", 60.0), ("attention", 1.0), ("gated", 60.0)),
}
Values = NDArray[np.float64]


@dataclass
class Case:
    """A network, and what was seen of it.

    Attributes:
        folder: Its files.
        spread: The distance of two builds without options.
        apart: By option, the distance of the engine with it from the one without.
        planted: The options of a failure, each with its tolerance.
        answers: By option, what ``cause`` answers, and the status of its fix.
    """

    folder: Path
    spread: float = math.nan
    apart: dict[str, float] = field(default_factory=dict)
    planted: dict[str, float] = field(default_factory=dict)
    answers: dict[str, tuple[dict[str, Any], int]] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        return self.folder / "m.onnx"

    @property
    def inputs(self) -> Path:
        return self.folder / "m.npz"

    def values(self, option: str) -> Path:
        return self.folder / f"{option.replace(':', '_')}.npz"


def write(case: Case, blocks: Blocks) -> None:
    """Write a network of blocks, its inputs and what ONNX Runtime computes in fp32."""
    net = Net(len(blocks))
    last = net.product("x")
    for name, scale in blocks:
        last = getattr(net, name)(last, scale)
    last = net.product(last)
    shape = [1, ROWS, WIDTH]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", last)]
    graph = helper.make_graph(net.nodes, "g", ends[:1], ends[1:], net.weights)
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), case.model)
    feed = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        str(case.model), options, providers=["CPUExecutionProvider"]
    )
    save_npz(case.inputs, feed)
    [golden] = session.run(None, feed)
    save_npz(case.folder / "fp32.npz", {last: golden})


def outputs(pool: WorkerPool, case: Case, *options: str) -> Values | None:
    """Return the outputs of an engine, and keep them; ``None`` if the compiler crashes, refuses, or ignores an option."""
    settings = TargetSettings("trt", fp16=True, held=True).with_own(
        compiler_options=options, builder_optimization_level=LEVEL
    )
    sample = Sample(case.inputs, case.folder / "fp32.npz")
    to = case.values(options[0] if options else "plain")
    asked = Compare(
        settings, case.model, (sample,), ToleranceOptions(), every=True, save_outputs=(to,)
    )
    try:
        reply = pool.ask(asked, 90)
    except BisectError:
        return None
    return None if isinstance(reply, Failed) else read(to)


def read(path: Path) -> Values:
    with np.load(path) as values:
        joined = np.concatenate([values[name].ravel() for name in sorted(values)])
    return np.nan_to_num(joined.astype(np.float64), nan=1e9, posinf=2e9, neginf=-2e9)


def far(one: Values, other: Values) -> float:
    return float(np.abs(one - other).max())


def look(case: Case, until: float) -> None:
    """Build a network with each option, and plant the failures of at most one pass and of the counter."""
    with WorkerPool(case.folder) as pool:
        plain = outputs(pool, case)
        again = outputs(pool, case)
        if plain is None or again is None:
            return
        case.spread = far(plain, again)
        seen = dict[str, Values]()
        for option in (*PASSES, *(f"{FUEL}={count}" for count in COUNTS)):
            values = None if time.monotonic() > until else outputs(pool, case, option)
            if values is not None:
                seen[option] = values
                case.apart[option] = far(plain, values)
    passes = [option for option in seen if option in PASSES]
    counts = [option for option in seen if option not in PASSES]
    with WorkerPool(case.folder) as pool:  # another process measures its kernels anew
        other = outputs(pool, case)
        for option in (max(each, key=case.apart.__getitem__) for each in (passes, counts) if each):
            same = outputs(pool, case, option)
            if other is None or same is None or np.abs(same).max() > _FINITE:
                continue
            noise = max(case.spread, far(plain, other), far(seen[option], same), 1e-7)
            between = min(case.apart[option], far(other, same), far(other, seen[option]))
            if between > APART * noise:
                case.planted[option] = math.sqrt(between * max(noise, between / 100))


def command(case: Case, until: float, *words: str) -> int:
    """Run a command in the case's folder; return its status, -1 if the time is up."""
    left = until - time.monotonic()
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with (case.folder / "log.txt").open("a") as log, suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            [sys.executable, "-m", "bisect_trt", *words],
            cwd=case.folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=log,
            timeout=max(left, 1),
            check=False,
        ).returncode
    return -1


def search(case: Case, option: str, tolerance: float, until: float) -> None:
    """Search the cause of a planted failure, and run the fix that it names."""
    name, _, value = option.partition("=")
    asked = [f"{FUEL}={value}..{MOST_FUSIONS}"] if name == FUEL else [*PASSES]
    switches = [word for each in asked for word in ("--compiler-switch", each)]
    golden = case.values(option)
    close = (str(case.inputs), str(golden), f"{tolerance:.6g}")
    check = ("--check", sys.executable, str(case.folder / "check.py"), "{engine}", *close)
    answer = case.folder / f"{golden.stem}.json"
    words = ("cause", str(case.model), *TARGET, "--load-inputs", close[0], "--no-other-release")
    command(case, until, *words, *switches, "--json", str(answer), *check)
    if not answer.is_file():
        return
    result = json.loads(answer.read_text())
    status = -1
    if result.get("cause"):
        options = [f"--compiler-option={name.removeprefix('pass:')}" for name in result["cause"][0]]
        same = ("--load-inputs", close[0], "--load-outputs", close[1])
        bound = ("--atol", close[2], "--rtol", "0")
        status = command(case, until, "run", str(case.model), *TARGET, *options, *same, *bound)
    case.answers[option] = result, status


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Case]:
    """All networks, looked at and searched side by side."""
    began = time.monotonic()
    found = {name: Case(tmp_path_factory.mktemp(name.replace(" ", "_"))) for name in CASES}
    for name, case in found.items():
        write(case, CASES[name])
        (case.folder / "check.py").write_text(CHECK)
    with ThreadPoolExecutor(_PARALLEL) as threads:
        [*threads.map(lambda case: look(case, began + LOOK_S), found.values())]
        looked = time.monotonic()
        plants = [
            (case, option, tolerance)
            for case in found.values()
            for option, tolerance in case.planted.items()
        ]
        until = began + ALL_S
        [*threads.map(lambda plant: search(plant[0], plant[1], plant[2], until), plants)]
    lines = [f"looked {looked - began:.0f} s, searched {time.monotonic() - looked:.0f} s"]
    for name, case in found.items():
        apart = {option: float(f"{value:.3g}") for option, value in case.apart.items()}
        lines.append(f"{name}: builds alike to {case.spread:.3g}; with an option off by {apart}")
        for option, tolerance in case.planted.items():
            result, status = case.answers.get(option, ({}, -1))
            detail = (result.get("cause_detail") or {}).get("alternatives") or [{}]
            lines.append(
                f"  planted {option}, tolerance {tolerance:.3g}: {result.get('cause')} in "
                f"{result.get('probes', {}).get('run')} probes; {detail[0].get('seen')}; {result.get('why')}; "
                f"fix ends with {status}; layers {json.dumps(detail[0].get('layers'))[:300]}"
            )
    text = "\n".join(lines)
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None, "pytest has one"
    reporter.write_line(f"\n{text}")
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "fusions.txt").write_text(text)
        for name, case in found.items():
            if (case.folder / "log.txt").is_file():
                log = (case.folder / "log.txt").read_text()
                Path(os.environ["OUT"], f"{name}.log").write_text(log)
    return found


def exact(option: str, result: dict[str, Any]) -> bool:
    """Whether the pass is named, or the counter's value before the fusion, each proven."""
    name = option.partition("=")[0]
    for entry in (result.get("cause_detail") or {}).get("alternatives", ()):
        if name == FUEL and "3 of 3 builds pass" in entry["seen"]:
            return True
        if entry["switches"] == [f"pass:{option}"]:
            return True
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_a_fusion_that_changes_values_is_named(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    if not case.planted:
        pytest.skip(f"no option moves the values of this network here: {case.apart}")
    for option in case.planted:
        result, status = case.answers[option]
        assert exact(option, result), result.get("why")
        assert status == 0


def test_six_failures_are_named(cases: dict[str, Case]) -> None:
    named = [
        (name, option)
        for name, case in cases.items()
        for option, (result, status) in case.answers.items()
        if exact(option, result) and status == 0
    ]
    assert len(named) >= 6, named
