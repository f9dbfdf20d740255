"""Child processes always end, with everything they started."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import assert_gone, chain, gone, pids

from bisect_trt.worker import process as module
from bisect_trt.worker.process import Cancel, ProcessEnd, run_to_end

SH = "/bin/sh"
FAMILY = """
sleep 300 & echo $! > child
(trap '' TERM; sleep 300 & echo $! > grandchild; wait) &
while ! test -s grandchild; do sleep 0.01; done
"""


def run(body: str, folder: Path, *, timeout: float | None = None, cancel: Cancel | None = None) -> ProcessEnd:
    argv = [SH, "-c", f"cd '{folder}'; {body}"]
    return run_to_end(argv, log=folder / "log", environment={}, timeout=timeout, cancel=cancel)


def run_past_its_time(body: str, folder: Path) -> tuple[ProcessEnd, float]:
    """Run what never ends and makes ``ready`` once it has begun; with more time where it had not, on a machine that is busy."""
    for timeout in (0.5, 5.0, 50.0):
        end = run(body, folder, timeout=timeout)
        if (folder / "ready").exists():
            break
    assert (end.timed_out, end.cancelled) == (True, False)
    return end, timeout


def wait_until(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def family_is_gone(folder: Path) -> bool:
    pids = [int((folder / name).read_text()) for name in ("child", "grandchild")]
    return wait_until(lambda: all(map(gone, pids)))


def test_both_streams_go_to_the_log_as_they_come(tmp_path: Path) -> None:
    run("echo one; echo two >&2; printf '\\377\\n'", tmp_path)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n\xff\n"


def test_environment_and_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLERS", "kept")
    monkeypatch.setenv("BOTH", "caller's")
    argv = [SH, "-c", 'echo "$CALLERS,$BOTH,$NEW,$(cat)"']
    run_to_end(argv, log=tmp_path / "log", environment={"BOTH": "given", "NEW": "a b;c"})
    assert (tmp_path / "log").read_text() == "kept,given,a b;c,\n"


@pytest.mark.parametrize("ends", ["by itself", "by time-out", "by cancel"])
def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    cancel = Cancel()
    try:
        if ends == "by itself":
            end = run(f"{FAMILY} exit 3", tmp_path, timeout=60, cancel=cancel)
            assert (end.code, end.timed_out, end.cancelled) == (3, False, False)
        elif ends == "by time-out":
            end, timeout = run_past_its_time(f"{FAMILY} touch ready; wait", tmp_path)
            assert timeout <= end.seconds < 200
        else:
            helper = threading.Thread(
                target=lambda: wait_until((tmp_path / "grandchild").exists) and cancel.set()  # type: ignore[func-returns-value]  # both for what they do
            )
            helper.start()
            end = run(f"{FAMILY} wait", tmp_path, timeout=60, cancel=cancel)
            helper.join()
            assert (end.timed_out, end.cancelled) == (False, True)
            assert end.seconds < 60
    finally:
        cancel.close()
    assert wait_until((tmp_path / "grandchild").exists)
    assert family_is_gone(tmp_path)


def test_a_process_may_tidy_up_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 60.0)
    # It is timed out whatever it exits with.
    run_past_its_time("trap 'echo tidy > tidied; exit 0' TERM; touch ready; sleep 300 & wait", tmp_path)
    assert (tmp_path / "tidied").exists()


def test_one_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    end, _ = run_past_its_time("trap '' TERM; touch ready; while :; do sleep 0.05; done", tmp_path)
    assert end.code == -signal.SIGKILL


def test_cancelled_before_it_starts(tmp_path: Path) -> None:
    cancel = Cancel()
    cancel.set()
    cancel.set()  # once more does no harm
    end = run("sleep 300", tmp_path, timeout=60, cancel=cancel)
    cancel.close()
    assert end.cancelled


def test_no_descriptors_are_lost(tmp_path: Path) -> None:
    run("exit 0", tmp_path)
    folder = Path(f"/proc/{os.getpid()}/fd")
    if not folder.exists():
        pytest.skip(f"no /proc on {sys.platform}")
    before = len(list(folder.iterdir()))
    for timeout in (None, 5.0, 0.05):
        run("sleep 0.2", tmp_path, timeout=timeout)
    cancel = Cancel()
    run("exit 0", tmp_path, cancel=cancel)
    cancel.close()
    assert len(list(folder.iterdir())) == before


KILLED = """
import os, signal, sys
from bisect_trt.worker.guard import guard
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
tell = guard._tell
guard._tell = lambda word, what: tell(word, what) if word == "start" or sys.argv[1] == "while it runs" else kill()
guard.start(["sh", "-c", "echo $$ > pids; sleep 1000 & echo $! >> pids; sleep 1000"], os.environ)
while not os.path.exists("pids") or len(open("pids").readlines()) < 2:
    pass
kill()
"""


@pytest.mark.parametrize("moment", ["before it was registered", "while it runs"])
def test_what_a_killed_driver_has_started_ends(tmp_path: Path, moment: str) -> None:
    """Also a check whose driver is killed right after it has started it."""
    command = [sys.executable, "-c", KILLED, moment]
    driver = subprocess.run(command, cwd=tmp_path, check=False)
    assert driver.returncode == -signal.SIGKILL
    time.sleep(0.5)  # one that was just started may have written nothing yet
    assert_gone(pids(tmp_path))


def test_the_guard_ends_with_a_program_that_ends_by_itself(tmp_path: Path) -> None:
    """Nothing is left to complain of for a program that turns warnings into errors, as a test run may."""
    code = """
import os
from bisect_trt.worker.guard import guard
process = guard.start(["sh", "-c", "exit 3"], os.environ)
assert process.wait() == 3
guard.release(process.pid)
"""
    strict = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", code]
    ended = subprocess.run(strict, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("files", [40, 64, 200])
def test_few_open_files_end_in_a_sentence_or_in_an_answer(here: Path, files: int) -> None:
    """Where the number of workers is not given, fewer run."""
    chain(here / "model.onnx", 8)
    words = [
        sys.executable,
        "-m",
        "bisect_trt",
        "reduce",
        "model.onnx",
        "--check",
        "sh",
        "-c",
        "! grep -qa '<3>' {model}",
    ]
    for more in (["--workers", "16", "-o", "a.onnx"], ["-o", "b.onnx"]):
        command = shlex.join([*words[:5], *more, *words[5:]])
        done = subprocess.run(f"ulimit -n {files}; {command}", shell=True, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert done.returncode == (2 if "16" in more else 0), done.stderr
        assert ("ulimit -n 240" in done.stderr) == ("16" in more)
