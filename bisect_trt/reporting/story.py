"""What a run did in words, kept for the report: the steps, what was said in each, and the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

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
