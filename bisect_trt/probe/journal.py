"""The record of a run on the disk: every probe, before it starts and after it ends, and every decision."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probe.outcome import BARE_EXIT, Outcome
from bisect_trt.search.oracle import Verdict

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Record:
    """One probe that the search asked for and was answered.

    Attributes:
        number: Its place in the order in which the search asked.
        key: The candidate's content; its first digits name its folder.
        title: What it is, in a few words.
        size: How many units.
        verdict: What the check said.
        signature: The kind of failure.
        reason: The same in a sentence.
        tail: The last lines that the check printed, where it broke in another way or failed by its exit status.
        seconds: How long the check took, all runs of it.
        own_seconds: How long the driver took to make and write the candidate.
        runs: How often the check ran.
        place: Where it ran, as it was asked for, if not here.
    """

    number: int
    key: str
    title: str
    size: int
    verdict: Verdict
    signature: str
    reason: str
    tail: str
    seconds: float
    own_seconds: float
    runs: int
    place: str | None = None

    @property
    def said(self) -> str:
        """The last line that a check command printed which failed by its exit status alone; else empty."""
        lines = self.tail.splitlines() if self.signature.startswith(BARE_EXIT) else []
        return lines[-1].strip() if lines else ""


class Journal:
    """A file of JSON lines, each on the disk before the next thing happens.

    Three kinds of line make a probe: ``started`` before it starts, so that a check that takes the machine down is known
    afterwards; ``outcome`` when it has ended, in whatever order parallel probes end, or ``moot`` when its answer was not
    needed any more; ``verdict`` when the search has taken it in, in the order in which it asked, which is the same for any
    number of workers. ``undo`` takes the last answer back.

    Attributes:
        path: The file.
        outcomes: What an earlier session of the run learned, by candidate.
        unfinished: The titles of the probes that were running when it ended, by candidate.
    """

    def __init__(self, folder: Path) -> None:
        """``folder`` is the run's; what an earlier session of the run wrote is kept.

        Raises:
            UsageError: It cannot be written.
        """
        self.path = folder / JOURNAL
        self._turn = threading.Lock()
        self.outcomes: dict[str, Outcome] = {}
        self.unfinished: dict[str, str] = {}
        if self.path.exists():
            self._read()
        try:
            _cut_unfinished_line(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the journal {self.path} cannot be written: {error.strerror}.") from error

    def _read(self) -> None:
        for entry in read_journal(self.path):
            if entry["event"] == "started":
                self.unfinished[entry["key"]] = entry["title"]
            elif entry["event"] in ("outcome", "moot"):
                self.unfinished.pop(entry["key"], None)
            if entry["event"] == "outcome":
                self.outcomes[entry["key"]] = Outcome.from_json(entry["outcome"])
            elif entry["event"] == "undo":
                self.outcomes.pop(entry["key"], None)

    def append(self, event: str, key: str, *, forced: bool = False, **more: Any) -> None:  # noqa: ANN401 - plain values
        """Write a line; ``forced`` to the disk, so that no outcome is lost if the machine itself dies.

        Raises:
            UsageError: It cannot be written.
        """
        entry = {"event": event, "key": key, **more}
        try:
            with self._turn:  # what is begun ahead is begun by threads of its own
                self._file.write(json.dumps(entry) + "\n")
                self._file.flush()
                if forced:
                    os.fsync(self._file.fileno())
        except OSError as error:
            raise UsageError(f"the journal {self.path} cannot be written: {error.strerror}; make room.") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cut_unfinished_line(path: Path) -> None:
    """Take away a last line that a crash cut short, or the next entry would become a part of it."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal; a last line that was cut short by a crash is left out.

    Raises:
        UnavailableError: It is damaged.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.endswith("\n"):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise UnavailableError(
                        f"the journal {path} is damaged in line {number}; take that line and all after it away, or "
                        "start a new run."
                    ) from error
