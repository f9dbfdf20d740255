"""``sweep``: at which sizes a target is wrong, on planted truths and on a runtime that is right."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import resident
from building import save_text
from conftest import CommandLine
from onnx import helper
from support import READ_NPZ, TARGET, Ran, arrays, node_names, read_json, reproduced, script

WEIGHT = np.random.default_rng(3).standard_normal((8, 8))


def write(path: Path, *shape: int | str, also: bool = False) -> Path:
    """A network over rows of 8; its Relu is the node that the unsteady target spoils.

    ``also`` adds a second input.
    """
    dims = ", ".join(map(str, shape))
    last = "Add(squash, other)" if also else "Neg(squash)"
    ends = f"(float[{dims}] x{f', float[{dims}] other' if also else ''}) => (float[{dims}] y)"
    return save_text(
        path,
        ends,
        f"project = MatMul(x, w) bad = Relu(project) squash = Tanh(bad) y = {last}",
        {"w": WEIGHT},
    )


def unsteady(*argv: str | Path) -> Ran:
    """Run a command line in a process that finds the unsteady target."""
    return resident.unsteady(
        *argv, "--unsteady", "--json", "r.json", *(["--workers", "1"] if argv[0] != "run" else [])
    )


@pytest.mark.parametrize(
    ("fault", "shapes", "failing"),
    [
        ("only:17", "x:[{1,2,7,16..20},8]", [17]),
        ("not_multiple:2", "x:[1..30:3,8]", [1, 7, 13, 19, 25]),
    ],
)
def test_the_sizes_that_fail_are_found(
    here: Path, fault: str, shapes: str, failing: list[int]
) -> None:
    """The values that are given are repeated, or cut off."""
    np.savez(here / "x.npz", x=np.linspace(0, 1, 24, dtype=np.float32).reshape(3, 8))
    argv = ["--fault", fault, "--shapes", shapes, "--load-inputs", "x.npz"]
    result = unsteady("sweep", write(here / "model.onnx", "n", 8), *argv).ended(0).result
    found = result["sweep"]
    assert found["exhaustive"]
    (dimension,) = found["dimensions"]
    assert (dimension["name"], dimension["inputs"]) == ("n", [{"name": "x", "axis": 0}])
    assert dimension["fail"] == failing
    assert found["smallest_failing"] == {"n": failing[0]}
    rows = np.resize(arrays("x.npz")["x"], (failing[0], 8))
    np.testing.assert_array_equal(arrays(result["artifacts"]["inputs"])["x"], rows)
    assert 'id="sweep"' in (here / result["artifacts"]["report"]).read_text()


def test_a_failure_that_comes_and_goes_is_of_no_size(here: Path) -> None:
    model = write(here / "model.onnx", "n", 8)
    argv = ["--fault", "once:seen", "--shapes", "x:[1..4,8]"]
    result = unsteady("sweep", model, *argv).ended(3).result
    assert result["minimality"] == "unproven"
    assert "n=1 was FAIL and, probed again, PASS" in result["why"]
    assert shlex.split(result["sweep"]["command"])[:2] == ["bisect-trt", "repeat"]


def test_a_check_of_ones_own_is_swept_and_what_is_recommended_runs(
    cli: CommandLine, here: Path
) -> None:
    """It is told the shapes, and the model, whose file fixes the dimension; what is recommended names one that does not."""
    (here / "check.py").write_text(
        f"import os\n{READ_NPZ}"
        "rows = {int(each.rpartition(':')[2].split('x')[0]) for each in sys.argv[2].split(',')}\n"
        "fed = {shape[0] for shape, _ in read(sys.argv[3]).values()}\n"
        "assert sys.argv[2] == os.environ['BISECT_TRT_SHAPES'] and fed == rows\n"
        "print('too many' if max(rows) >= 3 and b'Relu' in open(sys.argv[1], 'rb').read() else 'few enough')\n"
    )
    model = write(here / "model.onnx", 1, 8)
    check = [
        "--fail-regex",
        "too many",
        "--check",
        sys.executable,
        "check.py",
        "{model}",
        "{shapes}",
        "{inputs}",
    ]
    found = (
        cli("sweep", model, "--shapes", "x:[{1,2,3,5},8]", "--json", "r.json", *check)
        .ended(0)
        .result["sweep"]
    )
    assert (found["dimensions"][0]["fail"], found["smallest_failing"]) == ([3, 5], {"x[0]": 3})
    assert [entry["shapes"] for entry in found["map"]] == [{"x": [n, 8]} for n in (1, 2, 3, 5)]
    words = shlex.split(found["command"])
    assert words[:2] == ["bisect-trt", "reduce"]
    cli(*words[1:]).ended(0)
    assert [node.name for node in onnx.load("reduced.onnx").graph.node] == ["bad"]


@pytest.mark.parametrize(
    "command", [["sweep", "--shapes", "x:[1..3,8]"], ["samples", "--iterations", "3"]]
)
def test_a_check_decides_alone_of_what_no_reference_runs(
    cli: CommandLine, here: Path, command: list[str]
) -> None:
    model = onnx.load(write(here / "model.onnx", "n", 8))
    model.graph.node[1].domain = "nobody.knows"
    model.opset_import.append(helper.make_opsetid("nobody.knows", 1))
    onnx.save(model, "own.onnx")
    (here / "check.py").write_text(f"{READ_NPZ}sys.exit(len(read(sys.argv[1])['x'][1]) == 16)\n")
    name, *rest = command
    ran = cli(
        name,
        "own.onnx",
        *rest,
        "--json",
        "r.json",
        "--check",
        sys.executable,
        "check.py",
        "{inputs}",
        "{model}",
    )
    if name == "sweep":
        assert ran.status == 0, ran.err
        assert read_json(Path("r.json"))["sweep"]["smallest_failing"] == {"n": 2}
    else:
        assert (ran.status, "none of the 3 samples fails" in ran.err + ran.out) == (1, True)


def test_a_check_says_nothing_of_what_the_reference_alone_refuses(cli: CommandLine) -> None:
    """Also where the smallest size is one that it refuses."""
    save_text(
        "m.onnx", "(float[n] x) => (float[m, 4] y)", "y = Reshape(x, s)", {"s": np.array([-1, 4])}
    )
    check = ["--check", "sh", "-c", "test -s {inputs} && test $BISECT_TRT_SHAPES != x:8"]
    found = (
        cli("sweep", "m.onnx", "--shapes", "x:[{3,4,8}]", "--json", "r.json", *check)
        .ended(0)
        .result["sweep"]
    )
    assert [entry["verdict"] for entry in found["map"]] == ["UNRESOLVED", "PASS", "FAIL"]


def test_dimensions_of_one_name_are_one_and_two_make_a_map(here: Path, cli: CommandLine) -> None:
    model = write(here / "model.onnx", "n", "m", 8, also=True)
    found = (
        unsteady("sweep", model, "--fault", "batch:3", "--shapes", "x:[1..6,1..4,8]")
        .ended(0)
        .result["sweep"]
    )
    assert [each["inputs"] for each in found["dimensions"]] == [
        [{"name": "x", "axis": axis}, {"name": "other", "axis": axis}] for axis in (0, 1)
    ]
    assert len(found["map"]) == found["of"] == 24
    assert all((entry["verdict"] == "FAIL") is (entry["sizes"]["n"] >= 3) for entry in found["map"])
    assert [each["fail"] for each in found["dimensions"]] == [[3, 4, 5, 6], [1, 2, 3, 4]]
    ran = cli("sweep", model, "--onnxrt", "--shapes", "x:[1..3,2,8]", "--json", "s.json").ended(1)
    assert "at none of the sizes" in ran.err + ran.out


# Failures that need a dynamic model: pieces of it keep their dimensions free, and the answer those
# that it needs.


def write_free(path: Path) -> Path:
    """A network over [n, m, 8] that puts rows and columns together in the middle, where the bad node is."""
    body = """project = MatMul(x, w) flat = Reshape(project, rows) bad = Relu(flat) shape = Shape(x) back = Reshape(bad, shape)
        squash = Tanh(back)"""
    ends = "(float[n, m, 8] x) => (float[n, m, 8] squash)"
    return save_text(path, ends, body, {"w": WEIGHT, "rows": np.array([-1, 8])})


def free_dimensions(path: Path) -> dict[str, list[str]]:
    inputs = onnx.load(str(path)).graph.input
    return {
        value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in inputs
    }


@pytest.fixture
def model(here: Path) -> Path:
    return write_free(here / "model.onnx")


def test_a_failure_that_needs_a_dynamic_model_survives_the_cut(here: Path, model: Path) -> None:
    argv = ["--fault", "free:5", "--input-shapes", "x:[6,2,8]"]
    result = unsteady("reduce", model, "-o", "out.onnx", *argv).ended(0).result
    assert node_names(here / "out.onnx") == ["bad"]
    ((name, dims),) = free_dimensions(here / "out.onnx").items()
    assert name == "flat"
    assert [bool(dim) for dim in dims] == [True, False]
    # Cut to a batch below 5 it would not fail, and one column shows it as well as eight.
    rows = arrays(here / "out.inputs.npz")["flat"].shape[0]
    assert 5 <= rows <= 12
    dynamic = result["dynamic"]
    assert dynamic["needed"]
    assert [each["inputs"] for each in dynamic["dimensions"]] == [
        [{"name": "flat", "axis": 0, "size": rows}]
    ]
    argv = ["--fault", "free:5", "--load-inputs", "out.inputs.npz"]
    ran = unsteady("run", "out.onnx", *argv).ended(1).result
    assert [entry["passed"] for entry in ran["comparisons"]] == [False]


@pytest.mark.slow
def test_a_way_around_a_dynamic_failure_is_proven_with_its_dimensions_free(
    here: Path, model: Path
) -> None:
    proto = onnx.load(str(model))
    proto.graph.node[4].name = "bad"
    proto.graph.node[2].name = "relu"
    onnx.save(proto, str(model))
    argv = ["--fault", "fused:5", "--input-shapes", "x:[6,1,8]"]
    result = unsteady("diagnose", model, "-o", "out", *argv).ended(0).result
    assert {culprit["name"] for culprit in result["culprits"]} == {"bad", "squash"}
    assert [way["kind"] for way in result["workarounds"] if way["passes"]] == ["barrier"]
    assert free_dimensions(here / "out/patched.onnx") == {"x": ["n", "m", ""]}
    reproduced("out", env=resident.surroundings())


def test_what_passes_when_it_is_read_back_comes_and_goes_and_luck_is_no_way_around_it(
    here: Path, model: Path
) -> None:
    argv = ["--fault", f"unless:{here / 'out/model.onnx'}", "--input-shapes", "x:[2,1,8]"]
    result = unsteady("diagnose", model, "-o", "out", *argv).ended(3).result
    assert result["workarounds"] == []
    assert "re-check" in result["why"]
    assert "flaky" in result["why"]


def test_a_sample_without_elements_shows_nothing(cli: CommandLine) -> None:
    save_text("empty.onnx", "(float[n, 3] x) => (float[n, 3] y)", "y = Tanh(x)")
    ran = cli("diagnose", "empty.onnx", "--onnxrt", "--input-shapes", "x:[0,3]").ended(1)
    assert "other inputs: 'y' has no elements" in ran.out + ran.err


# ``samples``: which of many inputs fail, and the smallest that still fails.


GUILTY = 17
"""The one token whose embedding is past fp16 when it is squared."""


@pytest.fixture
def tokens(here: Path) -> Path:
    """Root of the sum of squares of embeddings of [n, s] tokens; samples of different lengths beside it."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((50, 8))
    table[GUILTY] = 300
    body = "e = Gather(table, ids) squares = Mul(e, e) sum = ReduceSum<keepdims = 0>(squares, axis) y = Sqrt(sum)"
    save_text(
        "model.onnx",
        "(int64[n, s] ids) => (float[n, s] y)",
        body,
        {"table": table, "axis": np.array([2])},
    )
    for number in range(1, 13):
        values = rng.integers(1, 50, (2, int(rng.integers(3, 12))))
        values[values == GUILTY] = 18
        if number in (3, 6, 8, 12):
            values[1, 2] = GUILTY
        np.savez(here / f"x-{number}.npz", ids=values)
    return here / "model.onnx"


def test_the_token_is_found_and_is_all_that_is_left(cli: CommandLine, tokens: Path) -> None:
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "x.npz", "--json", "r.json").ended(0)
    found = ran.result
    samples = found["samples"]
    assert (samples["failing"], samples["total"], samples["unresolved"]) == ([3, 6, 8, 12], 12, [])
    np.testing.assert_array_equal(arrays("minimal-input.npz")["ids"], [[GUILTY]])
    least = samples["minimal_input"]
    assert (least["kept"], least["minimality"], found["minimality"]) == (
        1,
        "1-minimal",
        "1-minimal",
    )
    assert least["elements_kept"] == [{"input": "ids", "index": [0, 0], "value": GUILTY}]
    # What it says shows the failure does.
    assert f"To reproduce it: {least['command']}" in ran.out
    assert cli(*shlex.split(least["command"])[1:]).status == 1


def test_a_check_command_and_a_budget(cli: CommandLine, here: Path, tokens: Path) -> None:
    Path("seen.py").write_text(
        f"{READ_NPZ}sys.exit({GUILTY} in read(sys.argv[1])['ids'][1])\n", "utf-8"
    )
    check = script(here / "check.sh", f'{sys.executable} -IS seen.py "$1"')
    options = ["--load-inputs", "x.npz", "--json", "r.json", "--max-probes", "15"]
    result = (
        cli("samples", tokens, "-o", "least.npz", *options, "--check", check, "{inputs}")
        .ended(3)
        .result
    )
    least = result["samples"]["minimal_input"]
    assert (result["status"], least["minimality"]) == ("inconclusive", "unproven")
    assert "the budget is spent (--max-probes 15)" in result["why"]
    assert (arrays("least.npz")["ids"] == GUILTY).any()
    assert "--check" in least["command"]
    options[-1] = "2"
    ran = cli("samples", tokens, "-o", "none.npz", *options, "--check", check, "{inputs}")
    seen = read_json(Path("r.json"))["samples"]
    assert (ran.status, [each["sample"] for each in seen["each"]]) == (3, [1, 2])
    assert f"So far {len(seen['failing'])} of 2 samples fail" in ran.out
    assert not Path("none.npz").exists()


def test_endings_without_a_failing_sample(cli: CommandLine, here: Path, tokens: Path) -> None:
    np.savez(here / "good.npz", ids=np.ones((2, 3), np.int64))
    np.savez(here / "none.npz", ids=np.full((2, 3), 99))
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "good.npz").ended(1)
    assert "none of the 1 samples fails." in ran.err + ran.out
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "none.npz").ended(4)
    assert "no sample has a verdict: the reference does not run it" in ran.err
    Path("minimal-input.npz").write_bytes(b"mine")
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "good.npz").ended(2)
    assert "minimal-input.npz exists" in ran.err
