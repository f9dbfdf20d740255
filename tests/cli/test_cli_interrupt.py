"""Ctrl-C, SIGTERM and SIGHUP: the best so far is saved, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import assert_gone, chain, has, node_names, pids, read_json, script

pytestmark = pytest.mark.any_version

SECONDS = 120


def start(folder: Path, *argv: str) -> subprocess.Popen[str]:
    """A reduction in a process group of its own, as a shell starts it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, which children inherit
    return subprocess.Popen(
        [sys.executable, "-m", "bisect_trt", "reduce", "model.onnx", "-o", "out.onnx", *argv],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupt(process: subprocess.Popen[str], folder: Path, running: int, number: int = signal.SIGINT) -> str:
    """Once so many checks hang, do what a terminal does: a signal to the whole foreground group."""
    deadline = time.monotonic() + SECONDS
    while len(pids(folder)) < running and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert_gone(pids(folder))
    return out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_best_so_far_is_saved(here: Path, number: signal.Signals) -> None:
    chain(here / "model.onnx", 64)
    # Answers twice, then hangs in a child of its own.
    count = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"
    body = f"{count}; test $n -ge 2 && {{ sleep 300 & echo $! >> pids; wait; }}"
    check = script(here / "check", f"{body}; {has('<9>')} && exit 1; exit 0")
    process = start(here, "--json", "r.json", "--workers", "1", "--check", check, "{model}")
    out = interrupt(process, here, 1, number)
    said = "stopped by the user" if number == signal.SIGINT else f"stopped by {number.name}"
    assert f"Result   {said}" in out
    assert "Next     bisect-trt resume" in out
    nodes = node_names(here / "out.onnx")
    assert "<9>" in nodes
    assert len(nodes) < 64
    result = read_json(here / "r.json")
    assert result["status"] == "interrupted"
    assert result["artifacts"]["reduced"] == "out.onnx"


def test_every_parallel_probe_ends(here: Path) -> None:
    chain(here / "model.onnx", 64)
    whole = has(*(f"<{place}>" for place in range(64)))
    check = script(here / "check", f"{whole} && exit 1; echo $$ >> pids; sleep 300 & echo $! >> pids; wait")
    process = start(here, "--workers", "3", "--check", check, "{model}")
    interrupt(process, here, running=6)
    assert not (here / "out.onnx").exists()


def test_before_anything_is_known_no_model_is_written(here: Path) -> None:
    chain(here / "model.onnx", 4)
    check = script(here / "check", "echo $$ >> pids; exec sleep 300")
    interrupt(start(here, "--check", check), here, running=1)
    assert not (here / "out.onnx").exists()
    assert not (here / "bisect_trt_debug.onnx").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_it_still_starts(here: Path, number: signal.Signals) -> None:
    chain(here / "model.onnx", 4)
    process = start(here, "--json", "r.json", "--check", "sleep 300")
    spare = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + SECONDS
    while not spare.read_text() and time.monotonic() < deadline:  # the guard and the spare worker come first
        time.sleep(0.002)
    children = [int(pid) for pid in spare.read_text().split()]
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err.count("error: stopped")) == (130, 1), err
    assert read_json(here / "r.json")["status"] == "interrupted"
    assert_gone(children)
