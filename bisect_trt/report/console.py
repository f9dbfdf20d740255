"""What a person sees while it works: on the terminal, in the log file, or as a library's log records.

Names in a model are a stranger's text. Each thing said is one line, and what is not printable stands there by its number: no
name colours a terminal, turns the text around it, or adds a line of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from bisect_trt.errors import UsageError
from bisect_trt.probe.journal import Record
from bisect_trt.probe.ledger import Watcher
from bisect_trt.report.text import plain
from bisect_trt.search.oracle import Verdict

if TYPE_CHECKING:
    from bisect_trt.report.live import LiveView, Screen

Item = TypeVar("Item")
IN_JSON = " (--json lists them)"
STYLES = {Verdict.FAIL: "red", Verdict.PASS: "green", Verdict.UNRESOLVED: "yellow"}
"""Of verdicts, as rich names colours."""


_OTHERWISE = "if that is not your failure, say what is with --fail-regex or --fail-code"
_LOGGER = logging.getLogger("bisect_trt")
_LOGGER.addHandler(logging.NullHandler())  # else warnings would be printed where nobody has set logging up


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


class _Printer:
    """Writes lines: by rich on a terminal, or what is said to be one; as they are anywhere else, where rich adds nothing.

    It takes as long to import as NumPy.
    """

    def __init__(self, *, stderr: bool) -> None:
        self._stderr = stderr

    @cached_property
    def rich(self) -> Screen:
        """The terminal."""
        from bisect_trt.report.live import Screen  # noqa: PLC0415 - as the class says

        return Screen(stderr=self._stderr)

    @property
    def _stream(self) -> TextIO | None:
        """``None`` where it was closed before the process began."""
        return sys.stderr if self._stderr else sys.stdout

    @property
    def is_plain(self) -> bool:
        """Whether there is neither a terminal nor a variable for which rich takes it for one (``FORCE_COLOR``)."""
        terminal = self._stream is not None and self._stream.isatty()
        return not (terminal or os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1")

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Write a line of texts, of which some are pairs with a style."""
        if not self.is_plain:
            from rich.text import Text  # noqa: PLC0415 - as the class says

            self.rich.print(Text.assemble(*parts))
        elif self._stream is not None:
            texts = (part if isinstance(part, str) else part[0] for part in parts)
            try:
                print(*texts, sep="", file=self._stream, flush=True)
            except BrokenPipeError:  # nobody reads any more, which ends the process, as by rich
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
                raise SystemExit(1) from None


class Console:
    """Plain lines off a terminal, coloured ones on it above a live view; ``NO_COLOR`` is honoured.

    Attributes:
        verbosity: -1 only the answer, 0 decisions and probes, 1 reasons too.
        story: What was said, shown or not, for the report.
        view: The live view; ``None`` off a terminal, on a dumb one, and where only the answer is asked for.
    """

    def __init__(self, verbosity: int = 0, *, live: bool = False) -> None:
        """Nothing is shown yet.

        Args:
            verbosity: The number of ``-v`` less that of ``-q``.
            live: Whether to show a live view where there is a terminal for it; needs to be closed.
        """
        self.verbosity = verbosity
        self.story = Story()
        self._out, self._err = _Printer(stderr=False), _Printer(stderr=True)
        self._kinds: set[str] = set()
        self._failed = False
        self._log: LogFile | None = None
        self.view = self._live_view() if live and verbosity >= 0 and not self._out.is_plain else None

    def _live_view(self) -> LiveView | None:
        from bisect_trt.report.live import LiveView, is_live  # noqa: PLC0415 - it takes rich

        return LiveView(self._out.rich) if is_live(self._out.rich) else None

    @property
    def watcher(self) -> Watcher | None:
        """Who looks on while a search runs."""
        return self.view

    def log_to(self, log: LogFile) -> None:
        """Write everything that ``-v`` shows to a file as well, from now on."""
        self._log = log

    def close(self) -> None:
        """Take the live view off the terminal, and close the log file."""
        if self.view is not None:
            self.view.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def stopping(self) -> None:
        """The user has asked to stop; safe in a signal handler."""
        if self.view is not None:
            self.view.stopping = True

    def abandon(self) -> None:
        """The process ends in this moment; safe in a signal handler."""
        if self.view is not None:
            self.view.abandon()

    def note(self, text: str) -> None:
        """For the log file only; a full disk there is no reason to end a search."""
        if self._log is None:
            return
        try:
            self._log.write(text)
        except OSError as error:
            log, self._log = self._log, None
            with contextlib.suppress(OSError):  # what could not be written once
                log.close()
            self.warn(f"the log file {log.path} ends here: {error.strerror}")

    def step(self, text: str) -> None:
        """A step of the flow chart, and what it is for."""
        self.story.step(text)
        text = plain(text)
        self.note(text)
        if self.view is not None:
            self.view.step(text)
        if self.verbosity >= 0:
            self._out.line((text, "bold"))

    def say(self, text: str) -> None:
        """A decision, and why."""
        self.story.say(text)
        text = plain(text)
        self.note(text)
        if self.verbosity >= 0:
            self._out.line(text)

    def answer(self, text: str) -> None:
        """The result; shown however quiet."""
        self.story.answer(text)
        text = plain(text)
        self.note(text)
        self._out.line(text)

    def say_first(self, items: Sequence[Item], most: int, line: Callable[[Item], str], rest: str = "") -> None:
        """Say the first of many; see :func:`listed`."""
        for text in listed(items, most, line, rest):
            self.say(text)

    def answer_first(self, items: Sequence[Item], most: int, line: Callable[[Item], str], rest: str = "") -> None:
        """The same as part of the result."""
        for text in listed(items, most, line, rest):
            self.answer(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int) -> None:
        """The result as a table: the first rows, their columns below each other, and how many more there are."""
        cells = [[plain(str(cell)) for cell in row] for row in (columns, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells[: most + 1], strict=True)]
        for row in cells[: most + 1]:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.answer(f"  {'  '.join(padded)}".rstrip())
        if len(rows) > most:
            self.answer(f"  ... and {len(rows) - most} more{IN_JSON}")

    def warn(self, text: str) -> None:
        """Something the user should know."""
        text = plain(text)
        self.note(f"warning: {text}")
        self._complain(("warning:", "yellow"), f" {text}")

    def error(self, text: str) -> None:
        """Why the run ends."""
        text = plain(text)
        self.note(f"error: {text}")
        self._complain(("error:", "bold red"), f" {text}")

    def probed(self, record: Record) -> None:
        """A probe has ended."""
        self.story.probed(record.number)
        if self.view is not None:
            self.view.probed(record)
        first = record.signature not in self._kinds
        fresh = record.verdict is Verdict.UNRESOLVED and first
        told = record.number == 1 or fresh or (record.verdict is Verdict.FAIL and not self._failed)
        self._failed |= record.verdict is Verdict.FAIL
        self._kinds.add(record.signature)
        tail = [f"    | {plain(line.expandtabs())}" for line in record.tail.splitlines()] if fresh else []
        if record.verdict is Verdict.FAIL and first and record.said:
            tail = [f'  the check said: "{plain(record.said)}"; {_OTHERWISE}']
        before, after = f"  probe {record.number:<3} ", f" {record.seconds:6.2f} s  {plain(record.title)}"
        why = plain(record.reason)
        self.note("\n".join([f"{before}{record.verdict.value:10}{after}  {why}", *tail]))
        if self.verbosity < 0:
            return
        verdict = (f"{record.verdict.value:10}", STYLES[record.verdict])
        reason = f"  {why}" if self.verbosity > 0 or told else ""
        self._out.line(before, verdict, after + reason)
        for line in tail:
            self._out.line(line)

    def _complain(self, *parts: str | tuple[str, str]) -> None:
        """To stderr, which knows nothing of a view on stdout."""
        with contextlib.nullcontext() if self.view is None else self.view.paused():
            self._err.line(*parts)


def listed(items: Sequence[Item], most: int, line: Callable[[Item], str], rest: str = "") -> Iterator[str]:
    """A line for each of the first items, then one that says how many more there are, set in like those.

    Args:
        items: What is listed.
        most: How many of them.
        line: Makes the line of one.
        rest: What to say of the others behind "and N more".
    """
    text = ""
    for item in items[:most]:
        text = line(item)
        yield text
    if len(items) > most:
        yield f"{' ' * (len(text) - len(text.lstrip(' ')))}... and {len(items) - most} more{rest}"


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class QuietConsole(Console):
    """Says everything to the logger ``bisect_trt``: warnings as warnings, the rest as information."""

    def __init__(self) -> None:
        """It keeps the story for the report all the same."""
        super().__init__(-1)

    def note(self, text: str) -> None:
        """A line of any kind but warnings."""
        if not text.startswith(("warning: ", "error: ")):
            _LOGGER.info(text)

    def answer(self, text: str) -> None:
        """The result."""
        self.story.answer(text)
        self.note(plain(text))

    def warn(self, text: str) -> None:
        """Something the user should know."""
        _LOGGER.warning(plain(text))

    def error(self, text: str) -> None:
        """Why the run ends."""
        _LOGGER.error(plain(text))
