"""A failure in a body is named there: in a branch, a branch of a branch, an iteration, a function, whatever is around it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import rest_slow

from answers import bodies
from answers.record import run_row
from answers.rows import Row


def diagnosed(
    folder: Path, kind: str, names: str, options: str = "--onnxrt", around: int = 2
) -> dict[str, Any]:
    """The answer about a model with a body of nodes with these names."""
    model = partial(bodies.with_body, kind=kind, steps=bodies.adding(names), around=around)
    line = f"diagnose m.onnx {options} --load-inputs m.npz -o out --no-shrink"
    run_row(Row("inside", model, (line,), tensorrt=True), folder)
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def named(answer: dict[str, Any]) -> list[list[str]]:
    """The names of the nodes in each body."""
    return [[node["name"] for node in level["nodes"]] for level in answer["inside"]]


@pytest.mark.parametrize("fault", rest_slow(["wrong", "crash", "refuse", "nan"], now=2))
@pytest.mark.parametrize("kind", bodies.KINDS)
def test_the_node_in_the_body_is_named(tmp_path: Path, kind: str, fault: str) -> None:
    answer = diagnosed(tmp_path, kind, f"a {fault}.b c", around=5 if fault == "wrong" else 2)
    within = "outer/inner/" if kind == "nested" else "outer/"
    expected = [[f"{within}{fault}.b"]]
    assert named(answer) == ([["outer/inner"], *expected] if kind == "nested" else expected)
    assert {level["minimality"] for level in answer["inside"]} == {"1-minimal"}
    assert [each["name"] for each in answer["culprits"]] == ["outer"]
    assert f"{within}{fault}.b" in next((tmp_path / "out").glob("[IN]*E*.md")).read_text().replace(
        "\\", ""
    )


@pytest.mark.parametrize("names", ["a large.b", "large.b"])
@pytest.mark.parametrize("kind", ["loop", "scan"])
def test_the_first_iteration_that_goes_wrong_is_found(
    tmp_path: Path, kind: str, names: str
) -> None:
    added = len(names.split())
    values = (
        2 + added * iteration + added - 1 for iteration in range(bodies.STEPS)
    )  # what the last node reads
    first = next(place for place, value in enumerate(values, 1) if value > 5)
    answer = diagnosed(tmp_path, kind, names)
    assert (named(answer), answer["inside"][0]["iteration"]) == ([["outer/large.b"]], first)


def test_both_branches_are_built_where_nothing_runs(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path, "if", "a refuse.b c", "--trt --build-only")
    assert (named(answer), answer["inside"][0]["branch"]) == ([["outer/refuse.b"]], "then_branch")


def test_nodes_that_fail_together_are_named_together(tmp_path: Path) -> None:
    assert [sorted(names) for names in named(diagnosed(tmp_path, "if", "a pair.b c pair.d"))] == [
        ["outer/pair.b", "outer/pair.d"]
    ]


def test_a_spent_budget_leaves_the_node_around_it(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path, "scan", "a wrong.b c", "--onnxrt --max-probes 4")
    assert ([each["name"] for each in answer["culprits"]], answer["minimality"]) == (
        ["outer"],
        "1-minimal",
    )
    assert "--max-probes 4" in answer["inside"][0]["why"]


def test_a_node_whose_body_is_right_is_the_answer(tmp_path: Path) -> None:
    model = partial(bodies.with_body, kind="loop", steps=bodies.adding("a b"), name="wrong.outer")
    run_row(Row("inside", model, ("diagnose m.onnx --onnxrt --load-inputs m.npz",)), tmp_path)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["minimality"], named(answer)) == ("1-minimal", [[]])
    assert answer["inside"][0]["why"] == "its body does not fail alone"
