"""Whatever is given to the command line, it ends with a sentence: no traceback, no internal error, no hang.

Each run has a seed of its own, which names the model, the values and the words of that run, so a
failure is repeated by ``BISECT_TRT_FUZZ_SEED=N BISECT_TRT_FUZZ_RUNS=1``. All runs of a chunk are
made in this process.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from conftest import CommandLine
from foreign_runs import spoil_folder
from fuzz_models import broken_model
from fuzz_values import broken_json, broken_npz, broken_script
from fuzz_words import command_line
from support import chain, has, script

RUNS = int(os.environ.get("BISECT_TRT_FUZZ_RUNS", "480"))
FIRST = int(os.environ.get("BISECT_TRT_FUZZ_SEED", "0"))
CHUNKS = min(16, RUNS)
LIMIT_S = 60
"""What no run may take."""


class TooLongError(BaseException):
    """Not an Exception, so that nothing on the way takes it for an error of its own."""


@contextmanager
def limited() -> Iterator[None]:
    """End what takes too long."""

    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what signal handlers are given
        raise TooLongError(f"it took longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def lay_out(rng: random.Random) -> None:
    """The files that the words of a run name, in the working directory."""
    Path("model.onnx").write_bytes(broken_model(rng))
    Path("values.npz").write_bytes(broken_npz(rng))
    Path("values.json").write_bytes(broken_json(rng))
    Path("script.py").write_bytes(broken_script(rng))
    Path("w.bin").write_bytes(b"\0\0\x80?" * rng.choice([0, 2, 3, 3, 100]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ONNX and NumPy warn of much that is broken
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_run_ends_with_a_sentence(
    chunk: int, cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    for seed in range(FIRST + chunk, FIRST + RUNS, CHUNKS):
        rng = random.Random(seed)
        folder = here / f"run{seed}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        lay_out(rng)
        words = command_line(rng)
        try:
            with limited():
                ran = cli(*words)
            problem = wrong(ran.status, ran.out, ran.err)
        except (Exception, TooLongError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            found.append(f"seed {seed}: bisect-trt {' '.join(words)!a}\n  {problem}")
    assert not found, f"{len(found)} of {RUNS // CHUNKS} runs:\n" + "\n".join(found)


@pytest.fixture
def finished(cli: CommandLine, here: Path) -> Path:
    """The folder that a finished run of three probes was started in."""
    chain(here / "model.onnx", 3)
    script(here / "check", f"{has('<1>')} && exit 1; exit 0")
    cli("reduce", "model.onnx", "-o", "out.onnx", "--check", "./check", "{model}").ended(0)
    return here


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_folders_of_runs_end_with_a_sentence(
    chunk: int, cli: CommandLine, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    for seed in range(FIRST + chunk, FIRST + RUNS, CHUNKS):
        rng = random.Random(seed)
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(finished, folder)
        monkeypatch.chdir(folder)
        (run,) = Path(".bisect-trt").iterdir()
        spoil_folder(run, rng)
        words = rng.choice(
            (
                ("log",),
                ("log", run),
                ("log", run, "1"),
                ("log", run, "2"),
                ("report", run),
                ("report",),
            )
        )
        try:
            with limited():
                ran = cli(*words)
            problem = wrong(ran.status, ran.out, ran.err)
        except (Exception, TooLongError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            found.append(f"seed {seed}: bisect-trt {' '.join(map(str, words))!a}\n  {problem}")
    assert not found, f"{len(found)} of {RUNS // CHUNKS} runs:\n" + "\n".join(found)


def wrong(status: int, out: str, err: str) -> str | None:
    """What is wrong with how a run ended."""
    for text in (out, err):
        if said := re.search(r"Traceback|internal error.*|Exception ignored.*", text):
            return said[0]
    if status not in (0, 1, 2, 3, 4):
        return f"exit status {status}"
    if status in (2, 4) and not re.search(r"^error\[BT\d{4}\]: .", err, re.MULTILINE):
        return f"exit status {status} without a sentence: {err[-200:]}"
    return None
