"""What every command has: help, a version, a JSON result with the same keys; and how the words are read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from support import COMMANDS, command_lines, overflowing, read_json

import bisect_trt as package
from bisect_trt.cli.parser import expand, several
from bisect_trt.commands.commands import COMMANDS as TABLE
from bisect_trt.commands.record import system_errors
from bisect_trt.errors import UnavailableError
from bisect_trt.report.summary import headline

KEYS = {"schema", "command", "status", "model", "probes", "wall_s", "culprits", "minimality", "why", "artifacts"}
OWN_KEYS = {"layerwise": {"first_mismatch", "tensors"}, "run": {"comparisons"}}


def check_schema(result: dict[str, Any], command: str) -> None:
    assert set(result) >= KEYS | OWN_KEYS.get(command, set())
    assert result["schema"] == 1
    assert result["command"] == command
    assert result["status"] in {"found", "not_reproduced", "inconclusive", "interrupted", "error"}
    assert set(result["probes"]) >= {"run", "cached", "fail", "pass", "unresolved"}
    assert result["probes"]["run"] == sum(result["probes"][verdict] for verdict in ("fail", "pass", "unresolved"))
    assert result["minimality"] in {"1-minimal", "unproven"}
    assert result["wall_s"] > 0
    assert set(result["artifacts"]) >= {"reduced", "min_good", "report", "run"}
    for culprit in result["culprits"]:
        assert set(culprit) == {"name", "op", "outputs"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_answer_as_json_and_alone(cli: CommandLine, command: str) -> None:
    model = overflowing(Path("model.onnx"))
    line = command_lines(model)[command]
    ran = cli(*line, "--json", "r.json")
    assert ran.status == (1 if command == "run" else 0)
    result = read_json(Path("r.json"))
    check_schema(result, command)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert result["model"] == {"path": "model.onnx", "sha256": digest, "nodes": 8, "units": 8}
    if command == "run":
        alone = cli(*line, "--json", "-")
        assert json.loads(alone.out)["comparisons"] == result["comparisons"]
        missing = [str(word).replace("model.onnx", "none.onnx") for word in line]
        before = sorted(Path(".bisect-trt").iterdir())
        assert cli(*missing).status == 4
        assert sorted(Path(".bisect-trt").iterdir()) == before  # no folder of a run
    if command in ("diagnose", "reduce", "layerwise"):
        assert result["culprits"] == [{"name": "big", "op": "Mul", "outputs": ["big_out"]}]
    if result["artifacts"]["reduced"]:
        assert Path(result["artifacts"]["reduced"]).is_file()
    run = Path(result["artifacts"]["run"])
    assert read_json(run / "result.json") == result
    assert result["artifacts"]["report"] == str(run / "report.html")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{headline(result)}</h1>".replace("'", "&#39;") in page
    assert {"answer", "graph", "commands", "environment"} <= {*re.findall(r'<section id="(\w+)"', page)}
    assert re.search(rf"^Report +{re.escape(str(run))}", ran.out, re.MULTILINE)
    if command in ("reduce", "run"):
        quiet = cli(*line, "-q", *([] if command == "run" else ["--overwrite"]))
        assert quiet.status == ran.status
        assert 0 < len(quiet.out.splitlines()) <= min(25, len(ran.out.splitlines()))
        assert "probe 1 " not in quiet.out


def test_help_lists_the_commands_by_what_they_are_for(cli: CommandLine) -> None:
    ran = cli("-h")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == cli().out
    headings = re.findall(r"─ (\w[\w ]*) ─", ran.out)
    assert headings == ["Options", "Find", "Explain", "Fix", "Files", "Runs", "This machine"]
    assert re.findall(r"^│ (\w+)  ", ran.out, re.MULTILINE) == list(TABLE)


@pytest.mark.parametrize("command", TABLE)
def test_help_of_each_command_fits_two_screens(cli: CommandLine, command: str) -> None:
    ran = cli(command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) <= 80
    assert all(f"bisect-trt {line}" in ran.out for line in TABLE[command].examples)
    if "--help-all" in ran.out:
        everything = cli(command, "--help-all")
        assert (everything.status, everything.err) == (0, "")
        assert set(re.findall(r"--[\w-]+", ran.out)) <= set(re.findall(r"--[\w-]+", everything.out))


def test_the_installed_program_is_the_module(cli: CommandLine, here: Path) -> None:
    assert cli("--version").out == f"bisect-trt {package.__version__}\n"
    for program in ([Path(sys.executable).with_name("bisect-trt")], [sys.executable, "-m", "bisect_trt"]):
        done = subprocess.run([*program, "--version"], cwd=here, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (f"bisect-trt {package.__version__}\n", "")


def test_negative_numbers_are_values() -> None:
    expanded = expand(["reduce", "m", "--fail-code", "-11", "3"], several("reduce"))
    assert expanded == ["reduce", "m", "--fail-code=-11", "--fail-code=3"]


def test_shells_complete_options(here: Path) -> None:
    words = "extract model.onnx --inp"
    # What bash's function of --show-completion asks, and as: all words, and the number of the one that is completed.
    given = {"COMP_WORDS": f"bisect-trt {words}", "COMP_CWORD": str(len(shlex.split(words)))}
    for asks, answers in (("complete_bash", ["--inputs", "--input-shapes"]), ("source_zsh", ["bisect-trt"])):
        environment = {**os.environ, "_BISECT_TRT_COMPLETE": asks, **given}
        command = [sys.executable, "-m", "bisect_trt"]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=True)
        assert {*answers} <= {*done.stdout.split()}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_file() -> None:
    said = "/dev/full cannot be used: No space left on device; check its path"
    with pytest.raises(UnavailableError, match=said), system_errors():
        Path("/dev/full").write_text("x")
