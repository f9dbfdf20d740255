"""``sweep``: at which sizes a target is wrong, on planted truths and on a runtime that is right."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import resident
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import arrays, read_json


def write(path: Path, *shape: int | str, also: bool = False) -> Path:
    """A network over rows of 8; its Relu is the node that the unsteady target spoils. ``also`` adds a second input."""
    weight = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    names = ["x", "other"] if also else ["x"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Relu", ["h"], ["r"], name="bad"),
        helper.make_node("Tanh", ["r"], ["t"], name="squash"),
        helper.make_node("Add", ["t", "other"], ["y"], name="add")
        if also
        else helper.make_node("Neg", ["t"], ["y"], name="turn"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (*names, "y")]
    graph = helper.make_graph(nodes, "g", ends[:-1], ends[-1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def unsteady(here: Path, *argv: str | Path) -> tuple[int, dict[str, Any], str]:
    """The exit status, what was found, and what was said, in a process that finds the unsteady target."""
    ran = resident.unsteady(*argv, "--workers", "1", "--json", "r.json")
    return ran.status, read_json(here / "r.json"), ran.out + ran.err


@pytest.mark.parametrize(
    ("fault", "shapes", "failing"),
    [("only:17", "x:[{1,2,7,16..20},8]", [17]), ("not_multiple:2", "x:[1..30:3,8]", [1, 7, 13, 19, 25])],
)
def test_the_sizes_that_fail_are_found(here: Path, fault: str, shapes: str, failing: list[int]) -> None:
    model = write(here / "model.onnx", "n", 8)
    status, result, said = unsteady(here, "sweep", model, "--unsteady", "--fault", fault, "--shapes", shapes)
    found = result["sweep"]
    assert status == 0, said
    assert found["exhaustive"]
    (dimension,) = found["dimensions"]
    assert (dimension["name"], dimension["inputs"]) == ("n", [{"name": "x", "axis": 0}])
    assert dimension["fail"] == failing
    assert found["smallest_failing"] == {"n": failing[0]}
    assert arrays(result["artifacts"]["inputs"])["x"].shape == (failing[0], 8)
    assert 'id="sweep"' in (here / result["artifacts"]["report"]).read_text()


def test_a_failure_that_comes_and_goes_is_of_no_size(here: Path) -> None:
    model = write(here / "model.onnx", "n", 8)
    argv = ["--unsteady", "--fault", "once:seen", "--shapes", "x:[1..4,8]"]
    status, result, _ = unsteady(here, "sweep", model, *argv)
    assert (status, result["minimality"]) == (3, "unproven")
    assert "n=1 was FAIL and, probed again, PASS" in result["why"]
    assert shlex.split(result["sweep"]["command"])[:2] == ["bisect-trt", "repeat"]


def test_a_check_of_ones_own_is_swept_and_what_is_recommended_runs(cli: CommandLine, here: Path) -> None:
    """It is told the shapes, and the model, whose file fixes the dimension; what is recommended names one that does not."""
    (here / "check.py").write_text(
        "import os, sys, numpy\n"
        "rows = {int(each.rpartition(':')[2].split('x')[0]) for each in sys.argv[2].split(',')}\n"
        "fed = {len(value) for value in numpy.load(sys.argv[3]).values()}\n"
        "assert sys.argv[2] == os.environ['BISECT_TRT_SHAPES'] and fed == rows\n"
        "print('too many' if max(rows) >= 3 and b'Relu' in open(sys.argv[1], 'rb').read() else 'few enough')\n"
    )
    model = write(here / "model.onnx", 1, 8)
    check = ["--fail-regex", "too many", "--check", sys.executable, "check.py", "{model}", "{shapes}", "{inputs}"]
    found = cli("sweep", model, "--shapes", "x:[{1,2,3,5},8]", "--json", "r.json", *check).ended(0).result["sweep"]
    assert (found["dimensions"][0]["fail"], found["smallest_failing"]) == ([3, 5], {"x[0]": 3})
    assert [entry["shapes"] for entry in found["map"]] == [{"x": [n, 8]} for n in (1, 2, 3, 5)]
    words = shlex.split(found["command"])
    assert words[:2] == ["bisect-trt", "reduce"]
    cli(*words[1:]).ended(0)
    assert [node.name for node in onnx.load("reduced.onnx").graph.node] == ["bad"]


@pytest.mark.parametrize("command", [["sweep", "--shapes", "x:[1..3,8]"], ["samples", "--iterations", "3"]])
def test_a_check_decides_alone_of_what_no_reference_runs(cli: CommandLine, here: Path, command: list[str]) -> None:
    model = onnx.load(write(here / "model.onnx", "n", 8))
    model.graph.node[1].domain = "nobody.knows"
    model.opset_import.append(helper.make_opsetid("nobody.knows", 1))
    onnx.save(model, "own.onnx")
    (here / "check.py").write_text("import sys, numpy\nsys.exit(numpy.load(sys.argv[1])['x'].size == 16)\n")
    name, *rest = command
    ran = cli(name, "own.onnx", *rest, "--json", "r.json", "--check", sys.executable, "check.py", "{inputs}", "{model}")
    if name == "sweep":
        assert ran.status == 0, ran.err
        assert read_json(Path("r.json"))["sweep"]["smallest_failing"] == {"n": 2}
    else:
        assert (ran.status, "none of the 3 samples fails" in ran.err + ran.out) == (1, True)


@pytest.mark.parametrize("command", ["sweep", "samples"])
def test_a_check_says_nothing_of_what_the_reference_alone_refuses(cli: CommandLine, here: Path, command: str) -> None:
    """Also where the smallest size, or the first sample, is one that it refuses."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], name="fold")]
    ends = [helper.make_tensor_value_info(*each) for each in (("x", 1, ["n"]), ("y", 1, [None, 4]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.array([-1, 4]), "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "m.onnx")
    (here / "data.py").write_text(
        "import numpy\ndef load_data():\n    for size in (3, 4, 8):\n        yield {'x': numpy.ones(size, numpy.float32)}\n"
    )
    fed = ["--shapes", "x:[{3,4,8}]"] if command == "sweep" else ["--data-loader-script", "data.py"]
    check = ["--check", "sh", "-c", "test -s {inputs} && test $BISECT_TRT_SHAPES != x:8"]
    found = cli(command, "m.onnx", *fed, "--json", "r.json", *check).ended(0).result[command]
    each = found["map"] if command == "sweep" else found["each"]
    assert [entry["verdict"] for entry in each] == ["UNRESOLVED", "PASS", "FAIL"]
    assert each[0]["reason"].startswith("the reference does not run it: ")


def test_dimensions_of_one_name_are_one_and_two_make_a_map(here: Path, cli: CommandLine) -> None:
    model = write(here / "model.onnx", "n", "m", 8, also=True)
    status, result, said = unsteady(
        here, "sweep", model, "--unsteady", "--fault", "batch:3", "--shapes", "x:[1..6,1..4,8]"
    )
    assert status == 0, said
    found = result["sweep"]
    assert [each["inputs"] for each in found["dimensions"]] == [
        [{"name": "x", "axis": axis}, {"name": "other", "axis": axis}] for axis in (0, 1)
    ]
    assert len(found["map"]) == found["of"] == 24
    assert all((entry["verdict"] == "FAIL") is (entry["sizes"]["n"] >= 3) for entry in found["map"])
    assert [each["fail"] for each in found["dimensions"]] == [[3, 4, 5, 6], [1, 2, 3, 4]]
    ran = cli("sweep", model, "--onnxrt", "--shapes", "x:[1..3,2,8]", "--json", "s.json").ended(1)
    assert "at none of the sizes" in ran.err + ran.out


def test_values_that_are_given_are_repeated_or_cut(here: Path) -> None:
    model = write(here / "model.onnx", "n", 8)
    rows = np.linspace(0, 1, 24, dtype=np.float32).reshape(3, 8)
    np.savez(here / "x.npz", x=rows)
    argv = ["--unsteady", "--fault", "only:5", "--shapes", "x:[1..6,8]", "--load-inputs", "x.npz"]
    status, result, said = unsteady(here, "sweep", model, *argv)
    assert status == 0, said
    np.testing.assert_array_equal(arrays(result["artifacts"]["inputs"])["x"], rows[[0, 1, 2, 0, 1]])
