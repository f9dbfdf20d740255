"""``log RUN --atol --rtol``: what other tolerances would have said, without running anything."""

from __future__ import annotations

from pathlib import Path

from conftest import CommandLine
from support import TARGET, chain, overflowing, read_json


def run_of(here: Path) -> Path:
    return Path(read_json(here / "result.json")["artifacts"]["run"])


def test_a_finished_run_says_what_other_tolerances_would_have_said(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx")
    assert (
        cli("run", "model.onnx", *TARGET, "--atol", "0", "--rtol", "0", "--mark-all", "--json", "result.json").status
        == 1
    )
    failed = [each for each in read_json(here / "result.json")["comparisons"] if not each["passed"]]
    (here / "model.onnx").unlink()  # nothing is run
    said = cli("log", run_of(here), "--atol", "1")
    assert said.status == 0
    assert f"{len(failed)} of 4 output(s) would change" in said.out
    assert all(f"'{each['name']}' would match" in said.out for each in failed)
    assert "0 of 4 output(s) would change" in cli("log", run_of(here), "--rtol", "0").out


def test_a_search_says_from_which_probe_on_it_would_go_another_way(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    ran = cli("diagnose", "model.onnx", *TARGET, "-o", "bug", "--json", "result.json", "--no-shrink")
    assert ran.status == 0, ran.err
    said = cli("log", run_of(here), "--atol", "1e9").out
    assert "the search would have gone the same way, to the same answer" in said  # an Inf is beyond any number
    said = cli("log", run_of(here), "--atol", "inf").out
    assert "probe 1, the original: FAIL would be PASS" in said
    assert "the first wrong tensor would be none, and was 'big_out'" in said
    assert "may have gone another way from probe 1 on: run it again" in said


def test_usage(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx")
    cli("extract", "model.onnx", "-o", "piece.onnx", "--json", "result.json")
    assert "nothing was compared with a tolerance in it" in cli("log", run_of(here), "--atol", "1").error
    assert "leave the probe and --times out" in cli("log", run_of(here), "--atol", "1", "--times").error
