"""What CI reads: JUnit's XML, annotations, the steps of the action, the fixture of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import onnx
import pytest
import yaml
from conftest import CommandLine
from hypothesis import example, given
from hypothesis import strategies as st
from support import TARGET, chain, overflowing, read_json

from bisect_trt.options.choices import ErrorStat
from bisect_trt.report.ci import cases_of, workflow_commands, write_junit
from bisect_trt.report.result import Result
from bisect_trt.report.text import clean
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison

ROOT = Path(__file__).parents[2]
SEARCHES = ["diagnose", "reduce", "cause", "workaround", "layerwise", "releases"]


@pytest.mark.parametrize("command", [*SEARCHES, "run", "precision", "extract"])
@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("found", "failure"),
        ("not_reproduced", "pass"),
        ("inconclusive", "error"),
        ("interrupted", "error"),
        ("error", "error"),
    ],
)
def test_what_a_status_means_in_ci(command: str, status: str, found: str) -> None:
    turned = {"failure": "pass", "pass": "failure"}  # of these, success is that something was found
    wanted = found if command in SEARCHES else turned.get(found, found)
    (case,) = cases_of(Result(command, status, why="because").to_json())
    assert case.verdict == wanted
    assert (case.message == "because") == (wanted != "pass")


def test_each_output_of_a_comparison_is_a_case(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    ran = cli(
        "run",
        "model.onnx",
        *TARGET,
        "--onnx-outputs",
        "mark",
        "all",
        "--junit",
        "junit.xml",
        "--json",
        "result.json",
        "--annotations",
    )
    assert ran.status == 1
    comparisons = read_json(here / "result.json")["comparisons"]
    wrong = [each["name"] for each in comparisons if not each["passed"]]
    suite = ET.parse(here / "junit.xml").getroot()[0]
    cases = {each.attrib["name"]: each for each in suite}
    assert list(cases) == [each["name"] for each in comparisons]
    assert [name for name, each in cases.items() if each.find("failure") is not None] == wrong
    assert (suite.attrib["tests"], suite.attrib["failures"]) == (str(len(comparisons)), str(len(wrong)))
    assert [
        line.partition("run%3A ")[2].partition("::")[0] for line in ran.out.splitlines() if line[:2] == "::"
    ] == wrong


def test_annotations_are_there_where_github_runs_and_name_the_line(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(str(overflowing(here / "model.onnx")))
    for node in model.graph.node:
        for key, value in (
            ("name_scopes", "['', 'a', 'op']"),
            ("stack_trace", f'File "{here}/net.py", line 7, in forward'),
        ):
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    onnx.save(model, str(here / "model.onnx"))
    words = ["diagnose", "model.onnx", *TARGET, "-o", "bug", "--no-shrink", "--junit", "junit.xml", "--overwrite"]
    assert "::error" not in cli(*words).out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (line,) = [line for line in cli(*words).out.splitlines() if line.startswith("::")]
    assert line.startswith("::error file=net.py,line=7,title=bisect-trt diagnose::Mul 'big' fails alone")
    assert "%0AReproducer: bug" in line
    assert ET.parse(here / "junit.xml").getroot()[0][0].find("failure") is not None


def test_a_run_that_does_not_come_to_an_answer_is_an_error(cli: CommandLine, here: Path) -> None:
    ran = cli("run", "missing.onnx", "--onnxrt", "--junit", "junit.xml", "--annotations")
    assert ran.status == 4
    assert ran.out.startswith("::error title=bisect-trt run::missing.onnx: no such file")
    suite = ET.parse(here / "junit.xml").getroot()[0]
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("1", "0")


def test_a_file_that_cannot_be_written_is_said_before_anything_runs(cli: CommandLine, here: Path) -> None:
    ran = cli("run", chain(here / "model.onnx"), "--onnxrt", "--junit", "missing/junit.xml")
    assert ran.status == 2
    assert "missing" in ran.error


def read_as_the_runner(line: str) -> tuple[str, dict[str, str], str]:
    """Command, properties and text of a line, as GitHub's own runner reads it (``ActionCommand.TryParseV2``)."""
    assert line.startswith("::")
    assert len(line.splitlines()) == 1
    head, end, text = line[2:].partition("::")
    assert end
    command, _, words = head.partition(" ")
    pairs = (word.partition("=") for word in words.strip().split(","))
    return command, {key: unescaped(value, "\r\n:,") for key, _, value in pairs if value}, unescaped(text, "\r\n")


def unescaped(text: str, escaped: str) -> str:
    for character in f"{escaped}%":  # % last, as there
        text = text.replace(f"%{ord(character):02X}", character)
    return text


@given(st.text("%:,\r\n=]; 0ADC25é\u2028", max_size=60))
@example("50%,of::this:\r\n%0A%2C %25")
def test_githubs_runner_reads_what_was_said(said: str) -> None:
    module = {"path": said, "class": said, "source": f"{said}:7"}
    culprit = {"name": said, "op": said, "outputs": [said], "module": module}
    reduced = Result("reduce", "found", why=said, culprits=[culprit], minimality="1-minimal").to_json()
    failed = TensorComparison(said, False, ComparisonKind.MISMATCH, ErrorStat.ELEMWISE, 0.1, 0.1, reason=said).to_json()
    compared = Result("run", "not_reproduced", extra={"comparisons": [failed]}).to_json()
    near = {"file": clean(said), "line": "7"} if said else {"line": "7"}
    for result, known in (
        (reduced, {**near, "title": "bisect-trt reduce"}),
        (compared, {"title": f"bisect-trt run: {clean(said)}".strip()}),
    ):
        (line,), (case,) = workflow_commands(result), cases_of(result)
        text = "\n".join(clean(each) for each in "\n".join([case.message, *case.details]).split("\n"))
        command, properties, data = read_as_the_runner(line)
        properties["title"] = properties["title"].strip()
        assert (command, properties, data) == ("error", known, text)


@given(st.text(max_size=60))
def test_a_strangers_text_is_one_line_and_valid_xml(tmp_path_factory: pytest.TempPathFactory, said: str) -> None:
    culprit = {
        "name": said,
        "op": said,
        "outputs": [said],
        "module": {"path": said, "class": said, "source": f"{said}:7"},
    }
    result = Result("reduce", "found", why=said, culprits=[culprit], minimality="1-minimal").to_json()
    (line,) = workflow_commands(result)
    assert len(line.splitlines()) == 1
    assert line.startswith("::error file=")
    properties, _, _ = line.removeprefix("::error ").partition("::")
    assert len(properties.split(",")) == 3
    path = tmp_path_factory.getbasetemp() / "junit.xml"
    write_junit(result, path)
    assert len(ET.parse(path).getroot()[0]) == 1


def test_more_annotations_than_are_shown_are_counted() -> None:
    failed = TensorComparison("y", False, ComparisonKind.MISMATCH, ErrorStat.ELEMWISE, 0.1, 0.1, reason="off").to_json()
    result = Result("run", "not_reproduced", extra={"comparisons": [failed] * 14}).to_json()
    lines = list(workflow_commands(result))
    assert len(lines) == 11
    assert lines[-1].endswith("::and 4 more")


class Action:
    """The action, its steps run as the runner runs them."""

    def __init__(self, folder: Path, **given: str) -> None:
        plain: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
        self.folder, self.plain = folder, plain
        self.inputs = {name: str(each.get("default", "")) for name, each in plain["inputs"].items()} | given
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
            "inputs.install != ''": self.inputs["install"] != "",
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
                env={**os.environ, "PATH": path, "GITHUB_OUTPUT": str(self.folder / "output"), **known},
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


def test_the_action_leaves_a_reproducer_and_ends_as_the_comparison(here: Path) -> None:
    overflowing(here / "my model.onnx")
    action = Action(here, model="my model.onnx", options="--onnxrt --fp16 --seed 3", install="")
    assert action.run() == 1, action.said
    assert action.outputs["compare"] == {"status": "1"}
    assert action.outputs["diagnose"] == {"reproducer": "bisect-trt-results/reproducer.zip"}
    left = {path.name for path in (here / action.inputs["folder"]).iterdir()}
    files = {f"{command}.{kind}" for command in ("run", "diagnose") for kind in ("json", "xml", "html")}
    assert left >= files | {"reproducer.zip", "reproducer"}
    assert "::error title=bisect-trt run" in action.said


def test_the_action_passes_where_everything_matches(here: Path) -> None:
    chain(here / "model.onnx")
    action = Action(here, model="model.onnx", install="")
    assert action.run() == 0, action.said
    assert "diagnose" not in action.outputs


def test_the_action_does_not_run_what_its_inputs_say(here: Path) -> None:
    chain(here / "model.onnx")
    action = Action(here, model="model.onnx", options="--onnxrt $(touch run-1) `touch run-2` ; touch run-3", install="")
    assert action.run() == 2
    assert not list(here.glob("run-*"))


def test_pytest_has_the_fixture(here: Path) -> None:
    overflowing(here / "model.onnx")
    lines = ["def test_right(assert_matches):", "    assert_matches('model.onnx')"]
    lines += ["def test_wrong(assert_matches):", "    assert_matches('model.onnx', fp16=True)"]
    (here / "test_model.py").write_text("\n".join(lines))
    words = ["-p", "bisect_trt.pytest_plugin", "-q", "test_model.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=here, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
