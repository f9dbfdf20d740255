"""``--pin`` on a target that deals its kernels out anew in each build: what is found is what the build that failed chose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import resident
from onnx import TensorProto, helper, numpy_helper
from support import rest_slow

NODES = 12
WRONG = "tactic wrong_kernel"


def chain(path: Path, bad: Sequence[int], prefix: str = "bad") -> Path:
    """Products, one after the other; those that are named ``bad`` may be given a wrong kernel."""
    nodes, tensor = [], "x"
    for place in range(NODES):
        name = f"{prefix if place in bad else 'n'}{place}"
        nodes.append(helper.make_node("Mul", [tensor, "w"], [f"t{place}"], name))
        tensor = f"t{place}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", tensor)]
    weight = numpy_helper.from_array(np.full((2, 3), 1.01, np.float32), "w")
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def unsteady(here: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """A command on the unsteady target, in a process that finds it: its exit status, its JSON, and what it said."""
    ran = resident.unsteady(*words, "--json", "r.json")
    file = here / "r.json"
    return ran.status, json.loads(file.read_text()) if file.exists() else {}, ran.out + ran.err


def verdicts(run: Path) -> dict[frozenset[str], str]:
    """What was said of each candidate, by the names of its nodes."""
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    known = {line["key"]: line["verdict"] for line in lines if line["event"] == "verdict"}
    found = {}
    for key, verdict in known.items():
        model = run / "candidates" / key[:12] / "model.onnx"
        found[frozenset(node.name for node in onnx.load(model).graph.node)] = verdict
    return found


@pytest.mark.parametrize(
    ("fault", "bad"),
    rest_slow([("tactic:0.4", (0, 2, 5, 6, 9, 10)), ("tactic:0.1", (3, 8)), ("all:0.5", (1, 6))]),
)
def test_every_candidate_is_what_the_build_that_failed_chose(here: Path, fault: str, bad: tuple[int, ...]) -> None:
    """Dealt kernels anew, each of them would fail and pass by chance."""
    model = chain(here / "model.onnx", bad)
    words = ["reduce", str(model), "--unsteady", "--fault", fault, "--pin", "--repeat", "60", "-o", "r.onnx"]
    status, result, said = unsteady(here, *words, "--no-shrink", "--workers", "2")
    assert status == 0, said
    choices = result["pinned"]["choices"]
    wrong = {each["layer"] for each in choices if each["choice"] == WRONG}
    assert wrong
    assert len(choices) == NODES
    seen = verdicts(here / result["artifacts"]["run"])
    assert len(seen) >= 4
    assert {nodes for nodes, verdict in seen.items() if verdict == "FAIL"} == {nodes for nodes in seen if nodes & wrong}
    (culprit,) = result["culprits"]
    assert culprit["name"] in wrong
    assert result["minimality"] == "1-minimal"
    assert "its build is what others are held to" in said
    assert result["flaky"]["rate"] == 1  # once it is held it always fails


def test_a_candidate_that_cannot_be_held_says_nothing(here: Path) -> None:
    """The wrong kernel is one for two nodes: without the second it is not offered, and any other one would be right."""
    model = chain(here / "model.onnx", (5,), "bad_pair")
    words = ["reduce", str(model), "--unsteady", "--fault", "tactic:0.5", "--pin", "--repeat", "60", "-o", "r.onnx"]
    status, result, said = unsteady(here, *words, "--no-shrink")
    assert status == 0, said
    assert {node["name"] for node in result["culprits"]} == {"bad_pair5", "n6"}
    for nodes, verdict in verdicts(here / result["artifacts"]["run"]).items():
        wanted = "PASS" if "bad_pair5" not in nodes else "FAIL" if "n6" in nodes else "UNRESOLVED"
        assert verdict == wanted, nodes


def test_a_build_that_chooses_nothing(here: Path) -> None:
    """This fault is no matter of what a build chooses."""
    model = chain(here / "model.onnx", (3,))
    words = ["reduce", str(model), "--unsteady", "--fault", "batch:1", "--pin", "-o", "r.onnx"]
    status, _, said = unsteady(here, *words)
    assert status == 4
    assert (
        "--pin: Unsteady (fp32) says nothing of this build that another one can be held to; leave --pin out."
        in " ".join(said.split())
    )
