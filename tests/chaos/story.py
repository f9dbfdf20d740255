"""A run that is disturbed, and held against the same run undisturbed."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support import chain, marked, overflowing, read_json, script, wait_for

from bisect_trt.probe.ledger import JOURNAL, Line, Record, read_journal
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.session.binding import RUN_FILE

MARK = "BISECT_TRT_TEST_CHAOS"
LIMIT_S = 60 * int(os.environ.get("BISECT_TRT_CHAOS_PATIENCE", "3"))
"""What no command may take; three minutes, because a machine that runs tests has more to do."""
STORIES: Mapping[str, Sequence[str]] = {
    "check": ("reduce", "-o", "out.onnx", "--workers", "2", "--check", "./check", "{model}"),
    "reduce": ("reduce", "-o", "out.onnx", "--workers", "2", "--onnxrt", "--fp16"),
    "diagnose": ("diagnose", "-o", "out", "--workers", "2", "--onnxrt", "--fp16"),
    "place": ("reduce", "-o", "out.onnx", "--onnxrt", "--fp16", "--on", f"python={sys.executable}"),
}
_CHECK = """sleep 1000 & for tag in '<3>' '<17>'; do
grep -qaF "$tag" "$1"; status=$?
test $status -le 1 || exit $status
test $status -eq 0 || exit 0
done; sleep 0.05; exit 1"""
"""Leaves a process behind, and says so if the one that looks for it is killed."""


@dataclass(frozen=True)
class Answer:
    """What a run ends with, as far as no disturbance may change it.

    Attributes:
        culprits: The nodes.
        minimality: How sure.
        decided: Every candidate with its verdict, in the order of the search.
    """

    culprits: tuple[str, ...]
    minimality: str
    decided: tuple[tuple[str, str], ...]


@dataclass
class Story:
    """A run in a folder of its own; all that it starts is marked.

    Attributes:
        kind: One of :data:`STORIES`.
        folder: A new one.
        environment: More variables.
        longest: Seconds that the longest of its commands took.
        resumed: How often it was gone on with.
    """

    kind: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    longest: float = 0.0
    resumed: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.mark = uuid.uuid4().hex
        if self.kind == "check":
            script(self.folder / "check", _CHECK)
            chain(self.folder / "model.onnx", 24)
        else:
            overflowing(self.folder / "model.onnx", 5, 5)

    @property
    def run(self) -> Path | None:
        """The run's folder, once there is something to go on with."""
        return next((path.parent for path in self.folder.glob(f"{RUNS_FOLDER}/*/{RUN_FILE}")), None)

    def popen(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start a command there."""
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "bisect_trt", *map(str, words)],
                cwd=self.folder,
                env={**os.environ, **self.environment, MARK: self.mark},
                stdout=log,
                stderr=log,
            )

    def begin(self) -> subprocess.Popen[bytes]:
        """Start it, or go on with it."""
        if self.run is not None:
            self.resumed += 1
            return self.popen("resume", self.run)
        command, *options = STORIES[self.kind]
        return self.popen(command, "model.onnx", "--json", "result.json", "--overwrite", *options)

    def wait(self, driver: subprocess.Popen[bytes]) -> int:
        """Its exit status; what it has said is looked at, and that it leaves nothing behind."""
        began = time.monotonic()
        status = driver.wait(LIMIT_S)
        self.longest = max(self.longest, time.monotonic() - began)
        said = self.said()
        assert not re.search(r"Traceback|internal error|Exception ignored", said), said
        if status in (2, 3, 4):
            assert "error" in said or status == 3, said
        self.assert_nothing_left()
        return status

    def said(self) -> str:
        """All that its commands have printed."""
        return (self.folder / "driver.log").read_text(errors="replace")

    def to_the_end(self) -> Answer:
        """Go on with it undisturbed; what it comes to."""
        assert self.wait(self.begin()) == 0, self.said()
        return self.answer()

    def answer(self) -> Answer:
        """What it has come to."""
        result = read_json(self.folder / "result.json")
        decided = [
            (line.key, line.verdict.value) for line in self.journal() if isinstance(line, Record)
        ]
        # A run that is gone on with says what it had decided before once more.
        return Answer(
            tuple(node["name"] for node in result["culprits"]),
            result["minimality"],
            tuple(dict.fromkeys(decided)),
        )

    def journal(self) -> list[Line]:
        """What is in its journal."""
        path = self.run / JOURNAL if self.run else None
        return list(read_journal(path)) if path is not None and path.exists() else []

    def processes(self) -> dict[int, bytes]:
        """The command lines of all processes that it has started and that are still there."""
        return marked(f"{MARK}={self.mark}")

    def assert_nothing_left(self) -> None:
        """No process outlives its driver for long."""
        wait_for(lambda: not self.processes(), 30)


VICTIMS = ("driver", "guard", "worker", "child")


class Killer(threading.Thread):
    """Kills processes of a story at moments drawn at random.

    Of its workers and checks no more than two, because what is killed three times in a row says
    nothing; the guard or the driver, not both: without a guard nobody knows what a driver that is
    killed has started.
    """

    def __init__(
        self, story: Story, driver: subprocess.Popen[bytes], drawn: random.Random, seconds: float
    ) -> None:
        super().__init__()
        self.killed: list[str] = []
        self._story = story
        self._driver = driver
        self._drawn = drawn
        wanted = [drawn.choice(VICTIMS) for _ in range(drawn.choice((1, 1, 2, 3)))]
        if "driver" in wanted:
            wanted = [victim for victim in wanted if victim != "guard"]
        outside = [victim for victim in wanted if victim in ("worker", "child")][2:]
        for victim in outside:
            wanted.remove(victim)
        moments = sorted(drawn.uniform(0, seconds) for _ in wanted)
        self._plan = sorted(
            zip(moments, sorted(wanted, key=lambda victim: victim == "driver"), strict=True)
        )

    def run(self) -> None:
        began = time.monotonic()
        for moment, victim in self._plan:
            while time.monotonic() < began + moment and self._driver.poll() is None:
                time.sleep(0.005)
            while self._driver.poll() is None:
                found = self._find(victim)
                if found:
                    self._kill(self._drawn.choice(found), victim)
                    break
                if time.monotonic() > began + moment + 2:
                    break
                time.sleep(0.005)

    def _kill(self, pid: int, victim: str) -> None:
        how = (
            self._drawn.choice((signal.SIGKILL, signal.SIGTERM))
            if victim == "worker"
            else signal.SIGKILL
        )
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return
        self.killed.append(victim)

    def _find(self, victim: str) -> list[int]:
        if victim == "driver":
            return [self._driver.pid]
        signs = {"worker": b"bisect_trt.worker.serve", "guard": b"recv_fds", "child": b"grep -qaF"}
        if self._story.kind == "place" and victim == "child":
            signs["child"] = b"bisect-trt-worker"
        return [pid for pid, words in self._story.processes().items() if signs[victim] in words]
