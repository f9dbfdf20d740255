"""What is kept of what was said: the story of a run by its steps, for the report, and the log file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.reporting.markdown import plain

_MOST_LINES = 400
"""A search that says more than this says the same again and again."""


@dataclass
class Step:
    """A step of the flow chart.

    Attributes:
        title: What it is for; empty for what came before the first.
        probes: How many probes there were before it.
        lines: What was said in it.
    """

    title: str
    probes: int
    lines: list[str] = field(default_factory=list)


class Story:
    """Told by the console as it goes.

    Attributes:
        steps: In the order in which they were begun.
        answers: The lines of the answer.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.answers: list[str] = []
        self._probes = 0
        self._lines = 0

    def step(self, title: str) -> None:
        """A step begins."""
        self.steps.append(Step(title, self._probes))

    def say(self, text: str) -> None:
        """A decision, and why."""
        self._lines += 1
        if self._lines <= _MOST_LINES:
            if not self.steps:
                self.step("")
            self.steps[-1].lines.append(text.removeprefix("  ").rstrip())

    def answer(self, text: str) -> None:
        """A line of the result; one that is set in belongs to the one before it."""
        self.answers.append(text.rstrip() if self.answers else text.strip())

    def probed(self, number: int) -> None:
        """A probe has ended."""
        self._probes = number

    def why(self, number: int) -> str:
        """The step that a probe was made for; an undone one is told again, so the last that fits counts."""
        return next((step.title for step in reversed(self.steps) if step.probes < number), "")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"steps": [asdict(step) for step in self.steps], "answers": self.answers}


class LogFile:
    """A file that grows; a run that goes on adds to what its earlier sessions said.

    Attributes:
        path: Where it lies.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            UsageError: It cannot be written.
        """
        self.path = path
        try:
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"the log file {path} cannot be written: {error.strerror}; name another.") from error

    def write(self, text: str) -> None:
        """Add lines, on the disk at once.

        Raises:
            OSError: There is no room.
        """
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        for line in text.splitlines():
            self._file.write(f"{now} {plain(line)}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
