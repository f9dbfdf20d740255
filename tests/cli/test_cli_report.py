"""The report from the outside: every run leaves one, however it ends; it is made of ``result.json`` alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine
from support import TARGET, chain, has, node_tag, overflowing, read_json, script

RUNS = Path(".bisect-trt")


def the_run() -> Path:
    """The folder of the only run."""
    (run,) = RUNS.iterdir()
    return run


def sections(page: Path) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page.read_text(encoding="utf-8"))


def test_what_diagnose_found_is_in_its_report(cli: CommandLine) -> None:
    model = overflowing(Path("model.onnx"))
    assert cli("diagnose", model, *TARGET, "-o", "out", "--val-range", "[3,4]").status == 0
    run = the_run()
    report = read_json(run / "result.json")["report"]
    (culprit,) = [node for node in report["graph"]["nodes"] if node["verdict"] == "culprit"]
    assert (culprit["name"], report["graph"]["centre"]) == ("big", [culprit["id"]])
    made = report["graph"]["tensors"]["big_out"]
    assert (made["target"]["inf"], made["target"]["nan"], made["target"]["max"]) == (6, 0, "nan")
    assert (made["dtype"], made["shape"], made["error"]["ratio"]) == ("float32", [2, 3], "inf")
    assert 1.8e5 < made["reference"]["min"] < made["reference"]["max"] == made["reference"]["absmax"] < 2.2e5
    assert next(point["name"] for point in report["curve"]["points"] if not point["passed"]) == "big_out"
    asked = {probe["title"]: (probe["verdict"], probe["step"][:22]) for probe in report["probes"]}
    assert asked["the original"] == ("FAIL", "Does the target differ")
    assert asked["the reproducer, read back"] == ("FAIL", "Write a reproducer to ")
    assert {Path(file["path"]).name for file in report["files"]} >= {"model.onnx", "reproduce.py"}
    assert report["target"] == "ONNX Runtime (CPU, all graph optimisations, fp16)"
    assert {"bisect-trt", "onnx", "numpy", "Python", "CPU"} <= report["environment"].keys()
    commands = [entry["command"] for entry in report["commands"]]
    assert commands[0] == "python out/reproduce.py"
    assert "bisect-trt diagnose model.onnx --onnxrt --fp16 -o out --val-range '[3,4]'" in commands
    assert set(sections(run / "report.html")) == {
        "answer", "graph", "error", "findings", "search", "commands", "environment",
    }  # fmt: skip


def test_it_is_made_again_of_the_result_alone(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("layerwise", overflowing(Path("model.onnx")), *TARGET).status == 0
    run = the_run()
    page = (run / "report.html").read_bytes()
    assert cli("report", run, "-o", "again.html").out == "again.html\n"
    assert Path("again.html").read_bytes() == page
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(run / "result.json", alone)
    shutil.rmtree(RUNS)
    Path("model.onnx").unlink()
    assert cli("report", alone / "result.json").status == 0
    assert (alone / "report.html").read_bytes() == page
    assert cli("report", alone).status == 0


def test_saved_results_are_compared_without_a_run(cli: CommandLine) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        np.savez(f"{name}.npz", y=np.full(3, value, np.float32))
    assert cli("run", "--load-outputs", "a.npz", "b.npz", "--report", "here.html").status == 1
    assert not RUNS.exists()
    assert sections(Path("here.html")) == ["answer", "findings", "search", "commands", "environment"]


def test_a_run_that_ends_early_says_how_to_go_on(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 20)
    check = script(Path("check.sh"), f"if {has(node_tag(3), node_tag(11))}; then exit 1; fi")
    options = ["-o", "out.onnx", "--max-probes", "6", "--check", f"./{check}", "{model}"]
    assert cli("reduce", model, *options).status == 3
    run = the_run()
    result = read_json(run / "result.json")
    assert result["status"] == "inconclusive"
    assert f"bisect-trt resume {run}" in [entry["command"] for entry in result["report"]["commands"]]
    assert len(result["report"]["probes"]) == 6
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Unproven" in page
    assert "the budget is spent (--max-probes 6)." in page


def test_a_run_that_breaks_leaves_what_is_known(cli: CommandLine) -> None:
    Path("model.onnx").write_text("no model")
    cli("run", "model.onnx", *TARGET).ended(4)
    page = (the_run() / "report.html").read_text(encoding="utf-8")
    assert "it is another kind of file or truncated" in page
    assert sections(the_run() / "report.html") == ["answer", "commands", "environment"]


def test_a_report_that_cannot_be_written_does_not_change_the_answer(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    check = script(Path("check.sh"), f"if {has(node_tag(3), node_tag(5))}; then exit 1; fi")
    assert cli("reduce", model, "-o", "out.onnx", "--json", "r.json", "--check", f"./{check}", "{model}").status == 0
    run = the_run()
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    (run / "report.html" / "file").touch()
    ran = cli("resume", run)
    assert (ran.status, "warning: no report: " in ran.err) == (0, True)
    assert read_json(Path("r.json"))["artifacts"]["report"] is None


def test_a_graph_that_cannot_be_described_does_not_change_the_answer(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("bisect_trt.commands.record.graph_of", broken)
    ran = cli("layerwise", overflowing(Path("model.onnx")), *TARGET, "--json", "r.json")
    assert (ran.status, "warning: the report has no graph (ValueError: a bug)" in ran.err) == (0, True)
    assert read_json(Path("r.json"))["first_mismatch"]["tensor"] == "big_out"
    assert sections(the_run() / "report.html") == ["answer", "findings", "search", "commands", "environment"]


def test_a_result_without_the_parts_of_a_report_is_shown_as_far_as_it_goes(cli: CommandLine) -> None:
    assert cli("layerwise", overflowing(Path("model.onnx")), *TARGET).status == 0
    plain: dict[str, Any] = read_json(the_run() / "result.json")
    del plain["report"]
    Path("old.json").write_text(json.dumps(plain))
    assert cli("report", "old.json").status == 0
    assert sections(Path("report.html")) == ["answer", "findings", "environment"]
    assert "Mul &#39;big&#39;" in Path("report.html").read_text()
