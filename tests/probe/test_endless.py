"""A model whose Loop never ends: every command ends by itself, with a sentence, and at once on Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from building import save_text
from conftest import CommandLine
from support import SHAPE, endless, marked, wait_for

from bisect_trt.cli.app import perform
from bisect_trt.cli.parser import parse
from bisect_trt.report import console
from bisect_trt.worker import pool


@pytest.mark.any_version
@pytest.mark.parametrize(
    ("words", "limit", "most"),
    [
        ("run model.onnx --onnxrt", "DEFAULT_SECONDS", ", the most by default"),
        pytest.param(
            "diagnose model.onnx --onnxrt -o out",
            "DEFAULT_SECONDS",
            ", the most by default",
            marks=pytest.mark.slow,
        ),
        ("sanitize constant.onnx -o out.onnx", "DEFAULT_SECONDS", ", the most by default"),
        # A small time holds for the reference too, but for the start of a worker and a run of the
        # whole model.
        ("reduce model.onnx --onnxrt -o out.onnx --timeout 1", "LEAST_SECONDS", ""),
    ],
)
def test_it_ends_with_a_sentence(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, words: str, limit: str, most: str
) -> None:
    endless(here / words.split()[1], constant="constant" in words)
    for seconds in (2.0, 30.0):  # a target has to start in that time too
        monkeypatch.setattr(pool, limit, seconds)
        ran = cli(*words.split())
        if "does not start" not in ran.error:
            break
    assert ran.status == 4
    ended = rf"does not get to the end of a model: no answer after (\d+\.\d) s{most}; --timeout allows more\."
    said = re.search(ended, ran.error)
    assert said is not None, ran.error
    assert float(said[1]) >= seconds
    assert not (here / "out.onnx").exists()


def test_no_more_than_was_given_where_the_target_is_endless(cli: CommandLine, here: Path) -> None:
    """A time that is given is held; only the reference may take longer."""
    np.savez(here / "y.npz", y=np.zeros(SHAPE, np.float32))
    ran = cli(
        "run", endless(here / "model.onnx"), "--onnxrt", "--load-outputs", "y.npz", "--timeout", "3"
    ).ended(4)
    said = re.search(
        r"the target cannot run model\.onnx: no answer after (\d+\.\d) s\.",
        ran.error.replace(f"{here}/", ""),
    )
    assert said is not None, ran.error
    assert 3 <= float(said[1]) < pool.LEAST_SECONDS


BUILT_FOR_LONG = (
    "(float[1500, 1500] x) => (float[1500, 1500] y)",
    " ".join(
        ["c0 = ConstantOfShape(shape)"]
        + [f"c{number} = MatMul(c{number - 1}, c0)" for number in range(1, 100)]
        + ["y = Add(x, c99)"]
    ),
)
"""ONNX Runtime computes constants when it loads a model."""


@pytest.mark.parametrize("work", ["building", "running"])
def test_progress_says_whether_the_target_builds_or_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], work: str
) -> None:
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(console, "LONG_S", 0.5)
    np.savez(here / "y.npz", y=np.zeros(SHAPE, np.float32))
    if work == "building":
        save_text(here / "model.onnx", *BUILT_FOR_LONG, {"shape": np.array([1500, 1500])})
    else:
        endless(here / "model.onnx")
    words = "run", "model.onnx", "--onnxrt", "--load-outputs", "y.npz", "--timeout", "1"
    with pytest.raises(SystemExit) as ending:
        perform(*parse(words), words)
    lines = re.findall(r"^\d+ s  (\w+) for \d+ s, ", capfd.readouterr().err, re.MULTILINE)
    assert ending.value.code == 4
    assert lines[-1] == work


def test_ctrl_c_ends_it_at_once_and_all_that_it_started(here: Path) -> None:
    endless(here / "model.onnx")
    mark = f"BISECT_TRT_TEST_ENDLESS={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "bisect_trt", "layerwise", "model.onnx", "--onnxrt"]
    driver = subprocess.Popen(
        command, cwd=here, env={**os.environ, name: value}, stderr=subprocess.PIPE
    )
    wait_for(
        lambda: [*here.glob(".bisect-trt/*/candidates/scratch-*.onnx")] or driver.poll() is not None
    )
    time.sleep(1)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == 130, said
    assert b"Traceback" not in said
    wait_for(lambda: not marked(mark))
