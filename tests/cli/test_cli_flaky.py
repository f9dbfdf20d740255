"""Checks that fail only sometimes, and answers that could be smaller: what is said of the proof."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from support import chain, has, node_names, read_json, script

OPTIONS = ("-o", "out.onnx", "--no-shrink", "--workers", "1", "--json", "r.json")


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 12)


def changing(first: str, again: str) -> list[str]:
    """A check that says of a candidate it has seen before what the second condition says."""
    known = 'sum=$(md5sum < "$1"); grep -qsF "$sum" seen'
    body = f'if {known}; then {again} && exit 1; else echo "$sum" >> seen; {first} && exit 1; fi; exit 0'
    return ["--check", "./" + script(Path("check"), body), "{model}"]


def test_a_pass_that_does_not_hold_is_said(cli: CommandLine, model: Path) -> None:
    """The part without the first node passed, and fails when it is asked about again."""
    ran = cli("reduce", model, *OPTIONS, *changing(has("<3>", "<7>"), has("<7>")))
    assert node_names(Path("out.onnx")) == ["<7>"]
    result = read_json(Path("r.json"))
    assert "--repeat 20" in result["why"]
    # What failed alone is proven all the same.
    assert (ran.status, result["minimality"]) == (0, "1-minimal")


def test_a_failure_that_was_seen_once_is_not_put_down_to_serialization(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), "[ -e seen ] && exit 0; touch seen; exit 1")
    ran = cli("reduce", model, *OPTIONS, "--check", f"./{check}", "{model}")
    assert (ran.status, "--repeat 20" in ran.error) == (3, True)
    assert (read_json(Path("r.json"))["status"], Path("out.onnx").exists()) == ("inconclusive", False)


def test_the_answer_of_a_measured_check_is_run_as_often_as_the_original(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), f"echo >> runs; {has('<3>', '<7>')} && exit 1; exit 0")
    flaky = cli("reduce", model, *OPTIONS, "--repeat", "5", "--check", f"./{check}", "{model}").ended(0).result["flaky"]
    assert flaky["rate"] == 1
    assert flaky["least_rate"] == pytest.approx(0.01 ** (1 / 5), abs=1e-6)
    assert len(Path("runs").read_text().splitlines()) >= read_json(Path("r.json"))["probes"]["run"] + 4 + 4


def test_a_rate_that_falls_from_the_original_to_the_answer_leaves_no_proof(cli: CommandLine, model: Path) -> None:
    """The original fails each time, what is cut out of it in every third run."""
    seldom = f"echo >> runs; [ $(( $(wc -l < runs) % 3 )) = 0 ] && {has('<3>', '<7>')} && exit 1; exit 0"
    check = script(Path("check"), f"{has(*(f'<{number}>' for number in range(12)))} && exit 1; {seldom}")
    result = cli("reduce", model, *OPTIONS, "--repeat", "20", "--check", f"./{check}", "{model}").ended(3).result
    assert result["minimality"] == "unproven"
    assert "flaky" in result["why"]


def test_measuring_the_original_keeps_to_the_budget(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), f"echo >> runs; {has('<3>')} && exit 1; exit 0")
    words = ["--repeat", "99999999999999999999", "--max-time", "2", "--check", f"./{check}", "{model}"]
    ran = cli("reduce", model, *OPTIONS, *words)
    assert ran.status not in (0, 1)
    assert "(--max-time 2)" in ran.error
    assert Path("runs").read_text()
