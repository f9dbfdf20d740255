"""Time by activity: in every result, of each probe, and as ``log --times`` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from support import COMMANDS, chain, command_lines, has, overflowing, read_json, script

from bisect_trt.probe.times import PARTS
from bisect_trt.report.page import REPORT_FILE

OF_ALL = ("start", "reference", "other")
"""Parts of a whole run, and of no probe."""


def rows(printed: str) -> dict[str, dict[str, float]]:
    """The table of ``log --times``: the parts of each probe by its number, and of ``all``."""
    head, *lines = [line.split() for line in printed.splitlines() if not line.startswith("the newest run")]
    assert head[0] == "probe"
    return {
        line[0]: {part: float(cell) for part, cell in zip(head[1:], line[1:], strict=True) if cell != "-"}
        for line in lines
    }


def probes(result: dict[str, Any]) -> list[dict[str, Any]]:
    return list(result["report"]["probes"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_second_is_put_down_once(cli: CommandLine, command: str) -> None:
    model = overflowing(Path("model.onnx"))
    more = ["--workers", "1"] if command in ("diagnose", "reduce", "precision") else []
    cli(*command_lines(model)[command], *more, "--json", "r.json")
    result = read_json(Path("r.json"))
    times = result["times"]
    assert list(times) == list(PARTS)
    assert all(spent >= 0 for spent in times.values())
    # One after the other, the parts make the whole; each is rounded.
    assert sum(times.values()) == pytest.approx(result["wall_s"], abs=0.002)
    assert times["start"] > 0
    assert command == "extract" or times["running"] > 0  # that runs nothing without values
    own = [probe["times"] for probe in probes(result) if "times" in probe]
    for part in ("writing", "building", "running", "comparing", "waiting"):
        assert sum(probe.get(part, 0) for probe in own) <= times[part] + 0.0002 * (len(own) + 1)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_of_each_probe(cli: CommandLine, workers: str) -> None:
    model = overflowing(Path("model.onnx"))
    ran = cli("reduce", model, "-o", "out.onnx", "--onnxrt", "--fp16", "--workers", workers, "--json", "r.json")
    assert ran.status == 0
    result = read_json(Path("r.json"))
    table = rows(cli("log", "--times").out)
    assert list(table) == [str(probe["number"]) for probe in probes(result)] + ["all"]
    assert table["all"] == pytest.approx({part: round(spent, 3) for part, spent in result["times"].items()}, abs=0.001)
    for probe in probes(result):
        times = probe["times"]
        assert {"cutting", "writing", "building", "running", "comparing", "waiting"} == set(times)
        assert table[str(probe["number"])] == pytest.approx(times, abs=0.001)
        # The rest is what the driver does before and after.
        checked = sum(times[part] for part in ("building", "running", "comparing"))
        assert checked <= probe["seconds"] + 0.001
        assert sum(times.values()) >= probe["seconds"] - 0.001


def test_a_check_command_runs(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    script(Path("check"), has("n3"))
    check = ["--check", "./check", "{model}"]
    assert cli("reduce", model, "-o", "out.onnx", "--workers", "1", "--json", "r.json", *check).status == 0
    for probe in probes(read_json(Path("r.json"))):
        assert set(probe["times"]) == {"cutting", "writing", "running", "waiting"}
        assert probe["times"]["running"] >= probe["seconds"] - 0.001


def test_one_probe_alone(cli: CommandLine) -> None:
    model = overflowing(Path("model.onnx"))
    cli("reduce", model, "-o", "out.onnx", "--onnxrt", "--fp16", "--json", "r.json")
    run = read_json(Path("r.json"))["artifacts"]["run"]
    (name, parts), *more = rows(cli("log", run, "2", "--times").out).items()
    assert name == "2"
    assert not more
    assert set(parts).isdisjoint(OF_ALL)
    ran = cli("log", run, "99", "--times")
    assert ran.status == 2
    assert "has no probe 99" in ran.error


def test_the_report_says_it(cli: CommandLine) -> None:
    model = overflowing(Path("model.onnx"))
    cli("reduce", model, "-o", "out.onnx", "--onnxrt", "--fp16", "--json", "r.json")
    page = (Path(read_json(Path("r.json"))["artifacts"]["run"]) / REPORT_FILE).read_text()
    assert "Time by activity" in page
