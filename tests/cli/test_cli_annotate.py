"""``--annotate``: what was found of each node, in the original model's metadata."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from support import TARGET, chain, has, node_tag, overflowing, read_json, script

VERDICT, ERROR = "bisect-trt.verdict", "bisect-trt.error"


def notes(path: str) -> dict[str, dict[str, str]]:
    """By the node's name."""
    nodes = onnx.load(path).graph.node
    return {node.name: {entry.key: entry.value for entry in node.metadata_props} for node in nodes}


@pytest.mark.parametrize("command", ["layerwise", "diagnose"])
def test_of_a_comparison(cli: CommandLine, command: str) -> None:
    own = ["-o", "out"] if command == "diagnose" else ["--isolate"]
    options = [*TARGET, *own, "--annotate", "seen.onnx", "--json", "r.json"]
    assert cli(command, overflowing(Path("model.onnx")), *options).status == 0
    assert read_json(Path("r.json"))["artifacts"]["annotated"] == "seen.onnx"
    found = notes("seen.onnx")
    wrong = "needed to fail" if command == "diagnose" else "wrong, although all that it reads is right"
    assert found["a0"][VERDICT] == "right"
    assert found["big"][VERDICT].startswith(wrong)
    assert found["big"][ERROR].startswith("max error inf")
    assert ("bisect-trt.own-error" in found["small"]) == (command == "layerwise")
    assert found["small"][VERDICT] == "wrong, and so is something that it reads"
    assert notes("model.onnx")["big"] == {}


def test_of_a_reduction(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    check = script(Path("check.sh"), f"if {has(node_tag(3), node_tag(5))}; then exit 1; fi")
    assert (
        cli("reduce", model, "-o", "o.onnx", "--annotate", "seen.onnx", "--check", f"./{check}", "{model}").status == 0
    )
    needed = {name for name, entries in notes("seen.onnx").items() if entries[VERDICT].startswith("needed")}
    assert needed == {node_tag(3), node_tag(5)}
    assert notes("seen.onnx")[node_tag(0)][VERDICT] == "not needed to fail"


def test_a_search_that_ends_early_says_what_is_known_by_then(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    check = script(Path("check.sh"), f"if {has(node_tag(3), node_tag(5))}; then exit 1; fi")
    options = ["-o", "o.onnx", "--max-probes", "4", "--annotate", "seen.onnx", "--json", "r.json"]
    ran = cli("reduce", model, *options, "--check", f"./{check}", "{model}")
    assert (ran.status, "--max-probes 4" in ran.error) == (3, True)
    verdicts = {name: entries[VERDICT] for name, entries in notes("seen.onnx").items()}
    assert (
        verdicts[node_tag(3)]
        == verdicts[node_tag(5)]
        == "not ruled out: part of the smallest case that is known to fail"
    )
    assert "not needed to fail" in verdicts.values()
    assert not any(verdict.startswith("needed") for verdict in verdicts.values())
    assert read_json(Path("r.json"))["artifacts"]["annotated"] == "seen.onnx"
    assert cli("precision", overflowing(model), *TARGET, *options, "--max-probes", "1", "--overwrite").status == 3
    assert not any("bisect-trt.precision" in entries for entries in notes("seen.onnx").values())


def test_of_a_search_for_precisions(cli: CommandLine) -> None:
    model = overflowing(Path("model.onnx"))
    options = [*TARGET, "-o", "mixed.onnx", "--annotate", "seen.onnx", "--report", "report.html", "--json", "r.json"]
    assert cli("precision", model, *options).status == 0
    kept = {entry["name"] for entry in read_json(Path("r.json"))["keep_fp32"]}
    found = {name: entries["bisect-trt.precision"] for name, entries in notes("seen.onnx").items()}
    assert kept == {name for name, precision in found.items() if precision.startswith("kept in fp32: ")} >= {"big"}
    assert {precision for name, precision in found.items() if name not in kept} == {"lowered"}
    nodes = {node["name"]: node for node in read_json(Path("r.json"))["report"]["graph"]["nodes"]}
    assert {name for name, node in nodes.items() if node["precision"] == "fp32"} == kept
    assert '<section id="graph" class="precision">' in Path("report.html").read_text(encoding="utf-8")
