"""What a person sees while it works."""

from __future__ import annotations

import sys

from rich.console import Console as RichConsole
from rich.markup import escape

from bisect_trt.probing.journal import Record
from bisect_trt.reporting.story import Story
from bisect_trt.search.verdict import Verdict

_STYLES = {Verdict.FAIL: "red", Verdict.PASS: "green", Verdict.UNRESOLVED: "yellow"}


class Console:
    """Plain lines off a terminal, coloured ones on it; ``NO_COLOR`` is honoured.

    Attributes:
        verbosity: -1 only the answer, 0 decisions and probes, 1 reasons too.
        story: What was said, shown or not, for the report.
    """

    def __init__(self, verbosity: int = 0) -> None:
        """``verbosity`` is the number of ``-v`` less that of ``-q``."""
        self.verbosity = verbosity
        self.story = Story()
        self._out = RichConsole(highlight=False, soft_wrap=True)
        self._err = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._kinds: set[str] = set()

    def step(self, text: str) -> None:
        """A step of the flow chart, and what it is for."""
        self.story.step(text)
        if self.verbosity >= 0:
            self._out.print(f"[bold]{escape(text)}[/bold]")

    def say(self, text: str) -> None:
        """A decision, and why."""
        self.story.say(text)
        if self.verbosity >= 0:
            self._out.print(escape(text))

    def answer(self, text: str) -> None:
        """The result; shown however quiet."""
        self.story.answer(text)
        self._out.print(escape(text))

    def warn(self, text: str) -> None:
        """Something the user should know."""
        self._err.print(f"[yellow]warning:[/yellow] {escape(text)}")

    def error(self, text: str) -> None:
        """Why the run ends."""
        self._err.print(f"[bold red]error:[/bold red] {escape(text)}")

    def probed(self, record: Record) -> None:
        """A probe has ended."""
        self.story.probed(record.number)
        if self.verbosity < 0:
            return
        style = _STYLES[record.verdict]
        fresh = record.verdict is Verdict.UNRESOLVED and record.signature not in self._kinds
        reason = f"  {record.reason}" if self.verbosity > 0 or fresh or record.number == 1 else ""
        self._kinds.add(record.signature)
        verdict = f"[{style}]{record.verdict.value:10}[/{style}]"
        self._out.print(
            f"  probe {record.number:<3} {verdict} {record.seconds:6.2f} s  {escape(record.title + reason)}"
        )
        for line in record.tail.splitlines() if fresh else ():
            self._out.print(f"    | {escape(line)}")


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()
