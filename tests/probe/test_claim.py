"""Two processes in one run, or with one path for all candidates: the second is told so, and does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import chain, has, node_names, script, wait_for

import bisect_trt
from bisect_trt import UsageError
from bisect_trt.probe.ledger import JOURNAL
from bisect_trt.session.binding import RUN_FILE
from bisect_trt.worker.guard import claimed_run


def test_a_run_at_work_is_left_alone(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx", 4)
    wait = "touch begun; while ! test -e go; do sleep 0.02; done"
    check = script(here / "check", f"{wait}; {has('<2>')} && exit 1; exit 0")
    words = [
        "reduce",
        "model.onnx",
        "-o",
        "out.onnx",
        "--json",
        "r.json",
        "--workers",
        "1",
        "--check",
        check,
        "{model}",
    ]
    driver = subprocess.Popen([sys.executable, "-m", "bisect_trt", *words])
    wait_for(Path("begun").exists)
    (run,) = (file.parent for file in Path(".bisect-trt").glob(f"*/{RUN_FILE}"))
    before = (run / JOURNAL).read_bytes()
    refused = cli("resume", run)
    after = (run / JOURNAL).read_bytes()
    written = [
        path for path in (Path("r.json"), run / "result.json", run / "report.html") if path.exists()
    ]
    Path("go").touch()
    assert driver.wait(120) == 0
    refused.refused("BT1010", f"{run.name} belongs to the running process {driver.pid} of ")
    assert (after, written) == (before, [])
    assert node_names(Path("out.onnx")) == ["<2>"]
    assert cli("resume", run).status == 0  # it is free once that has ended


def test_a_call_that_is_at_work_is_left_alone(here: Path) -> None:
    model = chain(here / "model.onnx", 4)
    refused = []

    def wrong(path: str) -> bool:
        for again in (
            {"check": wrong, "run": "mine"},
            {"check": "grep -qa '<2>' c.onnx", "candidate": "c.onnx"},
        ):
            with pytest.raises(UsageError) as error:
                bisect_trt.reduce(model, **again)
            refused.append(str(error.value))
        return "<2>" in node_names(Path(path))

    result = bisect_trt.reduce(model, wrong, run="mine", candidate="c.onnx", workers=1)
    assert [culprit.name for culprit in result.culprits] == ["<2>"]
    assert {text.partition(f" process {os.getpid()} of ")[0] for text in refused} == {
        "the run mine belongs to the running",
        "c.onnx is rewritten for each probe of a run in",
    }
    assert not [*here.glob("*.lock")]
    assert (
        bisect_trt.reduce(model, wrong, run="mine", candidate="c.onnx").culprits == result.culprits
    )


def test_where_nothing_can_be_written_nobody_is_held_up(tmp_path: Path) -> None:
    """Whoever writes there next says why not."""
    with claimed_run(tmp_path / "missing"):
        pass
    (tmp_path / "run.lock").symlink_to(tmp_path / "somebody's")
    with claimed_run(tmp_path):
        assert not (tmp_path / "somebody's").exists()
