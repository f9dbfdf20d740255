"""``run``: which tensors, several targets, timings, the model that runs, weights elsewhere, a script that does the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import chain, overflowing, read_json, save


def run(cli: CommandLine, *words: str | Path, status: int = 0) -> dict[str, Any]:
    ran = cli("run", *words, "--json", "r.json")
    assert ran.status == status, ran.out + ran.err
    return read_json(Path("r.json"))


def compared(result: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in result["comparisons"]]


def targets(result: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(entry["name"], entry["compared"], entry["failed"]) for entry in result["targets"]]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--onnx-outputs", "t1"], ["t1"]),
        (["--onnx-outputs", "t[12]", "t0"], ["t1", "t2", "t0"]),
        (["--onnx-outputs", "t*", "--onnx-exclude-outputs", "*0", "t3"], ["t1", "t2"]),
        (["--onnx-outputs", "mark", "all", "--exclude-outputs", "t1"], ["t0", "t2", "t3"]),
        (["--mark-all"], ["t0", "t1", "t2", "t3"]),
    ],
)
def test_outputs_by_name_and_glob(cli: CommandLine, here: Path, words: list[str], names: list[str]) -> None:
    assert compared(run(cli, chain(here / "model.onnx"), "--onnxrt", *words)) == names


def test_a_name_that_looks_like_a_glob_is_taken_as_it_is(cli: CommandLine, here: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["t[0]"]), helper.make_node("Neg", ["t[0]"], ["t0"])]
    model = save(here / "m.onnx", nodes)
    assert compared(run(cli, model, "--onnxrt", "--onnx-outputs", "t[0]")) == ["t[0]"]


def test_every_target_is_compared_and_named(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    result = run(
        cli, model, "--onnxrt", "--fp16", "--onnx", "--onnxrt-reference", "--also-providers", "cpu", "CPU", status=1
    )
    assert targets(result) == [
        ("ONNX Runtime (CPU, all graph optimisations, fp16)", 1, 1),
        ("ONNX's reference evaluator", 1, 0),
        ("ONNX Runtime (cpu, all graph optimisations)", 1, 0),
        ("ONNX Runtime (CPU, all graph optimisations)", 1, 0),
        ("ONNX Runtime (CPU, graph optimisations off)", 1, 0),
    ]
    assert len(result["comparisons"]) == 5
    ran = cli("run", model, "--onnxrt", "--fp16", "--onnx")
    assert "ONNX's reference evaluator: 0 of 1 do not match." in ran.out
    assert "1 of 2 do not match." in ran.out


def test_the_reference_evaluator_alone(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    assert targets(run(cli, model, "--onnx")) == [("ONNX's reference evaluator", 1, 0)]
    assert targets(run(cli, model, "--onnx", "--fp16", status=1)) == [("ONNX's reference evaluator, fp16", 1, 1)]
    # In fp32 where it would overflow it is right again.
    run(cli, model, "--onnx", "--fp16", "--keep-fp32", "big_out", "small_out")


def test_the_reference_evaluator_says_what_it_cannot_run(cli: CommandLine, here: Path) -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")]
    path = save(here / "m.onnx", nodes)
    model = onnx.load(str(path))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(path))
    ran = cli("run", path, "--onnx")
    assert (ran.status, "the target cannot run" in ran.error) == (4, True)


def test_fail_fast_with_several_targets(cli: CommandLine, here: Path) -> None:
    """It stops at the first that is wrong."""
    model = overflowing(here / "model.onnx")
    assert len(run(cli, model, "--onnxrt", "--fp16", "--onnx", "--fail-fast", status=1)["targets"]) == 1


def test_timings(cli: CommandLine, here: Path) -> None:
    model = chain(here / "model.onnx")
    result = run(cli, model, "--onnxrt", "--onnx", "--warm-up", "2", "--use-subprocess")
    assert all(0 < entry["latency_ms"] < 10_000 for entry in result["targets"])
    assert "ms a run, the median of 20 after 2 to warm up" in cli("run", model, "--onnxrt", "--warm-up", "2").out
    assert run(cli, model, "--onnxrt")["targets"][0]["latency_ms"] is None


def test_the_model_that_runs(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    run(cli, model, "--onnxrt", "--onnx-outputs", "big_out", "--save-onnx", "plain.onnx")
    assert [value.name for value in onnx.load("plain.onnx").graph.output] == ["big_out"]
    run(cli, model, "--onnxrt", "--fp-to-fp16", "--save-onnx", "half.onnx", status=1)
    casts = [node for node in onnx.load("half.onnx").graph.node if node.op_type == "Cast"]
    assert any(node.attribute[0].i == TensorProto.FLOAT16 for node in casts)
    run(cli, "half.onnx", "--onnxrt", "--validate", status=1)  # it overflows on its own


def test_weights_in_another_folder(cli: CommandLine, here: Path) -> None:
    values = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    nodes = [helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])]
    model = onnx.load(str(save(here / "m.onnx", nodes, [numpy_helper.from_array(values, "w")])))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    (here / "weights").mkdir()
    Path("m.data").rename("weights/m.data")
    assert "copy it beside the model" in cli("run", "m.onnx", "--onnxrt").error
    run(cli, "m.onnx", "--onnxrt", "--external-data-dir", "weights", "--save-outputs", "y.npz")
    with np.load("y.npz") as saved:
        assert saved["y"].min() >= values.sum()


def test_a_script_that_does_the_same(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    np.savez("x.npz", x=np.full((2, 3), 0.5, np.float32))
    words = ["--onnxrt", "--load-inputs", "x.npz", "--onnx-outputs", "big_out", "a0_out", "--atol", "big_out:1"]
    for extra, status in (([], 0), (["--fp16"], 1), (["--fp16", "--keep-fp32", "big_out"], 0)):
        want = run(cli, model, *words, *extra, "--check-error-stat", "max", status=status)
        ran = cli("run", model, *words, *extra, "--check-error-stat", "max", "--gen-script", "same.py")
        assert (ran.status, ran.err) == (0, "")
        assert not Path("same.py").read_text().count("inputs=None")
        done = subprocess.run([sys.executable, "same.py"], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == status, done.stdout + done.stderr
        assert all(f"'{name}'" in done.stdout for name in compared(want))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--onnxrt", "--onnx-outputs", "nope*"], "the model makes no tensor 'nope*'"),
        (["--onnxrt", "--onnx-exclude-outputs", "t0"], "it is not among those to compare"),
        (["--onnxrt", "--onnx-exclude-outputs", "*"], "leaves no tensor to compare"),
        (["--onnx", "--int8"], "--int8"),
        (["--onnxrt", "--gen-script", "s.py", "--warm-up", "1"], "has nothing for --warm-up"),
        (["--onnxrt", "--gen-script", "s.py", "--onnx"], "has nothing for a second target"),
        (["--onnxrt", "--gen-script", "no/s.py"], "there is no folder no"),
        (["--onnxrt", "--save-onnx", "no/m.onnx"], "there is no folder no"),
    ],
)
def test_bad_options(cli: CommandLine, here: Path, words: list[str], reason: str) -> None:
    ran = cli("run", chain(here / "model.onnx"), *words)
    assert (ran.status, reason in ran.error) == (2, True), ran.err


def test_options_that_need_a_model(cli: CommandLine, here: Path) -> None:  # noqa: ARG001 - the working directory
    np.savez("a.npz", y=np.zeros(2))
    ran = cli("run", "--load-outputs", "a.npz", "a.npz", "--save-onnx", "m.onnx")
    assert (ran.status, "need a model" in ran.error) == (2, True)


def test_providers_that_are_not_there(cli: CommandLine, here: Path) -> None:
    ran = cli("run", chain(here / "model.onnx"), "--onnxrt", "--also-providers", "cpu,nope")
    assert (ran.status, "no execution provider 'nope'" in ran.error) == (4, True)
