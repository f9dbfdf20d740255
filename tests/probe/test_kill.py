"""kill -9 of the driver at random moments of a real reduction: it goes on where it was, and leaves no process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from light import tag_light
from support import has, node_names, read_json, script

from bisect_trt.commands.binding import RUN_FILE
from bisect_trt.probe.journal import JOURNAL, read_journal
from bisect_trt.probe.workspace import KEY_LENGTH, RUNS_FOLDER

WORKERS = 2
KILLS = int(os.environ.get("BISECT_TRT_KILLS", "15"))
"""Of one reduction after the other; `make fuzz` has fifty."""
MARK = "BISECT_TRT_TEST_KILL"
EVENTS = ("started", "outcome", "moot")


@dataclass
class Reduction:
    """A reduction of SqueezeNet in a folder of its own; all that it starts is marked."""

    folder: Path
    model: Path
    required: list[str]

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.mark = uuid.uuid4().hex
        # Each check also leaves a process behind, which has to go with it.
        body = f'sleep 1000 & echo "begin $1" >> log; {has(*self.required)}; status=$?; echo "end $1" >> log'
        script(self.folder / "check", f"{body}; test $status -ne 0 || exit 1; exit 0")

    def start(self) -> subprocess.Popen[bytes]:
        options = ["-o", "out.onnx", "--json", "result.json", "--workers", str(WORKERS)]
        return self._popen("reduce", self.model, *options, "--check", "./check", "{model}")

    def resume(self) -> subprocess.Popen[bytes]:
        assert self.run is not None
        return self._popen("resume", self.run)

    def _popen(self, *words: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "bisect_trt", *map(str, words)]
            return subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, MARK: self.mark}, stdout=log, stderr=log
            )

    @property
    def run(self) -> Path | None:
        """The run's folder, once there is something to go on with."""
        return next((path.parent for path in self.folder.glob(f"{RUNS_FOLDER}/*/{RUN_FILE}")), None)

    def journal(self, *events: str) -> list[dict[str, Any]]:
        path = self.run / JOURNAL if self.run else None
        entries = read_journal(path) if path is not None and path.exists() else ()
        return [entry for entry in entries if entry["event"] in events]

    def checked(self) -> list[str]:
        """The candidates that checks were begun on, in order, by the first digits of their keys."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [Path(line.split()[1]).parent.name for line in lines if line.startswith("begin ")]

    def decisions(self) -> dict[int, tuple[str, str]]:
        return {entry["number"]: (entry["key"], entry["verdict"]) for entry in self.journal("verdict")}

    def processes(self) -> list[int]:
        """All processes that the run has started and that are still there."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{MARK}={self.mark}".encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + 60
        while left := self.processes():
            assert time.monotonic() < deadline, subprocess.run(["ps", "-fp", ",".join(map(str, left))], check=False)
            time.sleep(0.02)

    def assert_ended(self, driver: subprocess.Popen[bytes]) -> None:
        assert driver.wait(120) == 0, (self.folder / "driver.log").read_text()
        self.assert_nothing_left()
        result = read_json(self.folder / "result.json")
        assert sorted(node["name"] for node in result["culprits"]) == self.required
        assert result["minimality"] == "1-minimal"
        assert sorted(node_names(self.folder / "out.onnx")) == self.required


@dataclass
class Whole:
    """What a reduction that nobody kills does, and how long it takes."""

    model: Path
    required: list[str]
    decisions: dict[int, tuple[str, str]]
    until_journal: float
    seconds: float


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("kill")
    light = tag_light("squeezenet", folder)
    required = sorted(light.choose(2, seed=1))
    reduction = Reduction(folder / "whole", light.path, required)
    began = time.monotonic()
    driver = reduction.start()
    while driver.poll() is None and not reduction.journal("started"):
        time.sleep(0.005)
    until_journal = time.monotonic() - began
    reduction.assert_ended(driver)
    return Whole(light.path, required, reduction.decisions(), until_journal, time.monotonic() - began)


def kill_and_resume(folder: Path, whole: Whole, moments: Sequence[float]) -> int:
    """Kill a reduction, go on, kill it again, and hold it against the whole one; how often it was gone on with.

    Args:
        folder: A new one.
        whole: What it should come to.
        moments: Seconds from each start of the driver to the moment at which it is killed; what is late enough for there
            to be something to go on with waits for that, however long it takes.
    """
    reduction = Reduction(folder, whole.model, whole.required)
    driver, resumed, sessions = reduction.start(), 0, [Session(reduction)]
    for seconds in moments:
        time.sleep(seconds)
        while seconds > whole.until_journal and reduction.run is None and driver.poll() is None:
            time.sleep(0.005)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        reduction.assert_nothing_left()
        sessions[-1].assert_few_were_running()
        sessions.append(Session(reduction))
        resumed += reduction.run is not None
        driver = reduction.start() if reduction.run is None else reduction.resume()
    reduction.assert_ended(driver)
    assert reduction.decisions() == whole.decisions
    for session, following in pairwise([*sessions, Session(reduction)]):
        session.assert_nothing_known_was_checked(following)
    return resumed


class Session:
    """What is known, and what was checked, when a driver starts."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._entries = len(reduction.journal(*EVENTS))
        self._checked = len(reduction.checked())
        self._known = {entry["key"][:KEY_LENGTH] for entry in reduction.journal("outcome")}

    def assert_few_were_running(self) -> None:
        entries = self._reduction.journal(*EVENTS)[self._entries :]
        begun = {entry["key"] for entry in entries if entry["event"] == "started"}
        assert len(begun - {entry["key"] for entry in entries if entry["event"] != "started"}) <= WORKERS

    def assert_nothing_known_was_checked(self, following: Session) -> None:
        checked = self._reduction.checked()[self._checked : following._checked]
        # The result is probed twice, found and read back, and the kill may come between the two.
        results = {e["key"][:KEY_LENGTH] for e in self._reduction.journal("outcome") if "again" in e["key"]}
        assert (self._known - results).isdisjoint(checked)
        assert all(checked.count(key) <= 1 for key in self._known & results)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_goes_on_after_a_kill_at_any_moment(whole: Whole, tmp_path: Path) -> None:
    """Killed now and then before it has read the model, mostly while it searches, up to after it has written the answer."""
    drawn = random.Random(5)
    moments = [drawn.uniform(whole.until_journal if number % 5 else 0, whole.seconds) for number in range(KILLS)]
    chains = [moments[start : start + 3] for start in range(0, KILLS, 3)]
    resumed = [kill_and_resume(tmp_path / str(number), whole, chain) for number, chain in enumerate(chains)]
    assert sum(resumed) >= 0.6 * KILLS


@pytest.mark.parametrize("moment", ["before it was said so", "while it runs"])
def test_a_process_that_was_just_started_ends_too(tmp_path: Path, moment: str) -> None:
    """The driver is killed right after it has started a check."""
    tell = f"tell(word, what) if word == 'start' or {moment == 'while it runs'} else kill()"
    code = f"""
import os, signal
from bisect_trt.worker.guard import guard
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
tell = guard._tell
guard._tell = lambda word, what: {tell}
guard.start(["sh", "-c", "sleep 1000 & touch started; sleep 1000"], os.environ)
while not os.path.exists("started"):
    pass
kill()
"""
    reduction = Reduction(tmp_path / "here", Path(), ["nothing"])
    environment = {**os.environ, MARK: reduction.mark}
    driver = subprocess.run([sys.executable, "-c", code], cwd=reduction.folder, env=environment, check=False)
    assert driver.returncode == -signal.SIGKILL
    reduction.assert_nothing_left()


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
