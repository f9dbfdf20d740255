"""The report from the outside: every run leaves one, however it ends; it is made of ``result.json`` alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
import yaml
from answers.models import cancelling
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from support import SHAPE, TARGET, chain, has, node_tag, overflowing, read_json, script

import bisect_trt
from bisect_trt.onnxlib.nodes import Node
from bisect_trt.report.exports import cases_of, write_junit
from bisect_trt.report.parts import Status
from bisect_trt.report.result import Result

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
    assert [node["name"] for node in report["graph"]["nodes"]] == ["big"]
    made = report["graph"]["tensors"]["big_out"]
    assert (made["target"]["inf"], made["target"]["nan"], made["target"]["max"]) == (6, 0, "nan")
    assert (made["dtype"], made["shape"], made["error"]["ratio"]) == ("float32", [2, 3], "inf")
    assert (
        1.8e5
        < made["reference"]["min"]
        < made["reference"]["max"]
        == made["reference"]["absmax"]
        < 2.2e5
    )
    assert (
        next(point["name"] for point in report["curve"]["points"] if not point["passed"])
        == "big_out"
    )
    asked = {probe["title"]: (probe["verdict"], probe["step"][:22]) for probe in report["probes"]}
    assert asked["the original"] == ("FAIL", "Does the target differ")
    assert asked["the reproducer, read back"] == ("FAIL", "Write a reproducer to ")
    assert report["target"] == "ONNX Runtime (CPU, all graph optimisations, fp16)"
    assert {"bisect-trt", "onnx", "numpy", "Python", "CPU"} <= report["environment"].keys()
    commands = [entry["command"] for entry in report["commands"]]
    assert commands[0] == "python out/reproduce.py"
    assert "bisect-trt diagnose model.onnx --onnxrt --fp16 -o out --val-range '[3,4]'" in commands
    assert set(sections(run / "report.html")) == {
        "answer", "graph", "error", "findings", "search", "commands", "environment",
    }  # fmt: skip


def test_tensors_that_match_beside_a_wrong_output_are_explained(cli: CommandLine) -> None:
    """Marks hide the failure of a fusion."""
    explained = "The failure exists only while no tensor is marked as an output"
    cancelling(Path("cancelling.onnx"))
    overflowing(Path("overflowing.onnx"))
    for name, options in (("cancelling", ["--max-probes", "3"]), ("overflowing", ["--fp16"])):
        cli("diagnose", f"{name}.onnx", "--onnxrt", "--report", f"{name}.html", *options)
        page = Path(f"{name}.html").read_text()
        assert 'id="graph"' in page
        assert (explained in page) == (name == "cancelling")


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


def test_a_run_that_breaks_leaves_what_is_known(cli: CommandLine) -> None:
    model = onnx.load(chain(Path("model.onnx"), 2))
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, "model.onnx")
    cli("run", "model.onnx", *TARGET).ended(4)
    page = (the_run() / "report.html").read_text(encoding="utf-8")
    assert "NoSuchOperator" in page
    assert {"answer", "commands", "environment"} <= {*sections(the_run() / "report.html")}


def test_a_report_that_cannot_be_written_does_not_change_the_answer(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    check = script(Path("check.sh"), f"if {has(node_tag(3), node_tag(5))}; then exit 1; fi")
    assert (
        cli(
            "reduce",
            model,
            "-o",
            "out.onnx",
            "--json",
            "r.json",
            "--check",
            f"./{check}",
            "{model}",
        ).status
        == 0
    )
    run = the_run()
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    (run / "report.html" / "file").touch()
    ran = cli("resume", run)
    assert (ran.status, "warning: no report: " in ran.err) == (0, True)
    assert read_json(Path("r.json"))["artifacts"]["report"] is None


# JUnit XML, the steps of the action, and the fixture of pytest.


ROOT = Path(__file__).parents[2]
SEARCHES = ["diagnose", "reduce", "cause", "workaround", "layerwise", "releases"]


def test_what_a_status_means_in_ci() -> None:
    statuses: tuple[Status, ...] = (
        "found",
        "not_reproduced",
        "inconclusive",
        "interrupted",
        "error",
    )
    for command, status in product([*SEARCHES, "run", "precision", "extract"], statuses):
        wrong = "found" if command in SEARCHES else "not_reproduced"
        ((_, verdict, message),) = cases_of(Result(command, status, why="because"))
        assert verdict == (
            "error" if status[:2] in ("in", "er") else "failure" if status == wrong else "pass"
        )
        assert (message == "because") == (verdict != "pass")


def test_each_output_of_a_comparison_is_a_case(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    words = ["--onnx-outputs", "mark", "all", "--junit", "junit.xml", "--json", "result.json"]
    assert cli("run", "model.onnx", *TARGET, *words).status == 1
    passed = {
        each["name"]: each["passed"] for each in read_json(here / "result.json")["comparisons"]
    }
    suite = ET.parse(here / "junit.xml").getroot()[0]
    assert {each.attrib["name"]: each.find("failure") is None for each in suite} == passed
    wrong = sum(not each for each in passed.values())
    assert (suite.attrib["tests"], suite.attrib["failures"]) == (str(len(passed)), str(wrong))


def test_model_explorer_shows_errors_or_the_answer(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    options = ("--model-explorer", "explorer.json", "--json", "result.json")
    cli("layerwise", "model.onnx", *TARGET, *options).ended(0)
    data = read_json(here / "explorer.json")
    # As its GraphNodeData: results by node, and colours up to each threshold.
    assert set(data) == {"name", "results", "thresholds"}
    nodes = {
        output: node.name for node in onnx.load("model.onnx").graph.node for output in node.output
    }
    tensors = read_json(here / "result.json")["tensors"]
    passed = {nodes[each["name"]]: each["passed"] for each in tensors}
    assert {name: each["value"] <= 1 for name, each in data["results"].items()} == passed
    assert [each["value"] for each in data["thresholds"]] == [1, 1e9]
    check = script(here / "check.sh", f"if {has(node_tag(3))}; then exit 1; fi")
    chain(here / "chain.onnx")
    cli("reduce", "chain.onnx", "-o", "o.onnx", *options, "--check", check, "{model}").ended(0)
    marks = read_json(here / "explorer.json")["results"]
    (culprit,) = read_json(here / "result.json")["culprits"]
    assert {name: each["value"] for name, each in marks.items()} == {culprit["name"]: "answer"}
    cli("run", "model.onnx", *TARGET, "--model-explorer", "model.onnx").ended(2)


@pytest.mark.parametrize(
    ("command", "words", "status"),
    [
        ("diagnose", TARGET, 0),
        ("workaround", TARGET, 0),
        ("cause", TARGET, 0),
        ("layerwise", TARGET, 0),
        ("run", TARGET, 1),
        ("run", ["--onnxrt"], 0),
        ("diagnose", ["--onnxrt"], 1),
        ("precision", [*TARGET, "-o", "mixed.onnx"], 0),
        ("reduce", [*TARGET, "-o", "r.onnx"], 0),
    ],
)
def test_each_step_of_the_search_has_an_answer(
    cli: CommandLine, here: Path, command: str, words: list[str], status: int
) -> None:
    overflowing(here / "m.onnx")
    ran = cli(command, "m.onnx", *words, "--json", "r.json").ended(status)
    steps = ran.result["report"]["story"]["steps"]
    assert steps
    assert [step["title"] for step in steps if not step["lines"]] == []


def test_a_run_without_an_answer_is_an_error(cli: CommandLine, here: Path) -> None:
    assert cli("run", "missing.onnx", "--onnxrt", "--junit", "junit.xml").status == 4
    suite = ET.parse(here / "junit.xml").getroot()[0]
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("1", "0")
    assert (
        cli("run", chain(here / "model.onnx"), "--onnxrt", "--junit", "missing/junit.xml").status
        == 2
    )


@given(st.text(max_size=60))
def test_any_text_is_valid_xml(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    culprits = [Node(name=text, op=text, outputs=(text,))]
    path = tmp_path_factory.getbasetemp() / "junit.xml"
    write_junit(
        Result("reduce", "found", why=text, culprits=culprits, minimality="1-minimal"), path
    )
    assert len(ET.parse(path).getroot()[0]) == 1


class Action:
    """The action, its steps run as the runner runs them."""

    def __init__(self, folder: Path, **given: str) -> None:
        plain: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
        self.folder = folder
        self.plain = plain
        self.inputs = {
            name: str(each.get("default", "")) for name, each in plain["inputs"].items()
        } | given
        self.outputs: dict[str, dict[str, str]] = {}
        self.said = ""

    def fill(self, text: str) -> str:
        for name, value in self.inputs.items():
            text = text.replace(f"${{{{ inputs.{name} }}}}", value)
        for step, said in self.outputs.items():
            for name, value in said.items():
                text = text.replace(f"${{{{ steps.{step}.outputs.{name} }}}}", value)
        return text

    def wanted(self, step: dict[str, Any]) -> bool:
        status = self.outputs.get("compare", {}).get("status")
        known = {
            "inputs.install != 'none'": self.inputs["install"] != "none",
            "steps.compare.outputs.status == '1'": status == "1",
        }
        return known[step["if"]] if "if" in step else True

    def run(self) -> int:
        """All steps that are commands; the status of the last."""
        status = 0
        for step in self.plain["runs"]["steps"]:
            if "run" not in step or not self.wanted(step):
                continue
            assert "${{" not in step["run"], "an input that is pasted into a script is run"
            (self.folder / "output").write_text("")
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            known = {name: self.fill(value) for name, value in step.get("env", {}).items()}
            (self.folder / "step.sh").write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PATH": path,
                    "GITHUB_OUTPUT": str(self.folder / "output"),
                    **known,
                },
                capture_output=True,
                text=True,
                check=False,
            )
            self.said += done.stdout + done.stderr
            lines = (self.folder / "output").read_text().splitlines()
            self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in lines)
            status = done.returncode
            if status:
                break
        return status


@pytest.mark.slow
def test_the_action_leaves_a_reproducer_and_ends_as_the_comparison(here: Path) -> None:
    overflowing(here / "my model.onnx")
    action = Action(here, model="my model.onnx", options="--onnxrt --fp16 --seed 3", install="none")
    assert action.run() == 1, action.said
    assert action.outputs["compare"] == {"status": "1"}
    assert action.outputs["diagnose"] == {"reproducer": "bisect-trt-results/reproducer.zip"}
    left = {path.name for path in (here / action.inputs["folder"]).iterdir()}
    files = {
        f"{command}.{kind}" for command in ("run", "diagnose") for kind in ("json", "xml", "html")
    }
    assert left >= files | {"reproducer.zip", "reproducer"}


def test_the_action_does_not_run_what_its_inputs_say(here: Path) -> None:
    chain(here / "model.onnx")
    options = "--onnxrt $(touch run-1) `touch run-2` ; touch run-3"
    assert Action(here, model="model.onnx", options=options, install="none").run() == 2
    assert not list(here.glob("run-*"))


def test_the_action_passes_where_everything_matches(here: Path) -> None:
    chain(here / "model.onnx")
    np.savez(here / "my inputs.npz", x=np.ones(SHAPE, np.float32))
    action = Action(
        here, model="model.onnx", options="--onnxrt --load-inputs 'my inputs.npz'", install="none"
    )
    assert action.run() == 0, action.said
    assert "diagnose" not in action.outputs


def test_pytest_has_the_fixture(here: Path) -> None:
    overflowing(here / "model.onnx")
    lines = ["def test_right(assert_matches):", "    assert_matches('model.onnx')"]
    lines += ["def test_wrong(assert_matches):", "    assert_matches('model.onnx', fp16=True)"]
    lines += ["def test_refused(assert_matches):", "    assert_matches('none.onnx')"]
    (here / "test_model.py").write_text("\n".join(lines))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "bisect_trt.pytest_plugin",
        "-q",
        "test_model.py",
    ]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, env=alone)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Why      fp16 cannot represent this value" in done.stdout
    assert "none.onnx" in done.stdout
    assert str(Path(bisect_trt.__file__).parent) not in done.stdout
