"""Failures that need a dynamic model: pieces of it keep their dimensions free, and the answer those that it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import resident
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import arrays, node_names, read_json


def write(path: Path) -> Path:
    """A network over [n, m, 8] that puts rows and columns together in the middle, where the bad node is."""
    weight = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Reshape", ["h", "rows"], ["flat"], name="flatten"),
        helper.make_node("Relu", ["flat"], ["r"], name="bad"),
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("Reshape", ["r", "shape"], ["back"], name="unflatten"),
        helper.make_node("Tanh", ["back"], ["y"], name="squash"),
    ]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([-1, 8]), "rows")]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m", 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def unsteady(here: Path, *argv: str | Path) -> tuple[int, dict[str, Any], str]:
    """The exit status, what was found, and what was said, in a process that finds the unsteady target."""
    ran = resident.unsteady(*argv, "--json", "r.json", *(["--workers", "1"] if argv[0] != "run" else []))
    return ran.status, read_json(here / "r.json"), ran.out + ran.err


def free_dimensions(path: Path) -> dict[str, list[str]]:
    inputs = onnx.load(str(path)).graph.input
    return {value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in inputs}


@pytest.fixture
def model(here: Path) -> Path:
    return write(here / "model.onnx")


def test_a_failure_that_needs_a_dynamic_model_survives_the_cut(here: Path, model: Path) -> None:
    argv = ["--unsteady", "--fault", "free:5", "--input-shapes", "x:[6,2,8]"]
    status, result, said = unsteady(here, "reduce", model, "-o", "out.onnx", *argv)
    assert status == 0, said
    assert node_names(here / "out.onnx") == ["bad"]
    ((name, dims),) = free_dimensions(here / "out.onnx").items()
    assert name == "flat"
    assert [bool(dim) for dim in dims] == [True, False]
    # Cut to a batch below 5 it would not fail, and one column shows it as well as eight.
    rows = arrays(here / "out.inputs.npz")["flat"].shape[0]
    assert 5 <= rows <= 12
    dynamic = result["dynamic"]
    assert dynamic["needed"]
    assert [each["inputs"] for each in dynamic["dimensions"]] == [[{"name": "flat", "axis": 0, "size": rows}]]
    argv = ["--unsteady", "--fault", "free:5", "--load-inputs", "out.inputs.npz"]
    status, ran, said = unsteady(here, "run", "out.onnx", *argv)
    assert (status, ran["free_dimensions"]) == (1, True), said
    assert [entry["passed"] for entry in ran["comparisons"]] == [False]


def test_a_way_around_a_dynamic_failure_is_proven_with_its_dimensions_free(here: Path, model: Path) -> None:
    proto = onnx.load(str(model))
    proto.graph.node[4].name, proto.graph.node[2].name = "bad", "relu"
    onnx.save(proto, str(model))
    argv = ["--unsteady", "--fault", "fused:5", "--input-shapes", "x:[6,1,8]"]
    status, result, said = unsteady(here, "diagnose", model, "-o", "out", *argv)
    assert status == 0, said
    assert {culprit["name"] for culprit in result["culprits"]} == {"bad", "squash"}
    assert [way["kind"] for way in result["workarounds"] if way["passes"]] == ["barrier"], said
    assert free_dimensions(here / "out/patched.onnx") == {"x": ["n", "m", ""]}
    command = [sys.executable, "out/reproduce.py"]
    assert subprocess.run(command, cwd=here, env=resident.surroundings(), check=False).returncode == 1


def test_what_passes_when_it_is_read_back_comes_and_goes_and_luck_is_no_way_around_it(here: Path, model: Path) -> None:
    argv = ["--unsteady", "--fault", f"unless:{here / 'out/model.onnx'}", "--input-shapes", "x:[2,1,8]"]
    status, result, said = unsteady(here, "diagnose", model, "-o", "out", *argv)
    assert (status, result["workarounds"]) == (3, []), said
    assert "re-check" in result["why"]
    assert "flaky" in result["why"]


@pytest.mark.usefixtures("here")
def test_a_sample_without_elements_shows_nothing(cli: CommandLine) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "empty.onnx")
    ran = cli("diagnose", "empty.onnx", "--onnxrt", "--input-shapes", "x:[0,3]").ended(1)
    assert "other inputs: 'y' has no elements" in ran.out + ran.err


def test_what_passes_both_ways_does_not_reproduce(cli: CommandLine, model: Path) -> None:
    ran = cli("reduce", model, "-o", "out.onnx", "--onnxrt", "--input-shapes", "x:[6,2,8]", "--json", "r.json").ended(1)
    assert "the failure does not reproduce on the original model" in ran.err + ran.out
    journal = Path(read_json(Path("r.json"))["artifacts"]["run"]) / "journal.jsonl"
    asked = [entry for entry in map(json.loads, journal.read_text().splitlines()) if entry["event"] == "verdict"]
    # Each is looked at once, as nobody asked for more. What was started ahead may have ended too, and is not asked.
    assert [entry["runs"] for entry in asked] == [1, 1]
