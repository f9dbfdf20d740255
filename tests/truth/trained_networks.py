"""Trained networks of packages: each verdict of the tool is the verdict of a script that asks the runtime itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from truth.bare import distance, onnxruntime_session
from truth.trained import NETWORKS, Network
from truth.trained_more import MORE_NETWORKS

pytestmark = pytest.mark.slow
Record = Callable[[str, object], None]
SECONDS = 600
PATH = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
PACKAGES = {
    "openvino": "openvino",
    "trt_rtx": "tensorrt_rtx_bindings",
}
each_network = pytest.mark.parametrize(
    "network", [*NETWORKS, *MORE_NETWORKS], ids=lambda each: each.name
)
BORDERLINE = 2.0
"""Distance from the tolerance, as a factor, within which the order of roundings decides the verdict."""


def bare_verdict(question: str, model: Path, files: list[Path]) -> dict[str, Any]:
    """Return what a runtime itself says."""
    line: list[str | Path] = [sys.executable, "-m", "truth.bare", question, model, *files]
    ran = subprocess.run(line, check=True, capture_output=True, timeout=SECONDS, env=PATH)
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def assert_agrees(
    record: Record, verdict: str, bare: dict[str, Any], answer: dict[str, Any]
) -> None:
    """Record both verdicts; they are equal, unless the error is near the tolerance."""
    record("bare script", bare["verdict"])
    record("bisect-trt", verdict)
    near = 1 / BORDERLINE < bare.get("distance", 0) < BORDERLINE
    assert verdict == bare["verdict"] or near, (bare, answer["why"])


def ask(record: Record, network: Network, command: str, *words: str | Path) -> dict[str, Any]:
    """Run the command line; return its answer, with its exit status as ``exit``, and record its time and peak memory."""
    program = ["timeout", str(SECONDS), sys.executable, "-m", "bisect_trt", command, words[0]]
    started = subprocess.Popen([*program, "--json", "answer.json", *words[1:]], env=PATH)
    _, status, usage = os.wait4(started.pid, 0)
    answer: dict[str, Any] = json.loads(Path("answer.json").read_text("utf-8"))
    options = [str(word) for word in words if str(word).startswith("--")]
    record("network", network.name)
    record("command", " ".join([command, *options]))
    record("s", round(answer["wall_s"], 1))
    record("MB", usage.ru_maxrss // 1024)
    started.returncode = os.waitstatus_to_exitcode(status)
    return answer | {"exit": started.returncode}


def verdict_of(answer: dict[str, Any]) -> str:
    """Return the verdict of `run` in the words of the bare script."""
    if answer["status"] == "error" and answer["error"]["code"] == "BT2004":
        return "refused"
    return {0: "match", 1: "differs"}.get(answer["exit"], str(answer["exit"]))


@each_network
@pytest.mark.parametrize("target", ["onnxrt", "openvino", "trt_rtx"])
def test_run(here: Path, network: Network, target: str, record_property: Record) -> None:
    if target in PACKAGES and importlib.util.find_spec(PACKAGES[target]) is None:
        pytest.skip(f"{PACKAGES[target]} is not installed")
    model = network.fetch()
    files = network.write_samples(here)
    bare = bare_verdict(target, model, files)
    options = {"trt_rtx": ["--trt-rtx", "--build-only"]}.get(target, [f"--{target}"])
    answer = ask(record_property, network, "run", model, *options, "--load-inputs", *files)
    verdict = verdict_of(answer)
    if target == "trt_rtx":
        verdict = {"match": "builds", "differs": "refused"}.get(verdict, verdict)
    assert_agrees(record_property, verdict, bare, answer)


@each_network
def test_fp16(here: Path, network: Network, record_property: Record) -> None:
    model = network.fetch()
    files = network.write_samples(here)[:2]
    bare = bare_verdict("fp16", model, files)
    options = ["--onnxrt", "--fp16", "--max-time", "60", "-o", "reproducer", "--load-inputs"]
    answer = ask(record_property, network, "diagnose", model, *options, *files)
    if answer["status"] == "error" and answer["error"]["code"] == "BT1009":
        # Refused, because no node can be lowered: all are of other domains.
        assert all(node.domain for node in onnx.load(model).graph.node)
        return
    verdict = "match" if answer["status"] == "not_reproduced" else "differs"
    assert_agrees(record_property, verdict, bare, answer)


@each_network
def test_sanitize(here: Path, network: Network, record_property: Record) -> None:
    model = network.fetch()
    files = network.write_samples(here)
    words: list[str | Path] = [model, "-o", "clean.onnx", "--load-inputs", *files]
    assert ask(record_property, network, "sanitize", *words)["exit"] == 0
    before, after = onnxruntime_session(str(model)), onnxruntime_session("clean.onnx")
    for file in files:
        feed = dict(np.load(file))
        for one, other in zip(before(feed), after(feed), strict=True):
            assert distance(one, other, half=False) <= 1


def from_middle(path: Path) -> list[str]:
    """Return the float tensors that depend on the inputs, from the middle of the network on."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    floats: set[str] = {
        value.name
        for value in [*model.graph.value_info, *model.graph.output]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    constant = {weight.name for weight in model.graph.initializer} | {""}
    names: list[str] = []
    for node in model.graph.node:
        bodies = any(each.HasField("g") for each in node.attribute)
        if constant.issuperset(node.input) and not bodies:
            constant.update(node.output)
        elif node.op_type not in ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"):
            names += floats.intersection(node.output)
    return names[len(names) // 2 :]


@each_network
def test_extract(here: Path, network: Network, record_property: Record) -> None:
    model = network.fetch()
    files = network.write_samples(here)
    tensor = from_middle(model)[0]
    words: list[str | Path] = [
        model,
        "-o",
        "head.onnx",
        "--outputs",
        tensor,
        "--load-inputs",
        *files,
    ]
    assert ask(record_property, network, "extract", *words)["exit"] == 0
    marked = onnx.load(model)
    marked.graph.output.append(onnx.ValueInfoProto(name=tensor))
    whole, head = onnxruntime_session(marked.SerializeToString()), onnxruntime_session("head.onnx")
    for file in files:
        feed = dict(np.load(file))
        assert distance(whole(feed)[-1], head(feed)[0], half=False) <= 1


@each_network
def test_reduce(here: Path, network: Network, record_property: Record) -> None:
    model = network.fetch()
    files = network.write_samples(here)[:2]
    script = [sys.executable, "-m", "truth.negated"]
    tensor = next(
        each
        for each in from_middle(model)
        if subprocess.run([*script, each, model, files[0]], check=False, env=PATH).returncode == 1
    )
    check = ["--check", *script, tensor, "{model}", "{inputs}"]
    words: list[str | Path] = [model, "-o", "small.onnx", "--load-inputs", *files, *check]
    answer = ask(record_property, network, "reduce", *words)
    assert answer["exit"] == 0, answer["why"]
    assert tensor in [name for node in answer["culprits"] for name in node["outputs"]]
