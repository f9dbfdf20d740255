"""Limits of time, memory and size as the verdict, on ONNX Runtime."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_proto, save_text
from conftest import CommandLine
from onnx import TensorProto, helper
from support import overflowing, read_json, rest_slow

from bisect_trt.commands.layerwise import named_in, read_profile
from bisect_trt.errors import UnknownNameError
from bisect_trt.probe.limit_check import baseline_target
from bisect_trt.targets.base import TargetSettings, reference_settings
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Measure, Measured
from bisect_trt.worker.timing import Timed, compare_blocks

SLOW = [
    "--onnxrt",
    "--session-option",
    "session.disable_prepacking:1",
    "--slower-than",
    "1.3",
    "--baseline",
    "onnxrt",
]
"""Packing the weights of a MatMul of one row takes many times as long as the product."""


def write_model(path: Path) -> None:
    """Eight cheap nodes, and in their middle a MatMul that is slow without packed weights."""
    weights = np.random.default_rng(0).standard_normal((256, 4096)).astype(np.float32) / 16
    nodes = []
    current = "x"
    for number in range(8):
        if number == 4:
            nodes.append(helper.make_node("MatMul", [current, "w"], ["wide"], name="slow"))
            nodes.append(
                helper.make_node("Slice", ["wide", "zero", "end", "one"], ["narrow"], name="cut")
            )
            current = "narrow"
        nodes.append(helper.make_node("Tanh", [current], [f"t{number}"], name=f"tanh{number}"))
        current = f"t{number}"
    x, y = ((name, TensorProto.FLOAT, [4, 256]) for name in ("x", current))
    ints = {name: np.array([value]) for name, value in (("zero", 0), ("end", 256), ("one", 1))}
    save_proto(path, nodes, [x], [y], {"w": weights, **ints})


@pytest.mark.slow
def test_a_slow_node_is_named(here: Path, cli: CommandLine) -> None:
    write_model(here / "m.onnx")
    result = cli("reduce", "m.onnx", *SLOW, "-o", "small.onnx", "--json", "r.json").ended(0).result
    assert [each["name"] for each in result["culprits"]] == ["slow"]


def test_the_quantized_group_that_costs_more_than_it_brings_is_named(cli: CommandLine) -> None:
    """Four rows are read of each table, and ONNX Runtime dequantizes all of a table in each run."""
    tables = {
        f"w{number}": np.ones((rows, 64), np.int8) for number, rows in enumerate((64, 32768, 64))
    }
    body = " ".join(
        f"d{n} = DequantizeLinear(w{n}, scale, zero) rows{n} = Gather(d{n}, x)" for n in range(3)
    )
    weights = {**tables, "scale": np.float32(0.003), "zero": np.int8(0)}
    save_text(
        "m.onnx",
        "(int64[4] x) => (float[4, 64] y)",
        f"{body} y = Sum(rows0, rows1, rows2)",
        weights,
    )
    words = (
        "precision",
        "m.onnx",
        "-o",
        "o.onnx",
        "--onnxrt",
        "--json",
        "r.json",
        "--latency-limit",
        "0.2",
    )
    result = cli(*words, "--int8").ended(0).result
    assert [each["name"] for each in result["keep_fp32"]] == ["rows1"]
    assert cli("run", "o.onnx", "--onnxrt", "--latency-limit", "0.2").status == 0
    assert "error[BT1003]" in cli(*words, "--fp16", "--overwrite").err


@pytest.mark.parametrize(
    ("words", "switch"),
    rest_slow(
        [
            (("--graph-optimization-level", "off"), "option:graph_optimization_level=all"),
            (("--disable-optimizer", "ConstantFolding"), "optimizer:ConstantFolding"),
        ],
        now=0,
    ),
)
def test_a_disabled_optimizer_is_the_cause(
    cli: CommandLine, words: tuple[str, ...], switch: str
) -> None:
    """A product of weights is computed in each run."""
    weights = np.random.default_rng(0).standard_normal((384, 384)).astype(np.float32)
    ends = "(float[4, 384] x) => (float[4, 384] y)"
    save_text("m.onnx", ends, "ww = MatMul(w, w) y = MatMul(x, ww)", {"w": weights}, opset=17)
    assert cli("cause", "m.onnx", "--onnxrt", *words, *SLOW[3:], "--json", "c.json").result[
        "cause"
    ] == [[switch]]


def test_equal_sides_are_not_slower(here: Path, cli: CommandLine) -> None:
    write_model(here / "m.onnx")
    limit = ("--slower-than", "2", "--baseline", "onnxrt")
    assert (
        cli("run", "m.onnx", "--onnxrt", *limit, "--json", "r.json").result["status"]
        != "not_reproduced"
    )


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        (("--memory-limit-of", "run:0.5"), 1),
        (("--memory-limit-of", "build:4000", "run:4000", "--build-time-limit", "500"), 0),
        (("--build-time-limit", "0.001"), 1),
        (("--latency-limit", "0.000001"), 1),
        (("--latency-limit", "0.000001", "--percentile", "99"), 1),
        (("--latency-limit", "60000", "--percentile", "90"), 0),
        (("--percentile", "90"), 2),
    ],
)
def test_a_model_past_a_limit_has_status_1(
    here: Path, cli: CommandLine, limit: tuple[str, ...], status: int
) -> None:
    write_model(here / "m.onnx")
    assert cli("run", "m.onnx", "--onnxrt", *limit).status == status


def test_a_baseline_is_a_precision_a_target_an_option_or_the_reference() -> None:
    target = TargetSettings("onnxrt", fp16=True)
    assert baseline_target("fp32", target) == TargetSettings("onnxrt")
    assert baseline_target("openvino", target) == TargetSettings("openvino")
    assert baseline_target("onnxruntime==1.20.1", target) == target
    assert baseline_target("graph-optimization-level=basic", target) == target.with_own(
        graph_optimization_level="ORT_ENABLE_BASIC"
    )
    assert baseline_target(None, target) == reference_settings(target)
    with pytest.raises(UnknownNameError):
        baseline_target("graph-level=basic", target)


class Model:
    """A session whose runs take as long as they are told."""

    inputs = ()

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.place = 0

    def times(self, feed: object, runs: int) -> list[float]:  # noqa: ARG002 - of the session's kind
        self.place += 1
        return [self.seconds[self.place % len(self.seconds)]] * runs


def blocks(
    seconds: tuple[float, ...], baseline: float | None, budget: float = 5.0, **rule: Any
) -> bool | None:
    request = Measure(TargetSettings("onnxrt"), Path(), Path(), **{"ratio": 1.3, **rule})
    beside = None if baseline is None else Timed(Model(baseline), {})
    return compare_blocks(
        Timed(Model(*seconds), {}), beside, request.judge, budget, request.share
    ).slow


def test_noise_around_the_ratio_is_not_decided_and_clear_differences_are() -> None:
    assert blocks((1.0, 2.0), 1.0, 0.3) is None
    assert blocks((1.4,), 1.0) is True
    assert blocks((1.2,), 1.0) is False


def test_a_percentile_counts_every_run() -> None:
    tail = (1.0,) * 9 + (3.0,)  # a tenth of the runs
    limits: dict[str, Any] = {"ratio": None, "limit_s": 2.0}
    assert blocks(tail, None, **limits) is False
    assert blocks(tail, None, share=0.8, **limits) is False
    assert blocks(tail, None, share=0.95, **limits) is True


def test_a_piece_is_judged_by_the_time_that_it_loses() -> None:
    assert blocks((1.1,), 1.0, lost_s=(0.05, 0.08)) is True
    assert blocks((1.02,), 1.0, lost_s=(0.05, 0.08)) is False
    assert (
        blocks((1.06,), 1.0, lost_s=(0.05, 0.08)) is True
    )  # in between: quickly, and the same each time
    request = Measure(TargetSettings("onnxrt"), Path(), Path(), ratio=1.3, lost_s=(0.05, 0.08))
    assert request.judge(1.1, 1.0, idle_s=0.07) == (False, True)


def test_what_openvino_adds_to_every_run_is_known(here: Path) -> None:
    pytest.importorskip("openvino")
    write_model(here / "m.onnx")
    np.savez(here / "in.npz", x=np.ones((4, 256), np.float32))
    known: dict[str, Any] = {"budget_s": 1.0, "baseline": TargetSettings("onnxrt"), "ratio": 1.3}
    with WorkerPool(here) as pool:
        reply = pool.ask(
            Measure(TargetSettings("openvino"), here / "m.onnx", here / "in.npz", **known)
        )
    assert isinstance(reply, Measured)
    assert reply.idle_s > 0


@pytest.mark.slow
def test_another_form_of_a_model_is_compared_with_the_model_itself(
    here: Path, cli: CommandLine
) -> None:
    """Where the baseline ran the other form too, a form that slows both sides down would be a workaround."""
    write_model(here / "m.onnx")
    quick = onnx.load("m.onnx")
    del quick.graph.node[1:]
    quick.graph.output[0].name = "t0"
    onnx.save(quick, "quick.onnx")
    np.savez("in.npz", x=np.ones((4, 256), np.float32))
    target = TargetSettings("onnxrt").with_own(
        session_options=(("session.disable_prepacking", "1"),)
    )
    known: dict[str, Any] = {"budget_s": 20, "baseline": target, "ratio": 4.0}
    with WorkerPool(here) as pool:
        same = pool.ask(Measure(target, here / "m.onnx", here / "in.npz", **known))
        other = pool.ask(
            Measure(
                target,
                here / "m.onnx",
                here / "in.npz",
                **known,
                baseline_model=here / "quick.onnx",
            )
        )
    assert [isinstance(reply, Measured) and reply.slow for reply in (same, other)] == [False, True]
    assert (
        cli(
            "workaround", "m.onnx", "--onnxrt", "--slower-than", "50", "--baseline", "onnxrt"
        ).status
        == 1
    )


@pytest.mark.slow
def test_out_of_memory_is_a_failure_that_is_searched(here: Path) -> None:
    """Folding a large constant takes it twice, and the reference takes it once."""
    size = 100_000_000
    body = "t = Tanh(x) big = ConstantOfShape<value = float[1] {1}>(n) one = Gather(big, zero) y = Add(t, one)"
    weights = {"n": np.array([size]), "zero": np.array([0])}
    save_text("m.onnx", "(float[1] x) => (float[1] y)", body, weights, opset=17)
    plain = "import onnx, bisect_trt.tensors.compare, onnxruntime; s = onnxruntime.InferenceSession({!r})"
    code = f"{plain.format(str(overflowing(here / 'small.onnx')))}; print(open('/proc/self/status').read())"
    status = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    most = (int(status.split("VmPeak:")[1].split()[0]) << 10) + 6 * size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    command = [
        sys.executable,
        "-m",
        "bisect_trt",
        "reduce",
        "m.onnx",
        "--onnxrt",
        "-o",
        "out.onnx",
        "--json",
        "r.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    result = read_json(here / "r.json")
    # One neighbour runs out of memory while it runs, not while it is loaded, so the answer is not
    # proven.
    assert done.returncode == 3, done.stderr
    assert "big" in [culprit["name"] for culprit in result["culprits"]]
    assert result["report"]["probes"][0]["reason"].endswith("std::bad_alloc")


@pytest.mark.parametrize(
    "message",
    [
        "std::bad_alloc",
        "CUDA failure 2: out of memory",
        "Failed to allocate memory for requested buffer of size 9",
    ],
)
def test_no_memory_is_one_signature(message: str) -> None:
    assert {kind(message).sign() for kind in (BuildError, RunError)} == {"out of memory"}


@pytest.mark.parametrize("target", ["--onnxrt", "--openvino"])
def test_layers_are_beside_the_baselines_by_the_nodes_they_run(
    here: Path, cli: CommandLine, target: str
) -> None:
    write_model(here / "m.onnx")
    model = onnx.load("m.onnx")
    model.graph.node[0].name = ""
    onnx.save(model, "m.onnx")
    slow = SLOW[1:3] if target == "--onnxrt" else ["--openvino-property", "INFERENCE_NUM_THREADS:1"]
    timed = ["--latency", "--baseline", "onnxrt", "--json", "r.json", "--report", "r.html"]
    result = cli("layerwise", "m.onnx", target, *slow, *timed).ended(0).result
    assert "Time of each layer" in (here / "r.html").read_text()
    rows = result["latency"]["rows"]
    named = [node["name"] for row in rows for node in row["nodes"]]
    assert sorted(named) == sorted(node.name for node in onnx.load(str(here / "m.onnx")).graph.node)
    if target == "--onnxrt":
        assert [node["name"] for node in rows[0]["nodes"]] == ["slow"]
    for side in ("", "baseline_"):
        whole = result["latency"][f"{side}ms"]
        assert sum(row[f"{side}ms"] for row in rows) == pytest.approx(whole)
        written = read_profile(Path(result["artifacts"][f"{side}profile"]))
        assert sum(layer["ms"] for layer in written) == pytest.approx(whole)
    again = [
        "--latency",
        "--baseline",
        result["artifacts"]["baseline_profile"],
        "--json",
        "again.json",
    ]
    whole = (
        cli("layerwise", "m.onnx", target, *slow, *again).ended(0).result["latency"]["baseline_ms"]
    )
    assert whole == pytest.approx(result["latency"]["baseline_ms"])


def test_a_fused_layer_is_known_by_the_names_in_its_own() -> None:
    known = {"conv1", "relu1", "/enc/MatMul", "/enc/Add", "x"}
    assert named_in("conv1 + relu1", known) == ["conv1", "relu1"]
    assert named_in("{ForeignNode[/enc/MatMul.../enc/Add]}", known) == ["/enc/MatMul", "/enc/Add"]
    assert named_in("conv1_nchwc", known) == ["conv1"]
    assert named_in("reorder_x", known) == []
