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


@pytest.mark.parametrize("left", [["<7>"], ["<7>", "<9>"]])
def test_a_pass_that_does_not_hold_is_said(cli: CommandLine, model: Path, left: list[str]) -> None:
    """The part without the first node passed, and fails when it is asked about again."""
    ran = cli("reduce", model, *OPTIONS, *changing(has("<3>", *left), has(*left)))
    assert node_names(Path("out.onnx")) == left
    result = read_json(Path("r.json"))
    assert "the check is flaky: without one of these units the model passed, and failed when asked again" in ran.out
    assert "--repeat 20 measures how often it fails" in result["why"]
    # What failed alone is proven all the same; more than one unit is not.
    assert (ran.status, result["minimality"]) == ((0, "1-minimal") if len(left) == 1 else (3, "unproven"))


def test_a_failure_that_was_seen_once_is_not_put_down_to_how_the_model_is_written(
    cli: CommandLine, model: Path
) -> None:
    check = script(Path("check"), "[ -e seen ] && exit 0; touch seen; exit 1")
    ran = cli("reduce", model, *OPTIONS, "--check", f"./{check}", "{model}")
    assert ran.status == 3
    assert "the check is flaky: the original failed, and did not when asked again; --repeat 20" in ran.error
    assert (read_json(Path("r.json"))["status"], Path("out.onnx").exists()) == ("inconclusive", False)


@pytest.mark.parametrize("repeat", ["1", "5"])
def test_a_measured_check_is_confirmed_as_often_as_the_confidence_asks_for(
    cli: CommandLine, model: Path, repeat: str
) -> None:
    check = script(Path("check"), f"echo >> runs; {has('<3>', '<7>')} && exit 1; exit 0")
    ran = cli("reduce", model, *OPTIONS, "--repeat", repeat, "--check", f"./{check}", "{model}")
    assert ran.status == 0
    assert "what the proof rests on was run again" in ran.out
    assert "so it holds with 99% confidence" in ran.out
    flaky = read_json(Path("r.json"))["flaky"]
    assert flaky["rate"] == 1
    assert flaky["least_rate"] == pytest.approx(0.01 ** (1 / int(repeat)), abs=1e-6)
    assert len(Path("runs").read_text().splitlines()) > read_json(Path("r.json"))["probes"]["run"]


def test_pairs_are_tried_where_few_are_left(cli: CommandLine, model: Path) -> None:
    """Each of two nodes undoes what the other does, so neither can be left out alone."""
    both = f"{{ {{ {has('<8>', '<10>')}; }} || {{ ! {has('<8>')} && ! {has('<10>')}; }}; }}"
    check = script(Path("check"), f"{has('<2>', '<4>', '<6>')} && {both} && exit 1; exit 0")
    ran = cli("reduce", model, *OPTIONS, "--check", f"./{check}", "{model}")
    assert ran.status == 0
    assert node_names(Path("out.onnx")) == ["<2>", "<4>", "<6>"]
    assert "out.onnx: 3 nodes still fail (1-minimal, pairs tried)." in ran.out
    result = read_json(Path("r.json"))
    assert (result["minimality"], result["pairs_tried"]) == ("1-minimal", True)


def test_measuring_the_original_keeps_to_the_budget(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), f"echo >> runs; {has('<3>')} && exit 1; exit 0")
    words = ["--repeat", "99999999999999999999", "--max-time", "2", "--check", f"./{check}", "{model}"]
    ran = cli("reduce", model, *OPTIONS, *words)
    assert ran.status not in (0, 1)
    assert "the budget is spent (--max-time 2)." in ran.error
    assert Path("runs").read_text()
