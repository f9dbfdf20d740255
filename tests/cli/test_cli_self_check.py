"""``run --self-check``: a target that contradicts itself, on planted truths and on the real runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import resident
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import read_json

from bisect_trt.commands.self_consistency import Declared, batch_axes

TRIALS = ["again", "batch"]


def write(path: Path, rows: int | str, *nodes: onnx.NodeProto) -> Path:
    """A network over rows of 8; its Relu is the node that the unsteady target spoils."""
    rng = np.random.default_rng(3)
    body = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Relu", ["h"], ["r"], name="bad"),
        *(nodes or [helper.make_node("Tanh", ["r"], ["y"], name="squash")]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 8]) for name in ("x", "y")]
    weight = numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w")
    graph = helper.make_graph(body, "g", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def verdicts(cli: CommandLine, *argv: str | Path) -> tuple[int, dict[str, str]]:
    """The exit status, and what was said of each check."""
    ran = cli("run", *argv, "--self-check", "--json", "r.json")
    return ran.status, {entry["check"]: entry["verdict"] for entry in read_json(Path("r.json"))["self_check"]}


def unsteady(here: Path, model: Path, fault: str) -> tuple[int, dict[str, str], str]:
    """The same on the unsteady target, in a process that finds it."""
    ran = resident.unsteady("run", model, "--unsteady", "--fault", fault, "--self-check", "--json", "r.json")
    found = read_json(here / "r.json")["self_check"]
    return ran.status, {entry["check"]: entry["verdict"] for entry in found}, ran.out + ran.err


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [("never", set()), ("second", {"again"}), ("after", {"again"}), ("odd", {"batch"}), ("batch:3", {"batch"})],
)
def test_a_planted_fault_is_found_by_what_shows_it(here: Path, fault: str, wrong: set[str]) -> None:
    status, seen, said = unsteady(here, write(here / "model.onnx", "n"), fault)
    assert {check for check, verdict in seen.items() if verdict == "FAIL"} == wrong, said
    assert status == (1 if wrong else 0)
    assert list(seen) == TRIALS


def test_the_rows_of_a_batch_that_is_no_first_dimension(cli: CommandLine, here: Path) -> None:
    """Sequences first, as recurrent networks have it; what comes out has the batch elsewhere, and a size that it has too."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="bad"),
        helper.make_node("ReduceMean", ["t"], ["y"], axes=[0], keepdims=0, name="mean"),
    ]
    shapes: dict[str, list[str | int | None]] = {
        "x": [5, "batch_size", 4],
        "t": [5, "batch_size", 4],
        "y": ["batch_size", 4],
    }
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = here / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(model))
    assert verdicts(cli, model, "--onnxrt") == (0, dict.fromkeys(TRIALS, "PASS"))
    status, seen, said = unsteady(here, model, "columns")
    assert (status, seen) == (1, {"again": "PASS", "batch": "FAIL"}), said


def test_a_right_runtime_agrees_with_itself(cli: CommandLine, here: Path) -> None:
    assert verdicts(cli, write(here / "model.onnx", "n"), "--onnxrt") == (0, dict.fromkeys(TRIALS, "PASS"))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_that_is_fixed(cli: CommandLine, here: Path, rows: int) -> None:
    status, seen = verdicts(cli, write(here / "model.onnx", rows), "--onnxrt")
    assert (status, seen) == (0, {"again": "PASS", "batch": "PASS" if rows > 1 else "UNRESOLVED"})


def test_what_the_model_does_itself_is_no_fault_of_the_target(cli: CommandLine, here: Path) -> None:
    draws = [
        helper.make_node("RandomUniformLike", ["r"], ["u"], name="draw"),
        helper.make_node("Add", ["r", "u"], ["y"], name="add"),
    ]
    status, seen = verdicts(cli, write(here / "model.onnx", "n", *draws), "--onnxrt")
    assert status == 4
    assert (seen["again"], "FAIL" in seen.values()) == ("UNRESOLVED", False)
    mixes = [helper.make_node("Softmax", ["r"], ["y"], axis=0, name="mix")]
    status, seen = verdicts(cli, write(here / "model.onnx", "n", *mixes), "--onnxrt")
    assert (status, seen) == (0, {"again": "PASS", "batch": "UNRESOLVED"})


def test_sessions_that_draw_other_random_numbers_do_not_contradict_each_other(cli: CommandLine, here: Path) -> None:
    """Each of OpenVINO's sessions draws others, where all of ONNX Runtime's begin with the same."""
    pytest.importorskip("openvino")
    noise = helper.make_node("RandomNormalLike", ["r"], ["u"], name="draw")
    model = write(here / "model.onnx", "n", noise, helper.make_node("Add", ["r", "u"], ["y"], name="add"))
    status, seen = verdicts(cli, model, "--openvino")
    assert (status, set(seen.values())) == (4, {"UNRESOLVED"})


def test_a_model_that_the_target_alone_refuses_is_no_contradiction(here: Path) -> None:
    status, seen, said = unsteady(here, write(here / "model.onnx", "n"), "refuses")
    assert (status, set(seen.values())) == (4, {"UNRESOLVED"}), said
    assert "nothing could be compared with itself: it has no kernel" in said


def test_diagnose_finds_the_layer_at_which_a_target_contradicts_itself(here: Path) -> None:
    model = write(here / "model.onnx", "n")
    done = resident.unsteady("diagnose", model, "--unsteady", "--fault", "odd", "--self-check", "--json", "r.json")
    result = read_json(here / "r.json")
    assert done.status == 3, done.out + done.err
    assert {culprit["name"] for culprit in result["culprits"]} == {"bad"}
    assert result["first_mismatch"]["tensor"] == "r"
    assert result["contradiction"] == {
        "check": "batch",
        "what": "the rows of a batch in another order and one by one",
        "shown": True,
    }
    assert (result["status"], result["minimality"]) == ("found", "unproven")
    assert "first in Relu 'bad'" in done.out


def test_diagnose_says_that_a_target_agrees_with_itself(cli: CommandLine, here: Path) -> None:
    ran = cli("diagnose", write(here / "model.onnx", "n"), "--onnxrt", "--self-check")
    assert ran.status == 1


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ({"x": ("n", 8), "mask": ("n",)}, {"x": 0, "mask": 0}),
        ({"x": (5, "batch_size", 4), "state": ("batch_size", 4)}, {"x": 1, "state": 0}),
        ({"x": (None, None), "mask": (None,)}, {"x": 0, "mask": 0}),
        ({"x": (5, None, 4)}, {"x": 1}),
        ({"x": (5, "n", 4), "h": (1, "n", 3), "c": (1, "m", 3)}, {"x": 1, "h": 1}),
        ({"x": (5, 4), "y": (5, 4)}, {"x": 0, "y": 0}),
        ({"x": (5, 4), "y": (3, 4)}, {}),
    ],
)
def test_which_dimension_is_the_batch(declared: Declared, found: dict[str, int]) -> None:
    sample = {name: np.zeros([dim if isinstance(dim, int) else 1 for dim in dims]) for name, dims in declared.items()}
    assert batch_axes(sample, declared) == found
